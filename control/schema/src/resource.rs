//! What a server must know of one served kind, the same for built-in kinds and for each version of a CRD.

use std::sync::Arc;

use serde_json::Value;

use crate::schema::Schema;
use crate::table::Columns;

/// Where the objects of a kind live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scope {
    Cluster,
    Namespaced,
}

/// One served kind in one version.
#[derive(Clone, Debug)]
pub struct Resource {
    /// Empty for the core group.
    pub group: String,
    pub version: String,
    pub kind: String,
    pub list_kind: String,
    pub plural: String,
    pub singular: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub scope: Scope,
    pub verbs: Vec<String>,
    pub status: bool,
    pub scale: Option<Scale>,
    /// Whether this version is the stored one. Always true for built-in kinds.
    pub storage: bool,
    /// Deprecation warning of a CRD version, when it is deprecated.
    pub deprecation: Option<String>,
    /// Dotted JSON paths that may be used in field selectors, besides `metadata.name` and `metadata.namespace`.
    pub selectable_fields: Vec<String>,
    pub schema: Arc<Schema>,
    /// The schema as JSON, for OpenAPI documents.
    pub open_api: Arc<Value>,
    pub columns: Arc<Columns>,
    /// A built-in kind: strategic merge patch works, objects are not pruned by a CRD.
    pub builtin: bool,
}

/// The `scale` subresource of a CRD version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scale {
    pub spec_replicas: String,
    pub status_replicas: String,
    pub label_selector: Option<String>,
}

impl Resource {
    /// `v1` or `rlinf.io/v1alpha1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// `jobs.rlinf.io`, or `secrets` in the core group.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.plural.clone()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    pub fn namespaced(&self) -> bool {
        self.scope == Scope::Namespaced
    }
}
