//! What of an IP packet this node looks at: between whom, of which protocol, and of an error what it is about.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use control_api::session::Protocol;

const UDP: u8 = 17;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;
/// RFC 8200, 4.5.
const V6_FRAGMENT: u8 = 44;

/// A packet that two pods may exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub protocol: Protocol,
    /// Ports are zero where the packet has none.
    pub src: SocketAddr,
    pub dst: SocketAddr,
}

/// Reads the header of a UDP datagram, an echo or its answer, a refusal, or a fragment of one. `None`: it is
/// something else, cut short, or an error about somebody else's packet. TCP is not for here: who may send it past
/// the sockets may end others' connections.
#[must_use]
pub fn parse(packet: &[u8]) -> Option<Header> {
    let ip = Ip::parse(packet)?;
    let (src_port, dst_port, protocol) = match ip.protocol {
        UDP if !ip.is_first => (0, 0, Protocol::Udp),
        UDP => (word(ip.payload, 0)?, word(ip.payload, 2)?, Protocol::Udp),
        ICMP | ICMPV6 => {
            if ip.is_first && !is_harmless(&ip) {
                return None;
            }
            (0, 0, Protocol::Icmp)
        }
        _ => return None,
    };
    let (src, dst) = (SocketAddr::new(ip.src, src_port), SocketAddr::new(ip.dst, dst_port));
    Some(Header { protocol, src, dst })
}

/// Echoes, and errors about a packet that the receiver sent to the sender. Redirects, neighbours and routers are
/// matters of a real network.
fn is_harmless(ip: &Ip<'_>) -> bool {
    let Some(kind) = ip.payload.first() else { return false };
    match (ip.protocol, kind) {
        // With timestamps of milliseconds (RFC 792) they ask no more of a host.
        (ICMP, 0 | 8 | 13 | 14) | (ICMPV6, 128 | 129) => true,
        (ICMP, 3 | 11 | 12) | (ICMPV6, 1..=4) => {
            let about = ip.payload.get(8..).and_then(Ip::addresses);
            about == Some((ip.dst, ip.src))
        }
        _ => false,
    }
}

struct Ip<'p> {
    src: IpAddr,
    dst: IpAddr,
    protocol: u8,
    /// Not a later fragment: the payload begins with the protocol's header.
    is_first: bool,
    payload: &'p [u8],
}

impl<'p> Ip<'p> {
    fn parse(packet: &'p [u8]) -> Option<Self> {
        let (src, dst) = Self::addresses(packet)?;
        let whole = |length: u16| usize::from(length) == packet.len();
        if src.is_ipv4() {
            let header = usize::from(packet.first()? & 15) * 4;
            let payload = packet.get(header.max(20)..).filter(|_| header >= 20)?;
            let is_first = word(packet, 6)? & 0x1fff == 0;
            whole(word(packet, 2)?).then_some(())?;
            return Some(Self { src, dst, protocol: *packet.get(9)?, is_first, payload });
        }
        whole(word(packet, 4)?.checked_add(40)?).then_some(())?;
        let (protocol, payload) = (*packet.get(6)?, packet.get(40..)?);
        if protocol != V6_FRAGMENT {
            return Some(Self { src, dst, protocol, is_first: true, payload });
        }
        let is_first = word(payload, 2)? & 0xfff8 == 0;
        Some(Self { src, dst, protocol: *payload.first()?, is_first, payload: payload.get(8..)? })
    }

