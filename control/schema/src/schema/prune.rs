//! Pruning: fields that the schema does not know are removed and reported.

use serde_json::Value;

use super::node::Node;
use crate::path::Path;

pub(super) fn run(root: &Node, object: &mut Value) -> Vec<String> {
    let mut removed = Vec::new();
    walk(root, object, &mut Path::default(), &mut removed);
    removed
}

fn walk(node: &Node, value: &mut Value, path: &mut Path, removed: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            let keeps = node.keeps_unknown();
            map.retain(|key, child| {
                match node.properties.get(key).or(node.additional.as_deref()) {
                    Some(schema) => {
                        if child.is_object() || child.is_array() {
                            let mark = path.push(key);
                            walk(schema, child, path, removed);
                            path.pop(mark);
                        }
                        true
                    }
                    None if keeps => true,
                    None => {
                        removed.push(path.child(key));
                        false
                    }
                }
            });
        }
        Value::Array(list) => {
            let Some(items) = &node.items else { return };
            for (index, child) in list.iter_mut().enumerate() {
                if child.is_object() || child.is_array() {
                    let mark = path.push_index(index);
                    walk(items, child, path, removed);
                    path.pop(mark);
                }
            }
        }
        _ => {}
    }
}
