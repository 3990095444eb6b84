//! This node's identity in each Domain that has a pod here: a key made in memory, never stored or
//! sent, and the hub's certificate for it, renewed at half life.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use control_api::{
    ids::{DomainName, NodeRef},
    session::{DomainCertificateRequest, DomainCertificateResponse, hub},
};
use control_identity::client::{CallError, Client};
use datapath_relay::{DomainIdentity, Relay, RelayError};
use russh::keys::{Algorithm, Certificate, PrivateKey, PublicKey, ssh_key};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::keeper::{Keeper, chain};

const FIRST_RETRY: Duration = Duration::from_millis(500);
const LAST_RETRY: Duration = Duration::from_secs(30);

/// Why this node has no (new) certificate in a Domain.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("cannot make or read a key for Domain {domain}")]
    Key {
        domain: DomainName,
        #[source]
        source: ssh_key::Error,
    },
    #[error("the hub gives no certificate for Domain {domain}")]
    Call {
        domain: DomainName,
        #[source]
        source: CallError,
    },
    #[error(
        "the certificate for Domain {domain} has expired already; is this machine's clock right?"
    )]
    Expired { domain: DomainName },
    #[error(transparent)]
    Relay(#[from] RelayError),
}

/// A Domain's certificate authority in use, and when to act next.
struct Held {
    ca: String,
    /// The other nodes with pods in the Domain.
    peers: BTreeSet<NodeRef>,
    due: Instant,
    retry: Duration,
}

/// Obtains, renews and drops identities as Domains come and go.
pub struct Certificates {
    pub client: Client,
    pub relay: Relay,
    pub keeper: Keeper,
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Certificates(..)")
    }
}

impl Certificates {
    /// Works until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let mut held: BTreeMap<DomainName, Held> = BTreeMap::new();
        let mut views = self.keeper.watch();
        loop {
            self.follow(&mut held);
            let next = held.iter().min_by_key(|(_, h)| h.due).map(|(n, h)| (n.clone(), h.due));
            let due = next.as_ref().map_or_else(Instant::now, |(_, due)| *due);
            tokio::select! {
                () = stop.cancelled() => return,
                changed = views.changed() => if changed.is_err() { return },
                () = tokio::time::sleep_until(due), if next.is_some() => {
                    let Some((name, _)) = next else { continue };
                    let Some(entry) = held.get_mut(&name) else { continue };
                    match self.obtain(&name, &entry.ca).await {
                        Ok(lifetime) => {
                            entry.due = Instant::now() + lifetime / 2;
                            entry.retry = FIRST_RETRY;
                        }
                        Err(e) => {
                            tracing::warn!(domain = %name, error = chain(&e), "no certificate");
                            entry.due = Instant::now() + entry.retry;
                            entry.retry = (entry.retry * 2).min(LAST_RETRY);
                        }
                    }
                }
            }
        }
    }

    /// Enters new Domains (and new authorities) as due at once; drops the ones that left, and
    /// cuts off nodes that have no pod in a Domain any more.
    fn follow(&self, held: &mut BTreeMap<DomainName, Held>) {
        let view = self.keeper.view();
        held.retain(|name, _| {
            let stays = view.active().any(|d| d.name == *name);
            if !stays {
                self.relay.drop_domain(name);
            }
            stays
        });
        for domain in view.active() {
            let entry = held.entry(domain.name.clone()).or_insert_with(|| Held {
                ca: String::new(),
                peers: BTreeSet::new(),
                due: Instant::now(),
                retry: FIRST_RETRY,
            });
            let peers: BTreeSet<NodeRef> = domain.members().map(|m| m.node.clone()).collect();
            for gone in entry.peers.difference(&peers) {
                self.relay.drop_peer(&domain.name, gone);
            }
            entry.peers = peers;
            if entry.ca != domain.ssh_ca {
                domain.ssh_ca.clone_into(&mut entry.ca);
                entry.due = Instant::now();
            }
        }
    }

    /// How long the new certificate is valid.
    async fn obtain(&self, domain: &DomainName, ca: &str) -> Result<Duration, CertificateError> {
        let key_error = |source| CertificateError::Key { domain: domain.clone(), source };
        let ca = PublicKey::from_openssh(ca).map_err(key_error)?;
        let key = PrivateKey::random(&mut rand::rng(), Algorithm::Ed25519).map_err(key_error)?;
        let public_key = key.public_key().to_openssh().map_err(key_error)?;
        let request = DomainCertificateRequest { domain: domain.clone(), public_key };
        let answer: DomainCertificateResponse = self
            .client
            .post(hub::DOMAIN_CERTIFICATES, &request)
            .await
            .map_err(|source| CertificateError::Call { domain: domain.clone(), source })?;
        let certificate = Certificate::from_openssh(&answer.certificate).map_err(key_error)?;
        let end = UNIX_EPOCH + Duration::from_secs(certificate.valid_before());
        let lifetime = end
            .duration_since(SystemTime::now())
            .map_err(|_past| CertificateError::Expired { domain: domain.clone() })?;
        self.relay.set_identity(domain, DomainIdentity { key, certificate, ca })?;
        tracing::info!(%domain, hours = lifetime.as_secs() / 3600, "Domain certificate in use");
        Ok(lifetime)
    }
}
