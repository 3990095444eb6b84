//! The sockets of a namespace that others can reach, and their ends (`sock_diag` and its destroy groups): for those that are
//! older than the hooks, which would see both.

use std::{
    io,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    os::fd::{AsFd, BorrowedFd},
};

use rtnetlink::sys::{Socket, SocketAddr as NetlinkAddr, protocols::NETLINK_SOCK_DIAG};
use socket2::{SockFilter, SockRef};

use crate::{
    diag::{COOKIE, HEADER, MESSAGE, Part, cookie, half, messages, request},
    netns::visit_netns,
};

/// `SKNLGRP_INET_TCP_DESTROY`, `_INET_UDP_`, `_INET6_TCP_` and `_INET6_UDP_`.
const GROUPS: [u32; 4] = [1, 2, 3, 4];
const INET_DIAG_SKV6ONLY: u16 = 11;
const LISTEN: u32 = 1 << 10;
/// What UDP sockets without a peer are in.
const CLOSE: u32 = 1 << 7;
/// `id.idiag_sport`, `_dport` and `_src` of `struct inet_diag_msg`.
const PORT: usize = 4;
const PEER_PORT: usize = 6;
const SOURCE: usize = 8;

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bound {
    /// An address of IPv4 is written as one.
    pub at: SocketAddr,
    /// Takes no IPv4 though it is bound to any address.
    pub only_v6: bool,
    /// `SO_COOKIE`.
    pub cookie: u64,
}

/// What ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The socket with this cookie.
    Socket(u64),
    /// Some, and there was no room to tell which.
    Some,
}

/// A namespace's sockets; ends are told from its making on. Its descriptor is readable when there is one.
pub struct Sockets {
    ask: Socket,
    ends: Socket,
    told: Vec<u64>,
    buffer: Vec<u8>,
}

impl std::fmt::Debug for Sockets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sockets(..)")
    }
}

impl AsFd for Sockets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ends.as_fd()
    }
}

impl Sockets {
    /// # Errors
    /// Not permitted, or the kernel is without `sock_diag`.
    pub fn open(netns: BorrowedFd<'_>) -> io::Result<Self> {
        let make = || Socket::new(NETLINK_SOCK_DIAG);
        let (mut ask, mut ends) = visit_netns(netns, || Ok::<_, io::Error>((make()?, make()?)))??;
        ask.bind_auto()?;
        ask.connect(&NetlinkAddr::new(0, 0))?;
        ends.bind_auto()?;
        ends.set_non_blocking(true)?;
        SockRef::from(&ends).attach_filter(&without_peer())?;
        for group in GROUPS {
            ends.add_membership(group)?;
        }
        Ok(Self { ask, ends, told: Vec::new(), buffer: Vec::with_capacity(64 << 10) })
    }

    /// TCP sockets that listen.
    ///
    /// # Errors
    /// The kernel lacks what tells it.
    pub fn listeners(&self) -> io::Result<Vec<Bound>> {
        self.all(libc::IPPROTO_TCP, LISTEN)
    }

    /// UDP sockets without a peer.
    ///
    /// # Errors
    /// The kernel lacks what tells it.
    pub fn datagrams(&self) -> io::Result<Vec<Bound>> {
        self.all(libc::IPPROTO_UDP, CLOSE)
    }

    fn all(&self, protocol: i32, states: u32) -> io::Result<Vec<Bound>> {
        let mut found = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            self.ask.send(&request(family, protocol, states, 0)?, 0)?;
            loop {
                let answer = self.ask.recv_from_full()?.0;
                let mut more = true;
                for part in messages(&answer) {
                    match part {
                        Part::Message(message) => found.extend(bound(message)),
                        Part::Error(e) => return Err(e),
                        Part::Done => more = false,
                    }
                }
                if !more {
                    break;
                }
            }
        }
        Ok(found)
    }

    /// The next end that was told; `None`: none for now.
    pub fn ended(&mut self) -> Option<Ended> {
        loop {
            if let Some(cookie) = self.told.pop() {
                return Some(Ended::Socket(cookie));
            }
            self.buffer.clear();
            match self.ends.recv(&mut self.buffer, libc::MSG_DONTWAIT) {
                Ok(_) => {
                    let told = messages(&self.buffer).filter_map(|part| match part {
                        Part::Message(message) => cookie(message),
                        Part::Error(_) | Part::Done => None,
                    });
                    self.told.extend(told);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return None,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                // ENOBUFS: more than the socket's buffer holds. What else it may say, something may have been missed.
                Err(_) => return Some(Ended::Some),
            }
        }
    }
}

