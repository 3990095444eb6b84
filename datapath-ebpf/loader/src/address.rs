//! Between `std::net` and the maps' four words.

use std::net::{IpAddr, Ipv6Addr};

use datapath_abi::Ip;

/// The v4-mapped words of an address.
pub(crate) fn words(address: IpAddr) -> Ip {
    let v6 = match address {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    };
    from_bits(v6.to_bits())
}

/// The address of four words.
pub(crate) fn address(words: &Ip) -> IpAddr {
    let [a, b, c, d] = words.map(|w| u128::from(u32::from_be(w)));
    Ipv6Addr::from_bits(a << 96 | b << 64 | c << 32 | d).to_canonical()
}

/// The mask of a prefix that is `length` bits long in the address's own family.
pub(crate) fn mask(family_of: IpAddr, length: u8) -> Ip {
    let skipped = if family_of.is_ipv4() { 96 } else { 0 };
    let ones = skipped + u32::from(length);
    from_bits(u128::MAX.checked_shl(128 - ones.min(128)).unwrap_or(0))
}

#[expect(clippy::cast_possible_truncation, reason = "each shift leaves one word")]
fn from_bits(bits: u128) -> Ip {
    [96, 64, 32, 0].map(|shift| ((bits >> shift) as u32).to_be())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_the_words() {
        assert_eq!(words(crate::ANY_V6_ONLY), datapath_abi::ANY_V6_ONLY);
        for text in ["10.2.0.4", "0.0.0.0", "fd00:2::5", "255.255.255.255"] {
            let Ok(ip) = text.parse::<IpAddr>() else { panic!("{text}") };
            assert_eq!(address(&words(ip)), ip);
        }
    }

    #[test]
    fn a_v4_mask_keeps_the_mapped_prefix() {
        let v4 = IpAddr::from([10, 2, 0, 4]);
        assert_eq!(address(&mask(v4, 24).map(|w| !w)), "::ff".parse::<IpAddr>().unwrap_or(v4));
        assert_eq!(mask(v4, 0), [u32::MAX, u32::MAX, u32::MAX, 0]);
        let v6 = IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(mask(v6, 0), [0; 4]);
        assert_eq!(mask(v6, 128), [u32::MAX; 4]);
    }
}
