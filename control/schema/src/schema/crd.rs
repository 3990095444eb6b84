//! CustomResourceDefinitions: checking one, filling in its defaults, and the resources it defines.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{Schema, SchemaError, structural};
use crate::error::FieldError;
use crate::names;
use crate::resource::{Resource, Scale, Scope};
use crate::table::Columns;

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
            deprecation: deprecation(version, &text(spec, "group"), &version_name, &kind),
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

fn deprecation(version: &Value, group: &str, name: &str, kind: &str) -> Option<String> {
    (version.get("deprecated") == Some(&Value::Bool(true))).then(|| {
        let own = version.get("deprecationWarning").and_then(Value::as_str);
        own.map_or_else(|| format!("{group}/{name} {kind} is deprecated"), str::to_owned)
    })
}

fn versions(crd: &Value) -> &[Value] {
    crd.pointer("/spec/versions").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Checks a CRD as a kube-apiserver does on create.
pub fn validate_crd(crd: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let empty = json!({});
    let spec = crd.get("spec").unwrap_or(&empty);
    let text = |pointer: &str| spec.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let name = crd.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let (group, plural) = (text("/group"), text("/names/plural"));
    if group.is_empty() {
        errors.push(FieldError::required("spec.group", ""));
    } else {
        for problem in names::dns1123_subdomain(group) {
            errors.push(FieldError::invalid("spec.group", &Value::from(group), &problem));
        }
        if group.split('.').count() < 2 {
            let detail = "should be a domain with at least one dot";
            errors.push(FieldError::invalid("spec.group", &Value::from(group), detail));
        }
    }
    if name != format!("{plural}.{group}") {
        let detail = "must be spec.names.plural+\".\"+spec.group";
        errors.push(FieldError::invalid("metadata.name", &Value::from(name), detail));
    }
    match text("/scope") {
        "" => errors.push(FieldError::required("spec.scope", "")),
        "Cluster" | "Namespaced" => {}
        other => {
            let known = ["Cluster", "Namespaced"].map(Value::from);
            errors.push(FieldError::not_supported("spec.scope", &Value::from(other), &known));
        }
    }
    check_names(spec, &mut errors);
    check_versions(spec, &mut errors);
    errors
}

fn check_names(spec: &Value, errors: &mut Vec<FieldError>) {
    for key in ["plural", "singular", "kind", "listKind"] {
        let field = format!("spec.names.{key}");
        let value =
            spec.pointer(&format!("/names/{key}")).and_then(Value::as_str).unwrap_or_default();
        if value.is_empty() {
            errors.push(FieldError::required(field, ""));
            continue;
        }
        let shown = Value::from(value);
        for problem in names::dns1035_label(&value.to_lowercase()) {
            errors.push(FieldError::invalid(field.clone(), &shown, &problem));
        }
    }
    let short = spec
        .pointer("/names/shortNames")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    for (index, value) in short.iter().enumerate() {
        for problem in names::dns1035_label(value.as_str().unwrap_or_default()) {
            errors.push(FieldError::invalid(
                format!("spec.names.shortNames[{index}]"),
                value,
                &problem,
            ));
        }
    }
    let (kind, list) = (spec.pointer("/names/kind"), spec.pointer("/names/listKind"));
    if let (Some(kind), Some(list)) = (kind, list)
        && kind == list
    {
        errors.push(FieldError::invalid(
            "spec.names.listKind",
            list,
            "kind and listKind may not be the same",
        ));
    }
}

fn check_versions(spec: &Value, errors: &mut Vec<FieldError>) {
    let none = Vec::new();
    let versions = spec.get("versions").and_then(Value::as_array).unwrap_or(&none);
    let storage = versions.iter().filter(|v| v.get("storage") == Some(&Value::Bool(true))).count();
    if storage != 1 {
        let detail = "must have exactly one version marked as storage version";
        errors.push(FieldError::invalid("spec.versions", &Value::from(versions.clone()), detail));
    }
    // kube hoists a schema that all versions share, and names it by the older field.
    let first = versions.first().and_then(|v| v.get("schema"));
    let shared = versions.iter().all(|v| v.get("schema") == first);
    let mut seen: Vec<&str> = Vec::new();
    for (index, version) in versions.iter().enumerate() {
        let at = format!("spec.versions[{index}]");
        let name = version.get("name").and_then(Value::as_str).unwrap_or_default();
        for problem in names::dns1035_label(name) {
            errors.push(FieldError::invalid(format!("{at}.name"), &Value::from(name), &problem));
        }
        if seen.contains(&name) {
            errors.push(FieldError::invalid(
                format!("{at}.name"),
                &Value::from(name),
                "must be unique",
            ));
        }
        seen.push(name);
        match version.pointer("/schema/openAPIV3Schema") {
            None => errors.push(FieldError::required(
                format!("{at}.schema.openAPIV3Schema"),
                "schemas are required",
            )),
            Some(_) if shared && index > 0 => {}
            Some(schema) => {
                let field = if shared {
                    "spec.validation.openAPIV3Schema".to_owned()
                } else {
                    format!("{at}.schema.openAPIV3Schema")
                };
                errors.extend(structural::check(schema, &field));
                check_defaults(schema, &field, errors);
            }
        }
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
