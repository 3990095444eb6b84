//! CustomResourceDefinitions: checking one, filling in its defaults, and the resources it defines.

mod checks;

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{Schema, SchemaError, structural};
use crate::error::FieldError;
use crate::names;
use crate::resource::{Resource, Scale, Scope};
use crate::table::Columns;

pub use checks::stored_versions;

/// Why a stored CRD cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum CrdError {
    #[error("custom resource definition {name} lacks {field}")]
    Missing { name: String, field: &'static str },
    #[error("custom resource definition {name}, version {version}: the schema cannot be used")]
    Schema {
        name: String,
        version: String,
        #[source]
        source: SchemaError,
    },
}

/// Verbs of every custom resource.
pub const CUSTOM_VERBS: [&str; 8] =
    ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];

/// Fills in what a kube-apiserver fills in: singular, list kind, conversion.
pub fn default_crd(crd: &mut Value) {
    let Some(spec) = crd.get_mut("spec").and_then(Value::as_object_mut) else { return };
    if let Some(names) = spec.get_mut("names").and_then(Value::as_object_mut) {
        let kind = names.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
        if !kind.is_empty() {
            let missing = |names: &Map<String, Value>, key: &str| {
                names.get(key).and_then(Value::as_str).is_none_or(str::is_empty)
            };
            if missing(names, "singular") {
                names.insert("singular".to_owned(), Value::from(kind.to_lowercase()));
            }
            if missing(names, "listKind") {
                names.insert("listKind".to_owned(), Value::from(format!("{kind}List")));
            }
        }
    }
    for version in spec.get_mut("versions").and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(version) = version.as_object_mut() else { continue };
        for flag in ["served", "storage"] {
            version.entry(flag).or_insert(Value::Bool(false));
        }
    }
    if spec.get("conversion").is_none_or(Value::is_null) {
        spec.insert("conversion".to_owned(), json!({"strategy": "None"}));
    }
}

/// The status of a CRD that is accepted and served; `now` as RFC 3339. Keeps an older transition time.
pub fn established_status(crd: &Value, now: &str) -> Value {
    let spec = crd.get("spec").cloned().unwrap_or_default();
    let storage = versions(crd)
        .iter()
        .find(|v| v.get("storage") == Some(&Value::Bool(true)))
        .and_then(|v| v.get("name").cloned())
        .unwrap_or_default();
    let old = crd.get("status").cloned().unwrap_or_default();
    let mut stored: Vec<Value> =
        old.get("storedVersions").and_then(Value::as_array).cloned().unwrap_or_default();
    if !stored.contains(&storage) {
        stored.push(storage);
    }
    let since = |ty: &str| {
        let list = old.get("conditions").and_then(Value::as_array);
        list.and_then(|l| {
            l.iter().find(|c| {
                c.get("type").is_some_and(|t| t == ty)
                    && c.get("status").is_some_and(|s| s == "True")
            })
        })
        .and_then(|c| c.get("lastTransitionTime").cloned())
        .unwrap_or_else(|| Value::from(now))
    };
    json!({
        "acceptedNames": spec.get("names").cloned().unwrap_or_default(),
        "conditions": [
            {"lastTransitionTime": since("NamesAccepted"), "message": "no conflicts found", "reason": "NoConflicts",
             "status": "True", "type": "NamesAccepted"},
            {"lastTransitionTime": since("Established"), "message": "the initial names have been accepted",
             "reason": "InitialNamesAccepted", "status": "True", "type": "Established"},
        ],
        "storedVersions": stored,
    })
}

/// Every served version of a CRD as a resource, in the order of the CRD.
pub fn resources_of_crd(crd: &Value) -> Result<Vec<Resource>, CrdError> {
    let name = crd.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let missing = |field| CrdError::Missing { name: name.to_owned(), field };
    let spec = crd.get("spec").ok_or_else(|| missing("spec"))?;
    let names = spec.get("names").ok_or_else(|| missing("spec.names"))?;
    let text =
        |at: &Value, key: &str| at.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    let list = |at: &Value, key: &str| -> Vec<String> {
        let items = at.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
        items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let kind = text(names, "kind");
    let or = |value: String, other: String| if value.is_empty() { other } else { value };
    let mut resources = Vec::new();
    for version in versions(crd).iter().filter(|v| v.get("served") == Some(&Value::Bool(true))) {
        let open_api = version.pointer("/schema/openAPIV3Schema").cloned();
        let version_name = text(version, "name");
        let schema = match &open_api {
            None => Schema::any(),
            Some(json) => Schema::parse(json).map_err(|source| CrdError::Schema {
                name: name.to_owned(),
                version: version_name.clone(),
                source,
            })?,
        };
        resources.push(Resource {
            group: text(spec, "group"),
            kind: kind.clone(),
            list_kind: or(text(names, "listKind"), format!("{kind}List")),
            plural: text(names, "plural"),
            singular: or(text(names, "singular"), kind.to_lowercase()),
            short_names: list(names, "shortNames"),
            categories: list(names, "categories"),
            scope: if text(spec, "scope") == "Cluster" {
                Scope::Cluster
            } else {
                Scope::Namespaced
            },
            verbs: CUSTOM_VERBS.map(str::to_owned).to_vec(),
            status: version.pointer("/subresources/status").is_some(),
            scale: version.pointer("/subresources/scale").map(|scale| Scale {
                spec_replicas: text(scale, "specReplicasPath"),
                status_replicas: text(scale, "statusReplicasPath"),
                label_selector: scale
                    .get("labelSelectorPath")
                    .and_then(Value::as_str)
                    .map(str::to_owned),
            }),
            storage: version.get("storage") == Some(&Value::Bool(true)),
            deprecation: deprecation(crd, version, &text(spec, "group"), &kind),
            selectable_fields: selectable(version),
            schema: Arc::new(schema),
            open_api: Arc::new(open_api.unwrap_or_else(
                || json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true}),
            )),
            columns: Arc::new(Columns::of_crd_version(version)),
            builtin: false,
            version: version_name,
        });
    }
    Ok(resources)
}

