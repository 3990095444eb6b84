//! Which fields differ between two objects.

use serde_json::Value;

use super::extract::{Shape, element, field, items, shape};
use super::fields::{Element, FieldSet};
use crate::schema::Node;

/// Whether anything but managed fields and resource version differs.
pub fn changed(schema: &Node, old: &Value, new: &Value) -> bool {
    !modified(schema, old, new).is_empty() || !modified(schema, new, old).is_empty()
}

/// The fields of `new` that are missing in `old` or have another value there.
pub(super) fn modified(schema: &Node, old: &Value, new: &Value) -> FieldSet {
    let mut set = FieldSet::default();
    walk(schema, Some(old), new, &mut set);
    set.own = false;
    if let Some(meta) = set.child_mut("metadata") {
        meta.remove_field("managedFields");
        meta.remove_field("resourceVersion");
    }
    set.without_empty()
}

/// Adds to what an update has changed the maps and lists that it has brought in: whoever makes one owns it besides its
/// content. `built_in`: see [`super::Writer`].
pub(super) fn add_containers(
    schema: &Node,
    old: &Value,
    new: &Value,
    built_in: bool,
    set: &mut FieldSet,
) {
    let Some(map) = new.as_object().filter(|_| !schema.map_atomic) else { return };
    for (name, child) in map {
        let (node, named) = field(schema, name);
        let Some(inner) = set.children.get_mut(&Element::Field(name.clone())) else { continue };
        let was = old.get(name);
        let part_of_struct = built_in && named && !node.properties.is_empty();
        if was.is_none() && !part_of_struct && !inner.is_empty() && !is_metadata(name, new) {
            inner.own = true;
        }
        add_containers(node, was.unwrap_or(&Value::Null), child, built_in, inner);
    }
}

/// The metadata of a whole object is always there.
fn is_metadata(name: &str, parent: &Value) -> bool {
    name == "metadata" && parent.get("kind").is_some() && parent.get("apiVersion").is_some()
}

fn walk(schema: &Node, old: Option<&Value>, new: &Value, set: &mut FieldSet) {
    if old == Some(new) {
        return;
    }
    match (shape(schema, new), new) {
        (Shape::Map(schema), Value::Object(map)) => {
            let before = old.and_then(Value::as_object);
            for (name, child) in map {
                let (node, named) = field(schema, name);
                let was = before.and_then(|m| m.get(name));
                let mut inner = FieldSet::default();
                walk(node, was, child, &mut inner);
                let empty = child.is_null() || child.as_object().is_some_and(|m| m.is_empty());
                if was.is_none() && (!named || empty) || (empty && was != Some(child)) {
                    inner.own = true;
                }
                set.children.insert(Element::Field(name.clone()), inner);
            }
        }
        (Shape::List(schema), Value::Array(list)) => {
            let before = old.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            for item in list {
                let id = element(schema, item);
                let was = before.iter().find(|other| element(schema, other) == id);
                let mut inner = FieldSet::default();
                walk(items(schema), was, item, &mut inner);
                if was.is_none() {
                    inner.own = true;
                }
                set.children.insert(id, inner);
            }
        }
        _ => set.own = true,
    }
}
