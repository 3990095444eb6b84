//! Questions to the server about the caller: who am I, may I. Nothing is stored.

use axum::body::Body;
use axum::http::{Response, StatusCode};
use control_identity::authorize::{Attributes, Decision};
use control_identity::principal::Principal;
use control_schema::{FieldError, Resource};
use serde_json::{Map, Value, json};

use crate::admission::{self, text};
use crate::context::Call;
use crate::render;
use crate::routes::{Policy, ROUTES};
use crate::status::ApiError;

pub(crate) fn is_review(resource: &Resource) -> bool {
    matches!(resource.group.as_str(), "authorization.k8s.io" | "authentication.k8s.io")
}

pub(crate) fn create(call: &Call<'_>) -> Result<Response<Body>, ApiError> {
    let mut value = admission::decode(call)?.value;
    admission::settle_namespace(call, &mut value)?;
    let status = match call.resource.plural.as_str() {
        "selfsubjectreviews" => json!({"userInfo": user_info(&call.who)}),
        "selfsubjectaccessreviews" => {
            check(call, &value, false)?;
            access(call, &call.who, &value)
        }
        "subjectaccessreviews" | "localsubjectaccessreviews" => {
            check(call, &value, true)?;
            access(call, &subject(&value), &value)
        }
        "selfsubjectrulesreviews" if text(&value, "/spec/namespace").is_empty() => {
            return Err(ApiError::bad("no namespace on request"));
        }
        "selfsubjectrulesreviews" => rules(call, &value),
        _ if text(&value, "/spec/token").is_empty() => {
            return Err(ApiError::bad("token is required for TokenReview in authentication"));
        }
        // Callers are known by their certificates; there is no token that this server would accept.
        _ => json!({"authenticated": false, "user": {}, "error": "invalid bearer token"}),
    };
    if let Some(map) = value.as_object_mut() {
        map.insert("status".to_owned(), status);
    }
    if call.resource.plural == "selfsubjectreviews"
        && let Some(metadata) = value.get_mut("metadata").and_then(Value::as_object_mut)
    {
        metadata.insert("creationTimestamp".to_owned(), Value::from(render::now_rfc3339()));
    }
    render::value(call, StatusCode::CREATED, &value)
}

fn user_info(who: &Principal) -> Value {
    json!({"username": who.user(), "groups": who.groups()})
}

/// What a question must say: about whom (`of_others`), and about what.
fn check(call: &Call<'_>, value: &Value, of_others: bool) -> Result<(), ApiError> {
    let has = |pointer: &str| value.pointer(pointer).is_some_and(|v| !v.is_null());
    let mut errors = Vec::new();
    match (has("/spec/resourceAttributes"), has("/spec/nonResourceAttributes")) {
        (true, true) => {
            let shown = value.pointer("/spec/nonResourceAttributes").cloned().unwrap_or_default();
            let detail = "cannot be specified in combination with resourceAttributes";
            errors.push(FieldError::invalid("spec.nonResourceAttributes", &shown, detail));
        }
        (false, false) => {
            let detail =
                "exactly one of nonResourceAttributes or resourceAttributes must be specified";
            errors.push(FieldError::invalid("spec.resourceAttributes", &Value::Null, detail));
        }
        _ => {}
    }
    let named = !text(value, "/spec/user").is_empty()
        || value.pointer("/spec/groups").and_then(Value::as_array).is_some_and(|g| !g.is_empty());
    if of_others && !named {
        let detail = "at least one of user or group must be specified";
        errors.push(FieldError::required("spec.user", detail));
    }
    if errors.is_empty() {
        return Ok(());
    }
    Err(ApiError::Invalid {
        group: call.resource.group.clone(),
        kind: call.resource.kind.clone(),
        name: String::new(),
        errors,
    })
}

fn subject(value: &Value) -> Principal {
    let name = text(value, "/spec/user");
    let groups: Vec<String> = value
        .pointer("/spec/groups")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    Principal::User { name: name.to_owned(), groups }
}

fn access(call: &Call<'_>, who: &Principal, value: &Value) -> Value {
    let at = |field: &str| text(value, &format!("/spec/resourceAttributes/{field}"));
    if value.pointer("/spec/resourceAttributes").is_none() {
        // Paths that are no objects: reading them is for everybody who is known.
        let allowed = matches!(text(value, "/spec/nonResourceAttributes/verb"), "get" | "head")
            && *who != Principal::Anonymous;
        return json!({"allowed": allowed});
    }
    let what = Attributes {
        verb: at("verb"),
        group: at("group"),
        resource: at("resource"),
        subresource: at("subresource"),
        namespace: at("namespace"),
        name: at("name"),
    };
    match call.inner.authorizer.authorize(who, &what) {
        Decision::Allow => json!({"allowed": true}),
        Decision::Deny(reason) if reason.is_empty() => json!({"allowed": false}),
        Decision::Deny(reason) => json!({"allowed": false, "reason": reason}),
    }
}

/// What the caller may do in a namespace, found by asking for each kind and verb.
fn rules(call: &Call<'_>, value: &Value) -> Value {
    let readable = json!([{"verbs": ["get"], "nonResourceURLs": ROUTES
        .iter()
        .filter(|r| r.policy != Policy::Authorized && !r.path.contains('{'))
        .map(|r| r.path)
        .collect::<Vec<_>>()}]);
    if matches!(call.who, Principal::Admin { .. }) {
        return json!({
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            "incomplete": false,
        });
    }
    let namespace = text(value, "/spec/namespace");
    let mut rules = Vec::new();
    for resource in call.inner.catalog.load().resources() {
        let verbs: Vec<&str> = resource
            .verbs
            .iter()
            .map(String::as_str)
            .filter(|verb| {
                let what = Attributes {
                    verb,
                    group: &resource.group,
                    resource: &resource.plural,
                    subresource: "",
                    namespace: if resource.namespaced() { namespace } else { "" },
                    name: "",
                };
                call.inner.authorizer.authorize(&call.who, &what) == Decision::Allow
            })
            .collect();
        if !verbs.is_empty() {
            rules.push(json!({
                "verbs": verbs, "apiGroups": [resource.group], "resources": [resource.plural],
            }));
        }
    }
    Value::Object(Map::from_iter([
        ("resourceRules".to_owned(), Value::Array(rules)),
        ("nonResourceRules".to_owned(), readable),
        ("incomplete".to_owned(), Value::Bool(false)),
    ]))
}
