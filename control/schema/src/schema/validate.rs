//! Validation with the messages of a kube-apiserver (kube-openapi's `errors` package mapped to field errors).

use serde_json::{Map, Value};

use super::format;
use super::node::{Checks, ListType, Node, Type};
use crate::error::FieldError;
use crate::path::Path;

pub(super) fn run(root: &Node, object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk(root, object, &mut Path::default(), &mut errors);
    errors
}

/// The JSON type of a value as messages name it.
fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn has_type(ty: Type, value: &Value) -> bool {
    match (ty, value) {
        (Type::Object, Value::Object(_))
        | (Type::Array, Value::Array(_))
        | (Type::String, Value::String(_))
        | (Type::Boolean, Value::Bool(_))
        | (Type::Number, Value::Number(_)) => true,
        (Type::Integer, Value::Number(n)) => {
            !n.is_f64() || n.as_f64().is_some_and(|f| f.fract() == 0.0)
        }
        _ => false,
    }
}

fn walk(node: &Node, value: &Value, path: &mut Path, errors: &mut Vec<FieldError>) {
    if value.is_null() && node.nullable {
        return;
    }
    if node.int_or_string {
        if !value.is_string() && !has_type(Type::Integer, value) {
            wrong_type("integer,string", value, path, errors);
            return;
        }
    } else if let Some(ty) = node.ty
        && !has_type(ty, value)
    {
        wrong_type(ty.name(), value, path, errors);
        return;
    }
    if let Some(checks) = &node.checks {
        check(checks, value, path, errors);
    }
    match value {
        Value::Object(map) => children(node, map, path, errors),
        Value::Array(list) => {
            if let Some(items) = &node.items {
                for (index, child) in list.iter().enumerate() {
                    let mark = path.push_index(index);
                    walk(items, child, path, errors);
                    path.pop(mark);
                }
            }
            duplicates(node, list, path, errors);
        }
        _ => {}
    }
}

fn children(node: &Node, map: &Map<String, Value>, path: &mut Path, errors: &mut Vec<FieldError>) {
    for (key, child) in map {
        if let Some(schema) = node.properties.get(key).or(node.additional.as_deref()) {
            let mark = path.push(key);
            walk(schema, child, path, errors);
            path.pop(mark);
        }
    }
    if node.embedded {
        for key in ["apiVersion", "kind"] {
            if map.get(key).and_then(Value::as_str).is_none_or(str::is_empty) {
                errors.push(FieldError::required(path.child(key), "must not be empty"));
            }
        }
    }
}

fn wrong_type(wanted: &str, value: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    let found = type_name(value);
    let detail = format!("{} in body must be of type {wanted}: \"{found}\"", path.as_str());
    errors.push(FieldError::type_invalid(path.as_str(), &Value::from(found), &detail));
}

fn check(checks: &Checks, value: &Value, path: &mut Path, errors: &mut Vec<FieldError>) {
    match value {
        Value::String(text) => check_string(checks, text, value, path, errors),
        Value::Number(_) => check_number(checks, value, path, errors),
        Value::Array(list) => check_array(checks, list, value, path, errors),
        Value::Object(map) => check_object(checks, map, value, path, errors),
        _ => {}
    }
    if !checks.enumeration.is_empty() && !checks.enumeration.contains(value) {
        errors.push(FieldError::not_supported(path.as_str(), value, &checks.enumeration));
    }
    combined(checks, value, path, errors);
}

fn invalid(value: &Value, detail: &str, path: &Path, errors: &mut Vec<FieldError>) {
    let detail = format!("{} in body {detail}", path.as_str());
    errors.push(FieldError::invalid(path.as_str(), value, &detail));
}

fn check_string(
    checks: &Checks,
    text: &str,
    value: &Value,
    path: &Path,
    errors: &mut Vec<FieldError>,
) {
    if checks.min_length.is_some() || checks.max_length.is_some() {
        let length = text.chars().count() as u64;
        if let Some(max) = checks.max_length.filter(|max| length > *max) {
            errors.push(FieldError::too_long(path.as_str(), max));
        }
        if let Some(min) = checks.min_length.filter(|min| length < *min) {
            invalid(value, &format!("should be at least {min} chars long"), path, errors);
        }
    }
    if let Some((source, regex)) = &checks.pattern
        && !regex.is_match(text)
    {
        invalid(value, &format!("should match '{source}'"), path, errors);
    }
    if let Some(name) = &checks.format
        && !format::holds(name, text)
    {
        let detail = format!(
            "{} in body must be of type {name}: {}",
            path.as_str(),
            crate::error::quote(text)
        );
        errors.push(FieldError::type_invalid(path.as_str(), value, &detail));
    }
}

