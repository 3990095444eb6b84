//! A machine's own identity: enrolment with a join token, storage, renewal, and the clients that
//! speak with it. Used by `rlark-agent` and `rlark-node`.
//!
//! ```text
//! let identity = Identity::open(&MachineConfig { dir, server, role, name }, token.as_ref()).await?;
//! tasks.spawn({ let i = identity.clone(); async move { i.keep_renewed().await } });
//! let hub = identity.http_client();              // typed calls: hub.post(path, &request).await
//! tasks.spawn(session::run(identity, router, connected, stop));
//! ```
//!
//! The directory (mode 0700) holds `key.pem` (0600, made here, never sent), `cert.pem` and
//! `ca.pem`. The key is written before the first request, so an enrolment whose answer was lost is
//! repeated with the same key.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, SystemTime},
};

use arc_swap::ArcSwap;
use control_api::{
    ids::{NodeName, NodeRef},
    session::{EnrollRequest, EnrollResponse, MachineRole, RenewRequest, RenewResponse, hub},
};
use rcgen::{CertificateParams, KeyPair};
use rustls::ClientConfig;
use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use tokio::sync::watch;

use crate::{
    KeyHash,
    ca::{RENEWAL_GRACE, SERVER_NAME, spki_hash},
    client::{CallError, Client, ServerAddress},
    files::{self, FileError},
    peer::{Peer, PeerError},
    tls::{self, HTTP_ALPN, TlsError},
    token::JoinToken,
};

/// Who this machine wants to be and where it keeps that.
#[derive(Clone, Debug)]
pub struct MachineConfig {
    pub dir: PathBuf,
    pub server: ServerAddress,
    pub role: MachineRole,
    pub name: NodeName,
}

/// Why a machine has no usable identity.
#[derive(Debug, thiserror::Error)]
pub enum EnrolError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error("{} holds no identity; give a join token (`rlark token create`)", dir.display())]
    NeedsToken { dir: PathBuf },
    #[error("the identity in {} belongs to {found}, not to {wanted}", dir.display())]
    OtherMachine { dir: PathBuf, found: String, wanted: String },
    #[error(
        "the identity in {} expired more than 30 days ago; enrol again with a new join token",
        dir.display()
    )]
    TooOld { dir: PathBuf },
    #[error("the identity in {} cannot be read", dir.display())]
    Unreadable {
        dir: PathBuf,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("making this machine's key or request failed")]
    Key(#[source] rcgen::Error),
    #[error("the server's certificate authority is not the one the token names")]
    WrongAuthority,
    #[error("the server's answer holds an unusable certificate")]
    Answer(#[source] PeerError),
    #[error("the server's answer holds a certificate for another machine or key")]
    AnswerForAnother,
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error(transparent)]
    Call(#[from] CallError),
}

impl EnrolError {
    /// Whether trying again later, unchanged, can help (server not up yet).
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Call(e) if e.is_transient())
    }
}

/// PEM texts for libraries that make their own TLS, such as kube-rs. `key` is a secret.
#[derive(Clone)]
pub struct Pems {
    pub ca: String,
    pub certificate: String,
    pub key: String,
}

impl std::fmt::Debug for Pems {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pems(..)")
    }
}

/// Where the PEM texts lie on disk.
#[derive(Clone, Debug)]
pub struct PemPaths {
    pub ca: PathBuf,
    pub certificate: PathBuf,
    pub key: PathBuf,
}

impl PemPaths {
    fn of(dir: &std::path::Path) -> Self {
        Self { ca: dir.join("ca.pem"), certificate: dir.join("cert.pem"), key: dir.join("key.pem") }
    }
}

/// The certificate in use and what follows from it.
struct Current {
    pems: Pems,
    peer: Peer,
    http: Arc<ClientConfig>,
    session: Arc<ClientConfig>,
}

/// An enrolled machine. Cheap to clone; all clones see a renewal.
#[derive(Clone)]
pub struct Identity {
    inner: Arc<Inner>,
}

struct Inner {
    config: MachineConfig,
    machine: NodeRef,
    current: ArcSwap<Current>,
    /// Counts renewals.
    generation: watch::Sender<u64>,
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity")
            .field("role", &self.inner.config.role)
            .field("machine", &self.inner.machine)
            .finish_non_exhaustive()
    }
}