fn selectable(version: &Value) -> Vec<String> {
    let list = version
        .get("selectableFields")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    list.iter()
        .filter_map(|f| f.get("jsonPath").and_then(Value::as_str))
        .map(|path| path.trim_start_matches('.').to_owned())
        .collect()
}

/// A warning, which names the newest stable version that is not deprecated.
fn deprecation(crd: &Value, version: &Value, group: &str, kind: &str) -> Option<String> {
    let name = version.get("name").and_then(Value::as_str).unwrap_or_default();
    let stable = |v: &str| v.strip_prefix('v').and_then(|n| n.parse::<u32>().ok());
    let on = |v: &Value, key: &str| v.get(key) == Some(&Value::Bool(true));
    let successor = versions(crd)
        .iter()
        .filter(|v| on(v, "served") && !on(v, "deprecated"))
        .filter_map(|v| v.get("name").and_then(Value::as_str))
        .filter(|v| stable(v) > stable(name))
        .max_by_key(|v| stable(v));
    (version.get("deprecated") == Some(&Value::Bool(true))).then(|| {
        let own = version.get("deprecationWarning").and_then(Value::as_str);
        let replacement = successor.map(|v| format!("; use {group}/{v} {kind}"));
        own.map_or_else(
            || format!("{group}/{name} {kind} is deprecated{}", replacement.unwrap_or_default()),
            str::to_owned,
        )
    })
}

