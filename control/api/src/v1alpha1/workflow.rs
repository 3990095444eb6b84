//! Workflow: Jobs that run in an order.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::job::{JobPhase, JobSpec};
use crate::open_enum::open_enum;

open_enum!(
    /// Phase of a Workflow.
    WorkflowPhase, closed {
        Pending = "Pending",
        Running = "Running",
        Stopping = "Stopping",
        Stopped = "Stopped",
        Succeeded = "Succeeded",
        Failed = "Failed",
    }
);

/// What a Workflow should do.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "rlinf.io",
    version = "v1alpha1",
    kind = "Workflow",
    doc = "Jobs that run in the order of their dependencies.",
    plural = "workflows",
    singular = "workflow",
    shortname = "rlwf",
    category = "rlark",
    status = "WorkflowStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name": "Phase", "type": "string", "jsonPath": ".status.phase"}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Valid\")].message", "priority": 1}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowSpec {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub job_templates: Vec<JobTemplate>,
    /// Stop, or stay stopped. Clearing it runs everything again from the start.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stopped: bool,
}

/// One Job of a Workflow.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct JobTemplate {
    /// Unique within the Workflow.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Names of templates that must have succeeded first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dependencies: Vec<String>,
    #[serde(default)]
    pub spec: JobSpec,
}

/// What a Workflow does.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkflowStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<WorkflowPhase>,
    /// One entry per template, in the order of the spec.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub jobs: Vec<WorkflowJobStatus>,
    /// `Valid`: whether the dependencies form an order, and why not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// How one Job of a Workflow fares. No phase: not started.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct WorkflowJobStatus {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<JobPhase>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}
