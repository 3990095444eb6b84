//! One SSH certificate authority per Domain, and the short-lived certificates that nodes get of it.
//!
//! The private key lies in the Secret `domain-ca-<domain>` in `rlark-system`; nobody but the hub
//! reads it, and it is in no other object. It is bound to the Domain's uid: a Domain that is made under
//! the name of an earlier one inherits nothing.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{Extension, Json, extract::State};
use control_api::{
    ids::{DomainName, NodeRef},
    labels::{API_VERSION, DOMAIN_CA_PREFIX, DOMAIN_CA_PUBLIC, DOMAIN_UID, SYSTEM_NAMESPACE},
    session::{DomainCertificateRequest, DomainCertificateResponse},
    v1alpha1::Domain,
};
use k8s_openapi::{
    ByteString, api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::OwnerReference,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ObjectMeta, PostParams, Preconditions},
};
use russh::keys::{
    Certificate, PrivateKey, PublicKey,
    ssh_key::{
        self, LineEnding,
        certificate::{Builder, CertType},
        private::Ed25519Keypair,
    },
};

use crate::{
    Caller, Hub,
    policy::{Body, machine_of},
    refuse::Refused,
};

/// Life of a node's certificate.
const LIFE: Duration = Duration::from_secs(24 * 3600);
const CLOCK_SKEW: Duration = Duration::from_secs(10 * 60);
const PRIVATE: &str = "ca";
const TYPE: &str = "rlark.io/domain-ca";
/// Against others who make or remove the same Secret.
const ATTEMPTS: usize = 8;

/// Why there is no authority or certificate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DomainCaError {
    #[error("the Secret {DOMAIN_CA_PREFIX}{domain}: the API server failed")]
    Api {
        domain: DomainName,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("the Secret {DOMAIN_CA_PREFIX}{domain} is being changed by others")]
    Contended { domain: DomainName },
    #[error("the Secret {DOMAIN_CA_PREFIX}{domain} holds no usable key")]
    Malformed { domain: DomainName },
    #[error("making the key of Domain {domain}")]
    Make {
        domain: DomainName,
        #[source]
        source: ssh_key::Error,
    },
    #[error(transparent)]
    Randomness(#[from] control_identity::NoRandomness),
}

/// A Domain by name and by life: one that is made anew under an old name is another Domain.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Life {
    name: DomainName,
    uid: String,
}

/// The authorities in memory; the only reader and writer of their Secrets.
pub(crate) struct DomainAuthorities {
    api: Api<Secret>,
    /// With the uid of the Domain that each is for.
    keys: Mutex<BTreeMap<DomainName, (String, Arc<PrivateKey>)>>,
}

impl DomainAuthorities {
    pub(crate) fn new(client: Client) -> Self {
        Self { api: Api::namespaced(client, SYSTEM_NAMESPACE), keys: Mutex::new(BTreeMap::new()) }
    }

    /// The public keys of all these Domains, making authorities for new ones. Keys of Domains that
    /// are gone are forgotten here and removed from the store.
    pub(crate) async fn ensure(
        &self,
        domains: &[Arc<Domain>],
    ) -> Result<BTreeMap<DomainName, String>, DomainCaError> {
        let lives: Vec<Life> = domains
            .iter()
            .filter(|d| d.metadata.deletion_timestamp.is_none())
            .filter_map(|d| {
                let uid = d.metadata.uid.clone()?;
                Some(Life { name: d.metadata.name.as_deref()?.parse().ok()?, uid })
            })
            .collect();
        self.forget(&lives).await?;
        let mut public = BTreeMap::new();
        for life in lives {
            let known = self.get(&life.name);
            let key = match known {
                Some(key) => key,
                None => self.load_or_make(&life).await?,
            };
            let text = public_text(&key, &life.name)?;
            public.insert(life.name, text);
        }
        Ok(public)
    }

    fn get(&self, domain: &DomainName) -> Option<Arc<PrivateKey>> {
        let keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.get(domain).map(|(_, key)| Arc::clone(key))
    }

