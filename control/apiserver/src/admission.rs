//! From a request body to an object that may be stored: decoding, field validation, defaults,
//! schema, metadata.

mod decode;

use axum::http::header::USER_AGENT;
use control_schema::apply::{self, Writer};
use control_schema::names::{self, NameRule};
use control_schema::strict;
use control_schema::{Cause, FieldError, Resource};
use serde_json::{Map, Value, json};

use crate::access;
use crate::builtin;
use crate::catalog;
use crate::context::Call;
use crate::crd;
use crate::grants;
use crate::render::now_rfc3339;
use crate::request::{FieldValidation, Verb};
use crate::status::{ApiError, MODIFIED};

pub(crate) use decode::decode;

/// Built-in kinds may omit `apiVersion` and `kind`; what is there must be right.
pub(crate) fn check_type(resource: &Resource, value: &mut Value) -> Result<(), ApiError> {
    let expected = resource.api_version();
    let kind = resource.kind.as_str();
    let shown = if resource.builtin { String::new() } else { value.to_string() };
    let Some(map) = value.as_object_mut() else {
        return Err(ApiError::bad(format!(
            "the object provided is unrecognized (must be of type {kind}): couldn't get version/kind; json parse error: not an object"
        )));
    };
    for (key, name, wanted) in
        [("kind", "Kind", kind), ("apiVersion", "apiVersion", expected.as_str())]
    {
        let found = map.get(key).and_then(Value::as_str).unwrap_or_default();
        if found.is_empty() {
            if !resource.builtin {
                return Err(ApiError::bad(format!("Object '{name}' is missing in '{shown}'")));
            }
            map.insert(key.to_owned(), Value::from(wanted));
        } else if found != wanted {
            let what = if key == "kind" { "kind" } else { "API version" };
            return Err(ApiError::bad(format!(
                "the {what} in the data ({found}) does not match the expected {what} ({wanted})"
            )));
        }
    }
    if !map.get("metadata").is_some_and(Value::is_object) {
        map.insert("metadata".to_owned(), Value::Object(Map::new()));
    }
    Ok(())
}

/// Removes unknown fields; what the client hears about them depends on `fieldValidation`.
/// Returns warnings, or the strict error's text.
pub(crate) fn prune(
    call: &Call<'_>,
    value: &mut Value,
    duplicates: &[String],
) -> Result<Vec<String>, String> {
    let unknown = call.resource.schema.prune(value);
    match call.query.field_validation {
        FieldValidation::Ignore => Ok(Vec::new()),
        FieldValidation::Warn => Ok(strict::problems(&unknown, duplicates)),
        FieldValidation::Strict => {
            strict::strict_error(&unknown, duplicates).map_or_else(|| Ok(Vec::new()), Err)
        }
    }
}

/// The refusal of a whole object (not of a patch) with unknown fields.
pub(crate) fn strict_refusal(resource: &Resource, message: &str) -> ApiError {
    let (kind, version) = (&resource.kind, &resource.version);
    ApiError::bad(format!(
        "{kind} in version \"{version}\" cannot be handled as a {kind}: {message}"
    ))
}

pub(crate) fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn metadata(value: &mut Value) -> Option<&mut Map<String, Value>> {
    value.get_mut("metadata").and_then(Value::as_object_mut)
}

fn invalid(resource: &Resource, value: &Value, errors: Vec<FieldError>) -> Result<(), ApiError> {
    if errors.is_empty() {
        return Ok(());
    }
    Err(ApiError::Invalid {
        group: resource.group.clone(),
        kind: resource.kind.clone(),
        name: text(value, "/metadata/name").to_owned(),
        errors,
    })
}

/// Puts the path's namespace into the object, or finds that it says another.
pub(crate) fn settle_namespace(call: &Call<'_>, value: &mut Value) -> Result<(), ApiError> {
    let own = text(value, "/metadata/namespace").to_owned();
    let Some(metadata) = metadata(value) else { return Ok(()) };
    match call.namespace().filter(|_| call.resource.namespaced()) {
        Some(namespace) if own.is_empty() => {
            metadata.insert("namespace".to_owned(), Value::from(namespace));
        }
        Some(namespace) if own != namespace => {
            return Err(ApiError::bad(
                "the namespace of the provided object does not match the namespace sent on the request",
            ));
        }
        Some(_) => {}
        // What belongs to no namespace may name one all the same; it is forgotten.
        None => {
            metadata.remove("namespace");
        }
    }
    Ok(())
}

