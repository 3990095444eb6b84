//! What Go says when a value of a built-in kind has the wrong JSON type: its JSON decoder, and the converter that
//! strategic merge patches go through.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;

use super::json::kind;
use crate::schema::{Node, Type};

/// Names of the Go structs behind fields; a field that is not listed has a struct of its parent's and its own name.
const STRUCTS: &[(&str, &str)] = &[
    ("metadata", "ObjectMeta"),
    ("ownerReferences", "OwnerReference"),
    ("managedFields", "ManagedFieldsEntry"),
    ("rules", "PolicyRule"),
    ("subjects", "Subject"),
    ("roleRef", "RoleRef"),
    ("secrets", "ObjectReference"),
    ("imagePullSecrets", "LocalObjectReference"),
    ("involvedObject", "ObjectReference"),
    ("related", "ObjectReference"),
    ("regarding", "ObjectReference"),
    ("source", "EventSource"),
    ("series", "EventSeries"),
    ("aggregationRule", "AggregationRule"),
    ("resourceAttributes", "ResourceAttributes"),
    ("nonResourceAttributes", "NonResourceAttributes"),
    ("versions", "CustomResourceDefinitionVersion"),
    ("names", "CustomResourceDefinitionNames"),
    ("conversion", "CustomResourceConversion"),
    ("additionalPrinterColumns", "CustomResourceColumnDefinition"),
];

/// The first value of another JSON type than its schema has, as Go's decoder tells it; `kind` names the object.
pub fn mismatch(root: &Node, object: &Value, kind: &str) -> Option<String> {
    find(root, object, kind, &mut Vec::new()).map(|wrong| wrong.decoding())
}

/// The same as the converter from maps to structs tells it.
pub fn unconvertible(root: &Node, object: &Value) -> Option<String> {
    find(root, object, "", &mut Vec::new()).map(|wrong| wrong.converting())
}

struct Mismatch<'a> {
    node: &'a Node,
    value: &'a Value,
    /// The struct that has the field.
    owner: String,
    path: Vec<&'a str>,
}

impl Mismatch<'_> {
    fn decoding(&self) -> String {
        if let (Some(Type::String), Value::String(text)) = (self.node.ty, self.value) {
            return match base64_error(text) {
                Some(error) if format(self.node) == "byte" => error,
                _ => format!(
                    "parsing time {0:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {0:?} as \"2006\"",
                    text
                ),
            };
        }
        let found = match (self.node.ty, self.value) {
            (Some(Type::Integer), Value::Number(n)) => format!("number {n}"),
            _ => kind(self.value).to_owned(),
        };
        let last = self.path.last().copied().unwrap_or_default();
        format!(
            "json: cannot unmarshal {found} into Go struct field {}.{} of type {}",
            self.owner,
            self.path.join("."),
            go_type(self.node, last, &self.owner)
        )
    }

    fn converting(&self) -> String {
        if let (Some(Type::String), Value::String(_)) = (self.node.ty, self.value) {
            return self.decoding();
        }
        let integer = self.value.is_i64() || self.value.is_u64();
        let found = match self.value {
            Value::Number(_) if integer => "int64",
            Value::Number(_) => "float64",
            Value::Array(_) => "slice",
            Value::Object(_) => "map",
            other => kind(other),
        };
        let last = self.path.last().copied().unwrap_or_default();
        match self.node.ty {
            Some(Type::Object) if self.node.additional.is_some() => {
                format!("cannot restore map from {found}")
            }
            Some(Type::Object) => format!("cannot restore struct from: {found}"),
            Some(Type::Array) => format!("cannot restore slice from {found}"),
            // Go can turn an integer into a string, but not the way that is meant here.
            Some(Type::String) if integer => "cannot convert int64 to string".to_owned(),
            _ => format!("unrecognized type: {}", go_type(self.node, last, "")),
        }
    }
}

fn struct_of(kind: &str, field: &str) -> String {
    if matches!(field, "spec" | "status") {
        let (first, rest) = field.split_at(1);
        return format!("{kind}{}{rest}", first.to_uppercase());
    }
    let known = STRUCTS.iter().find(|(name, _)| *name == field);
    known.map_or_else(|| format!("{kind}{field}"), |(_, name)| (*name).to_owned())
}

fn format(node: &Node) -> &str {
    node.checks.as_ref().and_then(|c| c.format.as_deref()).unwrap_or_default()
}

fn fits(node: &Node, value: &Value) -> bool {
    match (node.ty, value) {
        _ if node.int_or_string => true,
        (None, _) | (_, Value::Null) => true,
        (Some(Type::Object), v) => v.is_object(),
        (Some(Type::Array), v) => v.is_array(),
        (Some(Type::String), Value::String(text)) => match format(node) {
            "byte" => base64_error(text).is_none(),
            "date-time" => text.parse::<jiff::Timestamp>().is_ok(),
            _ => true,
        },
        (Some(Type::String), _) => false,
        (Some(Type::Boolean), v) => v.is_boolean(),
        (Some(Type::Integer), v) => v.is_i64() || v.is_u64(),
        (Some(Type::Number), v) => v.is_number(),
    }
}

