//! The question every request must answer before it is served, and who answers it.

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

/// Decides from what it already knows; never blocks.
pub trait Authorizer: Send + Sync + 'static {
    fn authorize(&self, who: &Principal, what: &Attributes<'_>) -> Decision;
}
