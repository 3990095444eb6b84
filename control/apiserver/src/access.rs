//! Who is asking, and may they.

use axum::body::Body;
use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderMap, Request};
use control_identity::authorize::{Attributes, Decision, Write};
use control_identity::principal::Principal;
use serde_json::Value;

use crate::context::Call;
use crate::convert;
use crate::request::{Target, Verb};
use crate::server::Inner;
use crate::status::ApiError;

/// The caller the edge has put into the request.
pub(crate) fn caller(request: &Request<Body>) -> Principal {
    request.extensions().get::<Principal>().cloned().unwrap_or(Principal::Anonymous)
}

/// A bearer token or a password of somebody who has proven nothing else: none is known to this server, so it is
/// wrong. A certificate that was accepted makes them meaningless.
pub(crate) fn has_unknown_credentials(request: &Request<Body>) -> bool {
    request.headers().contains_key(AUTHORIZATION) && caller(request) == Principal::Anonymous
}

/// The caller, or whom they ask to be taken for (`kubectl --as`).
pub(crate) fn effective_caller(
    inner: &Inner,
    request: &Request<Body>,
) -> Result<Principal, ApiError> {
    let who = caller(request);
    let headers = request.headers();
    let Some(name) = header(headers, "impersonate-user") else {
        let stray =
            ["impersonate-group", "impersonate-uid"].iter().any(|h| headers.contains_key(*h));
        if stray {
            return Err(ApiError::bad("requested impersonation without impersonating a user"));
        }
        return Ok(who);
    };
    let groups: Vec<String> = headers
        .get_all("impersonate-group")
        .iter()
        .filter_map(|v| v.to_str().ok())
        .map(str::to_owned)
        .collect();
    may_impersonate(inner, &who, "users", name)?;
    for group in &groups {
        may_impersonate(inner, &who, "groups", group)?;
    }
    Ok(Principal::User { name: name.to_owned(), groups })
}

fn header<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|v| v.to_str().ok()).filter(|v| !v.is_empty())
}

fn may_impersonate(inner: &Inner, who: &Principal, kind: &str, name: &str) -> Result<(), ApiError> {
    let what = Attributes {
        verb: "impersonate",
        group: "",
        resource: kind,
        subresource: "",
        namespace: "",
        name,
    };
    decide(inner, who, &what)
}

/// Asks the authorizer about a request on an object or a collection.
pub(crate) fn check(
    inner: &Inner,
    who: &Principal,
    verb: Verb,
    target: &Target,
    name: &str,
) -> Result<(), ApiError> {
    let what = Attributes {
        verb: verb.as_str(),
        group: &target.group,
        resource: &target.resource,
        subresource: target.subresource.as_deref().unwrap_or_default(),
        namespace: target.authorised_namespace(),
        name,
    };
    decide(inner, who, &what)
}

fn decide(inner: &Inner, who: &Principal, what: &Attributes<'_>) -> Result<(), ApiError> {
    match inner.authorizer.authorize(who, what) {
        Decision::Allow => Ok(()),
        Decision::Deny(reason) => Err(ApiError::Forbidden {
            resource: qualified(what.resource, what.group),
            name: what.name.to_owned(),
            message: denied(who, what, &reason),
        }),
    }
}

fn qualified(resource: &str, group: &str) -> String {
    if group.is_empty() { resource.to_owned() } else { format!("{resource}.{group}") }
}

/// Kubernetes' sentence of refusal.
fn denied(who: &Principal, what: &Attributes<'_>, reason: &str) -> String {
    let resource = if what.subresource.is_empty() {
        what.resource.to_owned()
    } else {
        format!("{}/{}", what.resource, what.subresource)
    };
    let place = if what.namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace \"{}\"", what.namespace)
    };
    let mut message = format!(
        "User \"{}\" cannot {} resource \"{resource}\" in API group \"{}\" {place}",
        who.user(),
        what.verb,
        what.group
    );
    if !reason.is_empty() {
        message.push_str(": ");
        message.push_str(reason);
    }
    message
}

/// Asks the authorizer about the content of a write: `old` is none when the object is made, `new`
/// when it is deleted.
pub(crate) fn admit(
    call: &Call<'_>,
    name: &str,
    old: Option<&Value>,
    new: Option<&Value>,
) -> Result<(), ApiError> {
    let namespace = call.namespace().unwrap_or_default();
    let find = |group: &str, plural: &str, name: &str| {
        let key = control_store::Key::new(group, plural, namespace, name);
        let object = call.inner.workspace.latest(&key)?;
        let kinds = call.inner.catalog.load();
        let resource = kinds.resources().iter().find(|r| r.group == group && r.plural == plural)?;
        Some(convert::served(resource, &object.value).into_owned())
    };
    let write = Write {
        group: &call.resource.group,
        resource: &call.resource.plural,
        subresource: call.subresource().unwrap_or_default(),
        namespace,
        name,
        old,
        new,
        find: &find,
    };
    call.inner.authorizer.admit(&call.who, &write).map_err(|refused| {
        let on =
            if refused.field.is_empty() { String::new() } else { format!("{}: ", refused.field) };
        ApiError::ForbiddenField {
            resource: call.resource.qualified(),
            name: name.to_owned(),
            message: format!("User {:?} may not do this: {on}{}", call.who.user(), refused.why),
            field: refused.field,
        }
    })
}

/// Refusal of a path that is no object.
pub(crate) fn path_denied(who: &Principal, request: &Request<Body>) -> ApiError {
    let verb = request.method().as_str().to_lowercase();
    let path = request.uri().path();
    ApiError::ForbiddenPath {
        message: format!("User \"{}\" cannot {verb} path \"{path}\"", who.user()),
    }
}
