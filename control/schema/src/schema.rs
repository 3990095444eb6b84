//! Structural OpenAPI v3 schemas: parsed once from JSON into a tree, then used for every request to default,
//! prune and validate objects.

mod crd;
mod default;
mod format;
mod node;
mod parse;
mod prune;
mod rules;
mod structural;
#[cfg(test)]
pub(crate) mod tests;
mod validate;

pub use crd::{
    CUSTOM_VERBS, CrdError, default_crd, established_status, resources_of_crd, stored_versions,
    validate_crd,
};
pub(crate) use format::holds as format_holds;
pub use node::{Checks, ListType, Node, Type};
pub use parse::SchemaError;
pub(crate) use parse::node as parse_node;
pub use rules::Rule;
pub(crate) use validate::key_of;

use serde_json::Value;

use crate::error::FieldError;

/// The schema of a whole object: `apiVersion`, `kind` and `metadata` are known whatever the JSON says.
#[derive(Clone, Debug)]
pub struct Schema {
    root: Node,
}

impl Schema {
    /// Parses the JSON of `openAPIV3Schema`. Use [`validate_crd`] before to get kube's messages for a schema that is
    /// not structural; this function only fails on what cannot be represented.
    pub fn parse(open_api_v3: &Value) -> Result<Self, SchemaError> {
        parse::root(open_api_v3).map(|root| Self { root })
    }

    /// A schema that keeps and accepts everything (a CRD without a schema, unstructured kinds).
    pub fn any() -> Self {
        let mut root = Node { ty: Some(Type::Object), preserve_unknown: true, ..Node::default() };
        parse::add_object_fields(&mut root);
        Self { root }
    }

    pub fn root(&self) -> &Node {
        &self.root
    }

    /// Fills in defaults and drops nulls where null is not allowed, as kube does on decode.
    pub fn default(&self, object: &mut Value) {
        default::apply(&self.root, object);
    }

    /// Removes unknown fields and returns their paths (`spec.foo`), in order. Idempotent.
    pub fn prune(&self, object: &mut Value) -> Vec<String> {
        prune::run(&self.root, object)
    }

    /// Checks an object that was defaulted and pruned.
    pub fn validate(&self, object: &Value) -> Vec<FieldError> {
        validate::run(&self.root, object)
    }

    /// Checks the rules (`x-kubernetes-validations`) on an object that [`Self::validate`] accepts. With `old` rules on
    /// transitions apply too, and parts that did not change are not judged again.
    /// Whether anything in the schema has a rule.
    pub fn has_rules(&self) -> bool {
        self.root.has_rules
    }

    pub fn validate_rules(&self, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
        rules::run(&self.root, new, old)
    }
}
