//! Join tokens as Secrets of type `rlark.io/join-token`, the secret part hashed.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use axum::{Json, extract::State};
use control_api::{
    labels::SYSTEM_NAMESPACE,
    session::{TokenRequest, TokenResponse},
};
use control_identity::token::{self, JoinToken, TokenRecord, TokenRefusal};
use k8s_openapi::{ByteString, api::core::v1::Secret, jiff::Timestamp};
use kube::{
    Api, Client,
    api::{ListParams, ObjectMeta, PostParams},
};

use crate::{Hub, policy::Body, refuse::Refused};

const TYPE: &str = "rlark.io/join-token";
/// Label of these Secrets.
const LABEL: &str = "rlark.io/join-token";
const RECORD: &str = "record";
const MAX_TTL: Duration = Duration::from_secs(30 * 24 * 3600);
const MAX_USES: u32 = 10_000;
/// Attempts against concurrent enrolments with the same token.
const ATTEMPTS: usize = 16;

/// Why a token could not be used or stored.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokenError {
    #[error(transparent)]
    Refused(#[from] TokenRefusal),
    #[error("join token {id}: the stored record is malformed")]
    Malformed { id: String },
    #[error("join token {id}: the API server failed")]
    Api {
        id: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("join token {id} is being used by too many machines at once")]
    Busy { id: String },
}

/// The only reader and writer of the token Secrets.
pub(crate) struct Tokens {
    api: Api<Secret>,
}

impl Tokens {
    pub(crate) fn new(client: Client) -> Self {
        Self { api: Api::namespaced(client, SYSTEM_NAMESPACE) }
    }

    async fn store(&self, record: &TokenRecord) -> Result<(), TokenError> {
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(name(&record.id)),
                labels: Some(BTreeMap::from([(LABEL.to_owned(), record.cluster.to_string())])),
                ..ObjectMeta::default()
            },
            type_: Some(TYPE.to_owned()),
            data: Some(encode(record)?),
            ..Secret::default()
        };
        let created = self.api.create(&PostParams::default(), &secret).await;
        created.map(|_| ()).map_err(|e| api_error(&record.id, e))
    }

    /// Whether the token would be accepted now; nothing is used up.
    pub(crate) async fn check(&self, token: &JoinToken) -> Result<(), TokenError> {
        let (_, record) = self.load(token).await?;
        record.redeem(token, now())?;
        Ok(())
    }

    /// Whether the token is genuine and not expired, though perhaps used up: its holder may repeat
    /// an enrolment whose answer was lost.
    pub(crate) async fn is_genuine(&self, token: &JoinToken) -> Result<bool, TokenError> {
        let (_, record) = self.load(token).await?;
        match record.redeem(token, now()) {
            Ok(_) | Err(TokenRefusal::UsedUp { .. }) => Ok(true),
            Err(refusal) => Err(refusal.into()),
        }
    }

    /// Uses the token once. Two machines at the same moment cannot share a use: the Secret is
    /// replaced at the version that was read.
    pub(crate) async fn redeem(&self, token: &JoinToken) -> Result<(), TokenError> {
        for _ in 0..ATTEMPTS {
            let (mut secret, record) = self.load(token).await?;
            let after = record.redeem(token, now())?;
            secret.data = Some(encode(&after)?);
            let id = &token.id;
            match self.api.replace(&name(id), &PostParams::default(), &secret).await {
                Ok(_) => return Ok(()),
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(e) => return Err(api_error(id, e)),
            }
        }
        Err(TokenError::Busy { id: token.id.clone() })
    }

    async fn load(&self, token: &JoinToken) -> Result<(Secret, TokenRecord), TokenError> {
        let id = &token.id;
        let secret = self.api.get_opt(&name(id)).await.map_err(|e| api_error(id, e))?;
        // Another Secret with a fitting name is no token.
        let secret = secret
            .filter(|s| s.type_.as_deref() == Some(TYPE))
            .ok_or_else(|| TokenRefusal::Unknown { id: id.clone() })?;
        let record = decode(&secret).ok_or_else(|| TokenError::Malformed { id: id.clone() })?;
        Ok((secret, record))
    }

    /// Removes records that no machine can use any more. Called when a token is made, so that they
    /// do not pile up.
    async fn sweep(&self) -> Result<(), kube::Error> {
        let day = Duration::from_secs(24 * 3600);
        for secret in self.api.list(&ListParams::default().labels(LABEL)).await? {
            let (Some(record), Some(name)) = (decode(&secret), &secret.metadata.name) else {
                continue;
            };
            // Kept for a day, so that a late machine is told "expired" and not "unknown".
            if Duration::from_secs(record.expires) + day < now() {
                self.api.delete(name, &kube::api::DeleteParams::default()).await?;
            }
        }
        Ok(())
    }
}

/// `POST /hub/v1/tokens`.
pub(crate) async fn create(
    State(hub): State<Hub>,
    Body(request): Body<TokenRequest>,
) -> Result<Json<TokenResponse>, Refused> {
    let ttl = Duration::from_secs(request.ttl_seconds);
    if ttl.is_zero() || ttl > MAX_TTL {
        return Err(Refused::bad("bad-ttl", "ttlSeconds must be between 1 and 2592000 (30 days)"));
    }
    if request.uses == 0 || request.uses > MAX_USES {
        return Err(Refused::bad("bad-uses", format!("uses must be between 1 and {MAX_USES}")));
    }
    let tokens = &hub.inner.tokens;
    let ca = hub.inner.authority.hash();
    let (token, record) = token::mint(&request.cluster, ca, now(), ttl, request.uses)
        .map_err(|e| Refused::internal("making a join token", &e))?;
    tokens.store(&record).await.map_err(|e| Refused::internal("storing a join token", &e))?;
    if let Err(error) = tokens.sweep().await {
        tracing::warn!(%error, "removing old join tokens failed");
    }
    tracing::info!(cluster = %request.cluster, id = record.id, uses = record.uses_left, "join token made");
    let expires = i64::try_from(record.expires)
        .ok()
        .and_then(|s| Timestamp::from_second(s).ok())
        .map(|t| t.to_string())
        .unwrap_or_default();
    Ok(Json(TokenResponse { token: token.reveal(), expires }))
}

fn name(id: &str) -> String {
    format!("join-token-{id}")
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn api_error(id: &str, source: kube::Error) -> TokenError {
    TokenError::Api { id: id.to_owned(), source: Box::new(source) }
}

fn encode(record: &TokenRecord) -> Result<BTreeMap<String, ByteString>, TokenError> {
    match serde_json::to_vec(record) {
        Ok(json) => Ok(BTreeMap::from([(RECORD.to_owned(), ByteString(json))])),
        // A record is plain data; this cannot be its fault.
        Err(_) => Err(TokenError::Malformed { id: record.id.clone() }),
    }
}

fn decode(secret: &Secret) -> Option<TokenRecord> {
    serde_json::from_slice(&secret.data.as_ref()?.get(RECORD)?.0).ok()
}
