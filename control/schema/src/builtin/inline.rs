//! k8s-openapi's generated JSON schemas with every reference replaced by what it refers to.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

const REF: &str = "#/$defs/";

/// The inlined, structural schema of a type.
pub(super) fn structural<T: JsonSchema>() -> Value {
    let mut generator = SchemaSettings::default().into_generator();
    let schema = T::json_schema(&mut generator).to_value();
    let definitions = generator.take_definitions(false);
    let mut stack = vec![T::schema_name().into_owned()];
    resolve(&schema, &definitions, &mut stack)
}

/// The inlined schema of `metadata`.
pub(super) fn object_meta() -> Value {
    structural::<ObjectMeta>()
}

/// The schema of a type as OpenAPI shows it: references stay, as `{prefix}{name}`. Returns every definition it needs,
/// itself included.
pub(crate) fn definition<T: JsonSchema>(into: &mut Map<String, Value>, prefix: &str) {
    let mut generator: SchemaGenerator = SchemaSettings::default().into_generator();
    let schema = T::json_schema(&mut generator).to_value();
    into.entry(T::schema_name().into_owned()).or_insert_with(|| rewrite(&schema, prefix));
    for (name, schema) in generator.take_definitions(false) {
        into.entry(name).or_insert_with(|| rewrite(&schema, prefix));
    }
}

/// Such as `io.k8s.api.core.v1.ConfigMap`.
pub(crate) fn definition_name<T: JsonSchema>() -> String {
    T::schema_name().into_owned()
}

fn rewrite(schema: &Value, prefix: &str) -> Value {
    match schema {
        Value::Object(map) => {
            match map.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix(REF)) {
                Some(name) => {
                    let mut node = Map::new();
                    // OpenAPI 3.0 ignores siblings of a reference, so a description needs allOf.
                    let reference = json!({"$ref": format!("{prefix}{name}")});
                    if let Some(description) = map.get("description") {
                        node.insert("allOf".to_owned(), json!([reference]));
                        node.insert("description".to_owned(), description.clone());
                        Value::Object(node)
                    } else {
                        reference
                    }
                }
                None => {
                    let mut node: Map<String, Value> =
                        map.iter().map(|(k, v)| (k.clone(), rewrite(v, prefix))).collect();
                    without_metadata(&mut node);
                    Value::Object(node)
                }
            }
        }
        Value::Array(list) => list.iter().map(|v| rewrite(v, prefix)).collect(),
        other => other.clone(),
    }
}

fn resolve(schema: &Value, definitions: &Map<String, Value>, stack: &mut Vec<String>) -> Value {
    let Some(map) = schema.as_object() else {
        return json!({"x-kubernetes-preserve-unknown-fields": true});
    };
    if let Some(name) = map.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix(REF)) {
        if stack.iter().any(|s| s == name) {
            // A recursive type (JSONSchemaProps): checked elsewhere, kept as it is here.
            return json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        }
        stack.push(name.to_owned());
        let mut inner = resolve(definitions.get(name).unwrap_or(&Value::Null), definitions, stack);
        stack.pop();
        if let (Some(own), Some(description)) = (inner.as_object_mut(), map.get("description")) {
            own.insert("description".to_owned(), description.clone());
        }
        return inner;
    }
    let mut node = map.clone();
    if map.get("format").is_some_and(|f| f == "int-or-string") {
        node.remove("format");
        node.remove("type");
        node.insert("x-kubernetes-int-or-string".to_owned(), Value::Bool(true));
        return Value::Object(node);
    }
    if let Some(properties) = map.get("properties").and_then(Value::as_object) {
        let inner: Map<String, Value> =
            properties.iter().map(|(k, v)| (k.clone(), resolve(v, definitions, stack))).collect();
        node.insert("properties".to_owned(), Value::Object(inner));
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = map.get(key).filter(|v| v.is_object()) {
            node.insert(key.to_owned(), resolve(inner, definitions, stack));
        }
    }
    let open = match map.get("type").and_then(Value::as_str) {
        None => true,
        Some("object") => {
            !map.contains_key("properties") && !map.contains_key("additionalProperties")
        }
        Some(_) => false,
    };
    if open {
        node.insert("x-kubernetes-preserve-unknown-fields".to_owned(), Value::Bool(true));
    }
    without_metadata(&mut node);
    Value::Object(node)
}

/// Kubernetes fills it in where it is not given: a review needs none.
fn without_metadata(node: &mut Map<String, Value>) {
    if let Some(required) = node.get_mut("required").and_then(Value::as_array_mut) {
        required.retain(|name| name != "metadata");
        if required.is_empty() {
            node.remove("required");
        }
    }
}
