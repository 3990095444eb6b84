//! The field set of a configuration, and how lists are taken apart.

use serde_json::Value;

use super::fields::{Element, FieldSet};
use crate::schema::{ListType, Node, key_of};

/// What a node is for ownership.
pub(super) enum Shape<'a> {
    /// Owned as a whole.
    Atomic,
    /// Fields are owned one by one.
    Map(&'a Node),
    /// Elements are owned one by one.
    List(&'a Node),
}

/// A value without a schema: maps by key, lists whole.
static UNTYPED: std::sync::LazyLock<Node> =
    std::sync::LazyLock::new(|| Node { preserve_unknown: true, ..Node::default() });

pub(super) fn shape<'a>(schema: &'a Node, value: &Value) -> Shape<'a> {
    match value {
        Value::Object(_) if !schema.map_atomic => Shape::Map(schema),
        Value::Array(_) if schema.list_type != ListType::Atomic => Shape::List(schema),
        _ => Shape::Atomic,
    }
}

/// The schema of a field, and whether the schema names it.
pub(super) fn field<'a>(schema: &'a Node, name: &str) -> (&'a Node, bool) {
    match schema.properties.get(name) {
        Some(child) => (child, true),
        None => (schema.additional.as_deref().unwrap_or(&UNTYPED), false),
    }
}

pub(super) fn items(schema: &Node) -> &Node {
    schema.items.as_deref().unwrap_or(&UNTYPED)
}

/// The path element of a list's element.
pub(super) fn element(schema: &Node, item: &Value) -> Element {
    match schema.list_type {
        ListType::Map => Element::Key(key_of(schema, item).to_string()),
        _ => Element::Value(item.to_string()),
    }
}

/// The set of fields that `value` sets.
pub fn extract(schema: &Node, value: &Value) -> FieldSet {
    let mut set = FieldSet::default();
    walk(schema, value, &mut set);
    set.own = false;
    set.without_empty()
}

fn walk(schema: &Node, value: &Value, set: &mut FieldSet) {
    match (shape(schema, value), value) {
        (Shape::Map(schema), Value::Object(map)) => {
            for (name, child) in map {
                let (node, named) = field(schema, name);
                let mut inner = FieldSet::default();
                walk(node, child, &mut inner);
                if !named || child.is_null() || child.as_object().is_some_and(|m| m.is_empty()) {
                    inner.own = true;
                }
                set.children.insert(Element::Field(name.clone()), inner);
            }
        }
        (Shape::List(schema), Value::Array(list)) => {
            for item in list {
                let mut inner = FieldSet::default();
                walk(items(schema), item, &mut inner);
                inner.own = true;
                set.children.insert(element(schema, item), inner);
            }
        }
        _ => set.own = true,
    }
}
