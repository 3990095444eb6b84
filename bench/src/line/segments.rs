//! Long frames: a sender leaves the cutting of a TCP segment of up to 64 KiB to its device, and so the
//! line sees one frame where a wire would see many. Here it is counted as those many, and cut where
//! some of them are lost.

use std::ops::Range;

/// The kernel's note in front of a frame (`struct virtio_net_hdr`), in the machine's byte order.
pub(super) const NOTE: usize = 10;
const ETHERNET: usize = 14;
const GSO_NONE: u8 = 0;
const GSO_TCPV4: u8 = 1;
const FIN_AND_PSH: u8 = 0x09;
const CWR: u8 = 0x80;

/// How a long frame would be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Cut {
    /// Where the TCP header begins and where it ends, from the frame's start.
    tcp: usize,
    payload: usize,
    /// Payload of each segment but the last.
    size: usize,
    /// How many there are.
    pub(super) count: usize,
}

fn at<const N: usize>(b: &[u8], offset: usize) -> Option<[u8; N]> {
    b.get(offset..offset.checked_add(N)?)?.try_into().ok()
}

fn put<const N: usize>(b: &mut [u8], offset: usize, bytes: [u8; N]) -> Option<()> {
    b.get_mut(offset..offset.checked_add(N)?)?.copy_from_slice(&bytes);
    Some(())
}

fn word(b: &[u8], offset: usize) -> Option<usize> {
    at(b, offset).map(|w| usize::from(u16::from_ne_bytes(w)))
}

/// `None` for a frame that is one packet, and for kinds that no TCP over IPv4 makes.
pub(super) fn cut(noted: &[u8]) -> Option<Cut> {
    let [kind] = at(noted, 1)?;
    // The top bit says that the sender uses congestion marks.
    if kind & 0x7f != GSO_TCPV4 {
        return None;
    }
    let (size, tcp) = (word(noted, 4).filter(|s| *s > 0)?, word(noted, 6)?);
    let frame = noted.get(NOTE..)?;
    let [offset] = at(frame, tcp + 12)?;
    let payload = tcp + usize::from(offset >> 4) * 4;
    let count = frame.len().checked_sub(payload)?.div_ceil(size);
    Some(Cut { tcp, payload, size, count })
}

/// Bytes of the IP packets that a frame is on a wire.
pub(super) fn wire_length(noted: &[u8]) -> usize {
    let whole = noted.len().saturating_sub(NOTE + ETHERNET);
    let headers = |c: Cut| c.payload.saturating_sub(ETHERNET) * c.count.saturating_sub(1);
    whole + cut(noted).map_or(0, headers)
}

/// The frame that holds some of a long frame's segments.
pub(super) fn part(noted: &[u8], c: Cut, segments: &Range<usize>) -> Option<Vec<u8>> {
    let frame = noted.get(NOTE..)?;
    let start = segments.start * c.size;
    let end = frame.len().min(c.payload + segments.end * c.size);
    let mut out = noted.get(..NOTE + c.payload)?.to_vec();
    out.extend_from_slice(frame.get(c.payload + start..end)?);
    if segments.len() < 2 {
        put(&mut out, 1, [GSO_NONE])?;
        put(&mut out, 4, [0, 0])?;
    }
    let f = out.get_mut(NOTE..)?;
    let ip_length = u16::try_from(f.len() - ETHERNET).ok()?;
    let old_length = u16::try_from(frame.len() - ETHERNET).ok()?;
    put(f, ETHERNET + 2, ip_length.to_be_bytes())?;
    let id = u16::from_be_bytes(at(f, ETHERNET + 4)?);
    let id = id.wrapping_add(u16::try_from(segments.start).ok()?);
    put(f, ETHERNET + 4, id.to_be_bytes())?;
    put(f, ETHERNET + 10, [0, 0])?;
    let sum = !fold(sum(f.get(ETHERNET..c.tcp)?));
    put(f, ETHERNET + 10, sum.to_be_bytes())?;

    let sequence = u32::from_be_bytes(at(f, c.tcp + 4)?);
    let sequence = sequence.wrapping_add(u32::try_from(start).ok()?);
    put(f, c.tcp + 4, sequence.to_be_bytes())?;
    let [mut flags] = at(f, c.tcp + 13)?;
    if segments.end < c.count {
        flags &= !FIN_AND_PSH;
    }
    if segments.start > 0 {
        flags &= !CWR;
    }
    put(f, c.tcp + 13, [flags])?;
    // The device that will fill in the checksum starts from that of the addresses and the length.
    let partial = u16::from_be_bytes(at(f, c.tcp + 16)?);
    let partial = fold(u32::from(partial) + u32::from(!old_length) + u32::from(ip_length));
    put(f, c.tcp + 16, partial.to_be_bytes())?;
    Some(out)
}

fn sum(b: &[u8]) -> u32 {
    let words = b.chunks(2).map(|w| match w {
        [a, b] => u32::from(u16::from_be_bytes([*a, *b])),
        [a] => u32::from(*a) << 8,
        _ => 0,
    });
    words.sum()
}

fn fold(mut s: u32) -> u16 {
    while s > 0xffff {
        s = (s >> 16) + (s & 0xffff);
    }
    u16::try_from(s).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 3,000 bytes of payload in segments of 1,448, with all flags set.
    fn long() -> Vec<u8> {
        let mut f = vec![0; NOTE + 14 + 20 + 20];
        f[1] = GSO_TCPV4;
        f[4..6].copy_from_slice(&1448u16.to_ne_bytes());
        f[6..8].copy_from_slice(&34u16.to_ne_bytes());
        f[NOTE + 14] = 0x45;
        f[NOTE + 34 + 4..NOTE + 34 + 8].copy_from_slice(&1000u32.to_be_bytes());
        f[NOTE + 34 + 12] = 0x50;
        f[NOTE + 34 + 13] = 0xff;
        f.extend((0..3000).map(|n| u8::try_from(n % 251).unwrap()));
        let length = u16::try_from(f.len() - NOTE - 14).unwrap();
        f[NOTE + 16..NOTE + 18].copy_from_slice(&length.to_be_bytes());
        f
    }

    #[test]
    fn a_long_frame_counts_as_its_packets() {
        let f = long();
        assert_eq!(cut(&f).unwrap().count, 3);
        assert_eq!(wire_length(&f), 3000 + 3 * 40);
        let mut short = f.clone();
        short[1] = GSO_NONE;
        assert_eq!(cut(&short), None);
        assert_eq!(wire_length(&short), 3040);
    }

    #[test]
    fn a_part_has_its_own_place_length_flags_and_sums() {
        let f = long();
        let c = cut(&f).unwrap();
        let last = part(&f, c, &(1..3)).unwrap();
        let (tcp, payload) = (NOTE + c.tcp, NOTE + c.payload);
        assert_eq!(last[payload..], f[payload + 1448..]);
        assert_eq!(u32::from_be_bytes(at(&last, tcp + 4).unwrap()), 1000 + 1448);
        assert_eq!((last[1], last[tcp + 13]), (GSO_TCPV4, 0x7f));
        let first = part(&f, c, &(0..1)).unwrap();
        assert_eq!((first[1], first[tcp + 13]), (GSO_NONE, 0xf6));
        assert_eq!(first.len(), payload + 1448);
        for p in [&first, &last] {
            assert_eq!(fold(sum(&p[NOTE + 14..tcp])), 0xffff, "the IP header's sum");
            let ip_length = u16::from_be_bytes(at(p, NOTE + 16).unwrap());
            assert_eq!(usize::from(ip_length), p.len() - NOTE - 14);
        }
    }
}
