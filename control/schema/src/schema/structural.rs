//! Is a schema structural? The rules and messages of apiextensions-apiserver.

use serde_json::{Map, Value};

use crate::error::FieldError;

/// Checks the schema at `field` (`spec.versions[0].schema.openAPIV3Schema`).
pub(super) fn check(schema: &Value, field: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    node(schema, field, Level::Root, &mut errors);
    errors
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Level {
    Root,
    Field,
    Item,
}

fn node(schema: &Value, field: &str, level: Level, errors: &mut Vec<FieldError>) {
    let Some(map) = schema.as_object() else {
        errors.push(FieldError::invalid(field, schema, "must be a schema object"));
        return;
    };
    let ty = map.get("type").and_then(Value::as_str).unwrap_or_default();
    let int_or_string = on(map, "x-kubernetes-int-or-string");
    let preserve = on(map, "x-kubernetes-preserve-unknown-fields");
    check_type(map, ty, field, level, errors);
    if map.get("x-kubernetes-preserve-unknown-fields") == Some(&Value::Bool(false)) {
        errors.push(FieldError::invalid(
            format!("{field}.x-kubernetes-preserve-unknown-fields"),
            &Value::Bool(false),
            "must be true or undefined",
        ));
    }
    if on(map, "x-kubernetes-embedded-resource") && !preserve && !map.contains_key("properties") {
        errors.push(FieldError::required(
            format!("{field}.properties"),
            "must not be empty if x-kubernetes-embedded-resource is true without x-kubernetes-preserve-unknown-fields",
        ));
    }
    if int_or_string && !ty.is_empty() {
        errors.push(FieldError::forbidden(
            format!("{field}.type"),
            "must be empty if x-kubernetes-int-or-string is true",
        ));
    }
    for key in [
        "$ref",
        "definitions",
        "dependencies",
        "patternProperties",
        "deprecated",
        "discriminator",
        "id",
    ] {
        if map.contains_key(key) {
            errors.push(FieldError::forbidden(
                format!("{field}.{key}"),
                &format!("{key} is not supported"),
            ));
        }
    }
    children(map, ty, field, errors);
    for key in ["allOf", "anyOf", "oneOf"] {
        for (index, inner) in array(map, key).iter().enumerate() {
            value_validation(inner, map, &format!("{field}.{key}[{index}]"), int_or_string, errors);
        }
    }
    if let Some(inner) = map.get("not") {
        value_validation(inner, map, &format!("{field}.not"), int_or_string, errors);
    }
    list_map(map, ty, field, errors);
    super::rules::check(map, field, errors);
    if let Some(pattern) = map.get("pattern").and_then(Value::as_str)
        && let Err(e) = regex::Regex::new(pattern)
    {
        let detail = format!("must be a valid regular expression, but isn't: {e}");
        errors.push(FieldError::invalid(
            format!("{field}.pattern"),
            &Value::from(pattern),
            &detail,
        ));
    }
}

fn check_type(
    map: &Map<String, Value>,
    ty: &str,
    field: &str,
    level: Level,
    errors: &mut Vec<FieldError>,
) {
    let free =
        on(map, "x-kubernetes-int-or-string") || on(map, "x-kubernetes-preserve-unknown-fields");
    let at = || format!("{field}.type");
    match (level, ty) {
        (Level::Root, "") => {
            errors.push(FieldError::required(at(), "must not be empty at the root"))
        }
        (Level::Root, "object") => {}
        (Level::Root, other) => {
            errors.push(FieldError::invalid(
                at(),
                &Value::from(other),
                "must be object at the root",
            ));
        }
        (Level::Field, "") if !free => {
            errors
                .push(FieldError::required(at(), "must not be empty for specified object fields"));
        }
        (Level::Item, "") if !free => {
            errors.push(FieldError::required(at(), "must not be empty for specified array items"));
        }
        (_, "" | "object" | "array" | "string" | "integer" | "number" | "boolean") => {}
        (_, other) => {
            let known =
                ["array", "boolean", "integer", "number", "object", "string"].map(Value::from);
            errors.push(FieldError::not_supported(at(), &Value::from(other), &known));
        }
    }
}

fn children(map: &Map<String, Value>, ty: &str, field: &str, errors: &mut Vec<FieldError>) {
    if let Some(properties) = map.get("properties").and_then(Value::as_object) {
        for (key, child) in properties {
            node(child, &format!("{field}.properties[{key}]"), Level::Field, errors);
        }
        if map.get("additionalProperties").is_some_and(|a| a != &Value::Bool(false))
            && !properties.is_empty()
        {
            errors.push(FieldError::forbidden(
                format!("{field}.additionalProperties"),
                "additionalProperties and properties are mutual exclusive",
            ));
        }
    }
    if let Some(additional @ Value::Object(inner)) = map.get("additionalProperties")
        && !inner.is_empty()
    {
        node(additional, &format!("{field}.additionalProperties"), Level::Field, errors);
    }
    match map.get("items") {
        Some(Value::Array(_)) => errors.push(FieldError::forbidden(
            format!("{field}.items"),
            "items must be a schema object and not an array",
        )),
        Some(items) => node(items, &format!("{field}.items"), Level::Item, errors),
        None if ty == "array" => {
            errors.push(FieldError::required(format!("{field}.items"), "must be specified"))
        }
        None => {}
    }
    if map.get("uniqueItems") == Some(&Value::Bool(true)) {
        errors.push(FieldError::forbidden(
            format!("{field}.uniqueItems"),
            "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
        ));
    }
}

/// Inside `allOf`, `anyOf`, `oneOf` and `not` only value checks may stand, on fields that exist outside.
fn value_validation(
    inner: &Value,
    outer: &Map<String, Value>,
    field: &str,
    int_or_string: bool,
    errors: &mut Vec<FieldError>,
) {
    let Some(map) = inner.as_object() else { return };
    for key in ["type", "default", "description", "title", "nullable", "additionalProperties"] {
        // The one allowed use of type: anyOf [{type: integer}, {type: string}] of an int-or-string.
        if map.contains_key(key) && !(key == "type" && int_or_string) {
            errors.push(FieldError::forbidden(
                format!("{field}.{key}"),
                "must be empty to be structural",
            ));
        }
    }
    for key in map
        .keys()
        .filter(|key| key.starts_with("x-kubernetes-") && *key != "x-kubernetes-validations")
    {
        errors.push(FieldError::forbidden(
            format!("{field}.{key}"),
            "must be false to be structural",
        ));
    }
    let Some(properties) = map.get("properties").and_then(Value::as_object) else { return };
    let known = outer.get("properties").and_then(Value::as_object);
    let open = outer.get("additionalProperties").is_some_and(Value::is_object);
    for (key, child) in properties {
        match known.and_then(|k| k.get(key)).and_then(Value::as_object) {
            Some(same) => {
                value_validation(child, same, &format!("{field}.properties[{key}]"), false, errors);
            }
            None if open => {}
            None => errors.push(FieldError::required(
                format!("{}.properties[{key}]", outer_field(field)),
                &format!("because it is defined in {field}.properties[{key}]"),
            )),
        }
    }
}

/// The field of the schema that holds the `allOf[…]` at `field`.
fn outer_field(field: &str) -> &str {
    ["anyOf[", "allOf[", "oneOf[", "not"]
        .iter()
        .filter_map(|key| field.rfind(&format!(".{key}")))
        .max()
        .and_then(|at| field.get(..at))
        .unwrap_or(field)
}

fn list_map(map: &Map<String, Value>, ty: &str, field: &str, errors: &mut Vec<FieldError>) {
    let Some(list_type) = map.get("x-kubernetes-list-type").and_then(Value::as_str) else { return };
    let at = format!("{field}.x-kubernetes-list-type");
    if !["atomic", "set", "map"].contains(&list_type) {
        let known = ["atomic", "map", "set"].map(Value::from);
        errors.push(FieldError::not_supported(at.clone(), &Value::from(list_type), &known));
    }
    if ty != "array" {
        errors.push(FieldError::invalid(
            format!("{field}.type"),
            &Value::from(ty),
            "must be array if x-kubernetes-list-type is specified",
        ));
    }
    if list_type != "map" {
        return;
    }
    let keys = array(map, "x-kubernetes-list-map-keys");
    if keys.is_empty() {
        errors.push(FieldError::required(
            format!("{field}.x-kubernetes-list-map-keys"),
            "must not be empty if x-kubernetes-list-type is map",
        ));
    }
    let items = map.get("items").and_then(Value::as_object);
    for key in keys.iter().filter_map(Value::as_str) {
        let property = items.and_then(|i| i.get("properties")).and_then(|p| p.get(key));
        let required =
            items.map(|i| array(i, "required")).unwrap_or_default().iter().any(|r| r == key);
        match property {
            None => errors.push(FieldError::invalid(
                format!("{field}.x-kubernetes-list-map-keys"),
                &Value::from(key),
                "entries must all be names of item properties",
            )),
            Some(property) if !required && property.get("default").is_none() => {
                errors.push(FieldError::required(
                    format!("{field}.items.properties[{key}].default"),
                    "this property is in x-kubernetes-list-map-keys, so it must have a default or be a required property",
                ));
            }
            Some(_) => {}
        }
    }
}

fn on(map: &Map<String, Value>, key: &str) -> bool {
    map.get(key) == Some(&Value::Bool(true))
}

fn array<'a>(map: &'a Map<String, Value>, key: &str) -> &'a [Value] {
    map.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}