    /// A Domain made anew under an old name must not accept the old one's certificates.
    async fn forget(&self, lives: &[Life]) -> Result<(), DomainCaError> {
        let gone: Vec<DomainName> = {
            let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
            let lives_on = |name: &DomainName, uid: &String| {
                lives.iter().any(|l| l.name == *name && l.uid == *uid)
            };
            let gone: Vec<_> = keys
                .iter()
                .filter(|(name, (uid, _))| !lives_on(name, uid))
                .map(|(name, _)| name.clone())
                .collect();
            for name in &gone {
                keys.remove(name);
            }
            gone
        };
        for domain in gone {
            self.delete(&domain, None).await?;
        }
        Ok(())
    }

    /// Deletes a Domain's Secret, given a uid only the one of that uid.
    async fn delete(&self, domain: &DomainName, uid: Option<String>) -> Result<(), DomainCaError> {
        let params = DeleteParams {
            preconditions: uid.map(|uid| Preconditions { uid: Some(uid), resource_version: None }),
            ..DeleteParams::default()
        };
        match self.api.delete(&secret_name(domain), &params).await {
            Ok(_) => Ok(()),
            // Gone already, or replaced by somebody who was faster: the next look decides.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
            Err(source) => {
                Err(DomainCaError::Api { domain: domain.clone(), source: Box::new(source) })
            }
        }
    }

    /// The Domain's own authority. One that was left by an earlier Domain of the name (deleted while
    /// no server ran) is removed, and a new one made.
    async fn load_or_make(&self, life: &Life) -> Result<Arc<PrivateKey>, DomainCaError> {
        let domain = &life.name;
        let api_error =
            |source| DomainCaError::Api { domain: domain.clone(), source: Box::new(source) };
        for _ in 0..ATTEMPTS {
            let found = self.api.get_opt(&secret_name(domain)).await.map_err(api_error)?;
            let key = match found {
                Some(secret) if is_of(&secret, life) => decode(&secret, domain)?,
                Some(secret) => {
                    tracing::warn!(%domain, "the authority of an earlier Domain is removed");
                    self.delete(domain, secret.metadata.uid).await?;
                    continue;
                }
                None => {
                    let key = make(domain)?;
                    let secret = encode(&key, life)?;
                    match self.api.create(&PostParams::default(), &secret).await {
                        Ok(_) => key,
                        // Another replica was faster; its key counts.
                        Err(kube::Error::Api(status)) if status.code == 409 => continue,
                        Err(e) => return Err(api_error(e)),
                    }
                }
            };
            let key = Arc::new(key);
            let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
            keys.insert(domain.clone(), (life.uid.clone(), Arc::clone(&key)));
            return Ok(key);
        }
        Err(DomainCaError::Contended { domain: domain.clone() })
    }
}

/// Whether the Secret was made for this very Domain.
fn is_of(secret: &Secret, life: &Life) -> bool {
    secret.metadata.annotations.as_ref().and_then(|a| a.get(DOMAIN_UID)) == Some(&life.uid)
}

/// `POST /hub/v1/domain-certificates`.
pub(crate) async fn certificate(
    State(hub): State<Hub>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<DomainCertificateRequest>,
) -> Result<Json<DomainCertificateResponse>, Refused> {
    let (_, _, node) = machine_of(&caller)?;
    let domain = &request.domain;
    if !hub.inner.network.current().hosts(domain, node) {
        return Err(Refused::forbidden(
            "not-a-host",
            format!("{node} hosts no pod of Domain {domain}"),
        ));
    }
    let Ok(key) = PublicKey::from_openssh(&request.public_key) else {
        return Err(Refused::bad("bad-key", "publicKey is not an OpenSSH public key"));
    };
    if key.algorithm() != ssh_key::Algorithm::Ed25519 {
        return Err(Refused::bad("bad-key", "publicKey is not an ed25519 key"));
    }
    let Some(ca) = hub.inner.domains.get(domain) else {
        return Err(Refused::not_found(
            "no-authority",
            format!("Domain {domain} has no authority"),
        ));
    };
    let certificate = sign(&ca, &key, domain, node)
        .and_then(|c| {
            c.to_openssh().map_err(|source| DomainCaError::Make { domain: domain.clone(), source })
        })
        .map_err(|e| Refused::internal("signing a Domain certificate", &e))?;
    tracing::debug!(%domain, %node, "domain certificate given");
    Ok(Json(DomainCertificateResponse { certificate }))
}