    /// Source and destination; of a packet that may be cut short.
    fn addresses(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
        let v4 = |at: usize| Some(Ipv4Addr::from(*packet.get(at..)?.first_chunk::<4>()?).into());
        let v6 = |at: usize| Some(Ipv6Addr::from(*packet.get(at..)?.first_chunk::<16>()?).into());
        match packet.first()? >> 4 {
            4 => Some((v4(12)?, v4(16)?)),
            6 => Some((v6(8)?, v6(24)?)),
            _ => None,
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An IPv4 packet (checksums are the kernel's matter).
    pub(crate) fn v4(protocol: u8, src: &str, dst: &str, payload: &[u8]) -> Vec<u8> {
        let mut p = vec![0x45, 0];
        p.extend(u16::try_from(20 + payload.len()).unwrap().to_be_bytes());
        p.extend([0, 1, 0, 0, 64, protocol, 0, 0]);
        p.extend(src.parse::<Ipv4Addr>().unwrap().octets());
        p.extend(dst.parse::<Ipv4Addr>().unwrap().octets());
        p.extend(payload);
        p
    }

    pub(crate) fn udp(src: &str, dst: &str) -> Vec<u8> {
        v4(UDP, src, dst, &[0, 7, 0, 9, 0, 8, 0, 0])
    }

    fn v6(next: u8, payload: &[u8]) -> Vec<u8> {
        let mut p = vec![0x60, 0, 0, 0];
        p.extend(u16::try_from(payload.len()).unwrap().to_be_bytes());
        p.extend([next, 64]);
        p.extend("fd00::1".parse::<Ipv6Addr>().unwrap().octets());
        p.extend("fd00::2".parse::<Ipv6Addr>().unwrap().octets());
        p.extend(payload);
        p
    }

    #[test]
    fn datagrams_show_their_ports() {
        let got = parse(&udp("10.0.0.1", "10.0.0.2")).unwrap();
        assert_eq!(
            (got.src.to_string(), got.dst.to_string()),
            ("10.0.0.1:7".into(), "10.0.0.2:9".into())
        );
        assert_eq!(got.protocol, Protocol::Udp);
        let got = parse(&v6(UDP, &[0, 7, 0, 9, 0, 8, 0, 0])).unwrap();
        assert_eq!(got.dst.to_string(), "[fd00::2]:9");
        let fragment = parse(&v6(V6_FRAGMENT, &[UDP, 0, 0, 8, 0, 0, 0, 1, 1, 1, 1, 1])).unwrap();
        assert_eq!(fragment.dst.port(), 0);
    }

    #[test]
    fn an_error_must_be_about_a_packet_of_its_receiver_to_its_sender() {
        let error = |inner: Vec<u8>| {
            let mut payload = vec![3, 3, 0, 0, 0, 0, 0, 0];
            payload.extend(inner);
            parse(&v4(ICMP, "10.0.0.2", "10.0.0.1", &payload))
        };
        assert!(error(udp("10.0.0.1", "10.0.0.2")).is_some());
        assert!(error(udp("10.0.0.1", "10.0.0.3")).is_none());
        assert!(error(udp("10.0.0.3", "10.0.0.2")).is_none());
        assert!(error(vec![]).is_none());
    }

    #[test]
    fn what_belongs_to_a_real_network_or_to_sockets_is_refused() {
        let redirect = v4(ICMP, "10.0.0.2", "10.0.0.1", &[5, 1, 0, 0, 0, 0, 0, 0]);
        let tcp = v4(6, "10.0.0.2", "10.0.0.1", &[0; 20]);
        let neighbour = v6(ICMPV6, &[136, 0, 0, 0, 0, 0, 0, 0]);
        for packet in [redirect, tcp, neighbour] {
            assert_eq!(parse(&packet), None);
        }
    }

    #[test]
    fn no_cut_makes_it_panic_or_pass() {
        for whole in [udp("10.0.0.1", "10.0.0.2"), v6(UDP, &[0, 7, 0, 9, 0, 8, 0, 0])] {
            for n in 0..whole.len() {
                assert_eq!(parse(whole.get(..n).unwrap()), None, "{n}");
            }
        }
    }

    /// Bytes of any kind, and packets that begin as ours do, so that more than the first check is met.
    fn anything() -> impl Strategy<Value = Vec<u8>> {
        let any_bytes = || prop::collection::vec(any::<u8>(), 0..120);
        let protocol = prop::sample::select(vec![UDP, ICMP, ICMPV6, V6_FRAGMENT, 6]);
        let kind = prop::sample::select(vec![0, 3, 5, 8, 11, 12, 128, 129, 136, UDP, ICMPV6]);
        let payload = (kind, any_bytes()).prop_map(|(kind, rest)| [&[kind], &*rest].concat());
        let fields = prop::collection::vec((0usize..60, any::<u8>()), 0..3);
        let ours =
            (protocol, payload, any::<bool>(), fields).prop_map(|(p, payload, four, set)| {
                let mut packet =
                    if four { v4(p, "10.0.0.2", "10.0.0.1", &payload) } else { v6(p, &payload) };
                for (at, byte) in set {
                    packet.get_mut(at).into_iter().for_each(|b| *b = byte);
                }
                packet
            });
        prop_oneof![1 => any_bytes(), 9 => ours]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]
        #[test]
        fn whatever_passes_says_its_own_length_and_is_no_other_protocol(packet in anything()) {
            let Some(header) = parse(&packet) else { return Ok(()) };
            let (length, protocol) = if header.src.is_ipv4() {
                (usize::from(word(&packet, 2).unwrap()), packet[9])
            } else {
                let next = if packet[6] == V6_FRAGMENT { packet[40] } else { packet[6] };
                (40 + usize::from(word(&packet, 4).unwrap()), next)
            };
            prop_assert_eq!(length, packet.len());
            prop_assert_eq!(header.src.is_ipv4(), header.dst.is_ipv4());
            match header.protocol {
                Protocol::Udp => prop_assert_eq!(protocol, UDP),
                Protocol::Icmp => prop_assert!(protocol == ICMP || protocol == ICMPV6),
                Protocol::Tcp => prop_assert!(false, "TCP is not for here"),
            }
            prop_assert_eq!(parse(&packet[..packet.len() - 1]), None);
            prop_assert_eq!(parse(&[&packet[..], &[0]].concat()), None);
        }
    }
}
