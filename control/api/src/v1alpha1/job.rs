//! Job: a piece of work made of tasks that run at one or many sites.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{common::Phase, task::TaskSpec};
use crate::open_enum::open_enum;

open_enum!(
    /// Phase of a Job. `Stopping` lasts until its tasks are gone with all they left behind.
    JobPhase, closed {
        Pending = "Pending",
        Running = "Running",
        Stopping = "Stopping",
        Stopped = "Stopped",
        Succeeded = "Succeeded",
        Failed = "Failed",
    }
);

/// What a Job should do.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "rlinf.io",
    version = "v1alpha1",
    kind = "Job",
    doc = "A piece of work made of tasks that run at one or many sites.",
    plural = "jobs",
    singular = "job",
    shortname = "rljob",
    category = "rlark",
    status = "JobStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name": "Domain", "type": "string", "jsonPath": ".spec.domain"}"#,
    printcolumn = r#"{"name": "Phase", "type": "string", "jsonPath": ".status.phase"}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Placed\")].message", "priority": 1}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct JobSpec {
    /// The Domain of every task.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Stop, or stay stopped. Clearing it starts a fresh run.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
    /// Each becomes a Task named `<job>-<name>`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<JobTask>,
    /// When set, overrides the key of every task.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ssh_public_key: String,
}

/// A task of a Job.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobTask {
    /// Unique within the Job.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Whether this task holds the Ray head.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub head: bool,
    #[serde(flatten)]
    pub spec: TaskSpec,
}

/// What a Job does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<JobPhase>,
    /// One entry per task of the spec, in its order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<JobTaskStatus>,
    /// `Placed`: whether every task has a place, and why not. `Complete`, `Failed`: how a run ended.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// When this run began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When this run succeeded or failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Time>,
    /// The restart request (annotation `rlark.io/restarted-at`) that was last honoured.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub observed_restart: String,
    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// How one task of a Job fares.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct JobTaskStatus {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<Phase>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}
