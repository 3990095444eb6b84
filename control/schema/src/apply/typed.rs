//! What keeps a configuration from being merged: values of another type than the schema's, and elements that stand
//! twice in a list of distinct ones. The words are those of `sigs.k8s.io/structured-merge-diff`.

use serde_json::Value;

use super::extract::{element, field, items};
use crate::schema::{ListType, Node, Type};

/// The problems of a configuration, each with its path. Unknown fields are not looked for.
pub fn problems(schema: &Node, applied: &Value) -> Vec<String> {
    let mut all = Vec::new();
    walk(schema, applied, String::new(), &mut all);
    all
}

fn walk(schema: &Node, value: &Value, path: String, all: &mut Vec<String>) {
    if value.is_null() || schema.int_or_string {
        return;
    }
    match schema.ty {
        None => {}
        Some(Type::Integer | Type::Number) if !value.is_number() => {
            all.push(format!("{path}: expected numeric (int or float), got {}", go_type(value)));
        }
        Some(Type::String) if !value.is_string() => {
            let shown = go_value(value);
            all.push(format!(
                "{path}: expected string, got &value.valueUnstructured{{Value:{shown}}}"
            ));
        }
        Some(Type::Boolean) if !value.is_boolean() => {
            all.push(format!("{path}: expected boolean, got &{{{}}}", plain(value)));
        }
        Some(Type::Object) => match value {
            Value::Object(map) => {
                for (name, child) in map {
                    walk(field(schema, name).0, child, format!("{path}.{name}"), all);
                }
            }
            other => all.push(format!("{path}: expected map, got &{{{}}}", plain(other))),
        },
        Some(Type::Array) => match value {
            Value::Array(list) => elements(schema, list, &path, all),
            other => all.push(format!("{path}: expected list, got &{{{}}}", plain(other))),
        },
        Some(_) => {}
    }
}

fn elements(schema: &Node, list: &[Value], path: &str, all: &mut Vec<String>) {
    let distinct = schema.list_type != ListType::Atomic;
    let mut seen = Vec::new();
    for (index, item) in list.iter().enumerate() {
        let id = element(schema, item);
        let at = if distinct { format!("{path}{id}") } else { format!("{path}[{index}]") };
        walk(items(schema), item, at, all);
        if distinct && seen.contains(&id) {
            let problem = format!("{path}: duplicate entries for key {id}");
            if !all.contains(&problem) {
                all.push(problem);
            }
        }
        seen.push(id);
    }
}

/// As Go names the type of a decoded value.
fn go_type(value: &Value) -> &'static str {
    match value {
        Value::Null => "<nil>",
        Value::Bool(_) => "bool",
        Value::Number(n) if n.is_f64() => "float64",
        Value::Number(_) => "int64",
        Value::String(_) => "string",
        Value::Array(_) => "[]interface {}",
        Value::Object(_) => "map[string]interface {}",
    }
}

/// As Go writes a value in its own syntax.
fn go_value(value: &Value) -> String {
    match value {
        Value::Array(_) | Value::Object(_) => format!("{}{value}", go_type(value)),
        other => other.to_string(),
    }
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
