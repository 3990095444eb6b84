//! What a definition says beside its schema: printer columns, subresources, selectable fields, conversion, approval.
//! Fields carry the names of kube's internal form, in which versions that agree share one field of the spec.

use serde_json::{Value, json};

use crate::error::FieldError;

const COLUMN_TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
const COLUMN_FORMATS: [&str; 8] =
    ["byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
const APPROVAL: &str = "api-approved.kubernetes.io";
const MAX_SELECTABLE: u64 = 8;

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// Visits what the versions say under `key`: once, by the field of the spec, when all say the same.
fn each(versions: &[Value], key: &str, mut visit: impl FnMut(&str, &Value, &Value)) {
    let first = versions.first().and_then(|v| v.get(key));
    let shared = versions.iter().all(|v| v.get(key) == first);
    for (index, version) in versions.iter().enumerate().take(if shared { 1 } else { usize::MAX }) {
        let at =
            if shared { format!("spec.{key}") } else { format!("spec.versions[{index}].{key}") };
        if let Some(value) = version.get(key) {
            visit(&at, value, version);
        }
    }
}

/// All checks of this module.
pub(super) fn run(crd: &Value, errors: &mut Vec<FieldError>) {
    let empty = json!({});
    let spec = crd.get("spec").unwrap_or(&empty);
    let versions = list(spec, "versions");
    for (index, version) in versions.iter().enumerate() {
        deprecation(version, &format!("spec.versions[{index}].deprecationWarning"), errors);
    }
    each(versions, "subresources", |at, value, _| {
        if let Some(scale) = value.get("scale") {
            replica_paths(scale, &format!("{at}.scale"), errors);
        }
    });
    each(versions, "additionalPrinterColumns", |at, value, _| {
        for (index, column) in value.as_array().into_iter().flatten().enumerate() {
            printer_column(column, &format!("{at}[{index}]"), errors);
        }
    });
    each(versions, "selectableFields", |at, value, version| {
        let schema = version.pointer("/schema/openAPIV3Schema").unwrap_or(&Value::Null);
        selectable_fields(value, schema, at, errors);
    });
    conversion(spec, errors);
    if spec.get("preserveUnknownFields") == Some(&Value::Bool(true)) {
        let detail = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.push(FieldError::invalid("spec.preserveUnknownFields", &Value::Bool(true), detail));
    }
}

fn deprecation(version: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let Some(warning) = version.get("deprecationWarning").filter(|w| !w.is_null()) else { return };
    let words = warning.as_str().unwrap_or_default();
    let problem = if version.get("deprecated") != Some(&Value::Bool(true)) {
        "can only be set for deprecated versions"
    } else if words.len() > 256 {
        "must be <= 256 characters long"
    } else if words.is_empty() {
        "must not be an empty string"
    } else {
        return;
    };
    errors.push(FieldError::invalid(at, warning, problem));
}

/// A path of names with dots. Returns whether it is one; otherwise the error is told.
fn simple_path(path: &str, at: &str, errors: &mut Vec<FieldError>) -> bool {
    let good = path.starts_with('.');
    if !good {
        let detail = "must be a simple json path starting with .";
        errors.push(FieldError::invalid(at, &Value::from(path), detail));
    }
    good
}

fn replica_paths(scale: &Value, at: &str, errors: &mut Vec<FieldError>) {
    for (key, part) in [("specReplicasPath", ".spec"), ("statusReplicasPath", ".status")] {
        let (path, at) = (text(scale, key), format!("{at}.{key}"));
        if path.is_empty() {
            errors.push(FieldError::required(at, ""));
        } else if simple_path(path, &at, errors) && !path.starts_with(&format!("{part}.")) {
            let detail = format!("should be a json path under {part}");
            errors.push(FieldError::invalid(at, &Value::from(path), &detail));
        }
    }
    let (path, at) = (text(scale, "labelSelectorPath"), format!("{at}.labelSelectorPath"));
    let below = path.starts_with(".spec.") || path.starts_with(".status.");
    if !path.is_empty() && simple_path(path, &at, errors) && !below {
        let detail = "should be a json path under either .spec or .status";
        errors.push(FieldError::invalid(at, &Value::from(path), detail));
    }
}

fn printer_column(column: &Value, at: &str, errors: &mut Vec<FieldError>) {
    if text(column, "name").is_empty() {
        errors.push(FieldError::required(format!("{at}.name"), ""));
    }
    let ty = text(column, "type");
    let types = format!("must be one of {}", COLUMN_TYPES.join(","));
    if ty.is_empty() {
        errors.push(FieldError::required(format!("{at}.type"), &types));
    } else if !COLUMN_TYPES.contains(&ty) {
        errors.push(FieldError::invalid(format!("{at}.type"), &Value::from(ty), &types));
    }
    let format = text(column, "format");
    if !format.is_empty() && !COLUMN_FORMATS.contains(&format) {
        let detail = format!("must be one of {}", COLUMN_FORMATS.join(","));
        errors.push(FieldError::invalid(format!("{at}.format"), &Value::from(format), &detail));
    }
    let (path, at) = (text(column, "jsonPath"), format!("{at}.JSONPath"));
    if path.is_empty() {
        errors.push(FieldError::required(at, ""));
    } else {
        simple_path(path, &at, errors);
    }
}

/// The schema at a path of names with dots.
fn schema_at<'a>(schema: &'a Value, path: &str) -> Option<&'a Value> {
    path.trim_start_matches('.')
        .split('.')
        .try_fold(schema, |node, name| node.get("properties")?.get(name))
}

