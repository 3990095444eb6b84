//! What the server answers, request by request: codes and texts that clients and people know from kube-apiserver.
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

struct Answer {
    code: u16,
    headers: axum::http::HeaderMap,
    text: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_default()
    }

    fn message(&self) -> String {
        self.json().get("message").and_then(Value::as_str).unwrap_or_default().to_owned()
    }

    fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default()
    }
}

struct Site(ApiServer);

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const WIDGETS: &str = "/apis/example.com/v1/namespaces/default/widgets";

impl Site {
    async fn start() -> Self {
        let workspace = Workspace::in_memory(&control_store::Options::default()).unwrap();
        let server =
            ApiServer::new(workspace, Arc::new(Everything), Options::default()).await.unwrap();
        let site = Self(server);
        let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        assert_eq!(site.send("POST", crds, JSON, &crd().to_string()).await.code, 201);
        site
    }

    async fn ask(&self, request: Request<Body>) -> Answer {
        let who = Principal::Admin { name: "admin".to_owned() };
        let response = self.0.in_process(who).oneshot(request).await.unwrap();
        let (parts, body) = response.into_parts();
        let bytes = body.collect().await.unwrap().to_bytes();
        Answer {
            code: parts.status.as_u16(),
            headers: parts.headers,
            text: String::from_utf8_lossy(&bytes).into_owned(),
        }
    }

    async fn send(&self, method: &str, path: &str, media: &str, body: &str) -> Answer {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", media)
            .body(Body::from(body.to_owned()))
            .unwrap();
        self.ask(request).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, JSON, "").await
    }

    /// Sends and compares code and message.
    async fn expect(&self, request: (&str, &str, &str, &str), code: u16, message: &str) {
        let (method, path, media, body) = request;
        let answer = self.send(method, path, media, body).await;
        assert_eq!((answer.code, answer.message()), (code, message.to_owned()), "{request:?}");
    }
}

fn crd() -> Value {
    json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {
                        "type": "object",
                        "x-kubernetes-validations": [
                            {"rule": "!has(self.min) || self.min <= self.size", "message": "too small"},
                            {"rule": "self.size >= oldSelf.size", "message": "cannot shrink"},
                        ],
                        "properties": {
                            "size": {"type": "integer"}, "min": {"type": "integer"},
                        },
                    },
                    "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
                }}},
            }],
        },
    })
}

fn widget(name: &str, spec: Value) -> String {
    json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": name}, "spec": spec})
        .to_string()
}

#[tokio::test]
async fn bodies_that_cannot_be_read_are_refused_as_go_reads_them() {
    let site = Site::start().await;
    for (path, body, message) in [
        (
            MAPS,
            "",
            "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: unexpected end of JSON input (<empty>)",
        ),
        (
            MAPS,
            "{bad",
            "the object provided is unrecognized (must be of type ConfigMap): couldn't get version/kind; json parse error: invalid character 'b' looking for beginning of object key string ({bad)",
        ),
        (
            MAPS,
            r#"{"kind":"Secret","apiVersion":"v1"}"#,
            "Secret in version \"v1\" cannot be handled as a ConfigMap: converting (v1.Secret) to (core.ConfigMap): unknown conversion",
        ),
        (
            MAPS,
            r#"{"kind":"ConfigMap","apiVersion":"v2"}"#,
            "ConfigMap in version \"v2\" cannot be handled as a ConfigMap: no kind \"ConfigMap\" is registered for version \"v2\" in scheme \"pkg/api/legacyscheme/scheme.go:30\"",
        ),
        (
            MAPS,
            r#"{"data":{"a":1}}"#,
            "ConfigMap in version \"v1\" cannot be handled as a ConfigMap: json: cannot unmarshal number into Go struct field ConfigMap.data of type string",
        ),
        (
            WIDGETS,
            "{}",
            "the object provided is unrecognized (must be of type Widget): Object 'Kind' is missing in '{}' ({})",
        ),
        (
            WIDGETS,
            r#"{"kind":"Widget"}"#,
            "the API version in the data () does not match the expected API version (example.com/v1)",
        ),
    ] {
        site.expect(("POST", path, JSON, body), 400, message).await;
    }
    let nested = "[".repeat(100_000);
    assert_eq!(site.send("POST", WIDGETS, JSON, &nested).await.code, 400);
    let deep = format!("{{\"kind\":\"Widget\",\"apiVersion\":\"example.com/v1\",\"a\":{nested}");
    assert_eq!(site.send("POST", WIDGETS, JSON, &deep).await.code, 400);
}

