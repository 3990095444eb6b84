//! The built-in kinds: facts and schemas. Schemas come from k8s-openapi, inlined to structural form and given the list
//! and patch semantics of kube's Go types.

mod facts;
mod inline;
mod overlay;
#[cfg(test)]
mod tests;

use std::sync::LazyLock;

use serde_json::{Map, Value};

use crate::resource::Resource;
use crate::schema::{Node, parse_node};

pub(crate) use inline::definition;

static META: LazyLock<Node> = LazyLock::new(|| {
    let mut json = inline::object_meta();
    overlay::object_meta(&mut json);
    parse_node(&json).unwrap_or_default()
});

static ALL: LazyLock<Vec<Resource>> =
    LazyLock::new(|| KNOWN.iter().map(|known| known.resource.clone()).collect());

static KNOWN: LazyLock<Vec<facts::Known>> = LazyLock::new(facts::all);

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

/// Adds the OpenAPI definitions of a built-in kind and returns the name of its own.
pub(crate) fn define(resource: &Resource, into: &mut Map<String, Value>, prefix: &str) -> String {
    let same = |k: &&facts::Known| {
        k.resource.group == resource.group && k.resource.plural == resource.plural
    };
    let Some(known) = KNOWN.iter().find(same) else { return String::new() };
    (known.define)(into, prefix);
    if let Some(definition) = into.get_mut(&known.definition) {
        overlay::own(&resource.plural, definition);
    }
    known.definition.clone()
}
