//! What the built-in kinds need beyond their schemas, and the objects every workspace starts with.

mod access;
mod data;
mod roles;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use control_schema::{FieldError, Resource, builtin, schema};
use control_store::{Precondition, Workspace, WriteError};
use serde_json::{Map, Value, json};

use crate::admission::text;
use crate::catalog::{self, CRDS};
use crate::crd;
use crate::render::now_rfc3339;

/// Namespaces of a new workspace.
const NAMESPACES: [&str; 4] = ["default", "kube-public", "kube-system", "rlark-system"];

/// Namespaces that may not be deleted.
pub(crate) const PERMANENT: [&str; 3] = ["default", "kube-public", "kube-system"];

/// The finalizer in a namespace's spec: its content goes first.
pub(crate) const NAMESPACE_FINALIZER: &str = "kubernetes";

const RBAC: &str = "rbac.authorization.k8s.io";

/// Whether an update of an object that is not there creates it.
pub(crate) fn created_by_update(resource: &Resource) -> bool {
    let names = (resource.group.as_str(), resource.plural.as_str());
    resource.builtin
        && (names.0 == RBAC
            || matches!(
                names,
                ("coordination.k8s.io", "leases") | ("" | "events.k8s.io", "events")
            ))
}

/// Whether an update need not state the resource version it is based on.
pub(crate) fn updated_blindly(resource: &Resource) -> bool {
    let names = (resource.group.as_str(), resource.plural.as_str());
    resource.builtin && names != CRDS && names != ("coordination.k8s.io", "leases")
}

/// Creates the first objects of a workspace where they are missing.
pub(crate) async fn bootstrap(workspace: &Workspace) -> Result<(), WriteError> {
    let namespaces = NAMESPACES.map(|name| {
        let value = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        ("", "namespaces", value)
    });
    let roles = roles::first_objects().into_iter().map(|(plural, value)| (RBAC, plural, value));
    for (group, plural, value) in namespaces.into_iter().chain(roles) {
        if let Some(resource) = builtin::resource(group, plural) {
            create_missing(workspace, resource, value).await?;
        }
    }
    Ok(())
}

async fn create_missing(
    workspace: &Workspace,
    resource: &Resource,
    mut value: Value,
) -> Result<(), WriteError> {
    let key = catalog::key(resource, None, text(&value, "/metadata/name"));
    if workspace.get(&key).is_some() {
        return Ok(());
    }
    if let Some(metadata) = object(&mut value, "metadata") {
        metadata.insert("uid".to_owned(), Value::from(uuid::Uuid::new_v4().to_string()));
        metadata.insert("creationTimestamp".to_owned(), Value::from(now_rfc3339()));
    }
    prepare(resource, &mut value, None);
    match workspace.put(key, value, Precondition::Absent).await {
        Ok(_) | Err(WriteError::AlreadyExists { .. }) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Kind-specific defaults and checks of a create (`old` is none) or an update.
pub(crate) fn prepare(
    resource: &Resource,
    value: &mut Value,
    old: Option<&Value>,
) -> Vec<FieldError> {
    if !resource.builtin {
        return Vec::new();
    }
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("", "namespaces") => namespace(value, old),
        ("", "secrets") => secret(value, old),
        ("", "configmaps") => {
            let mut errors = data::config_map(value);
            errors
                .extend(old.iter().flat_map(|old| immutable(value, old, &["data", "binaryData"])));
            errors
        }
        (RBAC, "roles") => access::role(value, true),
        (RBAC, "clusterroles") => access::role(value, false),
        (RBAC, "rolebindings") => binding(value, old, true),
        (RBAC, "clusterrolebindings") => binding(value, old, false),
        ("coordination.k8s.io", "leases") => lease(value),
        ("", "events") => event(value),
        CRDS => definition(value, old),
        _ => Vec::new(),
    }
}

fn object<'a>(value: &'a mut Value, key: &str) -> Option<&'a mut Map<String, Value>> {
    let map = value.as_object_mut()?;
    let entry = map.entry(key).or_insert_with(|| Value::Object(Map::new()));
    if !entry.is_object() {
        *entry = Value::Object(Map::new());
    }
    entry.as_object_mut()
}

fn namespace(value: &mut Value, old: Option<&Value>) -> Vec<FieldError> {
    let name = text(value, "/metadata/name").to_owned();
    if let Some(labels) = object(value, "metadata")
        .map(|m| m.entry("labels").or_insert_with(|| Value::Object(Map::new())))
        .and_then(Value::as_object_mut)
    {
        labels.insert("kubernetes.io/metadata.name".to_owned(), Value::from(name));
    }
    match old {
        None => {
            if let Some(spec) = object(value, "spec") {
                spec.insert("finalizers".to_owned(), json!([NAMESPACE_FINALIZER]));
            }
            if let Some(map) = value.as_object_mut() {
                map.insert("status".to_owned(), json!({"phase": "Active"}));
            }
        }
        // Finalizers of the spec change through the subresource `finalize` alone.
        Some(old) => {
            if let (Some(map), Some(spec)) = (value.as_object_mut(), old.get("spec")) {
                map.insert("spec".to_owned(), spec.clone());
            }
        }
    }
    Vec::new()
}

