//! Roles and their bindings: what they must say. Pure.

use control_schema::{FieldError, names};
use serde_json::{Value, json};

use super::RBAC;
use crate::admission::text;

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

/// Checks the rules of a role; only those of cluster roles may be about paths.
pub(super) fn role(value: &Value, namespaced: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (index, rule) in list(value, "rules").iter().enumerate() {
        let at = |field: &str| format!("rules[{index}].{field}");
        if list(rule, "verbs").is_empty() {
            errors.push(FieldError::required(at("verbs"), "verbs must contain at least one value"));
        }
        let paths = list(rule, "nonResourceURLs");
        if !paths.is_empty() {
            let shown = json!(paths);
            if namespaced {
                let detail = "namespaced rules cannot apply to non-resource URLs";
                errors.push(FieldError::invalid(at("nonResourceURLs"), &shown, detail));
            }
            let others = ["apiGroups", "resources", "resourceNames"];
            if others.iter().any(|key| !list(rule, key).is_empty()) {
                let detail = "rules cannot apply to both regular resources and non-resource URLs";
                errors.push(FieldError::invalid(at("nonResourceURLs"), &shown, detail));
            }
            continue;
        }
        for (key, what) in [("apiGroups", "api group"), ("resources", "resource")] {
            if list(rule, key).is_empty() {
                let detail = format!("resource rules must supply at least one {what}");
                errors.push(FieldError::required(at(key), &detail));
            }
        }
    }
    errors
}

/// Checks a binding whose groups are filled in.
pub(super) fn binding(value: &Value, namespaced: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let group = text(value, "/roleRef/apiGroup");
    if group != RBAC {
        let known = [Value::from(RBAC)];
        errors.push(FieldError::not_supported("roleRef.apiGroup", &Value::from(group), &known));
    }
    let kinds: &[&str] = if namespaced { &["Role", "ClusterRole"] } else { &["ClusterRole"] };
    let kind = text(value, "/roleRef/kind");
    if !kinds.contains(&kind) {
        let known: Vec<Value> = kinds.iter().map(|k| Value::from(*k)).collect();
        errors.push(FieldError::not_supported("roleRef.kind", &Value::from(kind), &known));
    }
    let name = text(value, "/roleRef/name");
    if name.is_empty() {
        errors.push(FieldError::required("roleRef.name", ""));
    }
    for problem in names::path_segment(name) {
        errors.push(FieldError::invalid("roleRef.name", &Value::from(name), &problem));
    }
    for (index, subject) in list(value, "subjects").iter().enumerate() {
        check_subject(subject, namespaced, &format!("subjects[{index}]"), &mut errors);
    }
    errors
}

fn check_subject(subject: &Value, namespaced: bool, at: &str, errors: &mut Vec<FieldError>) {
    let name = text(subject, "/name");
    if name.is_empty() {
        errors.push(FieldError::required(format!("{at}.name"), ""));
    }
    let group = text(subject, "/apiGroup");
    let wrong_group = |wanted: &str| {
        let known = [Value::from(wanted)];
        FieldError::not_supported(format!("{at}.apiGroup"), &Value::from(group), &known)
    };
    match text(subject, "/kind") {
        "ServiceAccount" => {
            if !name.is_empty() {
                for problem in names::dns1123_subdomain(name) {
                    let shown = Value::from(name);
                    errors.push(FieldError::invalid(format!("{at}.name"), &shown, &problem));
                }
            }
            if !group.is_empty() {
                errors.push(wrong_group(""));
            }
            if !namespaced && text(subject, "/namespace").is_empty() {
                errors.push(FieldError::required(format!("{at}.namespace"), ""));
            }
        }
        "User" | "Group" => {
            if group != RBAC {
                errors.push(wrong_group(RBAC));
            }
        }
        other => {
            let known = ["ServiceAccount", "User", "Group"].map(Value::from);
            errors.push(FieldError::not_supported(
                format!("{at}.kind"),
                &Value::from(other),
                &known,
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(errors: &[FieldError]) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn rules_say_what_they_are_about() {
        let value = json!({"rules": [{"verbs": [], "resources": ["x"]}, {"verbs": ["get"], "nonResourceURLs": ["/x"]}]});
        assert_eq!(
            said(&role(&value, true)),
            [
                "rules[0].verbs: Required value: verbs must contain at least one value",
                "rules[0].apiGroups: Required value: resource rules must supply at least one api group",
                "rules[1].nonResourceURLs: Invalid value: [\"/x\"]: namespaced rules cannot apply to non-resource URLs",
            ]
        );
        assert_eq!(role(&value, false).len(), 2);
    }

    #[test]
    fn bindings_name_known_kinds() {
        let value = json!({
            "roleRef": {"apiGroup": RBAC, "kind": "Foo"},
            "subjects": [{"kind": "Bar", "name": "x"}, {"kind": "ServiceAccount", "name": "y"}],
        });
        assert_eq!(
            said(&binding(&value, false)),
            [
                "roleRef.kind: Unsupported value: \"Foo\": supported values: \"ClusterRole\"",
                "roleRef.name: Required value",
                "subjects[0].kind: Unsupported value: \"Bar\": supported values: \"ServiceAccount\", \"User\", \"Group\"",
                "subjects[1].namespace: Required value",
            ]
        );
    }
}