/// Makes a decoded body into a new object: metadata of its own, defaults, checks.
pub(crate) fn create(call: &Call<'_>, value: &mut Value) -> Result<(), ApiError> {
    let resource = &call.resource;
    settle_namespace(call, value)?;
    if !text(value, "/metadata/resourceVersion").is_empty() {
        return Err(ApiError::Unnamed {
            message: "resourceVersion should not be set on objects to be created".to_owned(),
        });
    }
    if resource.status
        && let Some(map) = value.as_object_mut()
    {
        map.remove("status");
    }
    if let Some(metadata) = metadata(value) {
        let named = metadata.get("name").and_then(Value::as_str).is_some_and(|n| !n.is_empty());
        let prefix = metadata.get("generateName").and_then(Value::as_str).unwrap_or_default();
        if !named && !prefix.is_empty() {
            let name = names::generate_name(prefix, |n| rand::random_range(0..n.max(1)));
            metadata.insert("name".to_owned(), Value::from(name));
        }
        for key in
            ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "resourceVersion"]
        {
            metadata.remove(key);
        }
        metadata.insert("uid".to_owned(), Value::from(uuid::Uuid::new_v4().to_string()));
        metadata.insert("creationTimestamp".to_owned(), Value::from(now_rfc3339()));
        if counts_generations(resource) {
            metadata.insert("generation".to_owned(), Value::from(1));
        } else {
            metadata.remove("generation");
        }
    }
    without_empty(value);
    resource.schema.default(value);
    let mut errors = builtin::prepare(resource, value, None);
    errors.extend(names::validate_metadata(
        value,
        NameRule::of(&resource.group, &resource.plural),
        resource.namespaced(),
    ));
    errors.extend(unqualified_finalizers(resource, value));
    errors.extend(schema_errors(resource, value, None, &errors));
    invalid(resource, value, errors)?;
    access::admit(call, text(value, "/metadata/name"), None, Some(value))?;
    grants::check(call, value, None)
}

/// What the schema says of an object. Built-in kinds have checks of their own; there the schema only speaks where
/// those (`others`) are silent. What an update leaves as it was is not held against it.
fn schema_errors(
    resource: &Resource,
    new: &Value,
    old: Option<&Value>,
    others: &[FieldError],
) -> Vec<FieldError> {
    let mut errors = resource.schema.validate(new);
    if resource.builtin {
        // Definitions are checked in full already, under the names of kube's internal form.
        if crd::is_definition(resource) {
            return Vec::new();
        }
        errors.retain(|e| !told(e, others));
        return errors;
    }
    errors.retain(|e| !e.field.starts_with("metadata") || !told(e, others));
    if let Some(old) = old
        && !errors.is_empty()
    {
        let before = resource.schema.validate(old);
        let same_spec = old.get("spec") == new.get("spec");
        errors.retain(|e| !(before.contains(e) && (same_spec || e.cause != Cause::Required)));
    }
    if errors.iter().chain(others).any(|e| blocks_rules(e.cause)) {
        errors.extend(resource.schema.has_rules().then(rules_not_checked));
    } else {
        errors.extend(resource.schema.validate_rules(new, old));
    }
    errors
}

/// Whether the checks of a kind have spoken of a field. Owners are named with an index by the schema and without one by
/// the checks of metadata.
fn told(error: &FieldError, others: &[FieldError]) -> bool {
    let field = error
        .field
        .strip_prefix("metadata.ownerReferences")
        .map_or(error.field.as_str(), |_| "metadata.ownerReferences");
    others.iter().any(|o| o.field.starts_with(field))
}

/// Rules are not evaluated on an object that lacks what they may read.
fn blocks_rules(cause: Cause) -> bool {
    matches!(
        cause,
        Cause::NotSupported
            | Cause::Required
            | Cause::TooLong
            | Cause::TooMany
            | Cause::TypeInvalid
    )
}

fn rules_not_checked() -> FieldError {
    let detail = "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";
    FieldError::invalid("<nil>", &Value::Null, detail)
}

/// Kinds whose objects have a desired state; the flat built-ins have none.
fn counts_generations(resource: &Resource) -> bool {
    !resource.builtin || (resource.group.as_str(), resource.plural.as_str()) == catalog::CRDS
}

/// Which part of an object an update may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    /// Everything but status, where status is a subresource.
    Main,
    Status,
}

