//! Why a flow was refused, reset or lost. The code crosses the wire, the text is stable (metrics,
//! `rlark flows`, logs), the errno is what a program would have seen on a LAN.

use std::{fmt, str::FromStr};

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal, $errno:literal;)*) => {
        /// A closed set: an unknown code from a newer peer reads as [`Reason::Protocol`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Reason { $($(#[$doc])* $name,)* }

        impl Reason {
            /// Every reason, in the order of the codes.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The byte on the wire; never 0.
            #[must_use]
            pub fn code(self) -> u8 {
                match self { $(Self::$name => $code,)* }
            }
            /// A code that this version does not know is the peer's mistake.
            #[must_use]
            pub fn from_code(code: u8) -> Self {
                match code { $($code => Self::$name,)* _ => Self::Protocol }
            }
            /// The stable text, such as `refused`.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
            /// The Linux errno (generic numbering: x86, ARM, RISC-V) that says the same.
            #[must_use]
            pub fn errno(self) -> i32 {
                match self { $(Self::$name => $errno,)* }
            }
        }

        impl FromStr for Reason {
            type Err = UnknownReason;
            fn from_str(s: &str) -> Result<Self, UnknownReason> {
                match s { $($text => Ok(Self::$name),)* _ => Err(UnknownReason(s.to_owned())) }
            }
        }
    };
}

reasons! {
    /// Nobody listens there. ECONNREFUSED.
    Refused = 1, "refused", 111;
    /// The pod exists but cannot be reached. EHOSTUNREACH.
    HostUnreachable = 2, "host-unreachable", 113;
    /// No answer in time. ETIMEDOUT.
    Timeout = 3, "timeout", 110;
    /// A policy or a missing identity forbids it. EACCES.
    Denied = 4, "denied", 13;
    /// The target address belongs to no pod of this Domain on the accepting node. EHOSTUNREACH.
    NotHere = 5, "not-here", 113;
    /// The source address belongs to no pod of this Domain on the opening node. EACCES.
    SourceForged = 6, "source-forged", 13;
    /// A limit of flows or bytes is reached. EAGAIN.
    Limit = 7, "limit", 11;
    /// No carrier came back before the flow's deadline. ECONNRESET.
    CarrierLost = 8, "carrier-lost", 104;
    /// The peer process restarted, left the Domain or does not know the flow. ECONNRESET.
    PeerGone = 9, "peer-gone", 104;
    /// The peer broke the protocol. EPROTO.
    Protocol = 10, "protocol", 71;
    /// An application closed with a reset, or its socket failed. ECONNRESET.
    Reset = 11, "reset", 104;
}

impl Reason {
    /// The reason that describes a failed connect(), from its errno.
    #[must_use]
    pub fn from_connect_errno(errno: i32) -> Self {
        match errno {
            111 => Self::Refused,
            110 => Self::Timeout,
            1 | 13 => Self::Denied,
            11 | 23 | 24 | 99 | 105 => Self::Limit,
            _ => Self::HostUnreachable,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A text that names no reason.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{0:?} is not a reason")]
pub struct UnknownReason(pub String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_survives_its_code_and_its_text() {
        for &r in Reason::ALL {
            assert_eq!(Reason::from_code(r.code()), r);
            assert_eq!(r.as_str().parse(), Ok(r));
            assert!(r.code() != 0 && r.errno() > 0);
        }
    }

    #[test]
    fn a_newer_peers_code_is_a_protocol_error() {
        assert_eq!(Reason::from_code(0), Reason::Protocol);
        assert_eq!(Reason::from_code(255), Reason::Protocol);
    }
}
