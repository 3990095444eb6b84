//! What admins ask about all machines: sessions, flows, and the proof of a path.

use std::collections::BTreeMap;

use axum::{Json, extract::State};
use control_api::{
    ids::{DomainName, NodeRef},
    session::{Flow, MachineSession, NodeFlows, ProbeHop, ProbeReport, ProbeRequest, machine},
    v1alpha1::{Pod, PodPhase},
};
use futures::{StreamExt as _, stream};
use http::{Method, StatusCode};
use kube::{Api, api::ListParams};
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
        return failed("membership", why_no_member(&hub, domain, &request.from).await);
    };
    let Some(to) = member(&request.to) else {
        return failed("membership", why_no_member(&hub, domain, &request.to).await);
    };
    let joined = |m: &control_api::session::Member| {
        let vips: Vec<String> = m.vips.iter().map(ToString::to_string).collect();
        format!("{} is {} on {}", m.pod, vips.join(" and "), m.node)
    };
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

/// Why a pod, by name or uid, has no address in a Domain; in the names that people know.
async fn why_no_member(hub: &Hub, domain: &DomainName, pod: &str) -> String {
    let api: Api<Pod> = Api::all(hub.inner.client.clone());
    match api.list(&ListParams::default()).await {
        Ok(all) => explain(&all.items, domain, pod),
        Err(error) => {
            tracing::warn!(%error, "listing the pods for a proof failed");
            format!("{pod} is no pod with an address in Domain {domain}")
        }
    }
}

fn explain(all: &[Pod], domain: &DomainName, wanted: &str) -> String {
    let mut named: Vec<&Pod> = all
        .iter()
        .filter(|p| p.metadata.name.as_deref() == Some(wanted) || p.spec.pod_name == wanted)
        .collect();
    // One that could have an address explains more than one that could not.
    named.sort_by_key(|p| p.spec.domain != domain.as_str());
    let Some(pod) = named.first() else { return format!("there is no pod {wanted}") };
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_ref());
    let name = &pod.spec.pod_name;
    match phase {
        _ if pod.spec.domain != domain.as_str() => {
            format!("pod {name} is not in Domain {domain}")
        }
        Some(PodPhase::Succeeded | PodPhase::Failed) => {
            let phase = phase.map(ToString::to_string).unwrap_or_default();
            format!("pod {name} has ended ({phase}) and has no address any more")
        }
        _ if pod.metadata.deletion_timestamp.is_some() => format!("pod {name} is being deleted"),
        _ => format!("pod {name} has no address in Domain {domain} yet"),
    }
}

#[cfg(test)]
mod tests {
    use control_api::v1alpha1::{PodSpec, PodStatus};

    use super::*;

    #[test]
    fn a_pod_without_an_address_is_named_and_its_state_is_the_reason() {
        let pod = |uid: &str, name: &str, domain: &str, phase| {
            let (pod_name, domain) = (name.to_owned(), domain.to_owned());
            let mut pod = Pod::new(uid, PodSpec { domain, pod_name, ..PodSpec::default() });
            pod.status = Some(PodStatus { phase: Some(phase), ..PodStatus::default() });
            pod
        };
        let all = [
            pod("u1", "over-0", "d", PodPhase::Succeeded),
            pod("u2", "new-0", "d", PodPhase::Pending),
            pod("u3", "other-0", "e", PodPhase::Running),
        ];
        let domain = "d".parse().unwrap();
        assert!(explain(&all, &domain, "u1").contains("pod over-0 has ended (Succeeded)"));
        assert!(explain(&all, &domain, "u2").contains("pod new-0 has no address"));
        assert!(explain(&all, &domain, "other-0").contains("pod other-0 is not in Domain d"));
        assert!(explain(&all, &domain, "nobody").contains("there is no pod nobody"));
    }
}