#[tokio::test]
async fn options_and_media_types_are_checked() {
    let site = Site::start().await;
    let map = r#"{"metadata":{"name":"a"}}"#;
    site.expect(
        ("POST", &format!("{MAPS}?fieldValidation=Maybe"), JSON, map),
        422,
        "CreateOptions.meta.k8s.io \"\" is invalid: fieldValidation: Unsupported value: \"Maybe\": supported values: \"\", \"Ignore\", \"Strict\", \"Warn\"",
    )
    .await;
    site.expect(
        ("POST", MAPS, "text/plain", map),
        415,
        "the body of the request was in an unknown format - accepted media types include: application/json, application/yaml, application/vnd.kubernetes.protobuf",
    )
    .await;
    let path = format!("{MAPS}/a");
    site.expect(("PATCH", &path, JSON, "{}"), 415, "415: Unsupported Media Type").await;
    site.expect(
        ("GET", &format!("{MAPS}?continue=@@"), JSON, ""),
        400,
        "invalid continue token: continue key is not valid: illegal base64 data at input byte 0",
    )
    .await;
    site.expect(
        ("GET", &format!("{MAPS}?resourceVersionMatch=Exact&resourceVersion=0"), JSON, ""),
        422,
        "ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"",
    )
    .await;
    assert_eq!(site.send("POST", MAPS, JSON, map).await.code, 201);
    let request = Request::get(&path).header("accept", "application/yaml");
    let yaml = site.ask(request.body(Body::empty()).unwrap()).await;
    assert_eq!(yaml.header("content-type"), "application/yaml");
    assert!(yaml.text.contains("kind: ConfigMap\n"), "{}", yaml.text);
    let request = Request::get(&path).header("user-agent", "curl/8.0");
    let by_hand = site.ask(request.body(Body::empty()).unwrap()).await;
    assert!(by_hand.text.contains("\n  \"kind\": \"ConfigMap\""), "{}", by_hand.text);
    assert!(!site.get(&path).await.text.trim_end().contains('\n'));
}