fn check_number(checks: &Checks, value: &Value, path: &Path, errors: &mut Vec<FieldError>) {
    let Some(number) = value.as_f64() else { return };
    if let Some((max, exclusive)) = checks.maximum
        && (number > max || (exclusive && number >= max))
    {
        let word = if exclusive { "less than" } else { "less than or equal to" };
        invalid(value, &format!("should be {word} {max}"), path, errors);
    }
    if let Some((min, exclusive)) = checks.minimum
        && (number < min || (exclusive && number <= min))
    {
        let word = if exclusive { "greater than" } else { "greater than or equal to" };
        invalid(value, &format!("should be {word} {min}"), path, errors);
    }
    if let Some(step) = checks.multiple_of
        && step > 0.0
        && (number / step).fract() != 0.0
    {
        invalid(value, &format!("should be a multiple of {step}"), path, errors);
    }
    if checks.format.as_deref() == Some("int32")
        && i32::try_from(value.as_i64().unwrap_or_default()).is_err()
    {
        let detail = "Checked value must be of type integer with format int32";
        errors.push(FieldError::invalid(path.as_str(), value, detail));
    }
}

fn check_array(
    checks: &Checks,
    list: &[Value],
    value: &Value,
    path: &Path,
    errors: &mut Vec<FieldError>,
) {
    let count = list.len() as u64;
    if let Some(max) = checks.max_items.filter(|max| count > *max) {
        errors.push(FieldError::too_many(path.as_str(), list.len(), max));
    }
    if let Some(min) = checks.min_items.filter(|min| count < *min) {
        errors.push(FieldError::invalid(
            path.as_str(),
            &Value::from(count),
            &format!("{} in body should have at least {min} items", path.as_str()),
        ));
    }
    if checks.unique_items
        && list.iter().enumerate().any(|(i, v)| list.iter().take(i).any(|w| w == v))
    {
        invalid(value, "shouldn't contain duplicates", path, errors);
    }
}

fn check_object(
    checks: &Checks,
    map: &Map<String, Value>,
    value: &Value,
    path: &Path,
    errors: &mut Vec<FieldError>,
) {
    for key in &checks.required {
        if !map.contains_key(key) {
            errors.push(FieldError::required(path.child(key), ""));
        }
    }
    let count = map.len() as u64;
    if let Some(max) = checks.max_properties.filter(|max| count > *max) {
        errors.push(FieldError::too_many(path.as_str(), map.len(), max));
    }
    if let Some(min) = checks.min_properties.filter(|min| count < *min) {
        invalid(value, &format!("should have at least {min} properties"), path, errors);
    }
}

fn combined(checks: &Checks, value: &Value, path: &mut Path, errors: &mut Vec<FieldError>) {
    let holds = |node: &Node| {
        let mut inner = Vec::new();
        walk(node, value, &mut Path::new(path.as_str()), &mut inner);
        inner.is_empty()
    };
    let mut say = |what: &str| {
        let detail = format!("\"{}\" {what}", path.as_str());
        errors.push(FieldError::invalid("", &Value::from(""), &detail));
    };
    if !checks.any_of.is_empty() && !checks.any_of.iter().any(holds) {
        say("must validate at least one schema (anyOf)");
    }
    if !checks.one_of.is_empty() {
        match checks.one_of.iter().filter(|node| holds(node)).count() {
            1 => {}
            0 => say("must validate one and only one schema (oneOf). Found none valid"),
            n => say(&format!(
                "must validate one and only one schema (oneOf). Found {n} valid alternatives"
            )),
        }
    }
    if checks.not.as_deref().is_some_and(holds) {
        say("must not validate the schema (not)");
    }
    for node in &checks.all_of {
        walk(node, value, path, errors);
    }
}

/// Lists of type set or map must not hold an element twice.
fn duplicates(node: &Node, list: &[Value], path: &mut Path, errors: &mut Vec<FieldError>) {
    let keys: Vec<Value> = match node.list_type {
        ListType::Atomic => return,
        ListType::Set => list.to_vec(),
        ListType::Map => list.iter().map(|item| key_of(node, item)).collect(),
    };
    let mut seen = std::collections::HashSet::with_capacity(keys.len());
    for (index, key) in keys.iter().enumerate() {
        if !seen.insert(key.to_string()) {
            let mark = path.push_index(index);
            errors.push(FieldError::duplicate(path.as_str(), key));
            path.pop(mark);
        }
    }
}

/// The key of an element of a map list: its key fields, defaults filled in.
pub(crate) fn key_of(node: &Node, item: &Value) -> Value {
    let mut key = Map::new();
    for name in &node.list_map_keys {
        let own = item.get(name).cloned();
        let default = || node.items.as_ref()?.properties.get(name)?.default.clone();
        if let Some(value) = own.or_else(default) {
            key.insert(name.clone(), value);
        }
    }
    Value::Object(key)
}
