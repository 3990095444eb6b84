//! Shapes that several kinds share.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::open_enum::open_enum;

open_enum!(
    /// What runs a Task: an agent acts only on Tasks of its own type. Older controllers took any
    /// text, so the schema does too; an unknown one is reported when the Job is planned.
    AgentType, open { Kubernetes = "Kubernetes", Docker = "Docker", Raw = "Raw" }
);
open_enum!(
    /// Phase of a Task.
    Phase, closed {
        Pending = "Pending",
        Running = "Running",
        /// Being cleaned up.
        Stopping = "Stopping",
        Stopped = "Stopped",
        Succeeded = "Succeeded",
        Failed = "Failed",
    }
);

/// One environment variable of a Docker or Raw task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EnvVar {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub value: String,
}

/// How far an image is pulled.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PullProgress {
    pub image: String,
    /// Bytes.
    pub downloaded: i64,
    /// Bytes.
    pub total: i64,
    /// Bytes per second.
    pub speed: f64,
    pub status: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
}