#[tokio::test]
async fn updates_name_what_they_mean() {
    let site = Site::start().await;
    assert_eq!(site.send("POST", WIDGETS, JSON, &widget("w", json!({"size": 1}))).await.code, 201);
    let path = format!("{WIDGETS}/w");
    site.expect(
        ("PUT", &path, JSON, &widget("w", json!({"size": 2}))),
        422,
        "widgets.example.com \"w\" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update",
    )
    .await;
    site.expect(
        ("PUT", &path, JSON, &widget("", json!({}))),
        400,
        "the name of the object (w based on URL) was undeterminable: name must be provided",
    )
    .await;
    site.expect(
        ("PATCH", &path, MERGE, r#"{"metadata":{"uid":"x"}}"#),
        422,
        "Widget.example.com \"w\" is invalid: metadata.uid: Invalid value: \"x\": field is immutable",
    )
    .await;
    let uid = site.get(&path).await.json().pointer("/metadata/uid").unwrap().clone();
    let mut other: Value = serde_json::from_str(&widget("w", json!({}))).unwrap();
    other["metadata"]["uid"] = json!("x");
    site.expect(
        ("PUT", &path, JSON, &other.to_string()),
        409,
        &format!("Operation cannot be fulfilled on widgets.example.com \"w\": StorageError: invalid object, Code: 4, Key: /registry/example.com/widgets/default/w, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: UID in precondition: x, UID in object meta: {}", uid.as_str().unwrap()),
    )
    .await;
    let lease = "/apis/coordination.k8s.io/v1/namespaces/default/leases/l";
    assert_eq!(site.send("PUT", lease, JSON, r#"{"metadata":{"name":"l"}}"#).await.code, 201);
    site.expect(
        ("PUT", lease, JSON, r#"{"metadata":{"name":"l"}}"#),
        422,
        "leases.coordination.k8s.io \"l\" is invalid: metadata.resourceVersion: Invalid value: 0: must be specified for an update",
    )
    .await;
}

#[tokio::test]
async fn patches_fail_with_the_words_of_kube() {
    let site = Site::start().await;
    assert_eq!(
        site.send("POST", MAPS, JSON, r#"{"metadata":{"name":"a"},"data":{"k":"v"}}"#).await.code,
        201
    );
    let path = format!("{MAPS}/a");
    let json_patch = "application/json-patch+json";
    site.expect(
        ("PATCH", &path, json_patch, r#"[{"op":"test","path":"/data/k","value":"x"}]"#),
        422,
        "the server rejected our request due to an error in our request",
    )
    .await;
    site.expect(
        ("PATCH", &path, json_patch, "{}"),
        400,
        "error decoding patch: json: cannot unmarshal object into Go value of type []handlers.jsonPatchOp",
    )
    .await;
    site.expect(
        ("PATCH", &path, MERGE, "[]"),
        400,
        "error decoding patch: json: cannot unmarshal array into Go value of type map[string]interface {}",
    )
    .await;
    site.expect(
        ("PATCH", &path, "application/strategic-merge-patch+json", r#"{"data":{"q":1}}"#),
        422,
        " \"\" is invalid: patch: Invalid value: \"map[data:map[q:1]]\": cannot convert int64 to string",
    )
    .await;
    site.expect(
        ("PATCH", &format!("{path}?force=true"), MERGE, "{}"),
        422,
        "PatchOptions.meta.k8s.io \"\" is invalid: force: Forbidden: may not be specified for non-apply patch",
    )
    .await;
    let apply = json!({"apiVersion": "v1", "kind": "ConfigMap", "nonsense": 1}).to_string();
    site.expect(
        ("PATCH", &format!("{path}?fieldManager=m"), "application/apply-patch+yaml", &apply),
        500,
        "failed to create typed patch object (/; /v1, Kind=ConfigMap): .nonsense: field not declared in schema",
    )
    .await;
}

#[tokio::test]
async fn rules_of_a_definition_hold() {
    let site = Site::start().await;
    site.expect(
        ("POST", WIDGETS, JSON, &widget("w", json!({"size": 1, "min": 2}))),
        422,
        "Widget.example.com \"w\" is invalid: spec: Invalid value: \"object\": too small",
    )
    .await;
    assert_eq!(site.send("POST", WIDGETS, JSON, &widget("w", json!({"size": 3}))).await.code, 201);
    site.expect(
        ("PATCH", &format!("{WIDGETS}/w"), MERGE, r#"{"spec":{"size":2}}"#),
        422,
        "Widget.example.com \"w\" is invalid: spec: Invalid value: \"object\": cannot shrink",
    )
    .await;
}

#[tokio::test]
async fn a_version_that_may_hold_objects_stays() {
    let site = Site::start().await;
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/widgets.example.com";
    site.expect(
        ("PATCH", path, "application/json-patch+json", r#"[{"op":"replace","path":"/spec/versions/0/name","value":"v9"}]"#),
        422,
        "CustomResourceDefinition.apiextensions.k8s.io \"widgets.example.com\" is invalid: status.storedVersions[0]: Invalid value: \"v1\": missing from spec.versions; v1 was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in v1 and removes v1 from status.storedVersions",
    )
    .await;
}

#[tokio::test]
async fn a_list_at_an_exact_version_is_what_it_was() {
    let site = Site::start().await;
    let version = site.get(MAPS).await.json()["metadata"]["resourceVersion"].clone();
    let version = version.as_str().unwrap().to_owned();
    assert_eq!(site.send("POST", MAPS, JSON, r#"{"metadata":{"name":"late"}}"#).await.code, 201);
    let path = format!("{MAPS}?resourceVersion={version}&resourceVersionMatch=Exact");
    let then = site.get(&path).await.json();
    assert_eq!(then["metadata"]["resourceVersion"], json!(version));
    assert_eq!(then["items"], json!([]));
}

#[tokio::test]
async fn what_belongs_to_no_namespace_may_name_one() {
    let site = Site::start().await;
    let body = r#"{"metadata":{"name":"n","namespace":"default"}}"#;
    let made = site.send("POST", "/api/v1/namespaces", JSON, body).await;
    assert_eq!((made.code, made.json().pointer("/metadata/namespace")), (201, None));
}

#[tokio::test]
async fn fields_that_cannot_be_selected_by_are_named() {
    let site = Site::start().await;
    for (path, message) in [
        (
            MAPS,
            "\"a\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
        ),
        (WIDGETS, "field label not supported: a"),
        ("/api/v1/namespaces", "field label not supported: a"),
    ] {
        site.expect(("GET", &format!("{path}?fieldSelector=a%3Db"), JSON, ""), 400, message).await;
    }
}

#[tokio::test]
async fn paths_that_lead_nowhere_say_so_as_kube_does() {
    let site = Site::start().await;
    let nothing = "the server could not find the requested resource";
    site.expect(("GET", "/api/v1/nothings", JSON, ""), 404, nothing).await;
    for path in
        ["/nothing", "/apis/no.such", "/apis/no.such/v1/things", "/apis/example.com/v1/nothings"]
    {
        let answer = site.get(path).await;
        assert_eq!((answer.code, answer.text.as_str()), (404, "404 page not found\n"), "{path}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
    }
    site.expect(("PATCH", WIDGETS, MERGE, "{}"), 400, "name must be provided").await;
    site.expect(
        ("GET", &format!("{MAPS}/a%25b"), JSON, ""),
        400,
        "Name parameter invalid: \"a%b\": may not contain '%'",
    )
    .await;
}

#[tokio::test]
async fn documents_may_be_kept_and_everything_else_may_not() {
    let site = Site::start().await;
    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let ask =
        |tag: String| Request::get("/apis").header("accept", accept).header("if-none-match", tag);
    let first = site.ask(ask(String::new()).body(Body::empty()).unwrap()).await;
    let tag = first.header("etag").to_owned();
    assert_eq!((first.code, first.header("cache-control")), (200, "public"));
    assert_eq!(site.ask(ask(tag).body(Body::empty()).unwrap()).await.code, 304);
    let index = site.get("/openapi/v3").await.json();
    let address = index.pointer("/paths/api~1v1/serverRelativeURL").unwrap().as_str().unwrap();
    let document = site.get(address).await;
    assert_eq!((document.code, document.header("cache-control")), (200, "public, immutable"));
    assert_eq!(site.get("/openapi/v3/api/v1?hash=0").await.header("location"), address);
    let map = site.get(MAPS).await;
    assert_eq!(map.header("cache-control"), "no-cache, private");
    assert!(!map.header("audit-id").is_empty());
}

#[tokio::test]
async fn a_stranger_with_a_token_is_unauthorized_and_one_without_is_forbidden() {
    let site = Site::start().await;
    let ask = |token: Option<&str>| {
        let mut request = Request::get(MAPS);
        if let Some(token) = token {
            request = request.header("authorization", token);
        }
        let request = request.body(Body::empty()).unwrap();
        site.0.router().oneshot(request)
    };
    for token in ["Bearer nonsense", "bearer eyJhbGciOiJSUzI1NiJ9.e30.c2ln", "Basic YTpi"] {
        let response = ask(Some(token)).await.unwrap();
        assert_eq!(response.status().as_u16(), 401, "{token}");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let status: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(
            status,
            json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": "Unauthorized", "reason": "Unauthorized", "code": 401,
            })
        );
    }
    // Before anything else is looked at, whether or not there is such a path.
    let request = Request::get("/no/such/page").header("authorization", "Bearer x");
    let response = site.0.router().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(response.status().as_u16(), 401);
    // The authorizer of this test allows everything.
    assert_eq!(ask(None).await.unwrap().status().as_u16(), 200);
}

#[tokio::test]
async fn a_token_review_says_that_no_token_is_known_to_those_who_may_ask() {
    const REVIEWS: &str = "/apis/authentication.k8s.io/v1/tokenreviews";
    let site = Site::start().await;
    let review = |token: &str| {
        json!({
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token},
        })
        .to_string()
    };
    let answer = site.send("POST", REVIEWS, JSON, &review("abc")).await;
    assert_eq!(answer.code, 201, "{}", answer.text);
    let status = answer.json().get("status").cloned().unwrap();
    assert_eq!(
        status,
        json!({"authenticated": false, "user": {}, "error": "invalid bearer token"})
    );
    // What kubectl checks a manifest against before it asks.
    let document = site.get("/openapi/v2").await.json();
    let definition = "/definitions/io.k8s.api.authentication.v1.TokenReview/required";
    assert_eq!(document.pointer(definition), Some(&json!(["spec"])));
    let empty = site.send("POST", REVIEWS, JSON, &review("")).await;
    assert_eq!(empty.code, 400, "{}", empty.text);
    let workspace = Workspace::in_memory(&control_store::Options::default()).unwrap();
    let server = ApiServer::new(workspace, Arc::new(BobReads), Options::default()).await.unwrap();
    assert_eq!(
        as_bob(&server, "POST", REVIEWS, &review("abc")).await,
        (403, "tokenreviews.authentication.k8s.io is forbidden: User \"bob\" cannot create resource \"tokenreviews\" in API group \"authentication.k8s.io\" at the cluster scope".to_owned())
    );
}

/// Lets `bob` read config maps and write roles, and nothing else; admins may do everything.
struct BobReads;

impl Authorizer for BobReads {
    fn authorize(&self, who: &Principal, what: &Attributes<'_>) -> Decision {
        let reads = what.resource == "configmaps" && matches!(what.verb, "get" | "list");
        let writes = matches!(what.resource, "roles" | "rolebindings") && what.verb == "create";
        if matches!(who, Principal::Admin { .. }) || (who.user() == "bob" && (reads || writes)) {
            Decision::Allow
        } else {
            Decision::Deny(String::new())
        }
    }
}

async fn as_bob(server: &ApiServer, method: &str, path: &str, body: &str) -> (u16, String) {
    let who = Principal::User { name: "bob".to_owned(), groups: Vec::new() };
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", JSON)
        .body(Body::from(body.to_owned()))
        .unwrap();
    let response = server.in_process(who).oneshot(request).await.unwrap();
    let code = response.status().as_u16();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let status: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    (code, status.get("message").and_then(Value::as_str).unwrap_or_default().to_owned())
}

#[tokio::test]
async fn refusals_name_who_may_not_do_what_and_where() {
    let workspace = Workspace::in_memory(&control_store::Options::default()).unwrap();
    let server = ApiServer::new(workspace, Arc::new(BobReads), Options::default()).await.unwrap();
    for (path, message) in [
        (
            "/apis/rlinf.io/v1alpha1/jobs",
            "jobs.rlinf.io is forbidden: User \"bob\" cannot list resource \"jobs\" in API group \"rlinf.io\" at the cluster scope",
        ),
        (
            "/api/v1/namespaces/default/secrets/x",
            "secrets \"x\" is forbidden: User \"bob\" cannot get resource \"secrets\" in API group \"\" in the namespace \"default\"",
        ),
    ] {
        assert_eq!(as_bob(&server, "GET", path, "").await, (403, message.to_owned()));
    }
    assert_eq!(as_bob(&server, "GET", MAPS, "").await.0, 200);
}

#[tokio::test]
async fn nobody_grants_what_they_do_not_have() {
    let workspace = Workspace::in_memory(&control_store::Options::default()).unwrap();
    let server = ApiServer::new(workspace, Arc::new(BobReads), Options::default()).await.unwrap();
    let roles = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles";
    let role = |name: &str, resource: &str| {
        json!({"metadata": {"name": name}, "rules": [{"apiGroups": [""], "resources": [resource], "verbs": ["get"]}]})
            .to_string()
    };
    assert_eq!(as_bob(&server, "POST", roles, &role("own", "configmaps")).await.0, 201);
    assert_eq!(
        as_bob(&server, "POST", roles, &role("more", "secrets")).await,
        (403, "roles.rbac.authorization.k8s.io \"more\" is forbidden: user \"bob\" (groups=[\"system:authenticated\"]) is attempting to grant RBAC permissions not currently held:\n{APIGroups:[\"\"], Resources:[\"secrets\"], Verbs:[\"get\"]}".to_owned())
    );
    let bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings";
    let binding = |role: &str| {
        json!({
            "metadata": {"name": role},
            "roleRef": {"kind": "Role", "name": role}, "subjects": [{"kind": "User", "name": "eve"}],
        })
        .to_string()
    };
    assert_eq!(as_bob(&server, "POST", bindings, &binding("own")).await.0, 201);
    assert_eq!(
        as_bob(&server, "POST", bindings, &binding("none")).await,
        (404, "roles.rbac.authorization.k8s.io \"none\" not found".to_owned())
    );
}
