//! Subnets: of one address family, and of a Domain.

use std::{fmt, net::IpAddr};

/// A subnet in CIDR form.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Cidr {
    /// Host bits are zero.
    network: IpAddr,
    prefix: u8,
}

/// Why a text is not a subnet.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CidrError {
    #[error("a subnet such as 10.0.1.0/24 is needed, but the field is empty")]
    Empty,
    #[error("{text:?} is not ADDRESS/PREFIX, such as 10.0.1.0/24 or fd00::/64")]
    Syntax { text: String },
    #[error("{text:?} has a prefix longer than {max} bits")]
    Prefix { text: String, max: u8 },
    #[error("{text:?} is not a subnet that pods can have: {what}")]
    Reserved { text: String, what: &'static str },
    #[error(
        "{text:?} has more than one subnet of a family; one of IPv4, one of IPv6, or both are possible"
    )]
    Family { text: String },
}

impl Cidr {
    #[must_use]
    pub const fn network(&self) -> IpAddr {
        self.network
    }
    #[must_use]
    pub const fn prefix_len(&self) -> u8 {
        self.prefix
    }
    /// Bits of an address of this family.
    #[must_use]
    pub const fn width(&self) -> u8 {
        match self.network {
            IpAddr::V4(_) => 32,
            IpAddr::V6(_) => 128,
        }
    }
    #[must_use]
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.network.is_ipv4() == ip.is_ipv4() && masked(ip, self.prefix) == self.network
    }
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.contains(other.network) || other.contains(self.network)
    }
}

fn masked(ip: IpAddr, prefix: u8) -> IpAddr {
    match ip {
        IpAddr::V4(ip) => {
            let mask = u32::MAX.checked_shl(u32::from(32_u8.saturating_sub(prefix))).unwrap_or(0);
            IpAddr::V4((u32::from(ip) & mask).into())
        }
        IpAddr::V6(ip) => {
            let mask = u128::MAX.checked_shl(u32::from(128_u8.saturating_sub(prefix))).unwrap_or(0);
            IpAddr::V6((u128::from(ip) & mask).into())
        }
    }
}

impl std::str::FromStr for Cidr {
    type Err = CidrError;
    /// Host bits may be set, as Go's `net.ParseCIDR` allows; they are dropped.
    fn from_str(text: &str) -> Result<Self, CidrError> {
        if text.is_empty() {
            return Err(CidrError::Empty);
        }
        let syntax = |_| CidrError::Syntax { text: text.to_owned() };
        let (ip, prefix) =
            text.split_once('/').ok_or_else(|| CidrError::Syntax { text: text.to_owned() })?;
        if prefix.is_empty() || !prefix.bytes().all(|b| b.is_ascii_digit()) {
            return Err(CidrError::Syntax { text: text.to_owned() });
        }
        let ip: IpAddr = ip.parse().map_err(|e: std::net::AddrParseError| syntax(e))?;
        let max = if ip.is_ipv4() { 32 } else { 128 };
        let prefix: u8 = prefix.parse().unwrap_or(u8::MAX);
        if prefix > max {
            return Err(CidrError::Prefix { text: text.to_owned(), max });
        }
        let network = masked(ip, prefix);
        let what = if network.is_loopback() {
            Some("loopback")
        } else if network.is_multicast() {
            Some("multicast")
        } else if network.is_unspecified() {
            Some("it starts at the unspecified address")
        } else if matches!(network, IpAddr::V6(v6) if v6.is_unicast_link_local()) {
            Some("link-local")
        } else if matches!(network, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some()) {
            Some("IPv4 addresses are written as such")
        } else {
            None
        };
        match what {
            Some(what) => Err(CidrError::Reserved { text: text.to_owned(), what }),
            None => Ok(Self { network, prefix }),
        }
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.network, self.prefix)
    }
}

/// The subnets of a Domain: one, or one of each address family, written `10.0.1.0/24,fd00:1::/64`. Of a pod's two addresses the
/// one in the first subnet is its first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Subnets {
    first: Cidr,
    /// Of the other family.
    second: Option<Cidr>,
}