fn secret(value: &mut Value, old: Option<&Value>) -> Vec<FieldError> {
    let plain = value.as_object_mut().and_then(|map| map.remove("stringData"));
    if let Some(Value::Object(plain)) = plain
        && let Some(data) = object(value, "data")
    {
        for (key, text) in plain {
            let encoded = BASE64_STANDARD.encode(text.as_str().unwrap_or_default());
            data.insert(key, Value::from(encoded));
        }
    }
    if text(value, "/type").is_empty()
        && let Some(map) = value.as_object_mut()
    {
        map.insert("type".to_owned(), Value::from("Opaque"));
    }
    let mut errors = data::secret(value);
    if let Some(old) = old {
        if value.get("type") != old.get("type") {
            let shown = value.get("type").cloned().unwrap_or_default();
            errors.push(FieldError::invalid("type", &shown, "field is immutable"));
        }
        errors.extend(immutable(value, old, &["data"]));
    }
    errors
}

/// `immutable: true` on secrets and config maps.
fn immutable(new: &Value, old: &Value, fields: &[&str]) -> Vec<FieldError> {
    if old.get("immutable") != Some(&Value::Bool(true)) {
        return Vec::new();
    }
    let detail = "field is immutable when `immutable` is set";
    let mut errors = Vec::new();
    if new.get("immutable") != Some(&Value::Bool(true)) {
        errors.push(FieldError::forbidden("immutable", detail));
    }
    for field in fields.iter().filter(|f| new.get(**f) != old.get(**f)) {
        errors.push(FieldError::forbidden(*field, detail));
    }
    errors
}

fn lease(value: &Value) -> Vec<FieldError> {
    let rules = [
        ("leaseDurationSeconds", 1, "must be greater than 0"),
        ("leaseTransitions", 0, "must be greater than or equal to 0"),
    ];
    rules
        .iter()
        .filter_map(|(field, least, detail)| {
            let shown = value.get("spec")?.get(field)?;
            let low = shown.as_i64().is_some_and(|n| n < *least);
            low.then(|| FieldError::invalid(format!("spec.{field}"), shown, detail))
        })
        .collect()
}

/// An event is in the namespace of what it is about, if that has one.
fn event(value: &Value) -> Vec<FieldError> {
    let about = text(value, "/involvedObject/namespace");
    let own = text(value, "/metadata/namespace");
    if about == own || about.is_empty() {
        return Vec::new();
    }
    let shown = Value::from(about);
    vec![FieldError::invalid("involvedObject.namespace", &shown, "does not match event.namespace")]
}

fn binding(value: &mut Value, old: Option<&Value>, namespaced: bool) -> Vec<FieldError> {
    const GROUP: &str = RBAC;
    if let Some(role) = object(value, "roleRef")
        && role.get("apiGroup").and_then(Value::as_str).is_none_or(str::is_empty)
    {
        role.insert("apiGroup".to_owned(), Value::from(GROUP));
    }
    for subject in value.get_mut("subjects").and_then(Value::as_array_mut).into_iter().flatten() {
        let wanted = matches!(text(subject, "/kind"), "User" | "Group");
        if wanted
            && text(subject, "/apiGroup").is_empty()
            && let Some(map) = subject.as_object_mut()
        {
            map.insert("apiGroup".to_owned(), Value::from(GROUP));
        }
    }
    let mut errors = access::binding(value, namespaced);
    match old {
        Some(old) if value.get("roleRef") != old.get("roleRef") => {
            let shown = value.get("roleRef").cloned().unwrap_or_default();
            errors.push(FieldError::invalid("roleRef", &shown, "cannot change roleRef"));
        }
        _ => {}
    }
    errors
}

fn definition(value: &mut Value, old: Option<&Value>) -> Vec<FieldError> {
    schema::default_crd(value);
    let mut errors = schema::validate_crd(value, old);
    if let Some(old) = old {
        errors.extend(crd::immutable(value, old));
    }
    let status = schema::established_status(value, &now_rfc3339());
    if let Some(map) = value.as_object_mut() {
        map.insert("status".to_owned(), status);
    }
    if old.is_some() {
        errors.extend(schema::stored_versions(value));
    }
    errors
}
