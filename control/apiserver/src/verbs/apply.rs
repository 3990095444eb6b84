//! Server-side apply: a patch that states what its manager wants and creates what is missing.

use axum::body::Body;
use axum::http::{Response, StatusCode};
use control_schema::apply::{self, ApplyError};
use control_schema::{FieldError, strict};
use control_store::{Precondition, WriteError};
use serde_json::Value;

use super::update::{ATTEMPTS, finish};
use super::write;
use crate::admission::{self, Part, text};
use crate::context::Call;
use crate::convert;
use crate::crd;
use crate::render::{self, now_rfc3339};
use crate::request::{self, FieldValidation};
use crate::status::{ApiError, MODIFIED};

pub(super) async fn apply(call: &Call<'_>, part: Part) -> Result<Response<Body>, ApiError> {
    let (applied, warnings) = decode(call)?;
    for _ in 0..ATTEMPTS {
        let outcome = match call.inner.workspace.latest(&call.key()) {
            None if part == Part::Status => return Err(call.not_found()),
            None => create(call, &applied).await?,
            Some(old) => {
                let live = convert::served(&call.resource, &old.value).into_owned();
                let mut new = merge(call, Some(&live), &applied)?;
                admission::update(call, &live, &mut new, part)?;
                finish(call, &old, new).await?
            }
        };
        if let Some(mut response) = outcome {
            render::add_warnings(&mut response, &warnings);
            return Ok(response);
        }
    }
    Err(call.conflict(MODIFIED))
}

fn decode(call: &Call<'_>) -> Result<(Value, Vec<String>), ApiError> {
    if call.query.field_manager.is_empty() {
        let missing = FieldError::required("fieldManager", "is required for apply patch");
        return Err(request::invalid_options("PatchOptions", vec![missing]));
    }
    let decoded = strict::decode_yaml(&call.body)
        .map_err(|e| ApiError::bad(format!("error decoding YAML: {e}")))?;
    let mut applied = decoded.value;
    check_type(call, &mut applied)?;
    let name = text(&applied, "/metadata/name");
    if !name.is_empty() && name != call.name() {
        return Err(admission::wrong_name(call.name(), name));
    }
    let named = format!("{}/{name}", text(&applied, "/metadata/namespace"));
    admission::settle_namespace(call, &mut applied)?;
    if let Some(metadata) = applied.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("name".to_owned(), Value::from(call.name()));
    }
    let mut problems = apply::problems(call.resource.schema.root(), &applied);
    let unknown = call.resource.schema.prune(&mut applied);
    problems.extend(unknown.iter().map(|path| format!(".{path}: field not declared in schema")));
    if !problems.is_empty() {
        return Err(untyped(call, &named, &problems));
    }
    // What stands twice is no part of the merge, so here the level of validation counts.
    let twice = strict::problems(&[], &decoded.duplicates);
    match call.query.field_validation {
        FieldValidation::Ignore => Ok((applied, Vec::new())),
        FieldValidation::Strict if !twice.is_empty() => {
            Err(ApiError::bad(format!("error strict decoding YAML: {}", twice.join(", "))))
        }
        FieldValidation::Warn | FieldValidation::Strict => Ok((applied, twice)),
    }
}

/// What is applied says what it is, in the words of kube's field manager.
fn check_type(call: &Call<'_>, applied: &mut Value) -> Result<(), ApiError> {
    if !applied.is_object() {
        let found = match applied {
            Value::Array(_) => "array",
            Value::String(_) => "string",
            Value::Bool(_) => "bool",
            _ => "number",
        };
        return Err(ApiError::bad(format!(
            "error decoding YAML: error unmarshaling JSON: while decoding JSON: json: cannot unmarshal {found} into Go value of type map[string]interface {{}}"
        )));
    }
    let (version, kind) = (text(applied, "/apiVersion"), text(applied, "/kind"));
    if version != call.resource.api_version() || kind != call.resource.kind {
        let slash = if version.contains('/') { "" } else { "/" };
        return Err(ApiError::bad(format!("invalid object type: {slash}{version}, Kind={kind}")));
    }
    admission::check_type(&call.resource, applied)
}

/// An applied configuration is merged by the schema, so there is no place for what does not fit it, whatever the
/// level of field validation. `named`: namespace and name as the configuration states them.
fn untyped(call: &Call<'_>, named: &str, problems: &[String]) -> ApiError {
    let resource = &call.resource;
    let problems = match problems {
        [one] => one.clone(),
        many => format!("errors:\n  {}", many.join("\n  ")),
    };
    ApiError::Unnamed {
        message: format!(
            "failed to create typed patch object ({named}; {}/{}, Kind={}): {problems}",
            resource.group, resource.version, resource.kind
        ),
    }
}

fn merge(call: &Call<'_>, live: Option<&Value>, applied: &Value) -> Result<Value, ApiError> {
    let now = now_rfc3339();
    let api_version = call.resource.api_version();
    let writer = admission::writer(call, &api_version, &now);
    let root = call.resource.schema.root();
    apply::apply(root, live, applied, &writer, call.query.force == Some(true)).map_err(|error| {
        match &error {
            ApplyError::Conflicts(_) => {
                ApiError::ApplyConflict { message: error.to_string(), causes: error.causes() }
            }
            ApplyError::ManagedFieldsGiven | ApplyError::NotAnObject => {
                ApiError::bad(error.to_string())
            }
        }
    })
}

/// `None` when somebody else created the object meanwhile.
async fn create(call: &Call<'_>, applied: &Value) -> Result<Option<Response<Body>>, ApiError> {
    write::check_namespace(call, call.name())?;
    let uid = text(applied, "/metadata/uid");
    if !uid.is_empty() {
        return Err(call.conflict(format!(
            "uid mismatch: the provided object specified uid {uid}, and no existing object was found"
        )));
    }
    let mut value = merge(call, None, applied)?;
    admission::create(call, &mut value)?;
    let stored = write::stored_form(call, value);
    if call.query.dry_run {
        return render::value(call, StatusCode::CREATED, &stored).map(Some);
    }
    match call.inner.workspace.put(call.key(), stored, Precondition::Absent).await {
        Ok(object) => {
            if crd::is_definition(&call.resource) {
                call.inner.reload_catalog();
            }
            render::object(call, StatusCode::CREATED, &object).map(Some)
        }
        Err(WriteError::AlreadyExists { .. }) => Ok(None),
        Err(error) => Err(ApiError::of_write(error, &call.resource.qualified(), call.name())),
    }
}
