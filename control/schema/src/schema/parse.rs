//! From the JSON of an `openAPIV3Schema` to a [`Node`] tree.

use regex::Regex;
use serde_json::{Map, Value};

use super::node::{Checks, ListType, Node, Type};
use super::rules::Rule;
use crate::builtin;

/// Why a schema cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SchemaError {
    #[error("schema at {path:?} has the type {found:?}, which is none of JSON's")]
    UnknownType { path: String, found: String },
    #[error("schema at {path:?} has a pattern that is no regular expression: {pattern}")]
    BadPattern {
        path: String,
        pattern: String,
        #[source]
        source: Box<regex::Error>,
    },
    #[error("schema at {path:?} must be an object")]
    NotAnObject { path: String },
    #[error("schema at {path:?} is nested too deeply")]
    TooDeep { path: String },
}

const MAX_DEPTH: usize = 64;

pub(super) fn root(value: &Value) -> Result<Node, SchemaError> {
    let mut node = parse(value, "", 0)?;
    add_object_fields(&mut node);
    Ok(node)
}

/// Parses one node without the fields every object has.
pub(crate) fn node(value: &Value) -> Result<Node, SchemaError> {
    parse(value, "", 0)
}

/// Adds `apiVersion`, `kind` and `metadata`. Of a schema's own `metadata` only the checks of `name` and
/// `generateName` may count, as in kube.
pub(super) fn add_object_fields(node: &mut Node) {
    let text = || Node { ty: Some(Type::String), ..Node::default() };
    node.properties.entry("apiVersion".to_owned()).or_insert_with(text);
    node.properties.entry("kind".to_owned()).or_insert_with(text);
    let mut meta = builtin::object_meta().clone();
    if let Some(own) = node.properties.remove("metadata") {
        for (key, value) in own.properties {
            if key == "name" || key == "generateName" {
                meta.properties.insert(key, value);
            }
        }
    }
    node.properties.insert("metadata".to_owned(), meta);
}

fn parse(value: &Value, path: &str, depth: usize) -> Result<Node, SchemaError> {
    let Some(map) = value.as_object() else {
        return Err(SchemaError::NotAnObject { path: path.to_owned() });
    };
    if depth > MAX_DEPTH {
        return Err(SchemaError::TooDeep { path: path.to_owned() });
    }
    let mut node = Node {
        nullable: flag(map, "nullable"),
        int_or_string: flag(map, "x-kubernetes-int-or-string"),
        preserve_unknown: flag(map, "x-kubernetes-preserve-unknown-fields"),
        embedded: flag(map, "x-kubernetes-embedded-resource"),
        default: map.get("default").filter(|d| !d.is_null()).cloned(),
        map_atomic: map.get("x-kubernetes-map-type").and_then(Value::as_str) == Some("atomic"),
        patch_merge_key: text(map, "x-kubernetes-patch-merge-key"),
        patch_merge: text(map, "x-kubernetes-patch-strategy").is_some_and(|s| s.contains("merge")),
        list_map_keys: strings(map, "x-kubernetes-list-map-keys"),
        list_type: match map.get("x-kubernetes-list-type").and_then(Value::as_str) {
            Some("map") => ListType::Map,
            Some("set") => ListType::Set,
            _ => ListType::Atomic,
        },
        ..Node::default()
    };
    if let Some(name) = map.get("type").and_then(Value::as_str).filter(|n| !n.is_empty()) {
        let ty = Type::of_name(name).ok_or_else(|| SchemaError::UnknownType {
            path: path.to_owned(),
            found: name.to_owned(),
        })?;
        node.ty = Some(ty);
    }
    if let Some(properties) = map.get("properties").and_then(Value::as_object) {
        for (key, child) in properties {
            node.properties.insert(key.clone(), parse(child, &format!("{path}.{key}"), depth + 1)?);
        }
    }
    match map.get("additionalProperties") {
        Some(Value::Bool(allowed)) => node.additional_any = *allowed,
        Some(schema @ Value::Object(inner)) if !inner.is_empty() => {
            node.additional = Some(Box::new(parse(schema, &format!("{path}.*"), depth + 1)?));
        }
        Some(Value::Object(_)) => node.additional_any = true,
        _ => {}
    }
    if let Some(items @ Value::Object(_)) = map.get("items") {
        node.items = Some(Box::new(parse(items, &format!("{path}[]"), depth + 1)?));
    }
    node.checks = checks(map, path, depth)?.map(Box::new);
    if node.embedded {
        add_object_fields(&mut node);
    }
    node.has_rules = node.checks.as_ref().is_some_and(|c| !c.rules.is_empty())
        || node.properties.values().any(|n| n.has_rules)
        || node.additional.as_ref().is_some_and(|n| n.has_rules)
        || node.items.as_ref().is_some_and(|n| n.has_rules);
    Ok(node)
}

fn checks(
    map: &Map<String, Value>,
    path: &str,
    depth: usize,
) -> Result<Option<Checks>, SchemaError> {
    const KEYS: [&str; 21] = [
        "required",
        "enum",
        "format",
        "pattern",
        "minimum",
        "maximum",
        "multipleOf",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "minProperties",
        "maxProperties",
        "uniqueItems",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "x-kubernetes-validations",
        "exclusiveMinimum",
        "exclusiveMaximum",
    ];
    if !KEYS.iter().any(|key| map.contains_key(*key)) {
        return Ok(None);
    }
    let pattern = match text(map, "pattern") {
        None => None,
        Some(pattern) => match Regex::new(&pattern) {
            Ok(regex) => Some((pattern, regex)),
            Err(e) => {
                return Err(SchemaError::BadPattern {
                    path: path.to_owned(),
                    pattern,
                    source: Box::new(e),
                });
            }
        },
    };
    let several = |key: &str| -> Result<Vec<Node>, SchemaError> {
        let list = map.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        list.iter().map(|v| parse(v, path, depth + 1)).collect()
    };
    let number = |key: &str| map.get(key).and_then(Value::as_f64);
    let count = |key: &str| map.get(key).and_then(Value::as_u64);
    Ok(Some(Checks {
        required: strings(map, "required"),
        enumeration: map.get("enum").and_then(Value::as_array).cloned().unwrap_or_default(),
        format: text(map, "format"),
        pattern,
        minimum: number("minimum").map(|n| (n, flag(map, "exclusiveMinimum"))),
        maximum: number("maximum").map(|n| (n, flag(map, "exclusiveMaximum"))),
        multiple_of: number("multipleOf"),
        min_length: count("minLength"),
        max_length: count("maxLength"),
        min_items: count("minItems"),
        max_items: count("maxItems"),
        min_properties: count("minProperties"),
        max_properties: count("maxProperties"),
        unique_items: flag(map, "uniqueItems"),
        all_of: several("allOf")?,
        any_of: several("anyOf")?,
        one_of: several("oneOf")?,
        not: map.get("not").map(|v| parse(v, path, depth + 1)).transpose()?.map(Box::new),
        rules: rules(map),
    }))
}

fn rules(map: &Map<String, Value>) -> Vec<Rule> {
    let list = map
        .get("x-kubernetes-validations")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    list.iter().filter_map(Value::as_object).filter_map(Rule::parse).collect()
}

fn flag(map: &Map<String, Value>, key: &str) -> bool {
    map.get(key).and_then(Value::as_bool).unwrap_or(false)
}

fn text(map: &Map<String, Value>, key: &str) -> Option<String> {
    map.get(key).and_then(Value::as_str).filter(|s| !s.is_empty()).map(str::to_owned)
}

fn strings(map: &Map<String, Value>, key: &str) -> Vec<String> {
    let list = map.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}
