//! Task: one unit of a Job, run by the agent of one site.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::PodTemplateSpec,
    apimachinery::pkg::{
        apis::meta::v1::{Condition, Time},
        util::intstr::IntOrString,
    },
};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    common::{AgentType, EnvVar, Phase, PullProgress},
    node::NodeEvent,
};
use crate::open_enum::open_enum;

open_enum!(
    /// The Kubernetes workload behind a Task. Any text is stored; unknown ones are reported when
    /// the Job is planned.
    WorkloadKind, open {
        Deployment = "Deployment",
        DaemonSet = "DaemonSet",
        StatefulSet = "StatefulSet",
        CloneSet = "CloneSet",
    }
);
open_enum!(
    /// When a raw task's process is started again.
    RestartPolicy, closed { Never = "Never", OnFailure = "OnFailure", Always = "Always" }
);

/// What a Task should run.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "rlinf.io",
    version = "v1alpha1",
    kind = "Task",
    doc = "One unit of a Job, run by the agent of one site.",
    plural = "tasks",
    singular = "task",
    shortname = "task",
    category = "rlark",
    namespaced,
    status = "TaskStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name": "Agent", "type": "string", "jsonPath": ".spec.agentType"}"#,
    printcolumn = r#"{"name": "Role", "type": "string", "jsonPath": ".spec.role", "priority": 1}"#,
    printcolumn = r#"{"name": "Phase", "type": "string", "jsonPath": ".status.phase"}"#,
    printcolumn = r#"{"name": "Node", "type": "string", "jsonPath": ".metadata.annotations.rlark\\.io/node"}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "jsonPath": ".status.message", "priority": 1}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct TaskSpec {
    /// Kubernetes, Docker or Raw: which agents act on it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_type: Option<AgentType>,
    /// By convention Actor, Rollout or Env; any text is taken.
    pub role: String,
    /// Empty: no virtual network.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Kept for older manifests; nothing reads it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub downstream_name: String,
    /// Labels a node must have. A value may be a comma list, which means one of them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes: Option<KubernetesTask>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub docker: Option<DockerTask>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw: Option<RawTask>,
    /// When set, a TensorBoard runs beside the task on this directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tensor_board_dir: Option<String>,
    /// Run before Ray, on every node.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub prepare_script: String,
    /// Run once Ray is up, on the head only.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub run_script: String,
    /// Public key for the SSH server inside the task.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ssh_public_key: String,
}

/// The Kubernetes form of a Task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KubernetesTask {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workload: Option<Workload>,
}

/// A Kubernetes workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Workload {
    /// Deployment, DaemonSet, StatefulSet or CloneSet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<WorkloadKind>,
    /// Absent means 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replicas: Option<i32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<PodTemplateSpec>,
    /// Deprecated, for older manifests: claim name to storage class. Use
    /// `ephemeral.volumeClaimTemplate` in the pod template.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pvc_storage_map: BTreeMap<String, String>,
    /// Deprecated, for older manifests: claim name to size in GB.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pvc_size_gb_map: BTreeMap<String, IntOrString>,
}

/// The Docker form of a Task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DockerTask {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<DockerContainer>,
}

/// One container of a Docker task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DockerContainer {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub image: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<EnvVar>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<DockerVolume>,
}

/// A bind mount or named volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DockerVolume {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub target: String,
}

/// The raw form of a Task: a program on a bare machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RawTask {
    /// Where the program comes from, such as `file:///opt/robot/bin/policy`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub artifact: String,
    /// The program and its arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub entrypoint: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<EnvVar>,
    /// Never, OnFailure (the default) or Always.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_policy: Option<RestartPolicy>,
    /// How often to start again before the task has failed. Default 3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub backoff_limit: Option<i32>,
    /// Run on the network of the machine instead of one of the task's own: it uses the machine's interfaces and addresses, and the
    /// ports on which it listens are the machine's. Its Domain is there all the same, at a virtual address of the task's own.
    /// For programs that must be on the machine's LAN, such as those that search devices by broadcast. The machine's agent must
    /// allow it (`rlark-agent --allow-host-network`), or the task fails. It does not change a task that runs.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub host_network: bool,
}

impl RawTask {
    /// Restarts allowed when the manifest does not say.
    pub const DEFAULT_BACKOFF_LIMIT: i32 = 3;

    /// The policy in force.
    #[must_use]
    pub fn restart_policy(&self) -> RestartPolicy {
        self.restart_policy
            .clone()
            .filter(RestartPolicy::is_known)
            .unwrap_or(RestartPolicy::OnFailure)
    }

    /// The limit in force.
    #[must_use]
    pub fn backoff_limit(&self) -> u32 {
        u32::try_from(self.backoff_limit.unwrap_or(Self::DEFAULT_BACKOFF_LIMIT)).unwrap_or(0)
    }
}

/// How a Task fares.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TaskStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    /// The node of each pod; duplicates are kept.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub observed_nodes: Vec<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// When it first ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When it succeeded or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completion_time: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_count: Option<i32>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Added to REST answers only; never stored.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub tensor_board_proxy: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pull_progress: Vec<PullProgress>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub events: Vec<NodeEvent>,
}