/// Makes `new` (served form) the successor of `old` (served form): what may not change is taken
/// from `old` or refused. The result is complete and checked.
pub(crate) fn update(
    call: &Call<'_>,
    old: &Value,
    new: &mut Value,
    part: Part,
) -> Result<(), ApiError> {
    let resource = &call.resource;
    settle_namespace(call, new)?;
    check_identity(call, old, new)?;
    carry_over(resource, old, new, part);
    without_empty(new);
    resource.schema.default(new);
    let mut errors = match part {
        Part::Main => builtin::prepare(resource, new, Some(old)),
        Part::Status => Vec::new(),
    };
    errors.extend(names::validate_metadata(
        new,
        NameRule::of(&resource.group, &resource.plural),
        resource.namespaced(),
    ));
    errors.extend(names::validate_metadata_update(new, old));
    errors.extend(unqualified_finalizers(resource, new));
    errors.extend(schema_errors(resource, new, Some(old), &errors));
    errors.extend(new_finalizers(old, new));
    invalid(resource, new, errors)?;
    admit(call, old, new)?;
    grants::check(call, new, Some(old))?;
    set_generation(resource, old, new);
    Ok(())
}

/// With the defaults of today on both sides, so that a default that is newer than the object is not
/// taken for the writer's doing.
fn admit(call: &Call<'_>, old: &Value, new: &Value) -> Result<(), ApiError> {
    let mut before = old.clone();
    call.resource.schema.default(&mut before);
    access::admit(call, call.name(), Some(&before), Some(new))
}

/// The refusal of an object whose name is not the one in the path.
pub(crate) fn wrong_name(name: &str, sent: &str) -> ApiError {
    ApiError::bad(if sent.is_empty() {
        format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        )
    } else {
        format!("the name of the object ({sent}) does not match the name on the URL ({name})")
    })
}

/// Name, uid and resource version, where an update states them.
pub(crate) fn check_identity(call: &Call<'_>, old: &Value, new: &Value) -> Result<(), ApiError> {
    let (name, sent) = (call.name(), text(new, "/metadata/name"));
    if sent != name {
        return Err(wrong_name(name, sent));
    }
    let (uid, sent) = (text(old, "/metadata/uid"), text(new, "/metadata/uid"));
    if !sent.is_empty() && sent != uid {
        return Err(other_uid(call, sent, uid));
    }
    let sent = text(new, "/metadata/resourceVersion");
    if !sent.is_empty() && sent.parse::<u64>().is_err() {
        return Err(ApiError::Unnamed {
            message: format!("strconv.ParseUint: parsing {sent:?}: invalid syntax"),
        });
    }
    if !matches!(sent, "" | "0") && sent != text(old, "/metadata/resourceVersion") {
        return Err(call.conflict(MODIFIED));
    }
    Ok(())
}

/// An update states the object it means by its uid; a patch that changes the uid breaks a rule.
fn other_uid(call: &Call<'_>, sent: &str, uid: &str) -> ApiError {
    if call.verb == Verb::Update {
        return call.conflict(format!(
            "StorageError: invalid object, Code: 4, Key: {}, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: {sent}, UID in object meta: {uid}",
            call.registry_key()
        ));
    }
    ApiError::Invalid {
        group: call.resource.group.clone(),
        kind: call.resource.kind.clone(),
        name: call.name().to_owned(),
        errors: vec![FieldError::invalid("metadata.uid", &Value::from(sent), "field is immutable")],
    }
}

/// Maps and lists of the metadata with nothing in them are not kept.
fn without_empty(value: &mut Value) {
    let Some(metadata) = metadata(value) else { return };
    metadata.retain(|key, part| {
        let optional = ["annotations", "labels", "finalizers", "ownerReferences"];
        let empty = part.as_object().is_some_and(Map::is_empty)
            || part.as_array().is_some_and(Vec::is_empty);
        !(empty && optional.contains(&key.as_str()))
    });
}

/// What the server owns stays as it was.
fn carry_over(resource: &Resource, old: &Value, new: &mut Value, part: Part) {
    if part == Part::Status {
        let status = new.get("status").cloned();
        let managed = new.pointer("/metadata/managedFields").cloned();
        old.clone_into(new);
        if let Some(map) = new.as_object_mut() {
            match status {
                Some(status) => map.insert("status".to_owned(), status),
                None => map.remove("status"),
            };
        }
        if let (Some(managed), Some(metadata)) = (managed, metadata(new)) {
            metadata.insert("managedFields".to_owned(), managed);
        }
        return;
    }
    if resource.status
        && let Some(map) = new.as_object_mut()
    {
        match old.get("status") {
            Some(status) => map.insert("status".to_owned(), status.clone()),
            None => map.remove("status"),
        };
    }
    let Some(metadata) = metadata(new) else { return };
    let kept = [
        "name",
        "uid",
        "creationTimestamp",
        "resourceVersion",
        "generation",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ];
    for key in kept {
        match old.pointer(&format!("/metadata/{key}")) {
            Some(value) => metadata.insert(key.to_owned(), value.clone()),
            None => metadata.remove(key),
        };
    }
    metadata.remove("selfLink");
}

