//! What a client certificate says: the principal, the key and the validity.
//!
//! Called after the TLS layer has checked the chain ([`crate::tls`]), and by machines on their own
//! certificate.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use control_api::{
    ids::{NameError, NodeRef},
    session::MachineRole,
};
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::{
    KeyHash,
    principal::{ADMINS, AGENTS, NODES, Principal},
};

/// A verified certificate's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    pub principal: Principal,
    /// Of the certificate's public key.
    pub key: KeyHash,
    pub not_before: SystemTime,
    pub not_after: SystemTime,
}

/// Why a certificate of our own authority names nobody.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    #[error("the client certificate is not an X.509 certificate")]
    NotACertificate,
    #[error("the client certificate's subject must have exactly one O and one CN")]
    Subject,
    #[error("the client certificate's CN is not CLUSTER/NAME")]
    Name(#[source] NameError),
}

impl Peer {
    /// Reads a certificate whose chain has been verified.
    pub fn parse(der: &CertificateDer<'_>) -> Result<Self, PeerError> {
        // The parser's error says where in the bytes it gave up, which helps nobody.
        let Ok((_, cert)) = X509Certificate::from_der(der) else {
            return Err(PeerError::NotACertificate);
        };
        let subject = cert.subject();
        let organisation =
            only(subject.iter_organization().map(|o| o.as_str().unwrap_or_default()))?;
        let name = only(subject.iter_common_name().map(|o| o.as_str().unwrap_or_default()))?;
        let machine = || name.parse::<NodeRef>().map_err(PeerError::Name);
        let principal = match organisation {
            ADMINS => Principal::Admin { name: name.to_owned() },
            AGENTS => Principal::Agent(machine()?),
            NODES => Principal::Node(machine()?),
            other => Principal::User { name: name.to_owned(), groups: vec![other.to_owned()] },
        };
        let validity = cert.validity();
        Ok(Self {
            principal,
            key: KeyHash::of_spki(cert.public_key().raw),
            not_before: from_unix(validity.not_before.timestamp()),
            not_after: from_unix(validity.not_after.timestamp()),
        })
    }

    /// The machine behind the certificate, if it is one's.
    #[must_use]
    pub fn machine(&self) -> Option<(MachineRole, &NodeRef)> {
        match &self.principal {
            Principal::Agent(n) => Some((MachineRole::Agent, n)),
            Principal::Node(n) => Some((MachineRole::Node, n)),
            _ => None,
        }
    }

    /// Whether the certificate is over at `now`. An expired one is good for renewal only.
    #[must_use]
    pub fn expired(&self, now: SystemTime) -> bool {
        now > self.not_after
    }

    /// When a holder should renew: the middle of the validity.
    #[must_use]
    pub fn half_life(&self) -> SystemTime {
        let life = self.not_after.duration_since(self.not_before).unwrap_or_default();
        self.not_before + life / 2
    }
}

/// The groups and names of a subject must be unambiguous: exactly one of each.
fn only<'a>(mut values: impl Iterator<Item = &'a str>) -> Result<&'a str, PeerError> {
    match (values.next(), values.next()) {
        (Some(one), None) if !one.is_empty() => Ok(one),
        _ => Err(PeerError::Subject),
    }
}

fn from_unix(seconds: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}
