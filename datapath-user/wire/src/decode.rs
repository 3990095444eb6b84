//! The demultiplexer's front: any split of the byte stream in, whole frames out.
//!
//! Memory is bounded by one frame. What a peer can do wrong is a [`WireError`], after which the
//! carrier must be closed: the stream has no way to find the next frame.

use bytes::{Buf, BytesMut};

use crate::{
    Reason,
    frame::{
        self, Frame, HEAD, Hello, MAX_FIRST, MAX_FRAME, MAX_NODE, MAX_PACKET, Open, VERSION, kind,
    },
};

/// Why a byte stream is not ours.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum WireError {
    #[error("a frame of type {kind} and {len} bytes is longer than allowed")]
    TooLong { kind: u8, len: usize },
    #[error("frame type {kind} is unknown")]
    UnknownType { kind: u8 },
    #[error("a frame of type {kind} has {len} bytes, which do not hold its fields")]
    Malformed { kind: u8, len: usize },
    #[error("a frame of type {kind} belongs to flow {flow}, which it cannot")]
    WrongFlow { kind: u8, flow: u32 },
    #[error("HELLO speaks version {version}, we speak {VERSION}")]
    Version { version: u16 },
    #[error("the first frame is not HELLO")]
    NoHello,
    #[error("a second HELLO")]
    SecondHello,
}

/// Splits a stream into frames. The first must be HELLO and only the first may be.
#[derive(Debug, Default)]
pub struct Decoder {
    partial: BytesMut,
    greeted: bool,
    failed: Option<WireError>,
}

