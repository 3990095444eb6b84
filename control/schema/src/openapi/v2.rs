//! From OpenAPI v3 parts to a swagger 2.0 document.

use serde_json::{Map, Value, json};

use super::V3_PREFIX;

const V2_PREFIX: &str = "#/definitions/";
/// Keywords that swagger 2.0 does not have; kube leaves them out too.
const UNKNOWN: [&str; 6] =
    ["anyOf", "oneOf", "not", "nullable", "x-kubernetes-validations", "discriminator"];

pub(super) fn document(paths: Map<String, Value>, schemas: Map<String, Value>) -> Value {
    let paths: Map<String, Value> =
        paths.into_iter().map(|(path, item)| (path, path_item(item))).collect();
    let definitions: Map<String, Value> =
        schemas.into_iter().map(|(name, s)| (name, schema(s))).collect();
    json!({
        "swagger": "2.0",
        "info": {"title": "Kubernetes", "version": "v1.34.0"},
        "paths": paths,
        "definitions": definitions,
    })
}

/// Rewrites references and drops what v2 does not know.
fn schema(value: Value) -> Value {
    match value {
        Value::Object(mut map) => {
            if let Some(name) = map
                .get("$ref")
                .and_then(Value::as_str)
                .and_then(|r| r.strip_prefix(V3_PREFIX))
                .map(str::to_owned)
            {
                return json!({"$ref": format!("{V2_PREFIX}{name}")});
            }
            // A described reference: swagger tools accept a description beside $ref, and kube writes it so.
            if let Some(Value::Array(all)) = map.get("allOf")
                && let [one] = all.as_slice()
                && one.get("$ref").is_some()
            {
                let mut inner = schema(one.clone());
                if let (Some(own), Some(text)) = (inner.as_object_mut(), map.remove("description"))
                {
                    own.insert("description".to_owned(), text);
                }
                return inner;
            }
            // Only where a map is a schema: a property may well be called `not`.
            for key in UNKNOWN {
                map.remove(key);
            }
            map.remove("allOf");
            if map.get("x-kubernetes-preserve-unknown-fields").is_some()
                && !map.contains_key("properties")
            {
                // kube drops the type of what it cannot describe.
                map.remove("type");
                map.remove("items");
            }
            for (key, child) in &mut map {
                let taken = child.take();
                *child = match key.as_str() {
                    "properties" => properties(taken),
                    "items" | "additionalProperties" if taken.is_object() => schema(taken),
                    _ => taken,
                };
            }
            Value::Object(map)
        }
        other => other,
    }
}

fn properties(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(map.into_iter().map(|(k, v)| (k, schema(v))).collect()),
        other => other,
    }
}

fn path_item(item: Value) -> Value {
    let Value::Object(item) = item else { return item };
    let fields = item.into_iter().map(|(key, value)| {
        let value = if key == "parameters" { parameters(value) } else { operation(value) };
        (key, value)
    });
    Value::Object(fields.collect())
}

fn parameters(value: Value) -> Value {
    let Value::Array(list) = value else { return value };
    list.into_iter()
        .map(|mut parameter| {
            if let Value::Object(map) = &mut parameter
                && let Some(Value::Object(inner)) = map.remove("schema")
            {
                map.extend(inner);
            }
            parameter
        })
        .collect()
}

fn operation(value: Value) -> Value {
    let Value::Object(mut map) = value else { return value };
    let mut list = match map.remove("parameters").map(parameters) {
        Some(Value::Array(list)) => list,
        _ => Vec::new(),
    };
    let mut consumes = vec![Value::from("*/*")];
    if let Some(body) = map.remove("requestBody") {
        let content = body.get("content").and_then(Value::as_object).cloned().unwrap_or_default();
        let inner =
            content.values().next().and_then(|c| c.get("schema")).cloned().unwrap_or_default();
        let required = body.get("required").cloned().unwrap_or(Value::Bool(false));
        list.insert(
            0,
            json!({"name": "body", "in": "body", "required": required, "schema": schema(inner)}),
        );
        if map.get("x-kubernetes-action").is_some_and(|a| a == "patch") {
            consumes = content.keys().map(|k| Value::from(k.as_str())).collect();
        }
    }
    if let Some(Value::Object(responses)) = map.get_mut("responses") {
        for response in responses.values_mut() {
            let found = response.pointer("/content/application~1json/schema").cloned();
            if let (Value::Object(own), Some(found)) = (response, found) {
                own.remove("content");
                own.insert("schema".to_owned(), schema(found));
            }
        }
    }
    map.insert("parameters".to_owned(), Value::Array(list));
    map.insert("consumes".to_owned(), Value::Array(consumes));
    map.insert("produces".to_owned(), json!(["application/json", "application/yaml"]));
    map.insert("schemes".to_owned(), json!(["https"]));
    Value::Object(map)
}
