//! Names, labels and annotations: kube's rules with kube's texts. Also `generateName`.

use serde_json::{Map, Value};

use crate::error::FieldError;

const LABEL_1123: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN_1123: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const LABEL_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const WHOLE_QUALIFIED: &str = "a qualified name must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";

/// All annotations of an object together, in bytes.
const MAX_ANNOTATIONS: usize = 256 * 1024;

/// How the name of a kind is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    /// Most kinds, all custom resources.
    Subdomain,
    /// Namespaces.
    Label,
    /// RBAC kinds: any text that can be one segment of a URL path.
    PathSegment,
}

impl NameRule {
    /// The rule for a kind of the given group.
    pub fn of(group: &str, plural: &str) -> Self {
        match (group, plural) {
            ("", "namespaces") => Self::Label,
            ("rbac.authorization.k8s.io", _) => Self::PathSegment,
            _ => Self::Subdomain,
        }
    }

    /// The texts of all violations, empty when the name is good.
    pub fn check(self, name: &str) -> Vec<String> {
        match self {
            Self::Subdomain => dns1123_subdomain(name),
            Self::Label => dns1123_label(name),
            Self::PathSegment => path_segment(name),
        }
    }
}

fn is_alnum(b: u8) -> bool {
    b.is_ascii_lowercase() || b.is_ascii_digit()
}

fn ends_well(text: &str, good: fn(u8) -> bool) -> bool {
    let bytes = text.as_bytes();
    bytes.first().copied().is_some_and(good) && bytes.last().copied().is_some_and(good)
}

fn is_label(text: &str) -> bool {
    ends_well(text, is_alnum) && text.bytes().all(|b| is_alnum(b) || b == b'-')
}

fn too_long(max: usize) -> String {
    format!("must be no more than {max} bytes")
}

pub fn dns1123_label(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if text.len() > 63 {
        problems.push(too_long(63));
    }
    if !is_label(text) {
        let dotted = text.contains('.') && text.split('.').all(is_label);
        problems.push(if dotted {
            "must not contain dots".to_owned()
        } else {
            LABEL_1123.to_owned()
        });
    }
    problems
}

pub fn dns1123_subdomain(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if text.len() > 253 {
        problems.push(too_long(253));
    }
    if !text.split('.').all(is_label) {
        problems.push(SUBDOMAIN_1123.to_owned());
    }
    problems
}

pub fn dns1035_label(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if text.len() > 63 {
        problems.push(too_long(63));
    }
    if !(is_label(text) && text.bytes().next().is_some_and(|b| b.is_ascii_lowercase())) {
        problems.push(LABEL_1035.to_owned());
    }
    problems
}

pub fn path_segment(text: &str) -> Vec<String> {
    match text {
        "." | ".." => vec![format!("may not be '{text}'")],
        _ => ["/", "%"]
            .iter()
            .filter(|bad| text.contains(**bad))
            .map(|bad| format!("may not contain '{bad}'"))
            .collect(),
    }
}

fn is_qualified_part(text: &str) -> bool {
    ends_well(text, |b| b.is_ascii_alphanumeric())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

/// A label or annotation key: `name` or `prefix/name`.
pub fn qualified_name(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    let parts: Vec<&str> = text.split('/').collect();
    let name = match parts.as_slice() {
        [name] => *name,
        [prefix, name] => {
            if prefix.is_empty() {
                problems.push("prefix part must be non-empty".to_owned());
            } else {
                problems.extend(
                    dns1123_subdomain(prefix).into_iter().map(|p| format!("prefix part {p}")),
                );
            }
            *name
        }
        _ => return vec![WHOLE_QUALIFIED.to_owned()],
    };
    if name.is_empty() {
        problems.push("name part must be non-empty".to_owned());
    } else if name.len() > 63 {
        problems.push(format!("name part {}", too_long(63)));
    }
    if !is_qualified_part(name) {
        problems.push(QUALIFIED.to_owned());
    }
    problems
}

pub fn label_value(text: &str) -> Vec<String> {
    let mut problems = Vec::new();
    if text.len() > 63 {
        problems.push(too_long(63));
    }
    if !text.is_empty() && !is_qualified_part(text) {
        problems.push(LABEL_VALUE.to_owned());
    }
    problems
}

/// Checks labels at `field` (`metadata.labels`).
pub fn validate_labels(labels: &Map<String, Value>, field: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (key, value) in labels {
        for problem in qualified_name(key) {
            errors.push(FieldError::invalid(field, &Value::from(key.as_str()), &problem));
        }
        for problem in label_value(value.as_str().unwrap_or_default()) {
            errors.push(FieldError::invalid(field, value, &problem));
        }
    }
    errors
}

/// Checks annotations at `field`.
pub fn validate_annotations(annotations: &Map<String, Value>, field: &str) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut size = 0;
    for (key, value) in annotations {
        for problem in qualified_name(&key.to_lowercase()) {
            errors.push(FieldError::invalid(field, &Value::from(key.as_str()), &problem));
        }
        size += key.len() + value.as_str().unwrap_or_default().len();
    }
    if size > MAX_ANNOTATIONS {
        errors.push(FieldError::too_long(field, MAX_ANNOTATIONS as u64));
    }
    errors
}