impl Decoder {
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Hands every frame that `input` completes to `sink`, in order. Frames that lie whole within
    /// `input` are not copied.
    ///
    /// # Errors
    /// The first violation; later calls return it again and look at nothing.
    pub fn feed(
        &mut self,
        mut input: &[u8],
        mut sink: impl FnMut(Frame<'_>),
    ) -> Result<(), WireError> {
        if let Some(e) = &self.failed {
            return Err(e.clone());
        }
        let r = self.consume(&mut input, &mut sink);
        if let Err(e) = &r {
            self.failed = Some(e.clone());
            self.partial = BytesMut::new();
        }
        r
    }

    fn consume(
        &mut self,
        input: &mut &[u8],
        sink: &mut impl FnMut(Frame<'_>),
    ) -> Result<(), WireError> {
        while !self.partial.is_empty() {
            // Complete the head first: only it says how much to take.
            if self.partial.len() < HEAD && !self.take(input, HEAD) {
                return Ok(());
            }
            let total = HEAD + Head::parse(&self.partial)?.map_or(0, |h| h.len);
            if !self.take(input, total) {
                return Ok(());
            }
            let whole = std::mem::take(&mut self.partial);
            self.one(&whole, sink)?;
        }
        loop {
            let total = match Head::parse(input)? {
                Some(h) => HEAD + h.len,
                None => usize::MAX,
            };
            let Some((whole, rest)) = input.split_at_checked(total) else { break };
            self.one(whole, sink)?;
            *input = rest;
        }
        self.partial.extend_from_slice(input);
        Ok(())
    }

    /// Moves bytes until `partial` has `total`; false when `input` ended before.
    fn take(&mut self, input: &mut &[u8], total: usize) -> bool {
        let want = total.saturating_sub(self.partial.len());
        let (now, rest) = input.split_at(want.min(input.len()));
        self.partial.extend_from_slice(now);
        *input = rest;
        now.len() == want
    }

    fn one(&mut self, whole: &[u8], sink: &mut impl FnMut(Frame<'_>)) -> Result<(), WireError> {
        let Some(h) = Head::parse(whole)? else { return Ok(()) };
        let f = h.frame(whole.get(HEAD..).unwrap_or_default())?;
        match (&f, self.greeted) {
            (Frame::Hello(_), false) => self.greeted = true,
            (Frame::Hello(_), true) => return Err(WireError::SecondHello),
            (_, false) => return Err(WireError::NoHello),
            (_, true) => {}
        }
        sink(f);
        Ok(())
    }
}

struct Head {
    flow: u32,
    kind: u8,
    len: usize,
}

impl Head {
    /// `None`: fewer than [`HEAD`] bytes. Refuses unknown types and impossible lengths before
    /// anything is buffered.
    fn parse(b: &[u8]) -> Result<Option<Self>, WireError> {
        let mut b = b;
        let (Ok(flow), Ok(word)) = (b.try_get_u32(), b.try_get_u32()) else { return Ok(None) };
        let (kind, len) = ((word >> 24) as u8, (word & 0x00ff_ffff) as usize);
        let (least, most) = match kind {
            kind::HELLO => (18, 18 + MAX_NODE),
            kind::OPEN => (48, 48 + MAX_FIRST),
            kind::DATA => (9, MAX_FRAME - HEAD),
            kind::ACCEPT | kind::ACK | kind::CREDIT | kind::FIN | kind::PING | kind::PONG => (8, 8),
            // The shortest header that an IP packet can have.
            kind::PACKET => (20, MAX_PACKET),
            kind::LISTENING => (27, 27),
            kind::REJECT => (1, 1),
            kind::RST => (9, 9),
            kind::RESUME | kind::RESUMED => (20, 20),
            _ => return Err(WireError::UnknownType { kind }),
        };
        if len > most {
            return Err(WireError::TooLong { kind, len });
        }
        if len < least {
            return Err(WireError::Malformed { kind, len });
        }
        let carrier =
            matches!(kind, kind::HELLO | kind::PING | kind::PONG | kind::PACKET | kind::LISTENING);
        if carrier != (flow == 0) {
            return Err(WireError::WrongFlow { kind, flow });
        }
        Ok(Some(Self { flow, kind, len }))
    }

    fn frame<'a>(&self, payload: &'a [u8]) -> Result<Frame<'a>, WireError> {
        let malformed = WireError::Malformed { kind: self.kind, len: self.len };
        if self.kind == kind::HELLO {
            return hello(payload).ok_or(malformed)?;
        }
        self.fields(payload).ok_or(malformed)
    }

    fn fields<'a>(&self, mut p: &'a [u8]) -> Option<Frame<'a>> {
        let flow = self.flow;
        Some(match self.kind {
            kind::OPEN => {
                let (generation, credit) = (p.try_get_u32().ok()?, p.try_get_u64().ok()?);
                let (src, dst) = (address(&mut p)?, address(&mut p)?);
                Frame::Open { flow, open: Open { generation, credit, src, dst }, first: p }
            }
            kind::DATA => Frame::Data { flow, offset: p.try_get_u64().ok()?, bytes: p },
            kind::ACCEPT => Frame::Accept { flow, credit: p.try_get_u64().ok()? },
            kind::ACK => Frame::Ack { flow, offset: p.try_get_u64().ok()? },
            kind::CREDIT => Frame::Credit { flow, limit: p.try_get_u64().ok()? },
            kind::FIN => Frame::Fin { flow, offset: p.try_get_u64().ok()? },
            kind::PING => Frame::Ping { token: p.try_get_u64().ok()? },
            kind::PACKET => Frame::Packet { bytes: p },
            kind::LISTENING => {
                let (sequence, at) = (p.try_get_u64().ok()?, address(&mut p)?);
                Frame::Listening { sequence, at, open: p.try_get_u8().ok()? != 0 }
            }
            kind::PONG => Frame::Pong { token: p.try_get_u64().ok()? },
            kind::REJECT => Frame::Reject { flow, reason: Reason::from_code(p.try_get_u8().ok()?) },
            kind::RST => {
                let reason = Reason::from_code(p.try_get_u8().ok()?);
                Frame::Rst { flow, reason, after: p.try_get_u64().ok()? }
            }
            kind::RESUME | kind::RESUMED => {
                let generation = p.try_get_u32().ok()?;
                let (received, limit) = (p.try_get_u64().ok()?, p.try_get_u64().ok()?);
                if self.kind == kind::RESUME {
                    Frame::Resume { flow, generation, received, limit }
                } else {
                    Frame::Resumed { flow, generation, received, limit }
                }
            }
            _ => return None,
        })
    }
}

fn hello(mut p: &[u8]) -> Option<Result<Frame<'_>, WireError>> {
    let (magic, rest) = p.split_at_checked(4)?;
    if !frame::magic_is_ours(magic) {
        return None;
    }
    p = rest;
    let version = p.try_get_u16().ok()?;
    if version != VERSION {
        return Some(Err(WireError::Version { version }));
    }
    let (features, epoch) = (p.try_get_u32().ok()?, p.try_get_u64().ok()?);
    let node = std::str::from_utf8(p).ok()?.to_owned();
    Some(Ok(Frame::Hello(Hello { version, features, epoch, node })))
}

fn address(p: &mut &[u8]) -> Option<std::net::SocketAddr> {
    let (octets, rest) = p.split_first_chunk::<16>()?;
    *p = rest;
    Some(frame::addr(*octets, p.try_get_u16().ok()?))
}
