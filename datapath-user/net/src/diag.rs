//! What the kernel knows of the TCP connections of a namespace (`sock_diag`, as `ss -ti` shows it). Asked on demand: connections
//! that nobody asks about cost nothing.

use std::{io, os::fd::BorrowedFd};

use rtnetlink::sys::{Socket, SocketAddr, protocols::NETLINK_SOCK_DIAG};

use crate::netns::visit_netns;

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// NLM_F_REQUEST and NLM_F_DUMP.
const DUMP: u16 = 0x301;
const INET_DIAG_INFO: u16 = 2;
pub(crate) const HEADER: usize = 16;
/// `struct inet_diag_msg`.
pub(crate) const MESSAGE: usize = 72;
pub(crate) const COOKIE: usize = 44;
/// All states but LISTEN, and those without a socket of their own: TIME_WAIT, NEW_SYN_RECV, CLOSE.
const STATES: u32 = 0xfff & !(1 << 10 | 1 << 6 | 1 << 7);
/// In `struct tcp_info`, which only grows at its end.
const RTT: usize = 68;
const TOTAL_RETRANS: usize = 100;
const BYTES_ACKED: usize = 120;
const BYTES_RECEIVED: usize = 128;

/// One connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// `SO_COOKIE`.
    pub cookie: u64,
    /// Smoothed round trip, microseconds; 0: none yet.
    pub rtt_us: u32,
    /// Segments sent again since the start.
    pub retransmits: u32,
    /// Bytes of the application that the other end has, and that came from it; the end of a direction may count as one.
    pub bytes_out: u64,
    pub bytes_in: u64,
}

/// The connections of a namespace, of both address families.
///
/// # Errors
/// Not permitted, or the kernel is without `sock_diag`.
pub fn connections(netns: BorrowedFd<'_>) -> io::Result<Vec<Connection>> {
    let mut socket = visit_netns(netns, || Socket::new(NETLINK_SOCK_DIAG))??;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut found = Vec::new();
    for family in [libc::AF_INET, libc::AF_INET6] {
        let ask = request(family, libc::IPPROTO_TCP, STATES, 1 << (INET_DIAG_INFO - 1))?;
        socket.send(&ask, 0)?;
        while read(&socket.recv_from_full()?.0, &mut found)? {}
    }
    Ok(found)
}

/// `struct nlmsghdr` and `struct inet_diag_req_v2`.
pub(crate) fn request(
    family: i32,
    protocol: i32,
    states: u32,
    extensions: u8,
) -> io::Result<Vec<u8>> {
    let byte = |of: i32| u8::try_from(of).map_err(io::Error::other);
    const LENGTH: u32 = 16 + 56;
    let mut bytes = Vec::with_capacity(LENGTH as usize);
    bytes.extend(LENGTH.to_ne_bytes());
    bytes.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    bytes.extend(DUMP.to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend([byte(family)?, byte(protocol)?, extensions, 0]);
    bytes.extend(states.to_ne_bytes());
    bytes.resize(LENGTH as usize, 0);
    Ok(bytes)
}

/// One datagram of the answer; true: more follow.
fn read(bytes: &[u8], found: &mut Vec<Connection>) -> io::Result<bool> {
    for part in messages(bytes) {
        match part {
            Part::Message(message) => found.extend(connection(message)),
            Part::Error(e) => return Err(e),
            Part::Done => return Ok(false),
        }
    }
    Ok(true)
}

/// Of what the kernel says.
#[derive(Debug)]
pub(crate) enum Part<'a> {
    /// Without its header.
    Message(&'a [u8]),
    Error(io::Error),
    Done,
}

/// The whole messages of a datagram.
pub(crate) fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Part<'_>> {
    std::iter::from_fn(move || {
        let length = usize::try_from(word(bytes, 0)?).ok()?;
        let message = bytes.get(..length).filter(|m| m.len() >= HEADER)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(match half(message, 4) {
            Some(NLMSG_DONE) => Part::Done,
            Some(NLMSG_ERROR) => {
                let errno = word(message, HEADER).unwrap_or_default().cast_signed();
                Part::Error(io::Error::from_raw_os_error(errno.saturating_neg()))
            }
            _ => Part::Message(message.get(HEADER..).unwrap_or_default()),
        })
    })
}

pub(crate) fn cookie(message: &[u8]) -> Option<u64> {
    Some(u64::from(word(message, COOKIE + 4)?) << 32 | u64::from(word(message, COOKIE)?))
}

fn connection(message: &[u8]) -> Option<Connection> {
    let cookie = cookie(message)?;
    let mut rest = message.get(MESSAGE..)?;
    loop {
        let length = usize::from(half(rest, 0)?);
        if half(rest, 2)? == INET_DIAG_INFO {
            let info = rest.get(4..length)?;
            return Some(Connection {
                cookie,
                rtt_us: word(info, RTT)?,
                retransmits: word(info, TOTAL_RETRANS)?,
                // SYN counts as a byte.
                bytes_out: long(info, BYTES_ACKED)?.saturating_sub(1),
                bytes_in: long(info, BYTES_RECEIVED)?,
            });
        }
        rest = rest.get(length.max(4).next_multiple_of(4)..)?;
    }
}

pub(crate) fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn long(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read as _, Write as _},
        net::{TcpListener, TcpStream},
        os::fd::AsFd as _,
    };

    use super::*;
    use crate::{netlink::Netlink, netns::Netns};

    type Tested = Result<(), Box<dyn std::error::Error>>;

    #[test]
    fn a_namespace_tells_of_its_connections_what_went_over_them() -> Tested {
        let netns = Netns::anonymous()?;
        Netlink::in_netns(netns.as_fd())?.set_up("lo")?;
        let listen = || TcpListener::bind("127.0.0.1:0");
        let listener = visit_netns(netns.as_fd(), listen)??;
        let to = listener.local_addr()?;
        let mut client = visit_netns(netns.as_fd(), || TcpStream::connect(to))??;
        let (mut server, _) = listener.accept()?;
        client.write_all(b"question")?;
        let mut got = [0; 8];
        server.read_exact(&mut got)?;
        server.write_all(b"answer")?;
        let mut got = [0; 6];
        client.read_exact(&mut got)?;
        let cookie = rustix::net::sockopt::socket_cookie(&client)?;
        let all = connections(netns.as_fd())?;
        assert_eq!(all.len(), 2, "{all:?}");
        let of_client = all.iter().find(|c| c.cookie == cookie).ok_or("no such cookie")?;
        assert_eq!((of_client.bytes_out, of_client.bytes_in), (8, 6), "{all:?}");
        assert!(of_client.rtt_us > 0 && of_client.retransmits == 0, "{all:?}");
        Ok(())
    }

    #[test]
    fn what_is_cut_short_is_no_connection() {
        let mut found = Vec::new();
        for length in 0..40u32 {
            let mut bytes = vec![0; length as usize];
            if let Some(head) = bytes.first_chunk_mut() {
                *head = length.to_ne_bytes();
            }
            assert!(read(&bytes, &mut found).is_ok());
        }
        assert!(found.is_empty());
    }
}
