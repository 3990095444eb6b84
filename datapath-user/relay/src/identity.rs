//! Who is who: certificates of a Domain, checked by both sides during the SSH handshake.

use std::{
    borrow::Cow,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use control_api::ids::{DomainName, NodeRef};
use russh::{
    Limits, MethodKind, MethodSet, Preferred, cipher, client, compression,
    keys::{Algorithm, Certificate, HashAlg, PrivateKey, ssh_key::Fingerprint},
    server,
};

use crate::api::{DomainIdentity, RelayError};

/// At least twice the bandwidth-delay product of a lane, since russh gives more when half of it is used: 1 Gbit/s over
/// a quarter of a second. It is no back-pressure, and costs no memory.
const WINDOW: u32 = 64 << 20;
const PACKET: u32 = 65_535;
/// AES-GCM with SSH's 64-bit invocation counter is good for far more; a rekey pauses the carrier.
const REKEY_BYTES: usize = 32 << 30;

/// A [`DomainIdentity`], checked, with what SSH needs ready made.
pub(crate) struct Identity {
    pub(crate) key: Arc<PrivateKey>,
    pub(crate) certificate: Certificate,
    pub(crate) ca: Fingerprint,
    pub(crate) client: Arc<client::Config>,
    pub(crate) server: Arc<server::Config>,
}

impl Identity {
    /// Checks that the certificate is for `me` and the key; whether it is valid *now* is the
    /// peer's to judge (clocks differ).
    pub(crate) fn new(
        domain: &DomainName,
        me: &NodeRef,
        i: DomainIdentity,
    ) -> Result<Self, RelayError> {
        let bad = |why| RelayError::BadIdentity { domain: domain.clone(), why };
        if i.key.public_key().key_data() != i.certificate.public_key() {
            return Err(bad("it is for another key"));
        }
        let ca = i.ca.fingerprint(HashAlg::Sha256);
        if i.certificate.signature_key().fingerprint(HashAlg::Sha256) != ca {
            return Err(bad("another authority signed it"));
        }
        if i.certificate.valid_principals() != [me.to_string()] {
            return Err(bad("its principal is not this node"));
        }
        let algorithm = i.key.algorithm();
        let preferred = preferred(&algorithm);
        let limits = Limits {
            rekey_write_limit: REKEY_BYTES,
            rekey_read_limit: REKEY_BYTES,
            rekey_time_limit: Duration::from_secs(3600),
        };
        let client = client::Config {
            preferred: preferred.clone(),
            limits: limits.clone(),
            window_size: WINDOW,
            maximum_packet_size: PACKET,
            nodelay: true,
            ..Default::default()
        };
        let server = server::Config {
            keys: vec![i.key.clone()],
            certificates: vec![i.certificate.clone()],
            methods: MethodSet::from(&[MethodKind::PublicKey][..]),
            max_auth_attempts: 2,
            auth_rejection_time: Duration::from_millis(50),
            preferred,
            limits,
            window_size: WINDOW,
            maximum_packet_size: PACKET,
            inactivity_timeout: None,
            nodelay: true,
            ..Default::default()
        };
        Ok(Self {
            key: Arc::new(i.key),
            certificate: i.certificate,
            ca,
            client: Arc::new(client),
            server: Arc::new(server),
        })
    }
}

fn preferred(key: &Algorithm) -> Preferred {
    Preferred {
        // The fastest where AES is in hardware; ChaCha20 costs 2.6 times as much here.
        cipher: Cow::Owned(vec![cipher::AES_128_GCM]),
        compression: Cow::Owned(vec![compression::NONE]),
        key: Cow::Owned(vec![key.clone()]),
        host_key_certificates: Cow::Owned(vec![key.clone()]),
        ..Preferred::default()
    }
}

/// Checks a peer's certificate: the Domain's authority signed it, it is valid now, and it names
/// `peer` and nobody else. Possession of the key is SSH's part. Returns when it ends.
pub(crate) fn verify(
    certificate: &Certificate,
    ca: &Fingerprint,
    peer: &NodeRef,
) -> Result<SystemTime, &'static str> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    if now < certificate.valid_after() || now >= certificate.valid_before() {
        return Err("its certificate is not valid now");
    }
    if certificate.validate_at(now, [ca]).is_err() {
        return Err("its certificate is not signed by the domain's authority");
    }
    // An empty list would mean "anybody".
    if certificate.valid_principals() != [peer.to_string()] {
        return Err("its certificate names another node");
    }
    if certificate.critical_options().iter().next().is_some() {
        return Err("its certificate has options that are not understood");
    }
    Ok(certificate
        .valid_before_time()
        .unwrap_or_else(|| UNIX_EPOCH + Duration::from_secs(u64::from(u32::MAX))))
}
