//! Frames and their encoding. All integers are big-endian.
//!
//! ```text
//! flow u32 | type u8 | length u24 | payload
//! ```
//!
//! The flow id's top bit tells which side opened it (so both ends may open without asking); the
//! frames of no flow (HELLO, PING, PONG, PACKET, LISTENING) use flow 0. DATA and FIN say their offset, so
//! that a receiver can drop what it already has after a resume: repeating is always safe.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use bytes::{BufMut, Bytes, BytesMut};

use crate::Reason;

/// The version this code speaks; HELLO refuses another.
pub const VERSION: u16 = 1;
/// Bytes before the payload.
pub const HEAD: usize = 8;
/// Head and offset of a DATA frame: what a sender leaves free in front of the bytes it reads.
pub const DATA_HEAD: usize = HEAD + 8;
/// The longest frame, head included: one SSH packet of 65,535 bytes with room for SSH's own words.
pub const MAX_FRAME: usize = 65_535 - 64;
/// The most bytes one DATA frame carries.
pub const MAX_DATA: usize = MAX_FRAME - DATA_HEAD;
/// The bytes that a full DATA frame had better carry: in one SSH packet they fill a segment that the network card divides
/// (whole packets of any usual size, less than 64 KiB together). One byte more, and a packet of its own follows each frame.
pub const GOOD_DATA: usize = 62 * 1024;
/// The most first bytes that an OPEN carries.
pub const MAX_FIRST: usize = 16 * 1024;
/// Bytes in one PACKET.
pub const MAX_PACKET: usize = MAX_FRAME - HEAD;
/// [`Hello::features`]: takes PACKET.
pub const PACKETS: u32 = 1;
/// [`Hello::features`]: takes LISTENING.
pub const LISTENERS: u32 = 2;
/// The longest node name in a HELLO.
pub const MAX_NODE: usize = 320;
/// Set in the flow ids that the greater side opened, see [`side_bit`].
pub const SIDE: u32 = 1 << 31;

const MAGIC: &[u8; 4] = b"RLKW";

/// Frame types on the wire.
pub mod kind {
    pub const HELLO: u8 = 1;
    pub const OPEN: u8 = 2;
    pub const ACCEPT: u8 = 3;
    pub const REJECT: u8 = 4;
    pub const DATA: u8 = 5;
    pub const ACK: u8 = 6;
    pub const CREDIT: u8 = 7;
    pub const FIN: u8 = 8;
    pub const RST: u8 = 9;
    pub const RESUME: u8 = 10;
    pub const RESUMED: u8 = 11;
    pub const PING: u8 = 12;
    pub const PONG: u8 = 13;
    pub const PACKET: u8 = 14;
    pub const LISTENING: u8 = 15;
}

/// The side bit for flows opened by `me` towards `peer`: both ends compute opposite values.
#[must_use]
pub fn side_bit(me: &str, peer: &str) -> u32 {
    if me > peer { SIDE } else { 0 }
}

/// Opens a carrier; the first frame in each direction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub version: u16,
    /// Bits that both sides must know before they use a later addition: [`PACKETS`], [`LISTENERS`].
    pub features: u32,
    /// Drawn when the process starts: another value means that the peer forgot its flows.
    pub epoch: u64,
    /// Who speaks, `cluster/node`. Must be the name that the SSH handshake proved.
    pub node: String,
}

/// Opens a flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// How many carriers the flow was moved to so far, as in RESUME.
    pub generation: u32,
    /// How many bytes the opener may be sent at first.
    pub credit: u64,
    /// Virtual address and port of the client; an IPv4-mapped address is shown as IPv4.
    pub src: SocketAddr,
    pub dst: SocketAddr,
}

/// One frame. `Data`, `Open` and `Packet` borrow their bytes from what was fed into the decoder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    Hello(Hello),
    /// `first` are the bytes from offset 0.
    Open {
        flow: u32,
        open: Open,
        first: &'a [u8],
    },
    /// The target answered; `credit` as in [`Open`].
    Accept {
        flow: u32,
        credit: u64,
    },
    Reject {
        flow: u32,
        reason: Reason,
    },
    Data {
        flow: u32,
        offset: u64,
        bytes: &'a [u8],
    },
    /// Everything before `offset` arrived (FIN counts one).
    Ack {
        flow: u32,
        offset: u64,
    },
    /// The sender may send up to, not including, `limit`. Never shrinks.
    Credit {
        flow: u32,
        limit: u64,
    },
    /// The direction ends at `offset`.
    Fin {
        flow: u32,
        offset: u64,
    },
    /// The flow is over for its sender, whose bytes end before `after`: what of them is still on another carrier, or overtaken in
    /// this one's queue, comes first.
    Rst {
        flow: u32,
        reason: Reason,
        after: u64,
    },
    /// From the opener only: the flow continues here; I have everything before `received`.
    /// `generation` grows with each move, so that a late RESUME from a dying carrier is ignored.
    Resume {
        flow: u32,
        generation: u32,
        received: u64,
        limit: u64,
    },
    /// The answer, with the acceptor's own state.
    Resumed {
        flow: u32,
        generation: u32,
        received: u64,
        limit: u64,
    },
    /// A whole IP packet between two pods of the Domain, of no flow: it may be lost, doubled or late. Only
    /// to a peer whose HELLO has [`PACKETS`].
    Packet {
        bytes: &'a [u8],
    },
    /// At this virtual address, of one of the sender's pods, a TCP socket began to listen (`open`) or the last one ended: known before
    /// anything arrives that the pod sent after it. What is said of an address with a lower `sequence` is older, on whichever
    /// carrier it comes. Only to a peer whose HELLO has [`LISTENERS`].
    Listening {
        sequence: u64,
        at: SocketAddr,
        open: bool,
    },
    Ping {
        token: u64,
    },
    Pong {
        token: u64,
    },
}

