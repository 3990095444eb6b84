//! The header of an IP packet that a peer or a pod sends, as `rlark-node` reads it. Its file is included alone, and what
//! it takes from `control-api` is written down here: that crate brings half of the control plane.
#![no_main]

extern crate self as control_api;

use std::net::{IpAddr, SocketAddr};

use libfuzzer_sys::fuzz_target;
use session::Protocol;

#[path = "../../../node/src/packets/header.rs"]
mod header;

/// As in `control_api::session`.
pub mod session {
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Protocol {
        Udp,
        Icmp,
    }
}

fn address(bytes: &[u8]) -> IpAddr {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).map(IpAddr::from),
        _ => <[u8; 16]>::try_from(bytes).map(IpAddr::from),
    }
    .expect("the address's own length")
}

fuzz_target!(|packet: &[u8]| {
    let Some(h) = header::parse(packet) else { return };
    // What is let through is what the target's kernel will read: its length, addresses and protocol.
    let (length, protocol, src, dst) = if packet[0] >> 4 == 4 {
        (
            usize::from(packet[2]) << 8 | usize::from(packet[3]),
            packet[9],
            &packet[12..16],
            &packet[16..20],
        )
    } else {
        let next = if packet[6] == 44 { packet[40] } else { packet[6] };
        (
            40 + (usize::from(packet[4]) << 8 | usize::from(packet[5])),
            next,
            &packet[8..24],
            &packet[24..40],
        )
    };
    assert_eq!(length, packet.len());
    assert_eq!((h.src.ip(), h.dst.ip()), (address(src), address(dst)));
    match h.protocol {
        Protocol::Udp => assert_eq!(protocol, 17),
        Protocol::Icmp => assert!(protocol == 1 || protocol == 58),
    }
    let ports = |a: SocketAddr| a.port();
    assert!(h.protocol == Protocol::Udp || (ports(h.src), ports(h.dst)) == (0, 0));
    // Nothing that is cut, and nothing with more behind it.
    assert_eq!(header::parse(&packet[..packet.len() - 1]), None);
    assert_eq!(header::parse(&[packet, &[0]].concat()), None);
});
