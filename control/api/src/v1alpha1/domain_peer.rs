//! DomainPeer: a Domain as one site sees it. Written by the Domain controller.

use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The site's own pods of the Domain. Named after the Domain.
#[derive(CustomResource, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "rlinf.io",
    version = "v1alpha1",
    kind = "DomainPeer",
    doc = "A Domain as one site sees it: that site's pods, and the Domain's public certificate authority.",
    plural = "domainpeers",
    singular = "domainpeer",
    shortname = "rldpeer",
    category = "rlark",
    namespaced,
    status = "DomainPeerStatus",
    derive = "PartialEq",
    derive = "Default",
    printcolumn = r#"{"name": "Domain", "type": "string", "jsonPath": ".metadata.name"}"#,
    printcolumn = r#"{"name": "Prefix", "type": "integer", "jsonPath": ".spec.prefixLen"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct DomainPeerSpec {
    /// Prefix length of the Domain's subnet, of the first one where there are two.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix_len: Option<i32>,
    /// The Domain's subnets, as in its status.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cidr: String,
    /// Live pods of this site, sorted by uid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pods: Vec<PeerPod>,
    /// The Domain's public SSH certificate authority.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cert: String,
    /// Read from older objects only; private keys do not travel in objects.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub key: String,
}

impl std::fmt::Debug for DomainPeerSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DomainPeerSpec")
            .field("prefix_len", &self.prefix_len)
            .field("cidr", &self.cidr)
            .field("pods", &self.pods)
            .finish_non_exhaustive()
    }
}

/// Nothing is reported.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DomainPeerStatus {}

/// One pod of the Domain.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PeerPod {
    /// Control-plane namespace, `rlark-<cluster>`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub global_namespace: String,
    /// Data-plane namespace.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Data-plane name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Data-plane uid, which is the Pod object's name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Data-plane node.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// Virtual address, the first one.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub ip: String,
    /// All virtual addresses, one per subnet of the Domain.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ips: Vec<String>,
    /// Real address within the site.
    #[serde(default, rename = "localIP", skip_serializing_if = "String::is_empty")]
    pub local_ip: String,
}
