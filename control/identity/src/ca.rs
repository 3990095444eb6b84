//! The installation's one certificate authority.
//!
//! Made on the server's first start and kept in its data directory (`ca.pem`, `ca.key` mode 0600).
//! It signs machines' requests, the admin's certificate and the server's own. Requests contribute
//! their public key and nothing else: the subject is what the server says it is.

use std::{
    net::IpAddr,
    path::Path,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use control_api::{ids::NodeRef, session::MachineRole};
use rcgen::{
    BasicConstraints, CertificateParams, CertificateSigningRequestParams, DistinguishedName,
    DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData,
    SanType, SerialNumber,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use crate::{
    KeyHash,
    digest::{self, NoRandomness},
    files::{self, FileError},
    principal::{ADMINS, AGENTS, NODES},
};

/// A DNS name in every server certificate, so that clients who came by an unlisted address
/// (NAT, port forwarding) can still check the name.
pub const SERVER_NAME: &str = "rlark-server";
/// Life of a machine's certificate; it renews at half of it.
pub const MACHINE_LIFE: Duration = Duration::from_secs(7 * 24 * 3600);
/// How long after its expiry a certificate may still be renewed with its own key.
pub const RENEWAL_GRACE: Duration = Duration::from_secs(30 * 24 * 3600);

const CA_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
const ADMIN_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);
const SERVER_LIFE: Duration = Duration::from_secs(90 * 24 * 3600);
/// Machines' clocks differ; certificates start a little in the past.
const CLOCK_SKEW: Duration = Duration::from_secs(10 * 60);

/// Why the authority could not be opened or did not sign.
#[derive(Debug, thiserror::Error)]
pub enum CaError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{dir} holds only one of ca.pem and ca.key; restore the missing one")]
    Incomplete { dir: String },
    #[error("the certificate authority in {dir} cannot be read")]
    Unreadable {
        dir: String,
        #[source]
        source: rcgen::Error,
    },
    #[error("the certificate authority's certificate is malformed")]
    Malformed,
    #[error("the certificate request is malformed or its signature is wrong")]
    BadRequest(#[source] rcgen::Error),
    #[error("making a certificate failed")]
    Sign(#[source] rcgen::Error),
    #[error(transparent)]
    Randomness(#[from] NoRandomness),
}

/// A certificate with its key, as PEM. The key is a secret.
pub struct KeyedCertificate {
    pub certificate_pem: String,
    pub key_pem: String,
}

impl std::fmt::Debug for KeyedCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyedCertificate(..)")
    }
}

/// The authority with its key in memory.
pub struct Authority {
    certificate_pem: String,
    der: CertificateDer<'static>,
    hash: KeyHash,
    issuer: Issuer<'static, KeyPair>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("hash", &self.hash).finish_non_exhaustive()
    }
}

impl Authority {
    /// Opens the authority of a data directory, making it on the first call.
    pub fn open_or_create(dir: &Path) -> Result<Self, CaError> {
        files::private_dir(dir)?;
        let (cert_path, key_path) = (dir.join("ca.pem"), dir.join("ca.key"));
        match (files::read(&cert_path)?, files::read(&key_path)?) {
            (Some(cert), Some(key)) => Self::from_pem(cert, &key, dir),
            // The key is written first: alone it has signed nothing yet and is replaced.
            (None, _) => {
                let (cert, key) = make_ca()?;
                files::write(&key_path, &key, 0o600)?;
                files::write(&cert_path, &cert, 0o644)?;
                Self::from_pem(cert, &key, dir)
            }
            (Some(_), None) => Err(CaError::Incomplete { dir: dir.display().to_string() }),
        }
    }

    fn from_pem(certificate_pem: String, key_pem: &str, dir: &Path) -> Result<Self, CaError> {
        let unreadable = |source| CaError::Unreadable { dir: dir.display().to_string(), source };
        let key = KeyPair::from_pem(key_pem).map_err(unreadable)?;
        let Ok(der) = CertificateDer::from_pem_slice(certificate_pem.as_bytes()) else {
            return Err(CaError::Malformed);
        };
        let hash = spki_hash(&der).ok_or(CaError::Malformed)?;
        if hash != KeyHash::of_spki(&key.subject_public_key_info()) {
            return Err(CaError::Malformed);
        }
        let issuer = Issuer::from_ca_cert_der(&der, key).map_err(unreadable)?;
        Ok(Self { certificate_pem, der, hash, issuer })
    }

    /// The certificate that machines and kubeconfigs trust.
    #[must_use]
    pub fn certificate_pem(&self) -> &str {
        &self.certificate_pem
    }

