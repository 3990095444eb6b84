//! Decoding of whole objects, with the errors of Go's decoders.

use control_schema::strict::{self, Decoded};
use control_schema::{FieldError, Resource, builtin, golang};
use serde_json::{Map, Value};

use super::{strict_refusal, text};
use crate::context::Call;
use crate::negotiate::{self, BodyFormat};
use crate::proto;
use crate::status::ApiError;

/// A whole object from the body, of the resource's version and kind.
pub(crate) fn decode(call: &Call<'_>) -> Result<Decoded, ApiError> {
    let decoded = match negotiate::body_format(&call.headers)? {
        BodyFormat::Json => decode_json(&call.body),
        BodyFormat::Yaml => strict::decode_yaml(&call.body).map_err(|e| e.to_string()),
        BodyFormat::Protobuf => proto::decode(&call.body)
            .map(|value| Decoded { value, duplicates: Vec::new() })
            .map_err(|e| e.to_string()),
    };
    let mut decoded = decoded.map_err(|e| unrecognized(call, &e))?;
    if decoded.value.is_null() {
        decoded.value = Value::Object(Map::new());
    }
    type_meta(call, &mut decoded.value)?;
    if call.resource.builtin {
        let kind = &call.resource.kind;
        let root = call.resource.schema.root();
        if let Some(problem) = golang::mismatch(root, &decoded.value, kind) {
            return Err(strict_refusal(&call.resource, &problem));
        }
    } else {
        check_metadata(&call.resource, &decoded.value)?;
    }
    complete(&call.resource, &mut decoded.value);
    Ok(decoded)
}

fn decode_json(body: &[u8]) -> Result<Decoded, String> {
    const NO_KIND: &str = "couldn't get version/kind; json parse error";
    /// The struct that is looked for first, as Go prints its type.
    const TYPE_META: &str = r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;
    let decoded = strict::decode_json(body).map_err(|e| {
        let said = golang::syntax_error(body).unwrap_or_else(|| e.to_string());
        format!("{NO_KIND}: {said}")
    })?;
    if let Some(error) = golang::unmarshal_error(&decoded.value, TYPE_META) {
        return Err(format!("{NO_KIND}: {error}"));
    }
    for key in ["apiVersion", "kind"] {
        let Some(value) = decoded.value.get(key) else { continue };
        if !value.is_string() && !value.is_null() {
            let found = golang::kind(value);
            return Err(format!(
                "{NO_KIND}: json: cannot unmarshal {found} into Go struct field .{key} of type string"
            ));
        }
    }
    Ok(decoded)
}

/// The refusal of a body of which not even the kind is known.
fn unrecognized(call: &Call<'_>, error: &str) -> ApiError {
    let (kind, summary) = (&call.resource.kind, golang::summary(&call.body));
    ApiError::bad(format!(
        "the object provided is unrecognized (must be of type {kind}): {error} ({summary})"
    ))
}

/// `apiVersion` and `kind` of a whole object: built-in kinds may omit them.
fn type_meta(call: &Call<'_>, value: &mut Value) -> Result<(), ApiError> {
    let resource = &call.resource;
    let (expected, wanted) = (resource.api_version(), resource.kind.as_str());
    let found = text(value, "/apiVersion").to_owned();
    let kind = text(value, "/kind").to_owned();
    if resource.builtin {
        let given = if kind.is_empty() { wanted } else { kind.as_str() };
        let version = if found.is_empty() { expected.as_str() } else { found.as_str() };
        if given == wanted && version == expected {
            return Ok(());
        }
        return Err(foreign(call, version, given));
    }
    if kind.is_empty() {
        let body = String::from_utf8_lossy(&call.body);
        return Err(unrecognized(call, &format!("Object 'Kind' is missing in '{body}'")));
    }
    if found != expected {
        return Err(ApiError::bad(format!(
            "the API version in the data ({found}) does not match the expected API version ({expected})"
        )));
    }
    if kind != wanted {
        let shown = Value::from(kind.as_str());
        let error = FieldError::invalid("kind", &shown, &format!("must be {wanted}"));
        return Err(ApiError::Invalid {
            group: resource.group.clone(),
            kind,
            name: text(value, "/metadata/name").to_owned(),
            errors: vec![error],
        });
    }
    Ok(())
}

/// The refusal of an object of another kind where a built-in one belongs.
fn foreign(call: &Call<'_>, api_version: &str, kind: &str) -> ApiError {
    let wanted = &call.resource.kind;
    let version = api_version.rsplit('/').next().unwrap_or_default();
    let known =
        builtin::resources().iter().any(|r| r.kind == kind && r.api_version() == api_version);
    // The hub form of a group's types lives in a package named like the group's first part.
    let package = match call.resource.group.split('.').next() {
        None | Some("") => "core",
        Some(first) => first,
    };
    let why = if known {
        format!("converting ({version}.{kind}) to ({package}.{wanted}): unknown conversion")
    } else {
        format!(
            "no kind {kind:?} is registered for version {api_version:?} in scheme \"pkg/api/legacyscheme/scheme.go:30\""
        )
    };
    ApiError::bad(format!("{kind} in version {version:?} cannot be handled as a {wanted}: {why}"))
}

/// The metadata of every kind is read into the same Go struct.
fn check_metadata(resource: &Resource, value: &Value) -> Result<(), ApiError> {
    let Some(metadata) = value.get("metadata").filter(|m| !m.is_null()) else { return Ok(()) };
    let problem = golang::unmarshal_error(metadata, "v1.ObjectMeta")
        .or_else(|| golang::mismatch(builtin::object_meta(), metadata, "ObjectMeta"));
    problem.map_or(Ok(()), |problem| Err(strict_refusal(resource, &problem)))
}

/// Fills in what a body may leave out.
fn complete(resource: &Resource, value: &mut Value) {
    let Some(map) = value.as_object_mut() else { return };
    map.insert("apiVersion".to_owned(), Value::from(resource.api_version()));
    map.insert("kind".to_owned(), Value::from(resource.kind.as_str()));
    if !map.get("metadata").is_some_and(Value::is_object) {
        map.insert("metadata".to_owned(), Value::Object(Map::new()));
    }
}
