//! Defaulting. Nulls where null is not allowed are dropped first, so that a default takes their place.

use serde_json::Value;

use super::node::Node;

pub(super) fn apply(node: &Node, value: &mut Value) {
    match value {
        Value::Object(map) => {
            for (key, child) in &node.properties {
                let Some(default) = &child.default else { continue };
                let missing = match map.get(key) {
                    None => true,
                    Some(Value::Null) => !child.nullable,
                    Some(_) => false,
                };
                if missing {
                    map.insert(key.clone(), default.clone());
                }
            }
            map.retain(|key, child| match of_key(node, key) {
                None => true,
                Some(schema) if child.is_null() => schema.nullable,
                Some(schema) => {
                    if child.is_object() || child.is_array() {
                        apply(schema, child);
                    }
                    true
                }
            });
        }
        Value::Array(list) => {
            if let Some(items) = &node.items {
                for child in list {
                    apply(items, child);
                }
            }
        }
        _ => {}
    }
}

fn of_key<'a>(node: &'a Node, key: &str) -> Option<&'a Node> {
    node.properties.get(key).or(node.additional.as_deref())
}
