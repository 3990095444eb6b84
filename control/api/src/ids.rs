//! Names parsed once at the edge, so that inner code cannot mix up a cluster and a node.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// Why a text is not a name.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum NameError {
    #[error("a {kind} name is empty")]
    Empty { kind: &'static str },
    #[error("{kind} name {name:?} is longer than {max} characters")]
    TooLong { kind: &'static str, name: String, max: usize },
    #[error(
        "{kind} name {name:?} must consist of lower-case letters, digits, '-' or '.', \
         and start and end with a letter or digit"
    )]
    Syntax { kind: &'static str, name: String },
    #[error("{text:?} is not CLUSTER/NODE")]
    NotANodeRef { text: String },
}

/// RFC 1123: a subdomain (dots allowed) or a label.
fn check(kind: &'static str, name: &str, max: usize, dots: bool) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty { kind });
    }
    if name.len() > max {
        return Err(NameError::TooLong { kind, name: name.to_owned(), max });
    }
    let alphanumeric = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
    let label = |l: &str| {
        let b = l.as_bytes();
        b.first().copied().is_some_and(alphanumeric)
            && b.last().copied().is_some_and(alphanumeric)
            && b.iter().all(|&c| alphanumeric(c) || c == b'-')
    };
    let good = if dots { name.split('.').all(label) } else { label(name) };
    if good { Ok(()) } else { Err(NameError::Syntax { kind, name: name.to_owned() }) }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $kind:literal, $max:literal, $dots:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }
        impl FromStr for $name {
            type Err = NameError;
            fn from_str(s: &str) -> Result<Self, NameError> {
                check($kind, s, $max, $dots)?;
                Ok(Self(s.to_owned()))
            }
        }
        impl TryFrom<String> for $name {
            type Error = NameError;
            fn try_from(s: String) -> Result<Self, NameError> {
                check($kind, &s, $max, $dots)?;
                Ok(Self(s))
            }
        }
        impl From<$name> for String {
            fn from(n: $name) -> Self {
                n.0
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name!(
    /// A site: one data-plane cluster, Docker host or bare machine group with one agent.
    /// At most 57 characters, so that the namespace `rlark-<cluster>` is a DNS label.
    ClusterId, "cluster", 57, false
);
name!(
    /// A Domain's name: a DNS label, because host names contain it.
    DomainName, "domain", 63, false
);
name!(
    /// A machine within a site. Dots are usual here (cloud host names).
    NodeName, "node", 253, true
);

impl ClusterId {
    /// The control-plane namespace that holds this site's objects.
    #[must_use]
    pub fn namespace(&self) -> String {
        format!("{}{}", NAMESPACE_PREFIX, self.0)
    }

    /// The site that owns `namespace`, if it is a site's namespace.
    #[must_use]
    pub fn from_namespace(namespace: &str) -> Option<Self> {
        namespace.strip_prefix(NAMESPACE_PREFIX)?.parse().ok()
    }
}

/// Namespaces of sites are this plus the cluster id.
pub const NAMESPACE_PREFIX: &str = "rlark-";

/// One machine of the whole installation, written `cluster/node`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeRef {
    pub cluster: ClusterId,
    pub node: NodeName,
}

impl fmt::Display for NodeRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.cluster, self.node)
    }
}
impl FromStr for NodeRef {
    type Err = NameError;
    fn from_str(s: &str) -> Result<Self, NameError> {
        let (cluster, node) =
            s.split_once('/').ok_or_else(|| NameError::NotANodeRef { text: s.to_owned() })?;
        Ok(Self { cluster: cluster.parse()?, node: node.parse()? })
    }
}
impl TryFrom<String> for NodeRef {
    type Error = NameError;
    fn try_from(s: String) -> Result<Self, NameError> {
        s.parse()
    }
}
impl From<NodeRef> for String {
    fn from(n: NodeRef) -> Self {
        n.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked_where_they_enter() {
        assert!("gpu-01.eu.example".parse::<NodeName>().is_ok());
        assert!("gpu-01.eu".parse::<ClusterId>().is_err());
        assert!("-a".parse::<DomainName>().is_err());
        assert!("".parse::<DomainName>().is_err());
        assert!("A".parse::<NodeName>().is_err());
        assert!("a..b".parse::<NodeName>().is_err());
        assert!("x".repeat(58).parse::<ClusterId>().is_err());
    }

    #[test]
    fn a_node_name_with_dots_survives_the_round_trip() {
        let n: NodeRef = "site-a/ip-10-0-1-2.region.internal".parse().unwrap();
        assert_eq!(n.node.as_str(), "ip-10-0-1-2.region.internal");
        assert_eq!(n.to_string().parse::<NodeRef>().unwrap(), n);
    }

    #[test]
    fn a_site_and_its_namespace_name_each_other() {
        let c: ClusterId = "beijing".parse().unwrap();
        assert_eq!(c.namespace(), "rlark-beijing");
        assert_eq!(ClusterId::from_namespace("rlark-beijing"), Some(c));
        assert_eq!(ClusterId::from_namespace("default"), None);
    }
}