fn head(out: &mut BytesMut, flow: u32, kind: u8, len: usize) {
    out.put_u32(flow);
    // A longer payload is cut to the field's 24 bits; no caller makes one (see MAX_FRAME).
    out.put_u32((u32::from(kind) << 24) | (u32::try_from(len).unwrap_or(0) & 0x00ff_ffff));
}

fn put_addr(out: &mut BytesMut, a: SocketAddr) {
    let ip = match a.ip() {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    out.put_slice(&ip.octets());
    out.put_u16(a.port());
}

/// Reads what [`put_addr`] wrote.
pub(crate) fn addr(octets: [u8; 16], port: u16) -> SocketAddr {
    SocketAddr::new(Ipv6Addr::from(octets).to_canonical(), port)
}

/// Fills the [`DATA_HEAD`] bytes in front of `len` bytes that were read from an application.
#[must_use]
pub fn data_head(flow: u32, offset: u64, len: usize) -> [u8; DATA_HEAD] {
    let mut b = [0; DATA_HEAD];
    let mut w = b.as_mut_slice();
    w.put_u32(flow);
    let n = u32::try_from(len + 8).unwrap_or(0) & 0x00ff_ffff;
    w.put_u32((u32::from(kind::DATA) << 24) | n);
    w.put_u64(offset);
    b
}

impl Frame<'_> {
    /// Appends the frame's bytes. `Data` longer than [`MAX_DATA`], first bytes longer than
    /// [`MAX_FIRST`], packets longer than [`MAX_PACKET`] and node names longer than [`MAX_NODE`] are cut: a caller splits before.
    pub fn encode(&self, out: &mut BytesMut) {
        match self {
            Self::Hello(h) => {
                let node = h.node.as_bytes();
                let node = node.get(..MAX_NODE).unwrap_or(node);
                head(out, 0, kind::HELLO, 18 + node.len());
                out.put_slice(MAGIC);
                out.put_u16(h.version);
                out.put_u32(h.features);
                out.put_u64(h.epoch);
                out.put_slice(node);
            }
            Self::Open { flow, open, first } => {
                let first = first.get(..MAX_FIRST).unwrap_or(first);
                head(out, *flow, kind::OPEN, 48 + first.len());
                out.put_u32(open.generation);
                out.put_u64(open.credit);
                put_addr(out, open.src);
                put_addr(out, open.dst);
                out.put_slice(first);
            }
            Self::Data { flow, offset, bytes } => {
                let bytes = bytes.get(..MAX_DATA).unwrap_or(bytes);
                out.put_slice(&data_head(*flow, *offset, bytes.len()));
                out.put_slice(bytes);
            }
            Self::Packet { bytes } => {
                let bytes = bytes.get(..MAX_PACKET).unwrap_or(bytes);
                head(out, 0, kind::PACKET, bytes.len());
                out.put_slice(bytes);
            }
            Self::Listening { sequence, at, open } => {
                head(out, 0, kind::LISTENING, 27);
                out.put_u64(*sequence);
                put_addr(out, *at);
                out.put_u8(u8::from(*open));
            }
            Self::Accept { flow, credit: v } => word(out, *flow, kind::ACCEPT, *v),
            Self::Ack { flow, offset: v } => word(out, *flow, kind::ACK, *v),
            Self::Credit { flow, limit: v } => word(out, *flow, kind::CREDIT, *v),
            Self::Fin { flow, offset: v } => word(out, *flow, kind::FIN, *v),
            Self::Ping { token } => word(out, 0, kind::PING, *token),
            Self::Pong { token } => word(out, 0, kind::PONG, *token),
            Self::Reject { flow, reason } => {
                head(out, *flow, kind::REJECT, 1);
                out.put_u8(reason.code());
            }
            Self::Rst { flow, reason, after } => {
                head(out, *flow, kind::RST, 9);
                out.put_u8(reason.code());
                out.put_u64(*after);
            }
            Self::Resume { flow, generation, received, limit } => {
                position(out, *flow, kind::RESUME, *generation, [*received, *limit]);
            }
            Self::Resumed { flow, generation, received, limit } => {
                position(out, *flow, kind::RESUMED, *generation, [*received, *limit]);
            }
        }
    }

    /// The frame alone.
    #[must_use]
    pub fn to_bytes(&self) -> Bytes {
        let mut b = BytesMut::with_capacity(HEAD + 56);
        self.encode(&mut b);
        b.freeze()
    }
}

fn word(out: &mut BytesMut, flow: u32, kind: u8, value: u64) {
    head(out, flow, kind, 8);
    out.put_u64(value);
}
fn position(out: &mut BytesMut, flow: u32, kind: u8, generation: u32, at: [u64; 2]) {
    head(out, flow, kind, 20);
    out.put_u32(generation);
    for v in at {
        out.put_u64(v);
    }
}

pub(crate) fn magic_is_ours(b: &[u8]) -> bool {
    b == MAGIC
}
