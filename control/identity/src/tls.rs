//! TLS settings of both ends: which certificates are shown and which are believed.
//!
//! One provider (aws-lc-rs) is named explicitly everywhere, so that nothing depends on a process
//! default.

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::SystemTime,
};

use control_api::session::SESSION_ALPN;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    ServerConfig, SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor, verify_server_name,
    },
    crypto::{CryptoProvider, aws_lc_rs, verify_tls12_signature, verify_tls13_signature},
    server::{
        ClientHello, ParsedCertificate, ResolvesServerCert, WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
    sign::CertifiedKey,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject as _};

use crate::{
    KeyHash,
    ca::{Authority, CaError, RENEWAL_GRACE, spki_hash},
    peer::Peer,
};

/// ALPN of ordinary requests.
pub const HTTP_ALPN: [&[u8]; 2] = [b"h2", b"http/1.1"];

/// Why a TLS configuration could not be made.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error("the {what} is not PEM of the expected kind")]
    Pem { what: &'static str },
    #[error("the TLS configuration was refused")]
    Config(#[source] Error),
    #[error("the client certificate verifier was refused")]
    Verifier(#[source] rustls::server::VerifierBuilderError),
    #[error(transparent)]
    Ca(#[from] CaError),
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

/// A client that trusts `ca_pem` only and shows `identity` (certificate and key PEM) when given.
pub fn client_config(
    ca_pem: &str,
    identity: Option<(&str, &str)>,
    alpn: &[&[u8]],
) -> Result<ClientConfig, TlsError> {
    let mut roots = RootCertStore::empty();
    for cert in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
        let Ok(cert) = cert else { return Err(TlsError::Pem { what: "CA certificate" }) };
        roots.add(cert).map_err(TlsError::Config)?;
    }
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Config)?
        .with_root_certificates(roots);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let Ok(chain) =
                CertificateDer::pem_slice_iter(cert.as_bytes()).collect::<Result<Vec<_>, _>>()
            else {
                return Err(TlsError::Pem { what: "client certificate" });
            };
            let Ok(key) = PrivateKeyDer::from_pem_slice(key.as_bytes()) else {
                return Err(TlsError::Pem { what: "client key" });
            };
            builder.with_client_auth_cert(chain, key).map_err(TlsError::Config)?
        }
    };
    config.alpn_protocols = alpn.iter().map(|p| p.to_vec()).collect();
    Ok(config)
}

/// A client that knows nothing but the fingerprint of the authority's key: it accepts a server
/// whose presented chain contains that authority and verifies against it, and no other.
pub fn pinned_client_config(ca: KeyHash) -> Result<ClientConfig, TlsError> {
    let provider = provider();
    let verifier = PinnedAuthority { ca, provider: Arc::clone(&provider) };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Config)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = HTTP_ALPN.iter().map(|p| p.to_vec()).collect();
    Ok(config)
}

/// Verifies a server by the fingerprint of its authority. A rogue server cannot help but present
/// either another authority (refused: fingerprint) or ours without our signature (refused: chain).
#[derive(Debug)]
struct PinnedAuthority {
    ca: KeyHash,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for PinnedAuthority {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let authority = intermediates
            .iter()
            .find(|c| spki_hash(c) == Some(self.ca))
            .ok_or(Error::InvalidCertificate(CertificateError::UnknownIssuer))?;
        let mut roots = RootCertStore::empty();
        roots.add(authority.clone().into_owned())?;
        let cert = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        verify_server_cert_signed_by_trust_anchor(&cert, &roots, &[], now, algorithms)?;
        verify_server_name(&cert, server_name)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// The listener on 8443: shows a certificate of `authority` for `names` (renewed by itself), asks
/// for a client certificate and accepts none, a valid one, or one that expired within
/// [`RENEWAL_GRACE`], which the caller must treat as good for renewal only ([`Peer::expired`]).
pub fn server_config(
    authority: Arc<Authority>,
    names: Vec<String>,
) -> Result<ServerConfig, TlsError> {
    let provider = provider();
    let mut roots = RootCertStore::empty();
    roots.add(authority.certificate().clone()).map_err(TlsError::Config)?;
    let inner = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
        .allow_unauthenticated()
        .build()
        .map_err(TlsError::Verifier)?;
    let resolver = OwnCertificate::new(authority, names, Arc::clone(&provider))?;
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Config)?
        .with_client_cert_verifier(Arc::new(LenientOnExpiry { inner }))
        .with_cert_resolver(Arc::new(resolver));
    config.alpn_protocols = HTTP_ALPN.iter().chain([&SESSION_ALPN]).map(|p| p.to_vec()).collect();
    // A resumed session would carry a client's certificate past its expiry.
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

/// Re-issues the server's certificate when half of its life is over.
struct OwnCertificate {
    authority: Arc<Authority>,
    names: Vec<String>,
    provider: Arc<CryptoProvider>,
    current: RwLock<(Arc<CertifiedKey>, SystemTime)>,
}

impl std::fmt::Debug for OwnCertificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OwnCertificate").field("names", &self.names).finish_non_exhaustive()
    }
}

impl OwnCertificate {
    fn new(
        authority: Arc<Authority>,
        names: Vec<String>,
        provider: Arc<CryptoProvider>,
    ) -> Result<Self, TlsError> {
        let current = RwLock::new(issue(&authority, &names, &provider)?);
        Ok(Self { authority, names, provider, current })
    }
}

fn issue(
    authority: &Authority,
    names: &[String],
    provider: &CryptoProvider,
) -> Result<(Arc<CertifiedKey>, SystemTime), TlsError> {
    let issued = authority.issue_server(names)?;
    let key =
        CertifiedKey::from_der(issued.chain, issued.key, provider).map_err(TlsError::Config)?;
    Ok((Arc::new(key), issued.renew_at))
}

impl ResolvesServerCert for OwnCertificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let (key, renew_at) = {
            let current = self.current.read().unwrap_or_else(PoisonError::into_inner);
            (Arc::clone(&current.0), current.1)
        };
        if SystemTime::now() < renew_at {
            return Some(key);
        }
        match issue(&self.authority, &self.names, &self.provider) {
            Ok(fresh) => {
                let key = Arc::clone(&fresh.0);
                *self.current.write().unwrap_or_else(PoisonError::into_inner) = fresh;
                Some(key)
            }
            Err(error) => {
                tracing::warn!(%error, "renewing the server certificate failed, the old one stays");
                Some(key)
            }
        }
    }
}

/// Accepts a certificate that would have been good the second before it expired, for the grace
/// period. Everything but the time is checked as always.
#[derive(Debug)]
struct LenientOnExpiry {
    inner: Arc<dyn ClientCertVerifier>,
}

impl ClientCertVerifier for LenientOnExpiry {
    fn offer_client_auth(&self) -> bool {
        self.inner.offer_client_auth()
    }

    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let error = match self.inner.verify_client_cert(end_entity, intermediates, now) {
            Err(
                e @ Error::InvalidCertificate(
                    CertificateError::Expired | CertificateError::ExpiredContext { .. },
                ),
            ) => e,
            other => return other,
        };
        let Ok(peer) = Peer::parse(end_entity) else { return Err(error) };
        let late =
            std::time::Duration::from_secs(now.as_secs()).saturating_sub(unix(peer.not_after));
        if late > RENEWAL_GRACE {
            return Err(error);
        }
        let while_valid = UnixTime::since_unix_epoch(unix(peer.not_after));
        self.inner.verify_client_cert(end_entity, intermediates, while_valid)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

fn unix(time: SystemTime) -> std::time::Duration {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}
