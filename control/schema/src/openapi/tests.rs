//! What kubectl looks for in the documents.

use serde_json::{Value, json};

use super::*;
use crate::builtin;
use crate::schema::tests::resource;

fn references(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
                found.push(reference.to_owned());
            }
            map.values().for_each(|v| references(v, found));
        }
        Value::Array(list) => list.iter().for_each(|v| references(v, found)),
        _ => {}
    }
}

fn every_reference_resolves(document: &Value) {
    let mut found = Vec::new();
    references(document, &mut found);
    assert!(!found.is_empty());
    for reference in found {
        let pointer = reference.trim_start_matches('#');
        assert!(document.pointer(pointer).is_some(), "{reference}");
    }
}

#[test]
fn a_custom_kind_can_be_explained_and_field_validated() {
    let job = resource();
    let document = v3([&job]);
    every_reference_resolves(&document);
    let schema = &document["components"]["schemas"]["io.rlinf.v1alpha1.Job"];
    let gvk = json!({"group": "rlinf.io", "version": "v1alpha1", "kind": "Job"});
    assert_eq!(schema["x-kubernetes-group-version-kind"], json!([gvk]));
    assert_eq!(schema["properties"]["spec"]["properties"]["retries"]["default"], 3);
    let item = &document["paths"]["/apis/rlinf.io/v1alpha1/namespaces/{namespace}/jobs/{name}"];
    assert_eq!(item["patch"]["x-kubernetes-group-version-kind"], gvk);
    let names: Vec<&Value> =
        item["patch"]["parameters"].as_array().expect("list").iter().map(|p| &p["name"]).collect();
    assert!(names.iter().any(|n| *n == "fieldValidation") && names.iter().any(|n| *n == "dryRun"));
    assert!(
        document["paths"]["/apis/rlinf.io/v1alpha1/namespaces/{namespace}/jobs/{name}/status"]
            .is_object()
    );
    assert!(document["paths"]["/apis/rlinf.io/v1alpha1/jobs"]["get"].is_object());
}

#[test]
fn built_in_kinds_keep_their_names_and_patch_strategies() {
    let core: Vec<_> = builtin::resources().iter().filter(|r| r.group.is_empty()).collect();
    let document = v3(core);
    every_reference_resolves(&document);
    let schemas = &document["components"]["schemas"];
    assert_eq!(
        schemas["io.k8s.api.core.v1.ConfigMap"]["x-kubernetes-group-version-kind"][0]["kind"],
        "ConfigMap"
    );
    assert!(schemas["io.k8s.api.core.v1.ConfigMapList"].is_object());
    let secrets = &schemas["io.k8s.api.core.v1.ServiceAccount"]["properties"]["secrets"];
    assert_eq!(secrets["x-kubernetes-patch-merge-key"], "name");
    let all = v3(builtin::resources());
    every_reference_resolves(&all);
}

#[test]
fn the_swagger_document_is_self_contained() {
    let job = resource();
    let document = v2(builtin::resources().iter().chain([&job]));
    every_reference_resolves(&document);
    assert_eq!(document["swagger"], "2.0");
    let text = document.to_string();
    for absent in ["#/components/", "\"requestBody\"", "\"content\":{", "\"anyOf\":["] {
        assert!(!text.contains(absent), "{absent}");
    }
    let post = &document["paths"]["/api/v1/namespaces/{namespace}/configmaps"]["post"];
    assert_eq!(
        post["parameters"][0]["schema"]["$ref"],
        "#/definitions/io.k8s.api.core.v1.ConfigMap"
    );
    let patch = &document["paths"]["/api/v1/namespaces/{namespace}/configmaps/{name}"]["patch"];
    assert!(
        patch["consumes"]
            .as_array()
            .expect("list")
            .contains(&json!("application/strategic-merge-patch+json"))
    );
}

#[test]
fn the_index_points_at_each_document() {
    let index = v3_index([("", "v1", "AA"), ("rlinf.io", "v1alpha1", "BB")]);
    assert_eq!(
        index,
        json!({"paths": {
            "api/v1": {"serverRelativeURL": "/openapi/v3/api/v1?hash=AA"},
            "apis/rlinf.io/v1alpha1": {"serverRelativeURL": "/openapi/v3/apis/rlinf.io/v1alpha1?hash=BB"},
        }})
    );
}
