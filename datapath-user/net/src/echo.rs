//! One echo request from inside a namespace, and how long its answer takes.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::{BorrowedFd, OwnedFd},
    time::{Duration, Instant},
};

use rustix::net::{RecvFlags, recv};
use socket2::{Domain, Protocol, Socket, Type};

use crate::{netns::visit_netns, ready::Ready};

const PAYLOAD: &[u8] = b"rlark doctor";
const HEAD: usize = 8;

/// Asks `to` from the namespace's own address `from`, and waits for the answer; the caller limits how long. Must be called inside a
/// runtime.
///
/// # Errors
/// The namespace has no way to `to`, or the caller no CAP_NET_RAW.
pub async fn echo(
    netns: BorrowedFd<'_>,
    from: IpAddr,
    to: IpAddr,
    identifier: u16,
) -> io::Result<Duration> {
    let v4 = to.is_ipv4();
    let socket = visit_netns(netns, || {
        let (domain, protocol) =
            if v4 { (Domain::IPV4, Protocol::ICMPV4) } else { (Domain::IPV6, Protocol::ICMPV6) };
        Socket::new(domain, Type::RAW.nonblocking(), Some(protocol))
    })??;
    socket.bind(&SocketAddr::new(from, 0).into())?;
    let request = request(v4, identifier);
    let started = Instant::now();
    socket.send_to(&request, &SocketAddr::new(to, 0).into())?;
    let socket: OwnedFd = socket.into();
    let ready = Ready::new(socket.try_clone()?)?;
    let mut buffer = [0; 1500];
    let answered = || loop {
        match recv(&socket, &mut buffer, RecvFlags::empty()) {
            Ok((n, _)) => {
                let packet = buffer.get(..n).unwrap_or_default();
                if is_answer(v4, packet, to, identifier) {
                    return Some(Ok(()));
                }
            }
            Err(rustix::io::Errno::WOULDBLOCK) => return None,
            Err(e) => return Some(Err(e.into())),
        }
    };
    ready.until(answered).await?.map(|()| started.elapsed())
}

/// The kernel fills in the checksum of ICMPv6 alone.
fn request(v4: bool, identifier: u16) -> Vec<u8> {
    let mut bytes = vec![if v4 { 8 } else { 128 }, 0, 0, 0];
    bytes.extend(identifier.to_be_bytes());
    bytes.extend(1u16.to_be_bytes());
    bytes.extend(PAYLOAD);
    if v4 && let Some(sum) = bytes.get(..).map(checksum) {
        for (to, byte) in bytes.iter_mut().skip(2).zip(sum.to_be_bytes()) {
            *to = byte;
        }
    }
    bytes
}

/// Of RFC 1071; an even number of bytes.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks_exact(2).map(|w| w.iter().fold(0, |sum, b| sum << 8 | u32::from(*b)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or_default()
}

/// A raw socket sees the namespace's whole ICMP, with the IP header in front for IPv4.
fn is_answer(v4: bool, packet: &[u8], to: IpAddr, identifier: u16) -> bool {
    let icmp = match (v4, to) {
        (true, IpAddr::V4(to)) => {
            let head = packet.first().map_or(0, |b| usize::from(b & 15) * 4);
            if packet.get(12..16) != Some(&to.octets()) {
                return false;
            }
            packet.get(head..)
        }
        _ => Some(packet),
    };
    let kind = if v4 { 0 } else { 129 };
    icmp.is_some_and(|icmp| {
        icmp.first() == Some(&kind)
            && icmp.get(4..6) == Some(&identifier.to_be_bytes())
            && icmp.get(HEAD..) == Some(PAYLOAD)
    })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use super::*;
    use crate::{netlink::Netlink, netns::Netns};

    #[tokio::test]
    async fn a_namespace_answers_itself() -> Result<(), Box<dyn std::error::Error>> {
        let netns = Netns::anonymous()?;
        Netlink::in_netns(netns.as_fd())?.set_up("lo")?;
        for address in ["127.0.0.1", "::1"] {
            let ip = address.parse()?;
            let asked = echo(netns.as_fd(), ip, ip, 7);
            let took = tokio::time::timeout(Duration::from_secs(5), asked).await??;
            assert!(took < Duration::from_secs(1), "{address}: {took:?}");
        }
        Ok(())
    }

    #[tokio::test]
    async fn without_a_way_there_is_an_error_at_once() -> Result<(), Box<dyn std::error::Error>> {
        let netns = Netns::anonymous()?;
        Netlink::in_netns(netns.as_fd())?.set_up("lo")?;
        let asked = echo(netns.as_fd(), "127.0.0.1".parse()?, "10.9.9.9".parse()?, 7);
        assert!(tokio::time::timeout(Duration::from_secs(5), asked).await?.is_err());
        Ok(())
    }

    #[test]
    fn another_programs_echo_is_no_answer() {
        let mut packet = vec![0x45; 20];
        for (to, byte) in packet.iter_mut().skip(12).zip([10, 0, 0, 2]) {
            *to = byte;
        }
        packet.extend(request(true, 7));
        packet[20] = 0;
        let to = "10.0.0.2".parse().unwrap();
        assert!(is_answer(true, &packet, to, 7));
        assert!(!is_answer(true, &packet, to, 8));
        assert!(!is_answer(true, &packet, "10.0.0.3".parse().unwrap(), 7));
    }
}
