//! What admins ask about all machines: sessions, flows, and the proof of a path.

use std::collections::BTreeMap;

use axum::{Json, extract::State};
use control_api::{
    ids::NodeRef,
    session::{Flow, MachineSession, NodeFlows, ProbeHop, ProbeReport, ProbeRequest, machine},
};
use futures::{StreamExt as _, stream};
use http::{Method, StatusCode};
use serde::Deserialize;

use crate::{Hub, policy::Body, refuse::Refused, sessions::CallError};

/// Nodes asked at the same time.
const WIDTH: usize = 64;

/// `GET /hub/v1/sessions`.
pub(crate) async fn sessions(State(hub): State<Hub>) -> Json<Vec<MachineSession>> {
    std::future::ready(Json(hub.inner.sessions.list())).await
}

/// A node answers with its flows, or with those and its counters of refusals.
#[derive(Deserialize)]
#[serde(untagged)]
enum Answer {
    Flows(Vec<Flow>),
    Full {
        flows: Vec<Flow>,
        #[serde(default)]
        refusals: BTreeMap<String, u64>,
    },
}

/// `GET /hub/v1/flows`: a node that cannot be asked is in the list with its error.
pub(crate) async fn flows(State(hub): State<Hub>) -> Json<Vec<NodeFlows>> {
    let nodes = hub.inner.sessions.nodes();
    let all = stream::iter(nodes).map(|node| flows_of(&hub, node)).buffered(WIDTH);
    Json(all.collect().await)
}

async fn flows_of(hub: &Hub, node: NodeRef) -> NodeFlows {
    let answer: Result<Answer, CallError> =
        hub.inner.sessions.call_node(&node, Method::GET, machine::FLOWS, None::<&()>).await;
    let (flows, refusals, error) = match answer {
        Ok(Answer::Flows(flows)) => (flows, BTreeMap::new(), String::new()),
        Ok(Answer::Full { flows, refusals }) => (flows, refusals, String::new()),
        Err(e) => (Vec::new(), BTreeMap::new(), e.to_string()),
    };
    NodeFlows { node, flows, error, refusals }
}

/// `POST /hub/v1/probe`: what the hub knows itself comes first (are both pods in the Domain, is
/// the node there), the rest is the source node's real connection.
pub(crate) async fn probe(
    State(hub): State<Hub>,
    Body(request): Body<ProbeRequest>,
) -> Result<Json<ProbeReport>, Refused> {
    let network = hub.inner.network.current();
    let domain = &request.domain;
    if network.domain(domain).is_none() {
        return Err(Refused::not_found("no-domain", format!("there is no Domain {domain}")));
    }
    let failed = |hop: &str, detail: String| {
        Ok(Json(ProbeReport { hops: vec![ProbeHop { hop: hop.to_owned(), ok: false, detail }] }))
    };
    let member = |pod: &str| network.find(domain, pod);
    let Some(from) = member(&request.from) else {
        return failed("membership", format!("{} is no live pod of Domain {domain}", request.from));
    };
    let Some(to) = member(&request.to) else {
        return failed("membership", format!("{} is no live pod of Domain {domain}", request.to));
    };
    let joined = |m: &control_api::session::Member| format!("{} is {} on {}", m.pod, m.vip, m.node);
    let mut hops = vec![ProbeHop {
        hop: "membership".to_owned(),
        ok: true,
        detail: format!("{}; {}", joined(from), joined(to)),
    }];
    let answer: Result<ProbeReport, CallError> = hub
        .inner
        .sessions
        .call_node(&from.node, Method::POST, machine::PROBE, Some(&request))
        .await;
    match answer {
        Ok(report) => hops.extend(report.hops),
        Err(e @ (CallError::Offline(_) | CallError::Timeout { .. } | CallError::Broken { .. })) => {
            hops.push(ProbeHop { hop: "session".to_owned(), ok: false, detail: e.to_string() });
        }
        Err(CallError::Refused { machine, status, refusal }) => {
            let status = if status.is_client_error() { status } else { StatusCode::BAD_GATEWAY };
            let message = format!("{machine}: {}", refusal.message);
            return Err(Refused::new(status, &refusal.reason, message));
        }
        Err(e) => return Err(Refused::internal("asking a node for a proof", &e)),
    }
    Ok(Json(ProbeReport { hops }))
}
