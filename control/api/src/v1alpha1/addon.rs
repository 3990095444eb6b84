//! Addon: a component installed at one site.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::open_enum::open_enum;

open_enum!(
    /// Phase of an Addon.
    AddonPhase, closed {
        Pending = "Pending",
        Installing = "Installing",
        Ready = "Ready",
        Failed = "Failed",
        Upgrading = "Upgrading",
    }
);

/// What to install.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "rlinf.io",
    version = "v1alpha1",
    kind = "Addon",
    doc = "A component installed at one site.",
    plural = "addons",
    singular = "addon",
    shortname = "rladdon",
    category = "rlark",
    namespaced,
    status = "AddonStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name": "Addon", "type": "string", "jsonPath": ".spec.addonName"}"#,
    printcolumn = r#"{"name": "Version", "type": "string", "jsonPath": ".spec.version"}"#,
    printcolumn = r#"{"name": "Phase", "type": "string", "jsonPath": ".status.phase"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct AddonSpec {
    /// Name in the catalogue.
    pub addon_name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Parameters of the catalogue entry.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub values: BTreeMap<String, String>,
}

/// What is installed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AddonStatus {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<AddonPhase>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub version: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
}
