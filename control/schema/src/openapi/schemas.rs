//! Schema definitions, named as Kubernetes names them.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{
    APIResourceList, DeleteOptions, ListMeta, ObjectMeta, Status,
};
use serde_json::{Map, Value, json};

use super::V3_PREFIX;
use crate::builtin;
use crate::resource::Resource;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const API_VERSION: &str = "APIVersion defines the versioned schema of this representation of an object. Servers should convert recognized schemas to the latest internal value, and may reject unrecognized values. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#resources";
const KIND: &str = "Kind is a string value representing the REST resource this object represents. Servers may infer this from the endpoint the client submits requests to. Cannot be updated. In CamelCase. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";
const METADATA: &str = "Standard object's metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata";
const LIST_METADATA: &str = "Standard list metadata. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#types-kinds";

pub(super) fn reference(name: &str) -> Value {
    json!({"$ref": format!("{V3_PREFIX}{name}")})
}

fn described(name: &str, description: &str) -> Value {
    json!({"allOf": [reference(name)], "default": {}, "description": description})
}

/// Definitions that every document needs.
pub(super) fn common(into: &mut Map<String, Value>) {
    builtin::definition::<ObjectMeta>(into, V3_PREFIX);
    builtin::definition::<ListMeta>(into, V3_PREFIX);
    builtin::definition::<Status>(into, V3_PREFIX);
    builtin::definition::<DeleteOptions>(into, V3_PREFIX);
    builtin::definition::<APIResourceList>(into, V3_PREFIX);
    into.insert(
        format!("{META}.Patch"),
        json!({"description": "Patch is provided to give a concrete name and type to the Kubernetes PATCH request body.",
               "type": "object"}),
    );
    into.insert(
        format!("{META}.WatchEvent"),
        json!({"description": "Event represents a single event to a watched resource.", "type": "object",
               "properties": {"type": {"type": "string"}, "object": {"type": "object"}},
               "required": ["type", "object"]}),
    );
    if let Some(Value::Object(meta)) = into.get_mut(&format!("{META}.ObjectMeta")) {
        let mark = |meta: &mut Map<String, Value>, name: &str, key: &str, value: Value| {
            if let Some(Value::Object(p)) = meta.get_mut("properties").and_then(|p| p.get_mut(name))
            {
                p.insert(key.to_owned(), value);
            }
        };
        mark(meta, "ownerReferences", "x-kubernetes-patch-merge-key", json!("uid"));
        mark(meta, "ownerReferences", "x-kubernetes-patch-strategy", json!("merge"));
        mark(meta, "ownerReferences", "x-kubernetes-list-type", json!("map"));
        mark(meta, "ownerReferences", "x-kubernetes-list-map-keys", json!(["uid"]));
        mark(meta, "finalizers", "x-kubernetes-patch-strategy", json!("merge"));
        mark(meta, "finalizers", "x-kubernetes-list-type", json!("set"));
    }
}

/// Adds the definitions of one kind and its list; returns the name of the kind's definition.
pub(super) fn of_resource(resource: &Resource, into: &mut Map<String, Value>) -> String {
    let name = if resource.builtin {
        builtin::define(resource, into, V3_PREFIX)
    } else {
        let name = custom_name(resource);
        into.insert(name.clone(), custom(resource));
        name
    };
    let kind = gvk(resource, &resource.kind);
    if let Some(Value::Object(definition)) = into.get_mut(&name) {
        definition.insert("x-kubernetes-group-version-kind".to_owned(), json!([kind]));
    }
    if resource.verbs.iter().any(|v| v == "list") {
        into.insert(format!("{name}List"), list(resource, &name));
    }
    name
}

pub(super) fn gvk(resource: &Resource, kind: &str) -> Value {
    json!({"group": resource.group, "kind": kind, "version": resource.version})
}

/// `io.rlinf.v1alpha1.Job`: the group's labels reversed.
fn custom_name(resource: &Resource) -> String {
    let mut labels: Vec<&str> = resource.group.split('.').collect();
    labels.reverse();
    format!("{}.{}.{}", labels.join("."), resource.version, resource.kind)
}

fn custom(resource: &Resource) -> Value {
    let mut schema = resource.open_api.as_ref().clone();
    if let Value::Object(map) = &mut schema {
        let properties = map.entry("properties").or_insert_with(|| json!({}));
        if let Value::Object(properties) = properties {
            properties.insert(
                "apiVersion".to_owned(),
                json!({"type": "string", "description": API_VERSION}),
            );
            properties.insert("kind".to_owned(), json!({"type": "string", "description": KIND}));
            properties
                .insert("metadata".to_owned(), described(&format!("{META}.ObjectMeta"), METADATA));
        }
    }
    schema
}

fn list(resource: &Resource, name: &str) -> Value {
    json!({
        "description": format!("{} is a list of {}", resource.list_kind, resource.kind),
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string", "description": API_VERSION},
            "kind": {"type": "string", "description": KIND},
            "metadata": described(&format!("{META}.ListMeta"), LIST_METADATA),
            "items": {"type": "array", "items": reference(name),
                      "description": format!("List of {}.", resource.plural)},
        },
        "x-kubernetes-group-version-kind": [gvk(resource, &resource.list_kind)],
    })
}
