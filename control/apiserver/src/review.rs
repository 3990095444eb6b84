//! Questions to the server about the caller: who am I, may I. Nothing is stored.

use axum::body::Body;
use axum::http::{Response, StatusCode};
use control_identity::authorize::{Attributes, Decision};
use control_identity::principal::Principal;
use control_schema::Resource;
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
        "selfsubjectaccessreviews" => access(call, &call.who, &value),
        "subjectaccessreviews" | "localsubjectaccessreviews" => {
            access(call, &subject(&value)?, &value)
        }
        "selfsubjectrulesreviews" => rules(call, &value),
        other => {
            return Err(ApiError::Unavailable {
                message: format!("{other} are answered by the identity provider, not here"),
            });
        }
    };
    if let Some(map) = value.as_object_mut() {
        map.insert("status".to_owned(), status);
    }
    let stamp = value.get_mut("metadata").and_then(Value::as_object_mut);
    if let Some(metadata) = stamp {
        metadata.entry("creationTimestamp").or_insert(Value::Null);
    }
    render::value(call, StatusCode::CREATED, &value)
}

fn user_info(who: &Principal) -> Value {
    json!({"username": who.user(), "groups": who.groups()})
}

fn subject(value: &Value) -> Result<Principal, ApiError> {
    let name = text(value, "/spec/user");
    let groups: Vec<String> = value
        .pointer("/spec/groups")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    if name.is_empty() && groups.is_empty() {
        return Err(ApiError::bad("at least one of user or group must be specified"));
    }
    Ok(Principal::User { name: name.to_owned(), groups })
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
