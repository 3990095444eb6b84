//! What a Task asks of this agent, and what a pod says of its Task. Pure.

use std::{collections::BTreeMap, net::IpAddr};

use agent_workload::{
    lifecycle::{Outcome, describe},
    raw::{PodView, Stage},
    spec::{DEFAULT_GRACE, HostNetwork, PodSpec, PodUid, RestartPolicy, UidError},
};
use control_api::{
    attach::INTERFACE,
    ids::NodeName,
    labels::{self, ray},
    names::raw_pod_name,
    v1alpha1::{AgentType, Phase, PodPhase, RawTask, RestartPolicy as ApiRestart, Task},
};
use kube::ResourceExt as _;

/// Keys of a pod's notes: what an agent that starts again must know of it.
pub(crate) mod notes {
    pub(crate) const TASK: &str = "task";
    pub(crate) const TASK_UID: &str = "task-uid";
    pub(crate) const NAMESPACE: &str = "namespace";
    pub(crate) const DOMAIN: &str = "domain";
}

/// Whether the Task is this machine's to run.
#[must_use]
pub(crate) fn is_ours(task: &Task, node: &NodeName) -> bool {
    task.spec.agent_type == Some(AgentType::Raw)
        && task.annotations().get(labels::NODE).is_some_and(|n| n == node.as_str())
}

/// Whether it has come to an end that the agent reported.
#[must_use]
pub(crate) fn is_over(task: &Task) -> bool {
    let phase = task.status.as_ref().and_then(|s| s.phase.as_ref());
    matches!(phase, Some(Phase::Succeeded | Phase::Failed | Phase::Stopped))
}

/// A raw Task has one pod, whose uid is the Task's: so making it again after a crash, at any point,
/// is making the same one.
pub(crate) fn pod_uid(task: &Task) -> Result<PodUid, UidError> {
    task.uid().unwrap_or_default().parse()
}

/// Whether the Task asks for the machine's own network.
#[must_use]
pub(crate) fn on_host_network(task: &Task) -> bool {
    task.spec.raw.as_ref().is_some_and(|raw| raw.host_network)
}

/// The pod that the Task asks for; `host` exactly when that is on the machine's network.
#[must_use]
pub(crate) fn pod_spec(
    task: &Task,
    uid: PodUid,
    node: &NodeName,
    host: Option<HostNetwork>,
) -> PodSpec {
    let raw = task.spec.raw.clone().unwrap_or_default();
    let name = raw_pod_name(&task.name_any());
    PodSpec {
        uid,
        environment: environment(task, &raw, &name, node),
        restart: match raw.restart_policy() {
            ApiRestart::Never => RestartPolicy::Never,
            ApiRestart::Always => RestartPolicy::Always,
            ApiRestart::OnFailure | ApiRestart::Other(_) => RestartPolicy::OnFailure,
        },
        // A task that is to run for ever is not given up.
        backoff_limit: (raw.restart_policy() != ApiRestart::Always || raw.backoff_limit.is_some())
            .then(|| raw.backoff_limit()),
        artifact: raw.artifact,
        entrypoint: raw.entrypoint,
        grace: DEFAULT_GRACE,
        host_network: host,
        // The node's section says it: peers are to be told an address at which they reach the pod.
        named_elsewhere: !task.spec.domain.is_empty(),
        notes: BTreeMap::from([
            (notes::TASK.to_owned(), task.name_any()),
            (notes::TASK_UID.to_owned(), task.uid().unwrap_or_default()),
            (notes::NAMESPACE.to_owned(), task.namespace().unwrap_or_default()),
            (notes::DOMAIN.to_owned(), task.spec.domain.clone()),
        ]),
        name,
    }
}

/// The user's variables, and ours where the user set none of that name.
fn environment(task: &Task, raw: &RawTask, pod: &str, node: &NodeName) -> Vec<(String, String)> {
    let mut all: Vec<(String, String)> =
        raw.environment.iter().map(|e| (e.name.clone(), e.value.clone())).collect();
    let mut add = |name: &str, value: &str| {
        if !value.is_empty() && !all.iter().any(|(n, _)| n == name) {
            all.push((name.to_owned(), value.to_owned()));
        }
    };
    let annotations = task.annotations();
    let task_name = task.name_any();
    let domain = task.spec.domain.as_str();
    add("POD_NAME", pod);
    add("NODE_NAME", node.as_str());
    add("RLARK_TASK_NAME", &task_name);
    add("RLARK_JOB_NAME", task.labels().get(labels::JOB).map_or("", String::as_str));
    add("RLARK_DOMAIN", domain);
    // On the machine's network there is no such interface: what leads to the Domain is in the calls.
    if !domain.is_empty() && !raw.host_network {
        for name in ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "RLINF_COMM_NET_DEVICES"] {
            add(name, INTERFACE);
        }
    }
    let rank = ray::get(annotations, ray::NODE_RANK_START).unwrap_or_default();
    add("RLINF_NODE_RANK", rank);
    add("RLARK_NODE_RANK_START", rank);
    add("RLARK_TOTAL_NODES", ray::get(annotations, ray::TOTAL_NODES).unwrap_or_default());
    if let Some(head) = ray::get(annotations, ray::HEAD_TASK_NAME).filter(|_| !domain.is_empty()) {
        add("RLARK_HEAD_ADDRESS", &format!("{}.{}", raw_pod_name(head), labels::HOST_SUFFIX));
    }
    all
}

/// Variables that are known only once the pod has its addresses: the first one, and all with commas between.
#[must_use]
pub(crate) fn address_environment(pod: &[IpAddr], vips: &[IpAddr]) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (name, addresses) in [("POD_IP", pod), ("RLARK_VIP", vips)] {
        let all: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        let Some(first) = all.first() else { continue };
        found.push((name.to_owned(), first.clone()));
        found.push((format!("{name}S"), all.join(",")));
    }
    found
}

/// How a pod fares, in the words of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fare {
    pub pod: PodPhase,
    pub task: Phase,
    pub message: String,
    pub reason: &'static str,
}

/// Translates a pod's state.
#[must_use]
pub(crate) fn fare(view: &PodView) -> Fare {
    let status = &view.status;
    let fare = |pod, task, message: String, reason| Fare { pod, task, message, reason };
    match (&status.outcome, status.stage) {
        (Some(Outcome::Succeeded), _) => {
            fare(PodPhase::Succeeded, Phase::Succeeded, String::new(), "Completed")
        }
        (Some(Outcome::Failed { message, .. }), _) => {
            fare(PodPhase::Failed, Phase::Failed, message.clone(), "Failed")
        }
        (Some(Outcome::Stopped), _) => {
            fare(PodPhase::Failed, Phase::Stopped, "stopped".to_owned(), "Stopped")
        }
        (None, Stage::Stopping) => {
            fare(PodPhase::Running, Phase::Stopping, "stopping".to_owned(), "Stopping")
        }
        (None, Stage::BackOff) => {
            let last = status.last_exit.map_or_else(|| "was lost".to_owned(), describe);
            let message = format!("{last}; waiting to restart, {} so far", status.failures);
            fare(PodPhase::Running, Phase::Running, message, "BackOff")
        }
        (None, Stage::Running) => {
            fare(PodPhase::Running, Phase::Running, String::new(), "PodRunning")
        }
        (None, _) if status.attempt > 1 => {
            fare(PodPhase::Running, Phase::Running, "restarting".to_owned(), "Restarting")
        }
        (None, _) => fare(PodPhase::Pending, Phase::Pending, "starting".to_owned(), "Starting"),
    }
}

#[cfg(test)]
mod tests;
