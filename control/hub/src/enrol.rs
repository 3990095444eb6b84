//! `POST /enroll` and `POST /renew`: how a machine gets and keeps its certificate.

use axum::{Extension, Json, extract::State};
use control_api::{
    ids::{ClusterId, NodeRef},
    session::{EnrollRequest, EnrollResponse, RenewRequest, RenewResponse},
};
use control_identity::{
    ca::CaError,
    token::{JoinToken, TokenRefusal},
};
use http::StatusCode;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};

use crate::{
    Caller, Hub,
    machines::{self, Claim, MachineError, word},
    policy::{Body, machine_of},
    refuse::Refused,
    standing::Member,
    tokens::TokenError,
};

/// Enrols one machine: token, name and key are checked before anything is written; the token is
/// used up only when all three are good.
pub(crate) async fn enroll(
    State(hub): State<Hub>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<EnrollRequest>,
) -> Result<Json<EnrollResponse>, Refused> {
    let token: JoinToken =
        request.token.parse().map_err(|e: control_identity::token::NotAToken| {
            Refused::bad("token-malformed", e.to_string())
        })?;
    let inner = &hub.inner;
    if token.ca != inner.authority.hash() {
        return Err(Refused::forbidden(
            "token-wrong-authority",
            "the token is of another installation",
        ));
    }
    let machine = NodeRef { cluster: token.cluster.clone(), node: request.name.clone() };
    let role = request.role;
    // Nothing is given out yet; this proves that the machine holds the key of its request.
    let (certificate_pem, key) =
        inner.authority.sign_machine(&request.csr_pem, role, &machine).map_err(csr_refusal)?;
    let claim = match inner.tokens.check(&token).await {
        Ok(()) => claim(&hub, role, &machine, key, &token).await?,
        // A used-up token lets in only who used it up.
        Err(TokenError::Refused(refusal @ TokenRefusal::UsedUp { .. })) => {
            let genuine = inner.tokens.is_genuine(&token).await.map_err(token_refusal)?;
            match inner.machines.claim(role, &machine, key, &token.id).await {
                Ok(Claim::Repeated) if genuine => Claim::Repeated,
                Ok(_) => return Err(token_refusal(refusal.into())),
                Err(e) => return Err(machine_refusal(e)),
            }
        }
        Err(e) => return Err(token_refusal(e)),
    };
    if claim != Claim::Repeated {
        inner.tokens.redeem(&token).await.map_err(token_refusal)?;
    }
    inner.machines.take(role, &machine, key, &token.id).await.map_err(machine_refusal)?;
    inner.standing.knows(&Member::new(role, &machine, key)).await;
    ensure_namespace(&inner.client, &machine.cluster.namespace(), Some(&machine.cluster))
        .await
        .map_err(|e| Refused::internal("creating the site's namespace", &e))?;
    tracing::info!(role = word(role), %machine, remote = %caller.remote, "machine enrolled");
    Ok(Json(EnrollResponse {
        cluster: machine.cluster,
        certificate_pem,
        ca_pem: inner.authority.certificate_pem().to_owned(),
    }))
}

async fn claim(
    hub: &Hub,
    role: control_api::session::MachineRole,
    machine: &NodeRef,
    key: control_identity::KeyHash,
    token: &JoinToken,
) -> Result<Claim, Refused> {
    match hub.inner.machines.claim(role, machine, key, &token.id).await {
        Ok(Claim::Taken) => Err(machine_refusal(machines::taken(role, machine))),
        Ok(claim) => Ok(claim),
        Err(e) => Err(machine_refusal(e)),
    }
}

/// A new certificate for the same machine and key.
pub(crate) async fn renew(
    State(hub): State<Hub>,
    Extension(caller): Extension<Caller>,
    Body(request): Body<RenewRequest>,
) -> Result<Json<RenewResponse>, Refused> {
    let (peer, role, machine) = machine_of(&caller)?;
    let (certificate_pem, key) =
        hub.inner.authority.sign_machine(&request.csr_pem, role, machine).map_err(csr_refusal)?;
    if key != peer.key {
        return Err(Refused::forbidden(
            "other-key",
            format!("{machine} must renew with the key of its present certificate"),
        ));
    }
    hub.inner.machines.renew(role, machine, key).await.map_err(machine_refusal)?;
    tracing::info!(role = word(role), %machine, "certificate renewed");
    Ok(Json(RenewResponse { certificate_pem }))
}

/// Creates a namespace unless it is there.
pub(crate) async fn ensure_namespace(
    client: &Client,
    name: &str,
    cluster: Option<&ClusterId>,
) -> Result<(), kube::Error> {
    let api: Api<Namespace> = Api::all(client.clone());
    let namespace = Namespace {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            labels: cluster
                .map(|c| [(control_api::labels::CLUSTER_ID.to_owned(), c.to_string())].into()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    match api.create(&PostParams::default(), &namespace).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(e) => Err(e),
    }
}

fn csr_refusal(error: CaError) -> Refused {
    match error {
        CaError::BadRequest(_) => Refused::bad("bad-csr", error.to_string()),
        other => Refused::internal("signing a certificate", &other),
    }
}

fn token_refusal(error: TokenError) -> Refused {
    match error {
        TokenError::Refused(refusal) => Refused::forbidden(refusal.reason(), refusal.to_string()),
        TokenError::Busy { .. } => {
            Refused::new(StatusCode::TOO_MANY_REQUESTS, "token-busy", error.to_string())
        }
        other => Refused::internal("checking a join token", &other),
    }
}

fn machine_refusal(error: MachineError) -> Refused {
    match error {
        MachineError::NameTaken { .. } => Refused::conflict("name-taken", error.to_string()),
        MachineError::Removed { .. } => Refused::forbidden("machine-removed", error.to_string()),
        other => Refused::internal("recording a machine", &other),
    }
}
