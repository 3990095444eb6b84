//! The built-in kinds: facts and schemas. Schemas come from k8s-openapi, inlined to structural form and given the list
//! and patch semantics of kube's Go types.

mod facts;
mod inline;
mod overlay;
#[cfg(test)]
mod tests;

use std::sync::LazyLock;

use crate::resource::Resource;
use crate::schema::{Node, parse_node};

pub use inline::{definition, definition_name};

static META: LazyLock<Node> = LazyLock::new(|| {
    let mut json = inline::object_meta();
    overlay::object_meta(&mut json);
    parse_node(&json).unwrap_or_default()
});

static ALL: LazyLock<Vec<Resource>> = LazyLock::new(facts::all);

/// The schema of `metadata`.
pub fn object_meta() -> &'static Node {
    &META
}

/// All built-in kinds, in the order discovery lists them. Built once, about a millisecond.
pub fn resources() -> &'static [Resource] {
    &ALL
}

/// One built-in kind.
pub fn resource(group: &str, plural: &str) -> Option<&'static Resource> {
    ALL.iter().find(|r| r.group == group && r.plural == plural)
}