impl Subnets {
    pub fn iter(&self) -> impl Iterator<Item = &Cidr> {
        std::iter::once(&self.first).chain(&self.second)
    }
    /// The one that this address is in.
    #[must_use]
    pub fn of(&self, ip: IpAddr) -> Option<&Cidr> {
        self.iter().find(|cidr| cidr.contains(ip))
    }
    /// The first pair of one of these and one of the others that overlap: the other.
    #[must_use]
    pub fn overlapping(&self, others: &Self) -> Option<Cidr> {
        others.iter().find(|other| self.iter().any(|own| own.overlaps(other))).copied()
    }
}

impl From<Cidr> for Subnets {
    fn from(first: Cidr) -> Self {
        Self { first, second: None }
    }
}

impl std::str::FromStr for Subnets {
    type Err = CidrError;
    fn from_str(text: &str) -> Result<Self, CidrError> {
        let Some((first, second)) = text.split_once(',') else {
            return text.trim().parse().map(Cidr::into);
        };
        if second.contains(',') {
            return Err(CidrError::Family { text: text.to_owned() });
        }
        let (first, second): (Cidr, Cidr) = (first.trim().parse()?, second.trim().parse()?);
        if first.network.is_ipv4() == second.network.is_ipv4() {
            return Err(CidrError::Family { text: text.to_owned() });
        }
        Ok(Self { first, second: Some(second) })
    }
}

impl fmt::Display for Subnets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.first.fmt(f)?;
        self.second.iter().try_for_each(|second| write!(f, ",{second}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subnets_are_parsed_and_normalised() {
        let c: Cidr = "10.0.1.7/24".parse().unwrap();
        assert_eq!(c.to_string(), "10.0.1.0/24");
        assert!(c.contains("10.0.1.255".parse().unwrap()));
        assert!(!c.contains("10.0.2.0".parse().unwrap()));
        assert!(c.overlaps(&"10.0.0.0/8".parse().unwrap()));
        assert!(!c.overlaps(&"10.0.2.0/24".parse().unwrap()));
        assert!(!c.overlaps(&"fd00::/8".parse().unwrap()));
        for bad in [
            "",
            "10.0.0.0",
            "10.0.0.0/33",
            "10.0.0/8",
            "x/8",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "127.0.0.0/8",
            "224.0.0.0/4",
            "0.0.0.0/0",
        ] {
            assert!(bad.parse::<Cidr>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_domain_has_one_subnet_or_one_of_each_family() {
        for good in
            ["10.0.1.0/24", "fd00:1::/64", "10.0.1.0/24,fd00:1::/64", "fd00:1::/64,10.0.1.0/24"]
        {
            assert_eq!(good.parse::<Subnets>().unwrap().to_string(), good);
        }
        let both: Subnets = " 10.0.1.9/24, fd00:1::9/64 ".parse().unwrap();
        assert_eq!(both.to_string(), "10.0.1.0/24,fd00:1::/64");
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(both.of(ip("fd00:1::7")).unwrap().prefix_len(), 64);
        assert_eq!(both.of(ip("fd00:2::7")), None);
        let other: Subnets = "10.9.0.0/24,fd00::/16".parse().unwrap();
        assert_eq!(both.overlapping(&other).unwrap().to_string(), "fd00::/16");
        assert_eq!(both.overlapping(&"10.9.0.0/24".parse().unwrap()), None);
        for bad in ["fe80::/64", "::ffff:10.0.1.0/120"] {
            assert!(matches!(bad.parse::<Subnets>(), Err(CidrError::Reserved { .. })), "{bad}");
        }
        for bad in [
            "",
            ",",
            "10.0.1.0/24,",
            "10.0.1.0/24,10.0.2.0/24",
            "fd00::/64,fd01::/64",
            "10.0.1.0/24,fd00::/64,fd01::/64",
        ] {
            assert!(bad.parse::<Subnets>().is_err(), "{bad:?}");
        }
    }
}
