//! `x-kubernetes-validations`: rules in the Common Expression Language, on an object and on what it was before.

use serde_json::{Map, Value};

use super::node::{Node, Type};
use super::validate::key_of;
use crate::cel::Program;
use crate::error::{Cause, FieldError};
use crate::path::Path;
use crate::schema::ListType;

/// One entry of `x-kubernetes-validations`.
#[derive(Clone, Debug)]
pub struct Rule {
    pub rule: String,
    pub message: String,
    program: Program,
    message_expression: Option<Program>,
    cause: Cause,
    /// Such as `.replicas`, relative to the node.
    field_path: String,
}

impl Rule {
    /// A rule that was checked before, or none where it does not parse.
    pub(super) fn parse(map: &Map<String, Value>) -> Option<Self> {
        let text = |key: &str| map.get(key).and_then(Value::as_str).unwrap_or_default().trim();
        Some(Self {
            rule: text("rule").to_owned(),
            message: text("message").to_owned(),
            program: Program::parse(text("rule")).ok()?,
            message_expression: Program::parse(text("messageExpression")).ok(),
            cause: match text("reason") {
                "FieldValueForbidden" => Cause::Forbidden,
                "FieldValueRequired" => Cause::Required,
                "FieldValueDuplicate" => Cause::Duplicate,
                _ => Cause::Invalid,
            },
            field_path: text("fieldPath").to_owned(),
        })
    }

    /// What messages call the rule.
    fn name(&self) -> &str {
        if self.message.is_empty() { &self.rule } else { &self.message }
    }

    fn check(
        &self,
        node: &Node,
        new: &Value,
        old: Option<&Value>,
        path: &Path,
    ) -> Option<FieldError> {
        let shown = Value::from(node.ty.map(Type::name).unwrap_or_default());
        let (name, old) = (self.name(), old.filter(|_| self.program.uses_old()));
        match self.program.holds(new, old) {
            Ok(true) => None,
            Ok(false) => {
                let made = self.message_expression.as_ref().and_then(|p| p.text(new, old));
                let detail = made.filter(|m| !m.trim().is_empty()).unwrap_or_else(|| {
                    if self.message.is_empty() {
                        format!("failed rule: {}", self.rule)
                    } else {
                        self.message.clone()
                    }
                });
                let at = self.field(path);
                Some(match self.cause {
                    Cause::Forbidden => FieldError::forbidden(at, &detail),
                    Cause::Required => FieldError::required(at, &detail),
                    Cause::Duplicate => FieldError::duplicate(at, &shown),
                    _ => FieldError::invalid(at, &shown, &detail),
                })
            }
            Err(error) => {
                let detail = if error.starts_with("no such overload") {
                    format!(
                        "'{error}': call arguments did not match a supported operator, function or macro signature for rule: {name}"
                    )
                } else if error.starts_with("operation cancelled") {
                    format!(
                        "'{error}': no further validation rules will be run due to call cost exceeds limit for rule: {name}"
                    )
                } else {
                    format!("{error} evaluating rule: {name}")
                };
                Some(FieldError::invalid(path.as_str(), &shown, &detail))
            }
        }
    }

    fn field(&self, path: &Path) -> String {
        if path.as_str().is_empty() {
            return self.field_path.trim_start_matches('.').to_owned();
        }
        format!("{}{}", path.as_str(), self.field_path)
    }
}

/// Checks an object whose schema it satisfies. Without `old` transition rules do not apply; with it, what did not
/// change is not judged again.
pub(super) fn run(root: &Node, new: &Value, old: Option<&Value>) -> Vec<FieldError> {
    let mut errors = Vec::new();
    walk(root, new, old, &mut Path::default(), &mut errors);
    errors
}

fn walk(
    node: &Node,
    new: &Value,
    old: Option<&Value>,
    path: &mut Path,
    errors: &mut Vec<FieldError>,
) {
    if old == Some(new) || !node.has_rules {
        return;
    }
    if new.is_null() {
        return;
    }
    for rule in node.checks.iter().flat_map(|checks| &checks.rules) {
        if old.is_some() || !rule.program.uses_old() {
            errors.extend(rule.check(node, new, old, path));
        }
    }
    match new {
        Value::Object(map) => {
            for (key, child) in map {
                let schema = node.properties.get(key).or(node.additional.as_deref());
                if let Some(schema) = schema {
                    let mark = path.push(key);
                    walk(schema, child, old.and_then(|o| o.get(key)), path, errors);
                    path.pop(mark);
                }
            }
        }
        Value::Array(list) => {
            let Some(items) = &node.items else { return };
            let before = old.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
            for (index, child) in list.iter().enumerate() {
                // Only the elements of a map list can be told to be the same ones.
                let same = match node.list_type {
                    ListType::Map => {
                        let key = key_of(node, child);
                        before.iter().find(|item| key_of(node, item) == key)
                    }
                    _ => None,
                };
                let mark = path.push_index(index);
                walk(items, child, same, path, errors);
                path.pop(mark);
            }
        }
        _ => {}
    }
}

