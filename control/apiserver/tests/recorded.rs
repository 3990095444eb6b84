//! Answers recorded from a kube-apiserver 1.34, each with the request that got it.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use axum::body::Body;
use axum::http::Request;
use control_apiserver::{ApiServer, Options};
use control_identity::authorize::{Attributes, Authorizer, Decision};
use control_identity::principal::Principal;
use control_store::Workspace;
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tower::ServiceExt;

struct Everything;

impl Authorizer for Everything {
    fn authorize(&self, _who: &Principal, _what: &Attributes<'_>) -> Decision {
        Decision::Allow
    }
}

const JSON: &str = "application/json";
const APPLY: &str = "application/apply-patch+yaml";
const MERGE: &str = "application/merge-patch+json";
const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";
const NOT_CHECKED: &str = "<nil>: Invalid value: null: some validation rules were not checked because the object was invalid; correct the existing errors to complete validation";

fn schema() -> Value {
    let parts = json!({
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
        "items": {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}},
    });
    let spec = json!({
        "type": "object", "required": ["size"],
        "x-kubernetes-validations": [{"rule": "!has(self.max) || self.size <= self.max"}],
        "properties": {
            "size": {"type": "integer"}, "max": {"type": "integer"},
            "replicas": {"type": "integer"}, "note": {"type": "string"}, "flag": {"type": "boolean"},
            "map": {"type": "object", "additionalProperties": {"type": "string"}},
            "tags": {"type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"}},
            "parts": parts,
        },
    });
    let status = json!({"type": "object", "properties": {"replicas": {"type": "integer"}}});
    json!({"type": "object", "properties": {"spec": spec, "status": status}})
}

/// The widgets' definition with changes on top.
fn definition(changes: &Value) -> String {
    let mut crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "subresources": {"scale": {
                    "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
                }},
                "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
                "schema": {"openAPIV3Schema": schema()},
            }],
        },
    });
    for (pointer, value) in changes.as_object().into_iter().flatten() {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let parent = crd.pointer_mut(parent).unwrap().as_object_mut().unwrap();
        parent.insert(key.to_owned(), value.clone());
    }
    crd.to_string()
}

fn widget(name: &str, spec: &Value) -> String {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec})
        .to_string()
}

struct Site(ApiServer);

impl Site {
    async fn start() -> Self {
        let workspace = Workspace::in_memory(&control_store::Options::default()).unwrap();
        let server =
            ApiServer::new(workspace, Arc::new(Everything), Options::default()).await.unwrap();
        let site = Self(server);
        assert_eq!(site.send("POST", CRDS, JSON, &definition(&json!({}))).await.0, 201);
        site
    }

    async fn send(&self, method: &str, path: &str, media: &str, body: &str) -> (u16, Value) {
        let request = Request::builder().method(method).uri(path).header("content-type", media);
        let request = request.body(Body::from(body.to_owned())).unwrap();
        let who = Principal::Admin { name: "admin".to_owned() };
        let response = self.0.in_process(who).oneshot(request).await.unwrap();
        let code = response.status().as_u16();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        (code, serde_json::from_slice(&bytes).unwrap_or_default())
    }

    async fn refused(&self, request: (&str, &str, &str, &str), code: u16, message: &str) {
        let (method, path, media, body) = request;
        let (found, answer) = self.send(method, path, media, body).await;
        let text = answer.get("message").and_then(Value::as_str).unwrap_or_default();
        assert_eq!((found, text), (code, message), "{request:?}");
    }
}

#[tokio::test]
async fn rules_are_said_to_be_unchecked_where_the_schema_is_broken() {
    let site = Site::start().await;
    for (spec, problem) in [
        (json!({}), "spec.size: Required value"),
        (
            json!({"size": "1"}),
            "spec.size: Invalid value: \"string\": spec.size in body must be of type integer: \"string\"",
        ),
    ] {
        let message = format!("Widget.example.com \"a\" is invalid: [{problem}, {NOT_CHECKED}]");
        site.refused(("POST", WIDGETS, JSON, &widget("a", &spec)), 422, &message).await;
    }
}

#[tokio::test]
async fn what_is_applied_must_fit_the_schema() {
    let site = Site::start().await;
    let path = format!("{WIDGETS}/a?fieldManager=m");
    let spec = json!({"note": 5, "flag": "yes", "tags": "x", "map": 3, "parts": [{"name": "a"}, {"name": "a"}]});
    let message = "failed to create typed patch object (/a; example.com/v1, Kind=Widget): errors:\n  .spec.flag: expected boolean, got &{yes}\n  .spec.map: expected map, got &{3}\n  .spec.note: expected string, got &value.valueUnstructured{Value:5}\n  .spec.parts: duplicate entries for key [name=\"a\"]\n  .spec.tags: expected list, got &{x}";
    site.refused(("PATCH", &path, APPLY, &widget("a", &spec)), 500, message).await;
    let other = "the name of the object (b) does not match the name on the URL (a)";
    site.refused(("PATCH", &path, APPLY, &widget("b", &json!({}))), 400, other).await;
    let kindless = "invalid object type: /, Kind=";
    site.refused(("PATCH", &path, APPLY, "{}"), 400, kindless).await;
}