/// Checks the metadata of an object that is about to be created or updated, `generateName` already resolved.
pub fn validate_metadata(object: &Value, rule: NameRule, namespaced: bool) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let name = text("/metadata/name");
    if name.is_empty() {
        errors.push(FieldError::required("metadata.name", "name or generateName is required"));
    } else {
        for problem in rule.check(name) {
            errors.push(FieldError::invalid("metadata.name", &Value::from(name), &problem));
        }
    }
    let namespace = text("/metadata/namespace");
    if namespaced {
        if namespace.is_empty() {
            errors.push(FieldError::required("metadata.namespace", ""));
        } else {
            for problem in dns1123_label(namespace) {
                errors.push(FieldError::invalid(
                    "metadata.namespace",
                    &Value::from(namespace),
                    &problem,
                ));
            }
        }
    } else if !namespace.is_empty() {
        errors.push(FieldError::forbidden("metadata.namespace", "not allowed on this type"));
    }
    if let Some(labels) = object.pointer("/metadata/labels").and_then(Value::as_object) {
        errors.extend(validate_labels(labels, "metadata.labels"));
    }
    if let Some(annotations) = object.pointer("/metadata/annotations").and_then(Value::as_object) {
        errors.extend(validate_annotations(annotations, "metadata.annotations"));
    }
    errors.extend(validate_owners(object));
    let finalizers = object.pointer("/metadata/finalizers").and_then(Value::as_array);
    for (index, finalizer) in finalizers.into_iter().flatten().enumerate() {
        let field = format!("metadata.finalizers[{index}]");
        let own = finalizer.as_str().unwrap_or_default();
        for problem in qualified_name(own) {
            errors.push(FieldError::invalid(field.as_str(), finalizer, &problem));
        }
    }
    errors
}

fn validate_owners(object: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    let mut controllers: Vec<&str> = Vec::new();
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    for owner in owners.into_iter().flatten() {
        let field = "metadata.ownerReferences";
        for (key, what) in [("apiVersion", "version "), ("kind", ""), ("name", ""), ("uid", "")] {
            if owner.get(key).and_then(Value::as_str).is_none_or(str::is_empty) {
                let detail = format!("{what}must not be empty");
                errors.push(FieldError::invalid(
                    format!("{field}.{key}"),
                    &Value::from(""),
                    &detail,
                ));
            }
        }
        if owner.get("controller") == Some(&Value::Bool(true)) {
            controllers.push(owner.get("name").and_then(Value::as_str).unwrap_or_default());
        }
    }
    if let [first, second, ..] = controllers.as_slice() {
        let detail = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {second}"
        );
        let shown = object.pointer("/metadata/ownerReferences").cloned().unwrap_or_default();
        errors.push(FieldError::invalid("metadata.ownerReferences", &shown, &detail));
    }
    errors
}

/// What an update may not change: name, namespace, uid, creationTimestamp, deletionTimestamp.
pub fn validate_metadata_update(new: &Value, old: &Value) -> Vec<FieldError> {
    let keys = [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "deletionGracePeriodSeconds",
    ];
    keys.iter()
        .filter(|key| {
            let at = format!("/metadata/{key}");
            new.pointer(&at).unwrap_or(&Value::Null) != old.pointer(&at).unwrap_or(&Value::Null)
        })
        .map(|key| {
            let shown = new.pointer(&format!("/metadata/{key}")).cloned().unwrap_or_default();
            FieldError::invalid(format!("metadata.{key}"), &shown, "field is immutable")
        })
        .collect()
}

/// `prefix` plus five characters of kube's suffix alphabet; `random(n)` gives a number below `n`. A prefix is cut so
/// that the name has at most 63 bytes.
pub fn generate_name(prefix: &str, mut random: impl FnMut(usize) -> usize) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let mut end = prefix.len().min(58);
    while !prefix.is_char_boundary(end) {
        end -= 1;
    }
    let mut name = prefix.get(..end).unwrap_or_default().to_owned();
    for _ in 0..5 {
        let letter = ALPHABET.get(random(ALPHABET.len())).copied().unwrap_or(b'b');
        name.push(char::from(letter));
    }
    name
}