fn selectable_fields(value: &Value, schema: &Value, at: &str, errors: &mut Vec<FieldError>) {
    let fields = value.as_array().map(Vec::as_slice).unwrap_or_default();
    let mut seen: Vec<&str> = Vec::new();
    for (index, field) in fields.iter().enumerate() {
        let path = text(field, "jsonPath");
        let (at, shown) = (format!("{at}[{index}].jsonPath"), Value::from(path));
        if path.is_empty() {
            errors.push(FieldError::required(at, ""));
            continue;
        }
        if path.starts_with(".metadata.") {
            let detail = "must not point to fields in metadata";
            errors.push(FieldError::invalid(at, &shown, detail));
            continue;
        }
        let Some(node) = schema_at(schema, path) else {
            let detail = "is an invalid path: does not refer to a valid field";
            errors.push(FieldError::invalid(at, &shown, detail));
            continue;
        };
        if !matches!(text(node, "type"), "string" | "boolean" | "integer") {
            let detail = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            errors.push(FieldError::invalid(at.clone(), &shown, detail));
        }
        if seen.contains(&path) {
            errors.push(FieldError::duplicate(at, &shown));
        } else {
            seen.push(path);
        }
    }
    if seen.len() as u64 > MAX_SELECTABLE {
        errors.push(FieldError::too_many(at, seen.len(), MAX_SELECTABLE));
    }
}