/// A user certificate whose one principal is the node.
fn sign(
    ca: &PrivateKey,
    key: &PublicKey,
    domain: &DomainName,
    node: &NodeRef,
) -> Result<Certificate, DomainCaError> {
    let nonce = control_identity::random::<32>()?;
    let serial = u64::from_be_bytes(control_identity::random::<8>()?);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let build = || -> Result<Certificate, ssh_key::Error> {
        let from = now.saturating_sub(CLOCK_SKEW).as_secs();
        let mut builder =
            Builder::new(nonce, key.key_data().clone(), from, (now + LIFE).as_secs())?;
        builder.serial(serial)?;
        builder.cert_type(CertType::User)?;
        builder.key_id(format!("{domain}:{node}"))?;
        builder.valid_principal(node.to_string())?;
        builder.sign(ca)
    };
    build().map_err(|source| DomainCaError::Make { domain: domain.clone(), source })
}

fn make(domain: &DomainName) -> Result<PrivateKey, DomainCaError> {
    let seed = control_identity::random::<32>()?;
    let pair = Ed25519Keypair::from_seed(&seed);
    PrivateKey::new(pair.into(), format!("domain {domain}"))
        .map_err(|source| DomainCaError::Make { domain: domain.clone(), source })
}

fn secret_name(domain: &DomainName) -> String {
    format!("{DOMAIN_CA_PREFIX}{domain}")
}

fn public_text(key: &PrivateKey, domain: &DomainName) -> Result<String, DomainCaError> {
    key.public_key()
        .to_openssh()
        .map_err(|source| DomainCaError::Make { domain: domain.clone(), source })
}

fn encode(key: &PrivateKey, life: &Life) -> Result<Secret, DomainCaError> {
    let domain = &life.name;
    let private = key
        .to_openssh(LineEnding::LF)
        .map_err(|source| DomainCaError::Make { domain: domain.clone(), source })?;
    let public = public_text(key, domain)?;
    Ok(Secret {
        metadata: ObjectMeta {
            name: Some(secret_name(domain)),
            annotations: Some([(DOMAIN_UID.to_owned(), life.uid.clone())].into()),
            // With the Domain goes its authority, also when the hub does not see it go.
            owner_references: Some(vec![OwnerReference {
                api_version: API_VERSION.to_owned(),
                kind: "Domain".to_owned(),
                name: domain.to_string(),
                uid: life.uid.clone(),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        type_: Some(TYPE.to_owned()),
        data: Some(BTreeMap::from([
            (PRIVATE.to_owned(), ByteString(private.as_bytes().to_vec())),
            (DOMAIN_CA_PUBLIC.to_owned(), ByteString(public.into_bytes())),
        ])),
        ..Secret::default()
    })
}

fn decode(secret: &Secret, domain: &DomainName) -> Result<PrivateKey, DomainCaError> {
    let pem = secret.data.as_ref().and_then(|d| d.get(PRIVATE)).map(|b| b.0.as_slice());
    pem.and_then(|pem| PrivateKey::from_openssh(pem).ok())
        .ok_or_else(|| DomainCaError::Malformed { domain: domain.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_certificate_verifies_against_its_domain_and_no_other() {
        let (domain, node) = ("d".parse().unwrap(), "a/n1".parse().unwrap());
        let ca = make(&domain).unwrap();
        let other = make(&domain).unwrap();
        let key = make(&domain).unwrap();
        let cert = sign(&ca, key.public_key(), &domain, &node).unwrap();
        let print = |k: &PrivateKey| k.fingerprint(ssh_key::HashAlg::Sha256);
        assert!(cert.validate([&print(&ca)]).is_ok());
        assert!(cert.validate([&print(&other)]).is_err());
        assert_eq!(cert.valid_principals(), ["a/n1"]);
        let life = cert.valid_before() - cert.valid_after();
        assert_eq!(life, (LIFE + CLOCK_SKEW).as_secs());
    }

    #[test]
    fn an_authority_survives_its_secret() {
        let domain: DomainName = "d".parse().unwrap();
        let ca = make(&domain).unwrap();
        let life = Life { name: domain.clone(), uid: "1".to_owned() };
        let secret = encode(&ca, &life).unwrap();
        assert_eq!(decode(&secret, &domain).unwrap().public_key(), ca.public_key());
        assert!(is_of(&secret, &life));
        assert!(!is_of(&secret, &Life { uid: "2".to_owned(), ..life.clone() }), "a later Domain's");
        assert!(!is_of(&Secret::default(), &life), "nobody's");
    }
}
