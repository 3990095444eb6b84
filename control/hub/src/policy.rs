//! Every route with who may use it. A route cannot be added without its policy: [`RouteTable::on`]
//! is the only way in, and a test lists them all.

use axum::{
    Json, Router,
    extract::{FromRequest, Request, rejection::JsonRejection},
    handler::Handler,
    middleware::{self, Next},
    response::{IntoResponse as _, Response},
    routing::{MethodFilter, on},
};
use control_api::{
    ids::NodeRef,
    session::{MachineRole, hub},
};
use control_identity::{peer::Peer, principal::Principal};
use http::StatusCode;

use crate::{Caller, Hub, carriers, direct, domain_ca, enrol, fanout, refuse::Refused, tokens};

/// Who may use a route. Checked before the body is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// Anybody who sends a join token in the body; the handler checks it.
    JoinToken,
    /// A machine, whose certificate may have expired within the grace period.
    MachineInGrace,
    /// The data path of a machine, with a certificate in its validity.
    Nodes,
    /// Holders of an admin certificate in its validity.
    Admins,
}

impl Policy {
    fn check(self, caller: Option<&Caller>) -> Result<(), Refused> {
        let unauthenticated = || {
            Refused::new(
                StatusCode::UNAUTHORIZED,
                "unauthenticated",
                "this needs a client certificate of this installation",
            )
        };
        if self == Self::JoinToken {
            return Ok(());
        }
        let peer = caller.and_then(|c| c.peer.as_ref()).ok_or_else(unauthenticated)?;
        if self != Self::MachineInGrace && peer.expired(std::time::SystemTime::now()) {
            return Err(Refused::new(
                StatusCode::UNAUTHORIZED,
                "certificate-expired",
                format!("the certificate of {} has expired; renew it", peer.principal.user()),
            ));
        }
        let allowed = match self {
            Self::JoinToken => true,
            Self::MachineInGrace => peer.machine().is_some(),
            Self::Nodes => matches!(peer.principal, Principal::Node(_)),
            Self::Admins => matches!(peer.principal, Principal::Admin { .. }),
        };
        if allowed {
            Ok(())
        } else {
            Err(Refused::forbidden(
                "forbidden",
                format!("{} may not use this route", peer.principal.user()),
            ))
        }
    }
}

/// Routes under construction.
pub struct RouteTable {
    router: Router<Hub>,
    table: Vec<(&'static str, &'static str, Policy)>,
}

impl std::fmt::Debug for RouteTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.table.fmt(f)
    }
}

impl RouteTable {
    fn on<H, T>(
        mut self,
        method: MethodFilter,
        path: &'static str,
        policy: Policy,
        handler: H,
    ) -> Self
    where
        H: Handler<T, Hub>,
        T: 'static,
    {
        let guard =
            middleware::from_fn(move |request: Request, next: Next| guard(policy, request, next));
        let name = if method == MethodFilter::GET { "GET" } else { "POST" };
        self.router = self.router.route(path, on(method, handler).layer(guard));
        self.table.push((name, path, policy));
        self
    }

    /// Method, path and policy of each route.
    #[must_use]
    pub fn table(&self) -> &[(&'static str, &'static str, Policy)] {
        &self.table
    }

    pub(crate) fn into_router(self, hub: Hub) -> Router {
        self.router.with_state(hub)
    }
}

async fn guard(policy: Policy, request: Request, next: Next) -> Response {
    match policy.check(request.extensions().get::<Caller>()) {
        Ok(()) => next.run(request).await,
        Err(refused) => refused.into_response(),
    }
}

/// All routes of the hub.
#[must_use]
pub fn routes() -> RouteTable {
    let table = RouteTable { router: Router::new(), table: Vec::new() };
    table
        .on(MethodFilter::POST, hub::ENROLL, Policy::JoinToken, enrol::enroll)
        .on(MethodFilter::POST, hub::RENEW, Policy::MachineInGrace, enrol::renew)
        .on(MethodFilter::POST, hub::DOMAIN_CERTIFICATES, Policy::Nodes, domain_ca::certificate)
        .on(MethodFilter::POST, hub::CARRIERS, Policy::Nodes, carriers::carrier)
        .on(MethodFilter::POST, hub::DIRECT, Policy::Nodes, direct::direct)
        .on(MethodFilter::GET, hub::FLOWS, Policy::Admins, fanout::flows)
        .on(MethodFilter::GET, hub::SESSIONS, Policy::Admins, fanout::sessions)
        .on(MethodFilter::POST, hub::TOKENS, Policy::Admins, tokens::create)
        .on(MethodFilter::POST, hub::PROBE, Policy::Admins, fanout::probe)
}