impl Identity {
    /// Loads the identity of `config.dir`, or enrols with `token` when there is none (or it is too
    /// old to renew). An existing identity wins: the token of an enrolled machine is not used.
    ///
    /// Loading needs no server. [`EnrolError::is_transient`] tells when to try again.
    pub async fn open(
        config: &MachineConfig,
        token: Option<&JoinToken>,
    ) -> Result<Self, EnrolError> {
        match (Self::load(config), token) {
            (Err(EnrolError::NeedsToken { .. } | EnrolError::TooOld { .. }), Some(token)) => {
                Self::enrol(config, token).await
            }
            (loaded, _) => loaded,
        }
    }

    /// The identity on disk, without network.
    pub fn load(config: &MachineConfig) -> Result<Self, EnrolError> {
        let dir = &config.dir;
        files::private_dir(dir)?;
        let paths = PemPaths::of(dir);
        let (Some(ca), Some(certificate), Some(key)) =
            (files::read(&paths.ca)?, files::read(&paths.certificate)?, files::read(&paths.key)?)
        else {
            return Err(EnrolError::NeedsToken { dir: dir.clone() });
        };
        let unreadable = |source: Box<dyn std::error::Error + Send + Sync>| {
            EnrolError::Unreadable { dir: dir.clone(), source }
        };
        let pems = Pems { ca, certificate, key };
        let peer = certificate_peer(&pems.certificate).map_err(|e| unreadable(e.into()))?;
        let machine = match peer.machine() {
            Some((role, n)) if role == config.role && n.node == config.name => n.clone(),
            _ => {
                return Err(EnrolError::OtherMachine {
                    dir: dir.clone(),
                    found: peer.principal.user(),
                    wanted: format!("{:?} {}", config.role, config.name).to_lowercase(),
                });
            }
        };
        if peer.expired(SystemTime::now() - RENEWAL_GRACE) {
            return Err(EnrolError::TooOld { dir: dir.clone() });
        }
        let current = Current::new(pems, peer).map_err(|e| unreadable(e.into()))?;
        Ok(Self {
            inner: Arc::new(Inner {
                config: config.clone(),
                machine,
                current: ArcSwap::from_pointee(current),
                generation: watch::channel(0).0,
            }),
        })
    }

    /// Makes (or finds) this machine's key, checks the server by the token's fingerprint before
    /// anything is sent, and has a certificate signed.
    async fn enrol(config: &MachineConfig, token: &JoinToken) -> Result<Self, EnrolError> {
        let paths = PemPaths::of(&config.dir);
        let key = match files::read(&paths.key)? {
            Some(pem) => KeyPair::from_pem(&pem).map_err(EnrolError::Key)?,
            None => {
                let key = KeyPair::generate().map_err(EnrolError::Key)?;
                files::write(&paths.key, &key.serialize_pem(), 0o600)?;
                key
            }
        };
        let pinned = tls::pinned_client_config(token.ca)?;
        let client = Client::new(config.server.clone(), SERVER_NAME, pinned);
        let request = EnrollRequest {
            token: token.reveal(),
            role: config.role,
            name: config.name.clone(),
            csr_pem: certificate_request(&key)?,
        };
        let answer: EnrollResponse = client.post(hub::ENROLL, &request).await?;
        let ca = CertificateDer::from_pem_slice(answer.ca_pem.as_bytes()).ok();
        if ca.and_then(|ca| spki_hash(&ca)) != Some(token.ca) {
            return Err(EnrolError::WrongAuthority);
        }
        let peer = certificate_peer(&answer.certificate_pem).map_err(EnrolError::Answer)?;
        let machine = NodeRef { cluster: answer.cluster, node: config.name.clone() };
        if peer.machine() != Some((config.role, &machine)) || peer.key != key_hash(&key) {
            return Err(EnrolError::AnswerForAnother);
        }
        files::write(&paths.ca, &answer.ca_pem, 0o644)?;
        files::write(&paths.certificate, &answer.certificate_pem, 0o644)?;
        tracing::info!(%machine, server = %config.server, "enrolled");
        Self::load(config)
    }

    /// This machine's name in the installation; its cluster came with the token.
    #[must_use]
    pub fn machine(&self) -> &NodeRef {
        &self.inner.machine
    }

    #[must_use]
    pub fn role(&self) -> MachineRole {
        self.inner.config.role
    }

    #[must_use]
    pub fn server(&self) -> &ServerAddress {
        &self.inner.config.server
    }