fn conversion(spec: &Value, errors: &mut Vec<FieldError>) {
    const AT: &str = "spec.conversion";
    let Some(conversion) = spec.get("conversion") else { return };
    let webhook = conversion.get("webhook").filter(|w| !w.is_null());
    let client = webhook.and_then(|w| w.get("clientConfig"));
    let reviews = webhook.map(|w| list(w, "conversionReviewVersions")).unwrap_or_default();
    match text(conversion, "strategy") {
        "" => errors.push(FieldError::required(format!("{AT}.strategy"), "")),
        "Webhook" => {
            let at = format!("{AT}.webhookClientConfig");
            let has = |key: &str| client.and_then(|c| c.get(key)).is_some();
            if client.is_none() {
                let detail = "required when strategy is set to Webhook";
                errors.push(FieldError::required(at, detail));
            } else if has("url") == has("service") {
                let detail = "exactly one of url or service is required";
                errors.push(FieldError::required(at, detail));
            }
            let at = format!("{AT}.conversionReviewVersions");
            if reviews.is_empty() {
                errors.push(FieldError::required(at, ""));
            } else if !reviews.iter().any(|v| v == "v1" || v == "v1beta1") {
                let detail = "must include at least one of v1, v1beta1";
                errors.push(FieldError::invalid(at, &Value::from(reviews.to_vec()), detail));
            }
        }
        strategy => {
            if strategy != "None" {
                let known = ["None", "Webhook"].map(Value::from);
                let shown = Value::from(strategy);
                let at = format!("{AT}.strategy");
                errors.push(FieldError::not_supported(at, &shown, &known));
            }
            let detail = "should not be set when strategy is not set to Webhook";
            if client.is_some() {
                errors.push(FieldError::forbidden(format!("{AT}.webhookClientConfig"), detail));
            }
            if !reviews.is_empty() {
                let at = format!("{AT}.conversionReviewVersions");
                errors.push(FieldError::forbidden(at, detail));
            }
        }
    }
}

/// Groups of the Kubernetes community need an annotation that names who approved them. An update that leaves the
/// annotation as it is passes.
pub(super) fn approval(crd: &Value, old: Option<&Value>) -> Option<FieldError> {
    let group = crd.pointer("/spec/group").and_then(Value::as_str).unwrap_or_default();
    let community = ["k8s.io", "kubernetes.io"]
        .iter()
        .any(|domain| group == *domain || group.ends_with(&format!(".{domain}")));
    let annotation = |of: &Value| {
        let map = of.pointer("/metadata/annotations").and_then(Value::as_object)?;
        Some(map.get(APPROVAL)?.as_str()?.to_owned())
    };
    let given = annotation(crd).unwrap_or_default();
    if !community || old.is_some_and(|old| annotation(old).unwrap_or_default() == given) {
        return None;
    }
    let at = format!("metadata.annotations[{APPROVAL}]");
    let see = "see https://github.com/kubernetes/enhancements/pull/1111";
    if given.is_empty() {
        let detail = format!("protected groups must have approval annotation {APPROVAL:?}, {see}");
        return Some(FieldError::required(at, &detail));
    }
    let address = given.split_once("://").is_some_and(|(scheme, rest)| {
        !scheme.is_empty() && !rest.is_empty() && !rest.starts_with('/')
    });
    if given.starts_with("unapproved") || address {
        return None;
    }
    let detail = format!(
        "protected groups must have approval annotation {APPROVAL:?} with either a URL or a reason starting with \"unapproved\", {see}"
    );
    Some(FieldError::invalid(at, &Value::from(given), &detail))
}

/// Versions in which objects may be stored: each must be served by the spec, and the one stored in be among them.
pub fn stored_versions(crd: &Value) -> Vec<FieldError> {
    const AT: &str = "status.storedVersions";
    let stored = crd.pointer("/status/storedVersions").cloned().unwrap_or_else(|| json!([]));
    let names = stored.as_array().map(Vec::as_slice).unwrap_or_default();
    if names.is_empty() {
        return vec![FieldError::invalid(AT, &json!([]), "must have at least one stored version")];
    }
    let versions = crd
        .pointer("/spec/versions")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default();
    let mut errors: Vec<FieldError> = versions
        .iter()
        .filter(|v| v.get("storage") == Some(&Value::Bool(true)))
        .map(|v| text(v, "name"))
        .filter(|name| !names.iter().any(|n| n == name))
        .map(|name| {
            FieldError::invalid(AT, &stored, &format!("must have the storage version {name}"))
        })
        .collect();
    for (index, shown) in names.iter().enumerate() {
        let name = shown.as_str().unwrap_or_default();
        if versions.iter().any(|v| text(v, "name") == name) {
            continue;
        }
        let detail = format!(
            "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
        );
        errors.push(FieldError::invalid(format!("{AT}[{index}]"), shown, &detail));
    }
    errors
}