fn versions(crd: &Value) -> &[Value] {
    crd.pointer("/spec/versions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Checks a CRD as a kube-apiserver does on create, or as the successor of `old`.
pub fn validate_crd(crd: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let empty = json!({});
    let spec = crd.get("spec").unwrap_or(&empty);
    let text = |pointer: &str| spec.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let name = crd.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let (group, plural) = (text("/group"), text("/names/plural"));
    if old.is_none() && name != format!("{plural}.{group}") {
        let detail = "must be spec.names.plural+\".\"+spec.group";
        errors.push(FieldError::invalid("metadata.name", &Value::from(name), detail));
    }
    let problems = names::dns1123_subdomain(group);
    if group.is_empty() {
        errors.push(FieldError::required("spec.group", ""));
    } else if !problems.is_empty() {
        let detail = problems.join(",");
        errors.push(FieldError::invalid("spec.group", &Value::from(group), &detail));
    } else if !group.contains('.') {
        let detail = "should be a domain with at least one dot";
        errors.push(FieldError::invalid("spec.group", &Value::from(group), detail));
    }
    match text("/scope") {
        "" => errors.push(FieldError::required("spec.scope", "")),
        "Cluster" | "Namespaced" => {}
        other => {
            let known = ["Cluster", "Namespaced"].map(Value::from);
            errors.push(FieldError::not_supported("spec.scope", &Value::from(other), &known));
        }
    }
    check_versions(spec, &mut errors);
    check_names(spec, &mut errors);
    check_schemas(spec, &mut errors);
    checks::run(crd, &mut errors);
    errors.extend(checks::approval(crd, old));
    errors
}

fn check_names(spec: &Value, errors: &mut Vec<FieldError>) {
    let names = spec.get("names").unwrap_or(&Value::Null);
    let text = |key: &str| names.get(key).and_then(Value::as_str).unwrap_or_default();
    let keys = ["plural", "singular", "kind", "listKind"];
    for key in keys.iter().filter(|key| text(key).is_empty()) {
        errors.push(FieldError::required(format!("spec.names.{key}"), ""));
    }
    for key in keys.iter().filter(|key| !text(key).is_empty()) {
        let mixed = key.to_lowercase().ends_with("kind");
        let checked = if mixed { text(key).to_lowercase() } else { text(key).to_owned() };
        let problems = names::dns1035_label(&checked).join(",");
        let hint = if mixed { "may have mixed case, but should otherwise match: " } else { "" };
        if !problems.is_empty() {
            let field = format!("spec.names.{key}");
            let detail = format!("{hint}{problems}");
            errors.push(FieldError::invalid(field, &Value::from(text(key)), &detail));
        }
    }
    check_labels(names, "shortNames", errors);
    if !text("kind").is_empty() && text("kind") == text("listKind") {
        let detail = "kind and listKind may not be the same";
        let shown = Value::from(text("listKind"));
        errors.push(FieldError::invalid("spec.names.listKind", &shown, detail));
    }
    check_labels(names, "categories", errors);
}

fn check_labels(names: &Value, key: &str, errors: &mut Vec<FieldError>) {
    let list = names.get(key).and_then(Value::as_array);
    for (index, value) in list.into_iter().flatten().enumerate() {
        let problems = names::dns1035_label(value.as_str().unwrap_or_default()).join(",");
        if !problems.is_empty() {
            let field = format!("spec.names.{key}[{index}]");
            errors.push(FieldError::invalid(field, value, &problems));
        }
    }
}

fn versions_of(spec: &Value) -> &[Value] {
    spec.get("versions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// A version as kube prints it, where all versions agree on what is hoisted to the spec.
fn internal(version: &Value) -> Value {
    let flag = |key: &str| version.get(key) == Some(&Value::Bool(true));
    json!({
        "Name": version.get("name"), "Served": flag("served"), "Storage": flag("storage"),
        "Deprecated": flag("deprecated"), "DeprecationWarning": version.get("deprecationWarning"),
        "Schema": null, "Subresources": null, "AdditionalPrinterColumns": null, "SelectableFields": null,
    })
}

fn check_versions(spec: &Value, errors: &mut Vec<FieldError>) {
    let versions = versions_of(spec);
    for (index, version) in versions.iter().enumerate() {
        if version.pointer("/schema/openAPIV3Schema").is_none() {
            let field = format!("spec.versions[{index}].schema.openAPIV3Schema");
            errors.push(FieldError::required(field, ""));
        }
    }
    let mut seen: Vec<&str> = Vec::new();
    let mut unique = true;
    for (index, version) in versions.iter().enumerate() {
        let name = version.get("name").and_then(Value::as_str).unwrap_or_default();
        let problems = names::dns1035_label(name).join(",");
        if !problems.is_empty() {
            let field = format!("spec.versions[{index}].name");
            errors.push(FieldError::invalid(field, &Value::from(name), &problems));
        }
        unique &= !seen.contains(&name);
        seen.push(name);
    }
    let mut whole = |detail: &str| {
        let shown: Value = versions.iter().map(internal).collect();
        errors.push(FieldError::invalid("spec.versions", &shown, detail));
    };
    if !unique {
        whole("must contain unique version names");
    }
    let storage = versions.iter().filter(|v| v.get("storage") == Some(&Value::Bool(true))).count();
    if storage != 1 {
        whole("must have exactly one version marked as storage version");
    }
}

/// kube hoists a schema that all versions share, and names it by the older field.
fn check_schemas(spec: &Value, errors: &mut Vec<FieldError>) {
    let versions = versions_of(spec);
    let first = versions.first().and_then(|v| v.get("schema"));
    let shared = versions.iter().all(|v| v.get("schema") == first);
    for (index, version) in versions.iter().enumerate().take(if shared { 1 } else { usize::MAX }) {
        let Some(schema) = version.pointer("/schema/openAPIV3Schema") else { continue };
        let field = if shared {
            "spec.validation.openAPIV3Schema".to_owned()
        } else {
            format!("spec.versions[{index}].schema.openAPIV3Schema")
        };
        errors.extend(structural::check(schema, &field));
        check_defaults(schema, &field, errors);
    }
}

/// A default must satisfy its own schema.
fn check_defaults(schema: &Value, field: &str, errors: &mut Vec<FieldError>) {
    let Some(map) = schema.as_object() else { return };
    if let Some(default) = map.get("default")
        && let Ok(node) = super::parse::node(schema)
    {
        for problem in super::validate::run(&node, default) {
            let inner = if problem.field == "<nil>" {
                String::new()
            } else {
                format!(".{}", problem.field)
            };
            errors.push(FieldError { field: format!("{field}.default{inner}"), ..problem });
        }
    }
    for (key, child) in map.get("properties").and_then(Value::as_object).into_iter().flatten() {
        check_defaults(child, &format!("{field}.properties[{key}]"), errors);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(child) = map.get(key) {
            check_defaults(child, &format!("{field}.{key}"), errors);
        }
    }
}