    /// The name to expect in the server's certificate, at whatever address it was reached
    /// (kube-rs: `Config::tls_server_name`).
    #[must_use]
    pub fn server_name(&self) -> &'static str {
        SERVER_NAME
    }

    /// The texts in use now. After a renewal ([`Self::changed`]) they differ.
    #[must_use]
    pub fn pems(&self) -> Pems {
        self.inner.current.load().pems.clone()
    }

    /// The files behind [`Self::pems`], replaced atomically on renewal.
    #[must_use]
    pub fn paths(&self) -> PemPaths {
        PemPaths::of(&self.inner.config.dir)
    }

    /// Changes with each renewal.
    #[must_use]
    pub fn changed(&self) -> watch::Receiver<u64> {
        self.inner.generation.subscribe()
    }

    /// A client for the hub's paths ([`hub`]) and the Kubernetes API. New connections use the
    /// newest certificate.
    #[must_use]
    pub fn http_client(&self) -> Client {
        let inner = Arc::clone(&self.inner);
        let source = move || Arc::clone(&inner.current.load().http);
        Client::with_source(self.inner.config.server.clone(), SERVER_NAME, Arc::new(source))
    }

    pub(crate) fn session_config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.inner.current.load().session)
    }

    /// Renews at half life for ever, and at once when the certificate is older than that. A failed
    /// attempt is logged and repeated (10 s to 10 min apart); the old certificate stays in use.
    pub async fn keep_renewed(&self) {
        let mut pause = FIRST_RETRY;
        loop {
            let due = self.inner.current.load().peer.half_life();
            match due.duration_since(SystemTime::now()) {
                // In steps, because a machine's clock may be set while we wait.
                Ok(wait) if !wait.is_zero() => {
                    tokio::time::sleep(wait.min(CLOCK_STEP)).await;
                    continue;
                }
                _ => {}
            }
            match self.renew().await {
                Ok(()) => pause = FIRST_RETRY,
                Err(error) => {
                    let cause = std::error::Error::source(&error).map(ToString::to_string);
                    tracing::warn!(%error, ?cause, "renewing this machine's certificate failed");
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LAST_RETRY);
                }
            }
        }
    }

    /// One renewal with the same key.
    pub async fn renew(&self) -> Result<(), EnrolError> {
        let old = self.inner.current.load_full();
        let key = KeyPair::from_pem(&old.pems.key).map_err(EnrolError::Key)?;
        let request = RenewRequest { csr_pem: certificate_request(&key)? };
        let answer: RenewResponse = self.http_client().post(hub::RENEW, &request).await?;
        let peer = certificate_peer(&answer.certificate_pem).map_err(EnrolError::Answer)?;
        if peer.machine() != Some((self.role(), self.machine())) || peer.key != key_hash(&key) {
            return Err(EnrolError::AnswerForAnother);
        }
        files::write(&self.paths().certificate, &answer.certificate_pem, 0o644)?;
        let pems = Pems { certificate: answer.certificate_pem, ..old.pems.clone() };
        self.inner.current.store(Arc::new(Current::new(pems, peer)?));
        self.inner.generation.send_modify(|n| *n += 1);
        tracing::info!(machine = %self.machine(), "certificate renewed");
        Ok(())
    }
}

const FIRST_RETRY: Duration = Duration::from_secs(10);
const LAST_RETRY: Duration = Duration::from_secs(600);
const CLOCK_STEP: Duration = Duration::from_secs(3600);

impl Current {
    fn new(pems: Pems, peer: Peer) -> Result<Self, TlsError> {
        let identity = Some((pems.certificate.as_str(), pems.key.as_str()));
        let http = Arc::new(tls::client_config(&pems.ca, identity, &HTTP_ALPN)?);
        let session = [control_api::session::SESSION_ALPN];
        let session = Arc::new(tls::client_config(&pems.ca, identity, &session)?);
        Ok(Self { pems, peer, http, session })
    }
}

fn certificate_peer(pem: &str) -> Result<Peer, PeerError> {
    let Ok(der) = CertificateDer::from_pem_slice(pem.as_bytes()) else {
        return Err(PeerError::NotACertificate);
    };
    Peer::parse(&der)
}

fn key_hash(key: &KeyPair) -> KeyHash {
    use rcgen::PublicKeyData as _;
    KeyHash::of_spki(&key.subject_public_key_info())
}

/// A request whose subject is left empty: the server decides who we are.
fn certificate_request(key: &KeyPair) -> Result<String, EnrolError> {
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.serialize_request(key).and_then(|r| r.pem()).map_err(EnrolError::Key)
}
