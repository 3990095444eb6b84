//! Removal of what a manager applied before and applies no more, unless someone else owns it.

use serde_json::Value;

use super::extract::{element, field, items};
use super::fields::{Element, FieldSet};
use crate::schema::Node;

pub(super) fn remove(
    schema: &Node,
    value: &mut Value,
    last: &FieldSet,
    now: &FieldSet,
    others: &FieldSet,
) {
    let nothing = FieldSet::default();
    for (id, before) in &last.children {
        let mine = now.children.get(id).filter(|s| !s.is_empty());
        let theirs = others.children.get(id).filter(|s| !s.is_empty());
        if mine.is_none() && theirs.is_none() && before.own {
            take(schema, value, id);
            continue;
        }
        let emptied = match child(schema, value, id) {
            None => continue,
            Some((node, inner)) => {
                remove(node, inner, before, mine.unwrap_or(&nothing), theirs.unwrap_or(&nothing));
                mine.is_none() && theirs.is_none() && is_empty(inner)
            }
        };
        if emptied {
            take(schema, value, id);
        }
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(map) => map.is_empty(),
        Value::Array(list) => list.is_empty(),
        _ => false,
    }
}

fn child<'v, 's>(
    schema: &'s Node,
    value: &'v mut Value,
    id: &Element,
) -> Option<(&'s Node, &'v mut Value)> {
    match id {
        Element::Field(name) => Some((field(schema, name).0, value.get_mut(name)?)),
        Element::Index(index) => {
            Some((items(schema), value.get_mut(usize::try_from(*index).ok()?)?))
        }
        Element::Key(_) | Element::Value(_) => {
            let list = value.as_array_mut()?;
            let found = list.iter_mut().find(|item| element(schema, item) == *id)?;
            Some((items(schema), found))
        }
    }
}

fn take(schema: &Node, value: &mut Value, id: &Element) {
    match (id, value) {
        (Element::Field(name), Value::Object(map)) => {
            map.remove(name);
        }
        (Element::Key(_) | Element::Value(_), Value::Array(list)) => {
            list.retain(|item| element(schema, item) != *id);
        }
        _ => {}
    }
}