/// Passes sockets without a peer: connections end by the thousand, and nobody waits for word of them.
fn without_peer() -> [SockFilter; 4] {
    const LOAD_HALF: u16 = 0x28;
    const JUMP_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let at = u32::try_from(HEADER + PEER_PORT).unwrap_or_default();
    [
        SockFilter::new(LOAD_HALF, 0, 0, at),
        SockFilter::new(JUMP_EQUAL, 0, 1, 0),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
        SockFilter::new(RETURN, 0, 0, 0),
    ]
}

/// `struct inet_diag_msg` and its attributes.
fn bound(message: &[u8]) -> Option<Bound> {
    let cookie = cookie(message)?;
    let port = u16::from_be_bytes(*message.get(PORT..)?.first_chunk()?);
    let source: [u8; 16] = *message.get(SOURCE..)?.first_chunk()?;
    let ip = if i32::from(*message.first()?) == libc::AF_INET {
        let [a, b, c, d, ..] = source;
        IpAddr::from([a, b, c, d])
    } else {
        Ipv6Addr::from(source).to_canonical()
    };
    let mut only_v6 = false;
    let mut rest = message.get(MESSAGE..)?;
    while let Some(length) = half(rest, 0).map(usize::from) {
        if half(rest, 2) == Some(INET_DIAG_SKV6ONLY) {
            only_v6 = rest.get(4).is_some_and(|value| *value != 0);
        }
        rest = rest.get(length.max(4).next_multiple_of(4)..).unwrap_or_default();
    }
    Some(Bound { at: SocketAddr::new(ip, port), only_v6, cookie })
}

const _: () = assert!(COOKIE + 8 <= MESSAGE);

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream, UdpSocket};

    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use socket2::{Domain, Type};

    use super::*;
    use crate::netns::Netns;

    type Tested = Result<(), Box<dyn std::error::Error>>;

    fn waits(sockets: &Sockets) -> io::Result<bool> {
        let long = Timespec { tv_sec: 3, tv_nsec: 0 };
        Ok(poll(&mut [PollFd::new(sockets, PollFlags::IN)], Some(&long))? == 1)
    }

    #[test]
    fn listeners_are_found_with_their_family_and_their_ends_are_told() -> Tested {
        let netns = Netns::anonymous()?;
        let listen = |at: &'static str| netns.run(move || TcpListener::bind(at));
        let (v4, _both) = (listen("127.0.0.3:7001")??, listen("[::]:7002")??);
        let only = netns.run(|| -> io::Result<_> {
            let socket = socket2::Socket::new(Domain::IPV6, Type::STREAM, None)?;
            socket.set_only_v6(true)?;
            socket.bind(&"[::]:7003".parse::<SocketAddr>().map_err(io::Error::other)?.into())?;
            socket.listen(8)?;
            Ok(socket)
        })??;
        let udp = netns.run(|| UdpSocket::bind("127.0.0.3:7004"))??;
        let mut sockets = Sockets::open(netns.as_fd())?;
        let mut found = sockets.listeners()?;
        found.sort();
        let listed: Vec<_> = found.iter().map(|b| (b.at.to_string(), b.only_v6)).collect();
        let want = [("127.0.0.3:7001", false), ("[::]:7002", false), ("[::]:7003", true)];
        assert_eq!(listed, want.map(|(at, only)| (at.to_owned(), only)));
        let datagrams = sockets.datagrams()?;
        assert_eq!(datagrams.iter().map(|b| b.at).collect::<Vec<_>>(), [udp.local_addr()?]);

        // Connections are not told, though they end first.
        let to = v4.local_addr()?;
        for _ in 0..10 {
            drop(netns.run(|| TcpStream::connect(to))??);
            drop(v4.accept()?);
        }
        drop((only, udp));
        let mut ends = Vec::new();
        while ends.len() < 2 {
            assert!(waits(&sockets)?, "{ends:?}");
            ends.extend(std::iter::from_fn(|| sockets.ended()));
        }
        let mut want: Vec<u64> = found.iter().filter(|b| b.only_v6).map(|b| b.cookie).collect();
        want.extend(datagrams.iter().map(|b| b.cookie));
        for cookie in want {
            assert!(ends.contains(&Ended::Socket(cookie)), "{cookie} in {ends:?}");
        }
        assert_eq!((ends.len(), sockets.listeners()?.len()), (2, 2));
        Ok(())
    }

    #[test]
    fn more_ends_than_there_is_room_for_are_told_as_some() -> Tested {
        let netns = Netns::anonymous()?;
        let mut sockets = Sockets::open(netns.as_fd())?;
        SockRef::from(&sockets.ends).set_recv_buffer_size(4096)?;
        for _ in 0..100 {
            drop(netns.run(|| TcpListener::bind("127.0.0.3:0"))??);
        }
        let mut ends = Vec::new();
        while !ends.contains(&Ended::Some) {
            assert!(waits(&sockets)?, "{ends:?}");
            ends.extend(std::iter::from_fn(|| sockets.ended()));
        }
        Ok(())
    }
}
