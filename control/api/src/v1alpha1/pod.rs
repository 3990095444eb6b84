//! Pod: the control plane's image of a pod that an agent runs. Named by its data-plane uid.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::open_enum::open_enum;

open_enum!(
    /// Phase of a pod, as Kubernetes has it.
    PodPhase, closed {
        Pending = "Pending",
        Running = "Running",
        Succeeded = "Succeeded",
        Failed = "Failed",
        Unknown = "Unknown",
    }
);

/// Who the pod is.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "rlinf.io",
    version = "v1alpha1",
    kind = "Pod",
    doc = "The image of a pod that an agent runs; named by the pod's uid.",
    plural = "pods",
    singular = "pod",
    shortname = "rlpod",
    category = "rlark",
    namespaced,
    status = "PodStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name": "Pod", "type": "string", "jsonPath": ".spec.podName"}"#,
    printcolumn = r#"{"name": "Domain", "type": "string", "jsonPath": ".spec.domain"}"#,
    printcolumn = r#"{"name": "Node", "type": "string", "jsonPath": ".status.node"}"#,
    printcolumn = r#"{"name": "Phase", "type": "string", "jsonPath": ".status.phase"}"#,
    printcolumn = r#"{"name": "IP", "type": "string", "jsonPath": ".status.ip", "priority": 1}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "jsonPath": ".status.message", "priority": 1}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct PodSpec {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Control-plane namespace and name of the Task.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub task_namespace: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub task_name: String,
    /// Data-plane namespace and name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pod_namespace: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pod_name: String,
}

/// How the pod fares.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PodStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<PodPhase>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Data-plane node.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// Real address within the site, the first one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ip: String,
    /// All real addresses, one per address family.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<String>,
    /// How often its process was started again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart_count: Option<i32>,
    /// Exit code of the last process that ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,
}
