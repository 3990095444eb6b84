//! What `/proc` says about a namespace's sockets.

use std::{
    fs, io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::fd::BorrowedFd,
};

use crate::netns::{NetnsError, in_netns};

const LISTEN: &str = "0A";

/// The listening TCP sockets of a namespace, for adopting a pod whose listeners are older than the hooks.
///
/// # Errors
/// The namespace cannot be entered, or `/proc` not be read.
pub fn listeners(netns: BorrowedFd<'_>) -> Result<Vec<SocketAddr>, NetnsError> {
    sockets(netns, "tcp", LISTEN)
}

/// The bound, unconnected UDP sockets of a namespace.
///
/// # Errors
/// As [`listeners`].
pub fn udp_sockets(netns: BorrowedFd<'_>) -> Result<Vec<SocketAddr>, NetnsError> {
    const UNCONNECTED: &str = "07";
    sockets(netns, "udp", UNCONNECTED)
}

/// The listening TCP sockets of this process's namespace, each with its inode number, as `/proc/PID/fd` names it.
///
/// # Errors
/// `/proc` cannot be read.
pub fn own_listeners() -> io::Result<Vec<(SocketAddr, u64)>> {
    read("tcp", LISTEN)
}

fn sockets(
    netns: BorrowedFd<'_>,
    protocol: &str,
    wanted: &str,
) -> Result<Vec<SocketAddr>, NetnsError> {
    let found = in_netns(netns, || read(protocol, wanted))?.map_err(NetnsError::Enter)?;
    Ok(found.into_iter().map(|(at, _)| at).collect())
}

fn read(protocol: &str, wanted: &str) -> io::Result<Vec<(SocketAddr, u64)>> {
    let table = format!("/proc/thread-self/net/{protocol}");
    let mut found = parse(&fs::read_to_string(&table)?, wanted);
    // Absent when the kernel has IPv6 off.
    let v6 = fs::read_to_string(table + "6").unwrap_or_default();
    found.extend(parse(&v6, wanted));
    Ok(found)
}

fn parse(table: &str, wanted: &str) -> Vec<(SocketAddr, u64)> {
    let rows = table.lines().skip(1).filter_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let local = fields.next()?;
        let state = fields.nth(1)?;
        if state != wanted {
            return None;
        }
        let inode = fields.nth(5)?.parse().ok()?;
        let (ip, port) = local.split_once(':')?;
        Some((SocketAddr::new(address(ip)?, u16::from_str_radix(port, 16).ok()?), inode))
    });
    rows.collect()
}

/// Words of an address are printed as numbers of the machine's byte order.
fn address(hex: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let digits = hex.get(at * 8..at * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    match hex.len() {
        8 => Some(Ipv4Addr::from(word(0)?).into()),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            let mut octets = [0; 16];
            for (octet, byte) in octets.iter_mut().zip(words.as_flattened()) {
                *octet = *byte;
            }
            Some(Ipv6Addr::from(octets).to_canonical())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::{net::TcpListener, os::fd::AsFd as _};

    use super::*;
    use crate::netns::Netns;

    #[test]
    fn listeners_of_a_namespace_are_found_and_connections_are_not()
    -> Result<(), Box<dyn std::error::Error>> {
        let netns = Netns::anonymous()?;
        let v4 = netns.run(|| TcpListener::bind("127.0.0.3:7001"))??;
        let _v6 = netns.run(|| TcpListener::bind("[::]:7002"))??;
        let to = v4.local_addr()?;
        let _connected = netns.run(|| std::net::TcpStream::connect(to))??;
        let mut found = listeners(netns.as_fd())?;
        found.sort();
        let expected: Vec<SocketAddr> = vec!["127.0.0.3:7001".parse()?, "[::]:7002".parse()?];
        assert_eq!(found, expected);
        let udp = netns.run(|| std::net::UdpSocket::bind("127.0.0.3:7003"))??;
        let connected = netns.run(|| std::net::UdpSocket::bind("127.0.0.3:7004"))??;
        connected.connect(udp.local_addr()?)?;
        assert_eq!(udp_sockets(netns.as_fd())?, [udp.local_addr()?]);
        Ok(())
    }
}
