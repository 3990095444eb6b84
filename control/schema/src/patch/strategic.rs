//! Strategic merge patch: lists with a merge key merge element by element; `$patch`, `$retainKeys`,
//! `$deleteFromPrimitiveList` and `$setElementOrder` direct it.

use serde_json::{Map, Value};

use super::PatchError;
use crate::schema::Node;

const DIRECTIVE: &str = "$patch";
const RETAIN: &str = "$retainKeys";
const DELETE: &str = "$deleteFromPrimitiveList/";
const ORDER: &str = "$setElementOrder/";

type Object = Map<String, Value>;

pub(super) fn objects(
    target: &mut Object,
    patch: &Object,
    schema: Option<&Node>,
) -> Result<(), PatchError> {
    match patch.get(DIRECTIVE).and_then(Value::as_str) {
        None | Some("merge") => {}
        Some("replace") => {
            *target = clean(patch);
            return Ok(());
        }
        Some("delete") => {
            target.clear();
            return Ok(());
        }
        Some(other) => return Err(PatchError::UnknownDirective { directive: other.to_owned() }),
    }
    if let Some(keep) = patch.get(RETAIN).and_then(Value::as_array) {
        target.retain(|key, _| keep.iter().any(|k| k == key));
    }
    for (key, value) in patch {
        if let Some(list) = key.strip_prefix(DELETE) {
            remove_primitives(target, list, value);
        }
    }
    for (key, value) in patch {
        if key.starts_with('$') {
            continue;
        }
        let child = schema.and_then(|s| s.properties.get(key).or(s.additional.as_deref()));
        member(target, key, value, child)?;
    }
    for (key, value) in patch {
        if let (Some(list), Value::Array(order)) = (key.strip_prefix(ORDER), value) {
            let child = schema.and_then(|s| s.properties.get(list));
            reorder(target, list, order, child);
        }
    }
    Ok(())
}

fn member(
    target: &mut Object,
    key: &str,
    value: &Value,
    schema: Option<&Node>,
) -> Result<(), PatchError> {
    match value {
        Value::Null => {
            target.remove(key);
        }
        Value::Object(patch) => {
            if patch.get(DIRECTIVE).is_some_and(|d| d == "delete") {
                target.remove(key);
                return Ok(());
            }
            let slot = target.entry(key).or_insert_with(|| Value::Object(Map::new()));
            if !slot.is_object() {
                *slot = Value::Object(Map::new());
            }
            if let Value::Object(inner) = slot {
                objects(inner, patch, schema)?;
            }
        }
        Value::Array(patch) if schema.is_some_and(|s| s.patch_merge) => {
            let slot = target.entry(key).or_insert_with(|| Value::Array(Vec::new()));
            if !slot.is_array() {
                *slot = Value::Array(Vec::new());
            }
            if let Value::Array(list) = slot {
                lists(list, patch, schema)?;
            }
        }
        Value::Array(patch) => {
            let plain = patch.iter().filter(|item| !is_directive(item)).map(clean_value).collect();
            target.insert(key.to_owned(), Value::Array(plain));
        }
        plain => {
            target.insert(key.to_owned(), plain.clone());
        }
    }
    Ok(())
}

fn is_directive(item: &Value) -> bool {
    item.get(DIRECTIVE).is_some() && item.as_object().is_some_and(|o| o.len() == 1)
}

fn lists(list: &mut Vec<Value>, patch: &[Value], schema: Option<&Node>) -> Result<(), PatchError> {
    if patch
        .iter()
        .any(|item| is_directive(item) && item.get(DIRECTIVE).is_some_and(|d| d == "replace"))
    {
        *list = patch.iter().filter(|item| !is_directive(item)).map(clean_value).collect();
        return Ok(());
    }
    let items = schema.and_then(|s| s.items.as_deref());
    let Some(key) = schema.and_then(|s| s.patch_merge_key.as_deref()) else {
        for item in patch {
            if !list.contains(item) {
                list.push(item.clone());
            }
        }
        return Ok(());
    };
    for item in patch {
        let Value::Object(own) = item else {
            return Err(PatchError::Malformed(format!(
                "expected an object with the key {key}, found {item}"
            )));
        };
        let Some(id) = own.get(key) else {
            return Err(PatchError::NoMergeKey { patch: item.to_string(), key: key.to_owned() });
        };
        match own.get(DIRECTIVE).and_then(Value::as_str) {
            Some("delete") => {
                list.retain(|other| other.get(key) != Some(id));
                continue;
            }
            Some("replace") => {
                list.retain(|other| other.get(key) != Some(id));
                list.push(Value::Object(clean(own)));
                continue;
            }
            _ => {}
        }
        match list.iter_mut().find(|other| other.get(key) == Some(id)) {
            Some(Value::Object(found)) => objects(found, own, items)?,
            _ => {
                let mut fresh = Map::new();
                objects(&mut fresh, own, items)?;
                list.push(Value::Object(fresh));
            }
        }
    }
    Ok(())
}

fn remove_primitives(target: &mut Object, key: &str, remove: &Value) {
    let Some(remove) = remove.as_array() else { return };
    if let Some(Value::Array(list)) = target.get_mut(key) {
        list.retain(|item| !remove.contains(item));
    }
}

/// Elements named in `order` take that order; the others keep their place behind the element they followed.
fn reorder(target: &mut Object, key: &str, order: &[Value], schema: Option<&Node>) {
    let merge_key = schema.and_then(|s| s.patch_merge_key.as_deref());
    let id = |item: &Value| match merge_key {
        Some(merge_key) => item.get(merge_key).cloned().unwrap_or_default(),
        None => item.clone(),
    };
    let rank_of = |item: &Value| order.iter().position(|o| id(o) == id(item));
    let Some(Value::Array(list)) = target.get_mut(key) else { return };
    let mut last = 0;
    let mut ranked: Vec<(usize, Value)> = Vec::with_capacity(list.len());
    for item in list.drain(..) {
        let rank = rank_of(&item).map_or(last, |r| r + 1);
        last = rank;
        ranked.push((rank, item));
    }
    ranked.sort_by_key(|(rank, _)| *rank);
    list.extend(ranked.into_iter().map(|(_, item)| item));
}

/// A patch object without its directives.
fn clean(patch: &Object) -> Object {
    patch
        .iter()
        .filter(|(key, value)| !key.starts_with('$') && !value.is_null())
        .map(|(key, value)| (key.clone(), clean_value(value)))
        .collect()
}

fn clean_value(value: &Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(clean(map)),
        Value::Array(list) => Value::Array(list.iter().map(clean_value).collect()),
        other => other.clone(),
    }
}