fn find<'a>(
    node: &'a Node,
    value: &'a Value,
    owner: &str,
    path: &mut Vec<&'a str>,
) -> Option<Mismatch<'a>> {
    if !fits(node, value) {
        return Some(Mismatch { node, value, owner: owner.to_owned(), path: path.clone() });
    }
    match value {
        Value::Object(map) if !node.properties.is_empty() => map.iter().find_map(|(key, child)| {
            let schema = node.properties.get(key)?;
            path.push(key);
            let inner = if fits(schema, child) && child.is_object() && schema.additional.is_none() {
                struct_of(owner, key)
            } else {
                owner.to_owned()
            };
            let found = find(schema, child, &inner, path);
            path.pop();
            found
        }),
        Value::Object(map) => {
            let schema = node.additional.as_deref()?;
            map.values().find_map(|child| find(schema, child, owner, path))
        }
        Value::Array(list) => {
            let items = node.items.as_deref()?;
            let owner = if items.properties.is_empty() {
                owner.to_owned()
            } else {
                struct_of(owner, path.last().copied().unwrap_or_default())
            };
            list.iter().find_map(|child| find(items, child, &owner, path))
        }
        _ => None,
    }
}

/// Go's complaint about base64 text.
fn base64_error(text: &str) -> Option<String> {
    let plain: Vec<u8> = text.bytes().filter(|b| !matches!(b, b'\r' | b'\n')).collect();
    if BASE64_STANDARD.decode(&plain).is_ok() {
        return None;
    }
    let known = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'/' | b'=');
    let at = plain.iter().position(|b| !known(b)).unwrap_or(plain.len() / 4 * 4);
    Some(format!("illegal base64 data at input byte {at}"))
}

fn go_type(node: &Node, field: &str, owner: &str) -> String {
    match (node.ty, format(node)) {
        (Some(Type::String), "byte") => "[]uint8".to_owned(),
        (Some(Type::String), "date-time") => "v1.Time".to_owned(),
        (Some(Type::String), _) => "string".to_owned(),
        (Some(Type::Boolean), _) => "bool".to_owned(),
        (Some(Type::Integer), "int64") => "int64".to_owned(),
        (Some(Type::Integer), _) => "int32".to_owned(),
        (Some(Type::Number), _) => "float64".to_owned(),
        (Some(Type::Array), _) => {
            let items = node.items.as_deref();
            format!("[]{}", items.map(|i| go_type(i, field, owner)).unwrap_or_default())
        }
        (Some(Type::Object), _) => match node.additional.as_deref() {
            Some(values) => format!("map[string]{}", go_type(values, field, owner)),
            None => format!("v1.{}", struct_of(owner, field)),
        },
        (None, _) => "interface {}".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::builtin;

    fn root(group: &str, plural: &str) -> &'static Node {
        builtin::resource(group, plural).unwrap().schema.root()
    }

    #[test]
    fn a_value_of_the_wrong_type_is_told_with_the_struct_it_belongs_to() {
        const RBAC: &str = "rbac.authorization.k8s.io";
        const LEASES: &str = "coordination.k8s.io";
        for (group, plural, kind, object, said) in [
            (
                "",
                "configmaps",
                "ConfigMap",
                json!({"data": {"a": 1}}),
                "number into Go struct field ConfigMap.data of type string",
            ),
            (
                "",
                "configmaps",
                "ConfigMap",
                json!({"data": "x"}),
                "string into Go struct field ConfigMap.data of type map[string]string",
            ),
            (
                "",
                "configmaps",
                "ConfigMap",
                json!({"immutable": "x"}),
                "string into Go struct field ConfigMap.immutable of type bool",
            ),
            (
                "",
                "configmaps",
                "ConfigMap",
                json!({"metadata": "x"}),
                "string into Go struct field ConfigMap.metadata of type v1.ObjectMeta",
            ),
            (
                "",
                "configmaps",
                "ConfigMap",
                json!({"metadata": {"labels": {"a": true}}}),
                "bool into Go struct field ObjectMeta.metadata.labels of type string",
            ),
            (
                LEASES,
                "leases",
                "Lease",
                json!({"spec": {"leaseDurationSeconds": "5"}}),
                "string into Go struct field LeaseSpec.spec.leaseDurationSeconds of type int32",
            ),
            (
                RBAC,
                "roles",
                "Role",
                json!({"rules": [{"verbs": "get"}]}),
                "string into Go struct field PolicyRule.rules.verbs of type []string",
            ),
        ] {
            let found = mismatch(root(group, plural), &object, kind);
            assert_eq!(found, Some(format!("json: cannot unmarshal {said}")), "{object}");
        }
        assert_eq!(
            mismatch(root("", "secrets"), &json!({"data": {"a": "YWJj!"}}), "Secret").as_deref(),
            Some("illegal base64 data at input byte 4")
        );
    }

    #[test]
    fn a_strategic_patch_says_it_in_its_own_words() {
        for (object, said) in [
            (json!({"data": {"q": 1}}), "cannot convert int64 to string"),
            (json!({"data": {"q": true}}), "unrecognized type: string"),
            (json!({"data": "x"}), "cannot restore map from string"),
            (json!({"immutable": "x"}), "unrecognized type: bool"),
        ] {
            assert_eq!(unconvertible(root("", "configmaps"), &object).as_deref(), Some(said));
        }
    }

    #[test]
    fn nulls_and_right_values_pass() {
        let object = json!({"metadata": {"labels": null}, "data": {"a": "b"}, "immutable": false});
        assert_eq!(mismatch(root("", "configmaps"), &object, "ConfigMap"), None);
    }
}
