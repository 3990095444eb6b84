//! What concerns definitions alone: what an update may not change, and names that clash.

use control_schema::{FieldError, Resource};
use serde_json::Value;

use crate::admission::text;
use crate::catalog::{CRDS, Catalog};
use crate::status::ApiError;

/// Keeps the objects of a definition from outliving it.
pub(crate) const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

pub(crate) fn is_definition(resource: &Resource) -> bool {
    (resource.group.as_str(), resource.plural.as_str()) == CRDS
}

/// Scope and names under which objects are stored stay.
pub(crate) fn immutable(new: &Value, old: &Value) -> Vec<FieldError> {
    ["/spec/group", "/spec/scope", "/spec/names/plural", "/spec/names/kind"]
        .iter()
        .filter(|pointer| new.pointer(pointer) != old.pointer(pointer))
        .map(|pointer| {
            let field = pointer.trim_start_matches('/').replace('/', ".");
            let shown = new.pointer(pointer).cloned().unwrap_or_default();
            FieldError::invalid(field, &shown, "field is immutable")
        })
        .collect()
}

/// A version in which objects may be stored must stay, or they could no longer be read.
pub(crate) fn missing_versions(new: &Value, old: &Value) -> Vec<FieldError> {
    let versions = new.pointer("/spec/versions").and_then(Value::as_array);
    let names: Vec<&str> =
        versions.into_iter().flatten().map(|version| text(version, "/name")).collect();
    let stored = old.pointer("/status/storedVersions").and_then(Value::as_array);
    stored
        .into_iter()
        .flatten()
        .enumerate()
        .filter(|(_, v)| v.as_str().is_some_and(|v| !names.contains(&v)))
        .map(|(index, version)| {
            let name = version.as_str().unwrap_or_default();
            let detail = format!(
                "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
            );
            FieldError::invalid(format!("status.storedVersions[{index}]"), version, &detail)
        })
        .collect()
}

/// A definition may not take a path or kind that something else in its group has.
pub(crate) fn check_names(catalog: &Catalog, crd: &Value) -> Result<(), ApiError> {
    let (group, plural) = (text(crd, "/spec/group"), text(crd, "/spec/names/plural"));
    let kind = text(crd, "/spec/names/kind");
    let taken = catalog
        .resources()
        .iter()
        .find(|r| r.group == group && (r.kind == kind) != (r.plural == plural));
    let builtin = catalog.resources().iter().find(|r| r.builtin && r.group == group);
    match taken.or(builtin) {
        None => Ok(()),
        Some(other) => Err(ApiError::Invalid {
            group: CRDS.0.to_owned(),
            kind: "CustomResourceDefinition".to_owned(),
            name: text(crd, "/metadata/name").to_owned(),
            errors: vec![FieldError::invalid(
                "spec.names",
                &Value::from(kind),
                &format!("names conflict with {} {}", other.kind, other.qualified()),
            )],
        }),
    }
}