#[tokio::test]
async fn conflicts_name_appliers_by_name_and_writers_by_version() {
    let site = Site::start().await;
    let path = format!("{WIDGETS}/a");
    let apply = |manager: &str| format!("{path}?fieldManager={manager}");
    let (code, _) = site
        .send("PATCH", &apply("one"), APPLY, &widget("a", &json!({"size": 1, "note": "x"})))
        .await;
    assert_eq!(code, 201);
    let patch = r#"{"spec":{"note":"y"}}"#;
    let (code, _) = site.send("PATCH", &apply("editor"), MERGE, patch).await;
    assert_eq!(code, 200);
    let message = "Apply failed with 2 conflicts: conflicts with \"editor\" using example.com/v1:\n- .spec.note\nconflicts with \"one\":\n- .spec.size";
    let wanted = widget("a", &json!({"size": 2, "note": "z"}));
    site.refused(("PATCH", &apply("two"), APPLY, &wanted), 409, message).await;
}

#[tokio::test]
async fn whoever_makes_a_map_owns_it() {
    let site = Site::start().await;
    let (_, made) = site
        .send(
            "POST",
            &format!("{WIDGETS}?fieldManager=m"),
            JSON,
            &widget("a", &json!({"size": 1, "map": {"k": "v"}})),
        )
        .await;
    assert_eq!(
        made.pointer("/metadata/managedFields/0/fieldsV1"),
        Some(&json!({"f:spec": {".": {}, "f:map": {".": {}, "f:k": {}}, "f:size": {}}}))
    );
}

#[tokio::test]
async fn definitions_are_refused_in_kubes_words() {
    let site = Site::start().await;
    let v = "/spec/versions/0";
    for (changes, problem) in [
        (
            json!({format!("{v}/additionalPrinterColumns"): [{"name": "a", "type": "foo", "jsonPath": ".x"}]}),
            "spec.additionalPrinterColumns[0].type: Invalid value: \"foo\": must be one of boolean,date,integer,number,string",
        ),
        (
            json!({"/spec/conversion": {"strategy": "Foo"}}),
            "spec.conversion.strategy: Unsupported value: \"Foo\": supported values: \"None\", \"Webhook\"",
        ),
        (
            json!({"/spec/conversion": {"strategy": "Webhook"}}),
            "[spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook, spec.conversion.conversionReviewVersions: Required value]",
        ),
        (
            json!({"/spec/group": "demo.k8s.io", "/metadata/name": "widgets.demo.k8s.io"}),
            "metadata.annotations[api-approved.kubernetes.io]: Required value: protected groups must have approval annotation \"api-approved.kubernetes.io\", see https://github.com/kubernetes/enhancements/pull/1111",
        ),
    ] {
        let crd = definition(&changes);
        let name = serde_json::from_str::<Value>(&crd).unwrap();
        let name = name.pointer("/metadata/name").and_then(Value::as_str).unwrap().to_owned();
        let message = format!(
            "CustomResourceDefinition.apiextensions.k8s.io \"{name}\" is invalid: {problem}"
        );
        let path = format!("{CRDS}?dryRun=All");
        site.refused(("POST", &path, JSON, &crd), 422, &message).await;
    }
}

#[tokio::test]
async fn a_definition_whose_names_are_taken_is_kept_and_not_served() {
    let site = Site::start().await;
    let crd = definition(&json!({
        "/metadata/name": "gadgets.example.com",
        "/spec/names": {"plural": "gadgets", "kind": "Widget", "shortNames": ["wd"]},
    }));
    let (code, made) = site.send("POST", CRDS, JSON, &crd).await;
    assert_eq!(code, 201);
    let told: Vec<(&str, &str, &str)> = made
        .pointer("/status/conditions")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .map(|c| {
            let text = |key: &str| c.get(key).and_then(Value::as_str).unwrap_or_default();
            (text("type"), text("status"), text("message"))
        })
        .collect();
    assert_eq!(
        told,
        [
            ("NamesAccepted", "False", "\"WidgetList\" is already in use"),
            ("Established", "False", "not all names are accepted"),
        ]
    );
    assert_eq!(made.pointer("/status/acceptedNames/plural"), Some(&json!("gadgets")));
    let gadgets = "/apis/example.com/v1/namespaces/default/gadgets";
    assert_eq!(site.send("GET", gadgets, JSON, "").await.0, 404);
}

#[tokio::test]
async fn subresources_that_are_not_there_are_not_found() {
    let site = Site::start().await;
    let (code, _) = site.send("POST", WIDGETS, JSON, &widget("a", &json!({"size": 1}))).await;
    assert_eq!(code, 201);
    let at = |sub: &str| format!("{WIDGETS}/a/{sub}");
    let gone = "widgets.example.com \"a\" not found";
    site.refused(("GET", &at("nope"), JSON, ""), 404, gone).await;
    let unset =
        "Internal error occurred: the spec replicas field \".spec.replicas\" does not exist";
    site.refused(("GET", &at("scale"), JSON, ""), 500, unset).await;
}