/// Checks the rules of a schema node at `field`, before a definition is accepted.
pub(super) fn check(map: &Map<String, Value>, field: &str, errors: &mut Vec<FieldError>) {
    let list = map.get("x-kubernetes-validations").and_then(Value::as_array);
    for (index, entry) in list.into_iter().flatten().enumerate() {
        let at = format!("{field}.x-kubernetes-validations[{index}]");
        let text = |key: &str| entry.get(key).and_then(Value::as_str).unwrap_or_default();
        if text("rule").trim().is_empty() {
            errors.push(FieldError::required(format!("{at}.rule"), "rule is not specified"));
        } else if let Err(error) = Program::parse(text("rule").trim()) {
            let detail = format!("compilation failed: {error}");
            errors.push(FieldError::invalid(
                format!("{at}.rule"),
                &Value::from(text("rule")),
                &detail,
            ));
        }
        let message = text("messageExpression");
        if !message.trim().is_empty()
            && let Err(error) = Program::parse(message.trim())
        {
            let detail = format!("messageExpression compilation failed: {error}");
            errors.push(FieldError::invalid(
                format!("{at}.messageExpression"),
                &Value::from(message),
                &detail,
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::schema::{Schema, validate_crd};

    fn schema() -> Schema {
        Schema::parse(&json!({"type": "object", "properties": {"spec": {
            "type": "object",
            "x-kubernetes-validations": [
                {"rule": "self.min <= self.max", "message": "min above max"},
                {"rule": "!has(self.n) || self.n < 5", "fieldPath": ".n", "messageExpression": "'n is ' + string(self.n)"},
            ],
            "properties": {
                "min": {"type": "integer"}, "max": {"type": "integer"}, "n": {"type": "integer"},
                "fixed": {"type": "string", "x-kubernetes-validations": [{"rule": "self == oldSelf"}]},
                "list": {"type": "array", "items": {"type": "string", "x-kubernetes-validations": [{"rule": "size(self) > 1"}]}},
            },
        }}}))
        .unwrap()
    }

    fn said(new: &serde_json::Value, old: Option<&serde_json::Value>) -> Vec<String> {
        schema().validate_rules(new, old).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn broken_rules_are_told_as_kube_tells_them() {
        let object = json!({"spec": {"min": 3, "max": 1, "n": 7, "list": ["ab", "c"]}});
        assert_eq!(
            said(&object, None),
            [
                "spec: Invalid value: \"object\": min above max",
                "spec.n: Invalid value: \"object\": n is 7",
                "spec.list[1]: Invalid value: \"string\": failed rule: size(self) > 1",
            ]
        );
        assert_eq!(
            said(&json!({"spec": {}}), None),
            ["spec: Invalid value: \"object\": no such key: min evaluating rule: min above max"]
        );
    }

    #[test]
    fn a_transition_is_judged_and_what_stays_is_not() {
        let old = json!({"spec": {"min": 3, "max": 1, "fixed": "a"}});
        let new = json!({"spec": {"min": 0, "max": 1, "fixed": "b"}});
        assert_eq!(
            said(&new, Some(&old)),
            ["spec.fixed: Invalid value: \"string\": failed rule: self == oldSelf"]
        );
        assert_eq!(said(&old, Some(&old)), Vec::<String>::new());
    }

    #[test]
    fn a_rule_that_is_no_expression_is_refused_with_its_definition() {
        let crd = json!({
            "metadata": {"name": "foos.ex.com"},
            "spec": {"group": "ex.com", "scope": "Cluster",
                "names": {"plural": "foos", "singular": "foo", "kind": "Foo", "listKind": "FooList"},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema":
                    {"type": "object", "x-kubernetes-validations": [{"rule": "self.a >"}]}}}]},
        });
        let errors = validate_crd(&crd, None);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].to_string().contains("x-kubernetes-validations[0].rule: Invalid value: \"self.a >\": compilation failed: ERROR: <input>:1:9"));
    }
}