    #[must_use]
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.der
    }

    /// What join tokens carry, so that a machine knows the authority before it trusts it.
    #[must_use]
    pub fn hash(&self) -> KeyHash {
        self.hash
    }

    /// Signs a machine's request. Of the request only the key is used, after its signature proved
    /// that the machine holds it. Returns the certificate as PEM and the key's fingerprint.
    pub fn sign_machine(
        &self,
        csr_pem: &str,
        role: MachineRole,
        machine: &NodeRef,
    ) -> Result<(String, KeyHash), CaError> {
        let request =
            CertificateSigningRequestParams::from_pem(csr_pem).map_err(CaError::BadRequest)?;
        let organisation = match role {
            MachineRole::Agent => AGENTS,
            MachineRole::Node => NODES,
        };
        let params = leaf(organisation, &machine.to_string(), MACHINE_LIFE)?;
        let hash = KeyHash::of_spki(&request.public_key.subject_public_key_info());
        let certificate =
            params.signed_by(&request.public_key, &self.issuer).map_err(CaError::Sign)?;
        Ok((certificate.pem(), hash))
    }

    /// A key and certificate for a person who may do everything.
    pub fn issue_admin(&self, name: &str) -> Result<KeyedCertificate, CaError> {
        let key = KeyPair::generate().map_err(CaError::Sign)?;
        let params = leaf(ADMINS, name, ADMIN_LIFE)?;
        let certificate = params.signed_by(&key, &self.issuer).map_err(CaError::Sign)?;
        Ok(KeyedCertificate { certificate_pem: certificate.pem(), key_pem: key.serialize_pem() })
    }

    /// A fresh server certificate for `localhost`, the loopback addresses, [`SERVER_NAME`] and
    /// `names` (DNS names or addresses), as a rustls chain that includes the authority itself,
    /// because joining machines look for it there; and its half life.
    pub fn issue_server(&self, names: &[String]) -> Result<ServerCertificate, CaError> {
        let key = KeyPair::generate().map_err(CaError::Sign)?;
        let mut params = leaf("rlark:servers", SERVER_NAME, SERVER_LIFE)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let fixed = [SERVER_NAME, "localhost", "127.0.0.1", "::1"];
        for name in fixed.into_iter().chain(names.iter().map(String::as_str)) {
            let san = match name.parse::<IpAddr>() {
                Ok(ip) => SanType::IpAddress(ip),
                Err(_) => SanType::DnsName(name.try_into().map_err(CaError::Sign)?),
            };
            if !params.subject_alt_names.contains(&san) {
                params.subject_alt_names.push(san);
            }
        }
        let certificate = params.signed_by(&key, &self.issuer).map_err(CaError::Sign)?;
        Ok(ServerCertificate {
            chain: vec![certificate.der().clone(), self.der.clone()],
            key: PrivateKeyDer::Pkcs8(key.serialize_der().into()),
            renew_at: SystemTime::now() + SERVER_LIFE / 2,
        })
    }
}

/// What a TLS listener needs.
#[derive(Debug)]
pub struct ServerCertificate {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
    pub renew_at: SystemTime,
}

/// The fingerprint of a certificate's key; `None` when it is not a certificate.
#[must_use]
pub fn spki_hash(certificate: &CertificateDer<'_>) -> Option<KeyHash> {
    let (_, cert) = X509Certificate::from_der(certificate).ok()?;
    Some(KeyHash::of_spki(cert.public_key().raw))
}

fn make_ca() -> Result<(String, String), CaError> {
    let key = KeyPair::generate().map_err(CaError::Sign)?;
    let mut params = leaf("rlark", "rlark CA", CA_LIFE)?;
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.extended_key_usages = Vec::new();
    let certificate = params.self_signed(&key).map_err(CaError::Sign)?;
    Ok((certificate.pem(), key.serialize_pem()))
}

/// A client certificate's parameters with our subject, a random serial and our validity.
fn leaf(organisation: &str, name: &str, life: Duration) -> Result<CertificateParams, CaError> {
    let mut params = CertificateParams::default();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, organisation);
    subject.push(DnType::CommonName, name);
    params.distinguished_name = subject;
    let mut serial = digest::random::<16>()?;
    // RFC 5280, 4.1.2.2: positive.
    serial[0] &= 0x7f;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    params.not_before = epoch + now.saturating_sub(CLOCK_SKEW);
    params.not_after = epoch + now + life;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params.use_authority_key_identifier_extension = true;
    Ok(params)
}
