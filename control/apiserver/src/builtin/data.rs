//! What config maps and secrets may hold. Pure.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use control_schema::FieldError;
use serde_json::{Map, Value};

use crate::admission::text;

/// Most bytes of all values together.
const MAX_SIZE: usize = 1 << 20;
const MAX_KEY: usize = 253;
const KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";

fn field<'a>(value: &'a Value, name: &str) -> Option<&'a Map<String, Value>> {
    value.get(name).and_then(Value::as_object)
}

/// Checks the keys of a map of values.
fn check_keys(value: &Value, name: &str, errors: &mut Vec<FieldError>) {
    for key in field(value, name).into_iter().flat_map(Map::keys) {
        let mut problems = Vec::new();
        if key.len() > MAX_KEY {
            problems.push(format!("must be no more than {MAX_KEY} characters"));
        }
        let known = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        if key.is_empty() || !key.bytes().all(known) {
            problems.push(KEY.to_owned());
        }
        match key.as_str() {
            "." => problems.push("must not be '.'".to_owned()),
            ".." => problems.push("must not be '..'".to_owned()),
            other if other.starts_with("..") => {
                problems.push("must not start with '..'".to_owned());
            }
            _ => {}
        }
        for problem in problems {
            let shown = Value::from(key.as_str());
            errors.push(FieldError::invalid(format!("{name}[{key}]"), &shown, &problem));
        }
    }
}

fn decoded(value: &Value) -> Vec<u8> {
    BASE64_STANDARD.decode(value.as_str().unwrap_or_default()).unwrap_or_default()
}

pub(super) fn config_map(value: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    check_keys(value, "data", &mut errors);
    if let (Some(data), Some(binary)) = (field(value, "data"), field(value, "binaryData")) {
        for key in data.keys().filter(|key| binary.contains_key(*key)) {
            let shown = Value::from(key.as_str());
            let detail = "duplicate of key present in binaryData";
            errors.push(FieldError::invalid(format!("data[{key}]"), &shown, detail));
        }
    }
    check_keys(value, "binaryData", &mut errors);
    let plain: usize = field(value, "data")
        .into_iter()
        .flat_map(Map::values)
        .map(|v| v.as_str().unwrap_or_default().len())
        .sum();
    let binary: usize = field(value, "binaryData")
        .into_iter()
        .flat_map(Map::values)
        .map(|v| decoded(v).len())
        .sum();
    if plain + binary > MAX_SIZE {
        errors.push(FieldError::too_long("[]", MAX_SIZE as u64));
    }
    errors
}

/// `value` has its type, and `stringData` is merged.
pub(super) fn secret(value: &Value) -> Vec<FieldError> {
    let mut errors = Vec::new();
    check_keys(value, "data", &mut errors);
    let data = field(value, "data");
    let size: usize = data.into_iter().flat_map(Map::values).map(|v| decoded(v).len()).sum();
    if size > MAX_SIZE {
        errors.push(FieldError::too_long("data", MAX_SIZE as u64));
    }
    let has = |key: &str| data.is_some_and(|d| d.contains_key(key));
    let mut need = |key: &str| {
        if !has(key) {
            errors.push(FieldError::required(format!("data[{key}]"), ""));
        }
    };
    match text(value, "/type") {
        "kubernetes.io/tls" => ["tls.crt", "tls.key"].iter().for_each(|key| need(key)),
        "kubernetes.io/ssh-auth" => need("ssh-privatekey"),
        "kubernetes.io/basic-auth" if !has("username") && !has("password") => {
            ["username", "password"].iter().for_each(|key| need(key));
        }
        "kubernetes.io/dockerconfigjson" => json_in(value, ".dockerconfigjson", &mut errors),
        "kubernetes.io/dockercfg" => json_in(value, ".dockercfg", &mut errors),
        "kubernetes.io/service-account-token" => {
            const NAME: &str = "kubernetes.io/service-account.name";
            if value.pointer("/metadata/annotations").and_then(|a| a.get(NAME)).is_none() {
                errors.push(FieldError::required(format!("metadata.annotations[{NAME}]"), ""));
            }
        }
        _ => {}
    }
    errors
}

/// A key that must be there and hold JSON; what is wrong with the JSON is said, the JSON is not.
fn json_in(value: &Value, key: &str, errors: &mut Vec<FieldError>) {
    let at = format!("data[{key}]");
    let Some(found) = field(value, "data").and_then(|d| d.get(key)) else {
        errors.push(FieldError::required(at, ""));
        return;
    };
    if let Some(problem) = control_schema::golang::syntax_error(&decoded(found)) {
        errors.push(FieldError::invalid(at, &Value::from("<secret contents redacted>"), &problem));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said(errors: Vec<FieldError>) -> Vec<String> {
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn keys_and_sizes_are_checked() {
        assert_eq!(said(config_map(&json!({"data": {"a.b": "x"}}))), Vec::<String>::new());
        assert_eq!(
            said(config_map(&json!({"data": {"a b": "x"}}))),
            [format!("data[a b]: Invalid value: \"a b\": {KEY}")]
        );
        let both = json!({"data": {"a": "x"}, "binaryData": {"a": "eA=="}});
        assert_eq!(
            said(config_map(&both)),
            ["data[a]: Invalid value: \"a\": duplicate of key present in binaryData"]
        );
        let large = json!({"data": {"a": "x".repeat(MAX_SIZE + 1)}});
        assert_eq!(said(config_map(&large)), ["[]: Too long: may not be more than 1048576 bytes"]);
    }

    #[test]
    fn a_secret_holds_what_its_type_demands() {
        let tls = json!({"type": "kubernetes.io/tls", "data": {"tls.crt": ""}});
        assert_eq!(said(secret(&tls)), ["data[tls.key]: Required value"]);
        let docker = json!({"type": "kubernetes.io/dockerconfigjson", "data": {".dockerconfigjson": "eA=="}});
        assert_eq!(
            said(secret(&docker)),
            [
                "data[.dockerconfigjson]: Invalid value: \"<secret contents redacted>\": invalid character 'x' looking for beginning of value"
            ]
        );
    }
}
