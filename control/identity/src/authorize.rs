//! The question every request must answer before it is served, and who answers it.

use serde_json::Value;

use crate::principal::Principal;

/// What a request wants to do, in Kubernetes' terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes<'a> {
    /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: &'a str,
    /// API group, empty for core.
    pub group: &'a str,
    /// Plural, such as `jobs`.
    pub resource: &'a str,
    /// Such as `status`, or empty.
    pub subresource: &'a str,
    /// Empty for cluster-scoped requests and lists over all namespaces.
    pub namespace: &'a str,
    /// Empty when the request names no object.
    pub name: &'a str,
}

/// The answer; deny is the default everywhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    Allow,
    /// With a reason for the refusal, possibly empty.
    Deny(String),
}

/// A write whose verb is allowed, with what it would change. Pure data of one request.
pub struct Write<'a> {
    pub group: &'a str,
    pub resource: &'a str,
    pub subresource: &'a str,
    pub namespace: &'a str,
    pub name: &'a str,
    /// As it stands; none when the object is made.
    pub old: Option<&'a Value>,
    /// As it would be, complete with defaults; none when the object is deleted.
    pub new: Option<&'a Value>,
    /// Another object of the namespace, by group, resource and name.
    pub find: &'a dyn Fn(&str, &str, &str) -> Option<Value>,
}

impl std::fmt::Debug for Write<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Write")
            .field("resource", &self.resource)
            .field("namespace", &self.namespace)
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// The field that a writer may not set, and why. The field is empty when the object itself is not
/// the writer's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    pub field: String,
    pub why: String,
}

/// Decides from what it already knows; never blocks.
pub trait Authorizer: Send + Sync + 'static {
    fn authorize(&self, who: &Principal, what: &Attributes<'_>) -> Decision;

    /// Whether a write that [`Authorizer::authorize`] allowed may have this content.
    ///
    /// # Errors
    /// The field that stands against it. Most callers are limited by verbs alone.
    fn admit(&self, _who: &Principal, _write: &Write<'_>) -> Result<(), Refused> {
        Ok(())
    }
}
