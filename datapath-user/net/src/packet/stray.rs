//! Datagrams for the Domain's network that a program sends out of `lo`: it answers "by the interface on which it came"
//! (`IP_PKTINFO` as it was received, as QUIC servers do), and what arrives from elsewhere came over `lo`. No route leads such a packet
//! to the interface of the network, so it is read where it arrives instead. The guard drops the original. IPv4 alone: IPv6's
//! kernel lets routes decide.
#![expect(unsafe_code, reason = "a filter and an option that no crate here names")]

use std::{
    io,
    net::Ipv4Addr,
    os::fd::{AsFd as _, AsRawFd as _, OwnedFd},
};

use socket2::{Domain, SockFilter, Socket, Type};

use super::{TAP_BUFFER, packet_address};

/// In front of a frame (`struct virtio_net_hdr`), as its sender left its segments undivided.
const VIRTIO: usize = 10;
const ETHERNET: usize = 14;
const IP: usize = 20;
const UDP: usize = 8;
/// `VIRTIO_NET_HDR_GSO_UDP_L4`.
const BY_UDP: u8 = 5;

/// Reads those of the pod with this address to others of the network.
pub(super) fn open(own: Ipv4Addr, network: Ipv4Addr, prefix: u8) -> io::Result<OwnedFd> {
    let kind = Type::RAW.nonblocking();
    let socket = Socket::new(Domain::PACKET, kind, None)?;
    let lo = rustix::net::netdevice::name_to_index(socket.as_fd(), "lo")?;
    socket.attach_filter(&filter(own, network, prefix))?;
    let on: libc::c_int = 1;
    let size = libc::socklen_t::try_from(size_of_val(&on)).map_err(io::Error::other)?;
    // SAFETY: the pointer is to a number that lives through the call, and the size is its.
    let done = unsafe {
        let value = (&raw const on).cast();
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_PACKET, libc::PACKET_VNET_HDR, value, size)
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    // Of one protocol: such sockets see what arrives, and nothing twice.
    socket.bind(&packet_address(lo, libc::ETH_P_IP)?)?;
    socket.set_recv_buffer_size(TAP_BUFFER)?;
    Ok(socket.into())
}

/// Classic BPF over the frame, see `linux/filter.h`.
fn filter(own: Ipv4Addr, network: Ipv4Addr, prefix: u8) -> [SockFilter; 10] {
    const LOAD_BYTE: u16 = 0x30;
    const LOAD_WORD: u16 = 0x20;
    const AND: u16 = 0x54;
    const IS: u16 = 0x15;
    const RETURN: u16 = 0x06;
    // A jump's two numbers say how many instructions are skipped when it is so, and when not.
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
    let at = |offset: u32| 14 + offset; // behind the link's header
    [
        SockFilter::new(LOAD_BYTE, 0, 0, at(9)),
        SockFilter::new(IS, 0, 7, 17),
        SockFilter::new(LOAD_WORD, 0, 0, at(12)),
        SockFilter::new(IS, 0, 5, own.to_bits()),
        SockFilter::new(LOAD_WORD, 0, 0, at(16)),
        SockFilter::new(IS, 3, 0, own.to_bits()),
        SockFilter::new(AND, 0, 0, mask),
        SockFilter::new(IS, 0, 1, network.to_bits() & mask),
        SockFilter::new(RETURN, 0, 0, u32::MAX),
        SockFilter::new(RETURN, 0, 0, 0),
    ]
}