/// Built-in kinds take only the standard finalizers and those of a domain.
fn unqualified_finalizers(resource: &Resource, value: &Value) -> Vec<FieldError> {
    if !resource.builtin || crd::is_definition(resource) {
        return Vec::new();
    }
    let list = value.pointer("/metadata/finalizers").and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .enumerate()
        .filter(|(_, f)| {
            let name = f.as_str().unwrap_or_default();
            !name.contains('/') && !["kubernetes", "orphan", "foregroundDeletion"].contains(&name)
        })
        .map(|(index, finalizer)| {
            let detail = "name is neither a standard finalizer name nor is it fully qualified";
            FieldError::invalid(format!("metadata.finalizers[{index}]"), finalizer, detail)
        })
        .collect()
}

/// Names of new finalizers of a custom resource that may clash with those of others.
pub(crate) fn finalizer_warnings(
    resource: &Resource,
    old: Option<&Value>,
    new: &Value,
) -> Vec<String> {
    if resource.builtin {
        return Vec::new();
    }
    let list = |value: &Value| -> Vec<String> {
        let list = value.pointer("/metadata/finalizers").and_then(Value::as_array);
        list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let before = old.map(list).unwrap_or_default();
    list(new)
        .iter()
        .filter(|f| !before.contains(f) && !f.contains('/'))
        .filter(|f| !["kubernetes", "orphan", "foregroundDeletion"].contains(&f.as_str()))
        .map(|f| {
            format!("metadata.finalizers: {f:?}: prefer a domain-qualified finalizer name including a path (/) to avoid accidental conflicts with other finalizer writers")
        })
        .collect()
}

/// An object that is being deleted takes no new finalizers.
fn new_finalizers(old: &Value, new: &Value) -> Vec<FieldError> {
    if text(old, "/metadata/deletionTimestamp").is_empty() {
        return Vec::new();
    }
    let list = |v: &Value| v.pointer("/metadata/finalizers").and_then(Value::as_array).cloned();
    let before = list(old).unwrap_or_default();
    let added: Vec<String> = list(new)
        .unwrap_or_default()
        .iter()
        .filter(|f| !before.contains(f))
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    if added.is_empty() {
        return Vec::new();
    }
    let detail = format!(
        "no new finalizers can be added if the object is being deleted, found new finalizers {added:?}"
    );
    vec![FieldError::forbidden("metadata.finalizers", &detail)]
}

/// Who a write is recorded for in the managed fields.
pub(crate) fn writer<'a>(call: &'a Call<'_>, api_version: &'a str, now: &'a str) -> Writer<'a> {
    let agent = call.headers.get(USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let manager = match call.query.field_manager.as_str() {
        "" => agent.split('/').next().filter(|a| !a.is_empty()).unwrap_or("unknown"),
        named => named,
    };
    Writer {
        manager,
        api_version,
        subresource: call.subresource().unwrap_or_default(),
        built_in: call.resource.builtin,
        now,
    }
}

/// Records in the managed fields who set what in a create, update or patch.
pub(crate) fn record(call: &Call<'_>, live: Option<&Value>, new: &mut Value) {
    let now = now_rfc3339();
    let api_version = call.resource.api_version();
    let writer = writer(call, &api_version, &now);
    let root = call.resource.schema.root();
    if !crd::is_definition(&call.resource) || !writer.subresource.is_empty() {
        return apply::record_update(root, live, new, &writer);
    }
    // The status of a definition is the server's word, whoever wrote the definition.
    let own = Writer { manager: "kube-apiserver", subresource: "status", ..writer };
    let status = new.as_object_mut().and_then(|map| map.remove("status"));
    let before = live.and_then(|live| live.get("status")).cloned();
    if let (Some(before), Some(map)) = (before, new.as_object_mut()) {
        map.insert("status".to_owned(), before);
    }
    apply::record_update(root, live, new, &writer);
    let written = new.clone();
    if let (Some(status), Some(map)) = (status, new.as_object_mut()) {
        map.insert("status".to_owned(), status);
    }
    apply::record_update(root, Some(&written), new, &own);
}

fn set_generation(resource: &Resource, old: &Value, new: &mut Value) {
    if !counts_generations(resource) {
        return;
    }
    let desired = |value: &Value| {
        let mut map = value.as_object().cloned().unwrap_or_default();
        map.remove("metadata");
        if resource.status {
            map.remove("status");
        }
        map
    };
    let before = old.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or(1);
    let generation = if desired(old) == desired(new) { before } else { before + 1 };
    if let Some(metadata) = metadata(new) {
        metadata.insert("generation".to_owned(), json!(generation));
    }
}