/// The peer of a request that passed a policy which demands one.
pub(crate) fn peer_of(caller: &Caller) -> Result<&Peer, Refused> {
    caller.peer.as_ref().ok_or_else(|| {
        Refused::new(StatusCode::UNAUTHORIZED, "unauthenticated", "a client certificate is needed")
    })
}

/// The machine behind a request.
pub(crate) fn machine_of(caller: &Caller) -> Result<(&Peer, MachineRole, &NodeRef), Refused> {
    let peer = peer_of(caller)?;
    let (role, machine) = peer.machine().ok_or_else(|| {
        Refused::forbidden("forbidden", format!("{} is no machine", peer.principal.user()))
    })?;
    Ok((peer, role, machine))
}

/// A JSON body whose faults are told in our form.
pub(crate) struct Body<T>(pub(crate) T);

impl<T, S> FromRequest<S> for Body<T>
where
    Json<T>: FromRequest<S, Rejection = JsonRejection>,
    S: Send + Sync,
{
    type Rejection = Refused;

    async fn from_request(request: Request, state: &S) -> Result<Self, Refused> {
        match Json::<T>::from_request(request, state).await {
            Ok(Json(body)) => Ok(Self(body)),
            Err(rejection) => Err(Refused::bad("bad-request", rejection.body_text())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever adds a route meets this list and says who may use it.
    #[test]
    fn every_route_has_the_policy_that_was_decided_for_it() {
        assert_eq!(
            routes().table(),
            [
                ("POST", "/enroll", Policy::JoinToken),
                ("POST", "/renew", Policy::MachineInGrace),
                ("POST", "/hub/v1/domain-certificates", Policy::Nodes),
                ("POST", "/hub/v1/carriers", Policy::Nodes),
                ("POST", "/hub/v1/direct", Policy::Nodes),
                ("GET", "/hub/v1/flows", Policy::Admins),
                ("GET", "/hub/v1/sessions", Policy::Admins),
                ("POST", "/hub/v1/tokens", Policy::Admins),
                ("POST", "/hub/v1/probe", Policy::Admins),
            ]
        );
    }

    fn caller(principal: Principal, expired: bool) -> Caller {
        let now = std::time::SystemTime::now();
        let day = std::time::Duration::from_secs(86400);
        let peer = Peer {
            principal,
            key: control_identity::KeyHash::of_spki(b"k"),
            not_before: now - day * 2,
            not_after: if expired { now - day } else { now + day },
        };
        Caller { peer: Some(peer), remote: ([127, 0, 0, 1], 1).into() }
    }

    #[test]
    fn policies_refuse_everybody_else() {
        let node = Principal::Node("a/n".parse().unwrap());
        let agent = Principal::Agent("a/n".parse().unwrap());
        let admin = Principal::Admin { name: "x".to_owned() };
        let may = |p: Policy, who: &Principal, expired| {
            p.check(Some(&caller(who.clone(), expired))).is_ok()
        };
        assert!(may(Policy::Nodes, &node, false) && !may(Policy::Nodes, &node, true));
        assert!(!may(Policy::Nodes, &agent, false) && !may(Policy::Nodes, &admin, false));
        assert!(may(Policy::Admins, &admin, false) && !may(Policy::Admins, &admin, true));
        assert!(!may(Policy::Admins, &node, false));
        assert!(may(Policy::MachineInGrace, &agent, true));
        assert!(!may(Policy::MachineInGrace, &admin, false));
        for policy in [Policy::Nodes, Policy::Admins, Policy::MachineInGrace] {
            assert_eq!(policy.check(None).unwrap_err().reason(), "unauthenticated");
        }
    }
}
