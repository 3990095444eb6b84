//! Ports: what is open at a pod, and what a Domain allows.

use serde::{Deserialize, Serialize};

use crate::ids::DomainName;

/// The ports of a pod that peers can reach. Sorted, each once.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ports {
    /// With a listening TCP socket that its IPv4 VIP leads to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tcp: Vec<u16>,
    /// With one that its IPv6 VIP leads to.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tcp6: Vec<u16>,
    /// With UDP sockets that are bound to a VIP alone, so that the pod's real address does not lead to them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub udp_vip: Vec<u16>,
}

/// What is open at one pod of the reporting node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodPorts {
    pub domain: DomainName,
    pub uid: String,
    pub ports: Ports,
}

/// Ports from `first` to `last`, both included; written `22` or `7000-7999`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortRange {
    pub first: u16,
    pub last: u16,
}

/// A text that is no [`PortRange`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no port from 1 to 65535 and no range such as 7000-7999")]
pub struct NoPortRange(pub String);

impl std::str::FromStr for PortRange {
    type Err = NoPortRange;

    fn from_str(text: &str) -> Result<Self, NoPortRange> {
        let port = |s: &str| {
            let digits = !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
            s.parse().ok().filter(|p| digits && *p > 0)
        };
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (port(first), port(last)) {
            (Some(first), Some(last)) if first <= last => Ok(Self { first, last }),
            _ => Err(NoPortRange(text.to_owned())),
        }
    }
}

impl std::fmt::Display for PortRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

impl PortRange {
    #[must_use]
    pub const fn contains(self, port: u16) -> bool {
        self.first <= port && port <= self.last
    }
}

impl Serialize for PortRange {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PortRange {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_written_as_it_is_read() {
        for good in ["22", "7000-7999", "1-65535"] {
            assert_eq!(good.parse::<PortRange>().unwrap().to_string(), good);
        }
        let range: PortRange = "7000-7999".parse().unwrap();
        assert!([7000, 7500, 7999].into_iter().all(|p| range.contains(p)));
        assert!(!range.contains(6999) && !range.contains(8000));
        for bad in ["", "0", "-", "1-", "-1", "+1", "9-8", "65536", "1-2-3", "1 - 2", "http"] {
            let message = bad.parse::<PortRange>().unwrap_err().to_string();
            assert!(message.contains(&format!("{bad:?}")), "{message}");
        }
    }
}