/// The datagrams in what [`open`]'s socket gives, whole and one by one. Nothing for what is none.
pub(super) fn packets(frame: &[u8]) -> Option<Vec<Vec<u8>>> {
    let (virtio, rest) = frame.split_at_checked(VIRTIO)?;
    let packet = rest.get(ETHERNET..)?;
    let head = usize::from(packet.first()? & 0x0f) * 4;
    let ip = packet.get(..head).filter(|ip| ip.len() >= IP)?;
    let udp = packet.get(head..head + UDP)?;
    let payload = packet.get(head + UDP..)?;
    let word = |at: usize| Some(u16::from_ne_bytes([*virtio.get(at)?, *virtio.get(at + 1)?]));
    let each = match virtio.get(1)? {
        &BY_UDP => usize::from(word(4)?).max(1),
        _ => payload.len().max(1),
    };
    let parts: Vec<&[u8]> =
        if payload.is_empty() { vec![payload] } else { payload.chunks(each).collect() };
    let whole = |(number, part): (usize, &[u8])| {
        let mut ip = ip.to_vec();
        put(&mut ip, 2, u16::try_from(head + UDP + part.len()).ok()?);
        let id = u16::from_be_bytes([*ip.get(4)?, *ip.get(5)?]);
        put(&mut ip, 4, id.wrapping_add(u16::try_from(number).ok()?));
        put(&mut ip, 10, 0);
        let sum = checksum(&ip);
        put(&mut ip, 10, sum);
        let mut udp = udp.to_vec();
        put(&mut udp, 4, u16::try_from(UDP + part.len()).ok()?);
        // None: over `lo` it is not computed, and IPv4 does not need it (RFC 768). A carrier loses no bits.
        put(&mut udp, 6, 0);
        Some([&ip, &udp, part].concat())
    };
    parts.into_iter().enumerate().map(whole).collect()
}

fn put(to: &mut [u8], at: usize, value: u16) {
    if let Some(place) = to.get_mut(at..at + 2) {
        place.copy_from_slice(&value.to_be_bytes());
    }
}

/// Of an IP header (RFC 1071).
fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks(2).map(|w| {
        let high = u32::from(w.first().copied().unwrap_or(0)) << 8;
        high | u32::from(w.get(1).copied().unwrap_or(0))
    });
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    !u16::try_from((folded & 0xffff) + (folded >> 16)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(gso: (u8, u16), payload: &[u8]) -> Vec<u8> {
        let mut all = vec![1, gso.0, 0, 0];
        all.extend(gso.1.to_ne_bytes());
        all.extend([0; 4 + ETHERNET]);
        all.extend([0x45, 0, 0, 0, 0xff, 0xff, 0x40, 0, 64, 17, 0, 0, 10, 2, 0, 1, 10, 2, 0, 2]);
        all.extend([0x13, 0x88, 0x13, 0x89, 0, 0, 0xab, 0xcd]);
        all.extend(payload);
        all
    }

    #[test]
    fn a_datagram_is_made_whole_and_a_train_of_them_is_divided() {
        let one = packets(&frame((0, 0), b"hello")).unwrap();
        let want: [u8; 33] = [
            0x45, 0, 0, 33, 0xff, 0xff, 0x40, 0, 64, 17, 0x26, 0xc6, 10, 2, 0, 1, 10, 2, 0, 2,
            0x13, 0x88, 0x13, 0x89, 0, 13, 0, 0, b'h', b'e', b'l', b'l', b'o',
        ];
        assert_eq!(one, [want]);
        let train = packets(&frame((BY_UDP, 4), b"abcdefghi")).unwrap();
        let payloads: Vec<&[u8]> = train.iter().map(|p| &p[IP + UDP..]).collect();
        assert_eq!(payloads, [&b"abcd"[..], b"efgh", b"i"]);
        for packet in &train {
            assert_eq!(usize::from(u16::from_be_bytes([packet[2], packet[3]])), packet.len());
            assert_eq!(
                checksum(&packet[..IP]),
                0,
                "with its sum in it a header sums up to nothing"
            );
        }
        assert_ne!(train[0][4..6], train[1][4..6]);
        assert_eq!(packets(&frame((0, 0), b"")).unwrap()[0].len(), IP + UDP);
    }

    #[test]
    fn what_is_cut_short_is_nothing() {
        let whole = frame((0, 0), b"hello");
        for length in 0..VIRTIO + ETHERNET + IP + UDP {
            assert_eq!(packets(&whole[..length]), None, "{length}");
        }
    }
}
