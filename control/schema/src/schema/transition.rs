//! Checks that compare an update with the stored object.
//!
//! Of `x-kubernetes-validations` the one rule that needs no expression language is decided here:
//! `self == oldSelf`, the immutable field. Other rules are kept in the tree for an evaluator.

use serde_json::Value;

use super::node::Node;
use super::validate::{key_of, type_name};
use crate::error::FieldError;
use crate::path::Path;
use crate::schema::ListType;

pub(super) fn run(root: &Node, new: &Value, old: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk(root, new, old, &mut Path::default(), &mut errors);
    errors
}

fn walk(node: &Node, new: &Value, old: &Value, path: &mut Path, errors: &mut Vec<FieldError>) {
    if new == old {
        return;
    }
    for rule in node.checks.iter().flat_map(|checks| &checks.rules) {
        if is_immutable(&rule.rule) {
            let message = if rule.message.is_empty() {
                "failed rule: self == oldSelf"
            } else {
                &rule.message
            };
            errors.push(FieldError::invalid(path.as_str(), &Value::from(type_name(new)), message));
        }
    }
    match (new, old) {
        (Value::Object(new), Value::Object(old)) => {
            for (key, child) in new {
                let schema = node.properties.get(key).or(node.additional.as_deref());
                if let (Some(schema), Some(before)) = (schema, old.get(key)) {
                    let mark = path.push(key);
                    walk(schema, child, before, path, errors);
                    path.pop(mark);
                }
            }
        }
        (Value::Array(new), Value::Array(old)) if node.list_type == ListType::Map => {
            let Some(items) = &node.items else { return };
            for (index, child) in new.iter().enumerate() {
                let key = key_of(node, child);
                if let Some(before) = old.iter().find(|item| key_of(node, item) == key) {
                    let mark = path.push_index(index);
                    walk(items, child, before, path, errors);
                    path.pop(mark);
                }
            }
        }
        _ => {}
    }
}

fn is_immutable(rule: &str) -> bool {
    let plain: String = rule.chars().filter(|c| !c.is_whitespace()).collect();
    plain == "self==oldSelf" || plain == "oldSelf==self"
}
