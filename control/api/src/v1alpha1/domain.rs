//! Domain: a virtual network of pods, whatever site they run at.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a Domain should be.
#[derive(
    CustomResource, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema,
)]
#[kube(
    group = "rlinf.io",
    version = "v1alpha1",
    kind = "Domain",
    doc = "A virtual network: pods of one Domain reach each other by virtual address, whatever site they run at.",
    plural = "domains",
    singular = "domain",
    shortname = "rldomain",
    category = "rlark",
    status = "DomainStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name": "CIDR", "type": "string", "jsonPath": ".spec.cidr"}"#,
    printcolumn = r#"{"name": "Ready", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].status"}"#,
    printcolumn = r#"{"name": "Reason", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].reason", "priority": 1}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct DomainSpec {
    /// Subnet of the virtual addresses, such as `10.0.1.0/24` or `fd00:1::/64`, or one of each address family: `10.0.1.0/24,fd00:1::/64`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cidr: String,
    /// Encrypt flows between pods of one site as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encrypt_within_site: Option<bool>,
    /// The TCP and UDP ports on which pods of the Domain may be reached, such as `22` or `7000-7999`; all when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_ports: Vec<String>,
}

/// What a Domain is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DomainStatus {
    /// The subnets in use, written as in the spec; the last valid ones while that holds none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cidr: String,
    /// One entry per pod and subnet: live ones, and some of those gone, whose address is kept for their return.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ip_allocations: Vec<IpAllocation>,
    /// `Ready`, with the reason when not: InvalidCIDR, InvalidPorts, OverlappingCIDR, Exhausted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The generation of the spec that this status speaks of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// A pod's virtual address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct IpAllocation {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ip: String,
    /// `<control-plane namespace>/<pod namespace>/<pod name>`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub pod: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub job: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub task: String,
}
