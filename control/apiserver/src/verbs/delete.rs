//! `delete` and `deletecollection`.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Response, StatusCode};
use control_schema::{Resource, golang, strict};
use control_store::{Key, Object, Precondition, WriteError};
use serde_json::{Map, Value, json};

use super::update::ATTEMPTS;
use crate::access;
use crate::admission::text;
use crate::builtin::PERMANENT;
use crate::context::{Call, Selection};
use crate::convert;
use crate::crd::{self, CLEANUP_FINALIZER};
use crate::negotiate;
use crate::proto;
use crate::render::{self, ListMeta, now_rfc3339};
use crate::request;
use crate::server::Inner;
use crate::status::{ApiError, MODIFIED, json_response};

/// Finalizers by which a deletion waits for the garbage collector.
pub(crate) const ORPHAN: &str = "orphan";
pub(crate) const FOREGROUND: &str = "foregroundDeletion";

/// `DeleteOptions`, from the body or the query.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeleteOptions {
    uid: Option<String>,
    resource_version: Option<String>,
    propagation: Option<Propagation>,
    dry_run: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Propagation {
    Orphan,
    Background,
    Foreground,
}

impl DeleteOptions {
    /// What the garbage collector passes on to dependents of an owner that waits for them.
    pub(crate) fn foreground() -> Self {
        Self { propagation: Some(Propagation::Foreground), ..Self::default() }
    }

    fn of(call: &Call<'_>) -> Result<Self, ApiError> {
        let body: Value = if call.body.is_empty() {
            Value::Null
        } else if negotiate::content_type(&call.headers) == "application/vnd.kubernetes.protobuf" {
            proto::decode(&call.body).map_err(|e| ApiError::bad(e.to_string()))?
        } else {
            decode(call)?
        };
        let own = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let policy = own("/propagationPolicy").or_else(|| call.query.propagation_policy.clone());
        let orphan =
            body.get("orphanDependents").and_then(Value::as_bool).or(call.query.orphan_dependents);
        let given: Vec<String> = body
            .get("dryRun")
            .and_then(Value::as_array)
            .into_iter()
            .flatten()
            .map(|v| v.as_str().unwrap_or_default().to_owned())
            .collect();
        if let Some(error) = request::check_dry_run(&given) {
            return Err(request::invalid_options("DeleteOptions", vec![error]));
        }
        let dry_run = call.query.dry_run || !given.is_empty();
        Ok(Self {
            uid: own("/preconditions/uid"),
            resource_version: own("/preconditions/resourceVersion"),
            propagation: propagation(policy.as_deref(), orphan)?,
            dry_run,
        })
    }
}

/// `DeleteOptions` as JSON or YAML. What cannot be read is an error that kube passes on as it is.
fn decode(call: &Call<'_>) -> Result<Value, ApiError> {
    if negotiate::content_type(&call.headers) == "application/yaml" {
        let decoded = strict::decode_yaml(&call.body);
        return decoded.map(|d| d.value).map_err(|e| ApiError::Unnamed { message: e.to_string() });
    }
    strict::decode_json(&call.body).map(|d| d.value).map_err(|e| {
        let said = golang::syntax_error(&call.body).unwrap_or_else(|| e.to_string());
        ApiError::Unnamed {
            message: format!("couldn't get version/kind; json parse error: {said}"),
        }
    })
}

fn propagation(
    policy: Option<&str>,
    orphan: Option<bool>,
) -> Result<Option<Propagation>, ApiError> {
    match policy {
        None | Some("") => {
            Ok(orphan.map(|o| if o { Propagation::Orphan } else { Propagation::Background }))
        }
        Some("Orphan") => Ok(Some(Propagation::Orphan)),
        Some("Background") => Ok(Some(Propagation::Background)),
        Some("Foreground") => Ok(Some(Propagation::Foreground)),
        Some(other) => Err(request::invalid_options(
            "DeleteOptions",
            vec![control_schema::FieldError::not_supported(
                "propagationPolicy",
                &Value::from(other),
                &[json!("Foreground"), json!("Background"), json!("Orphan"), json!("nil")],
            )],
        )),
    }
}

/// What came of a deletion.
pub(crate) enum Deleted {
    Gone(Arc<Object>),
    /// It waits for finalizers.
    Marked(Arc<Object>),
}

impl Deleted {
    fn object(&self) -> &Arc<Object> {
        match self {
            Self::Gone(object) | Self::Marked(object) => object,
        }
    }
}

pub(super) async fn delete(call: &Call<'_>) -> Result<Response<Body>, ApiError> {
    let options = DeleteOptions::of(call)?;
    let resource = &call.resource;
    if let Some(old) = call.inner.workspace.latest(&call.key()) {
        let old = convert::served(resource, &old.value);
        access::admit(call, call.name(), Some(&old), None)?;
    }
    let deleted = delete_one(call.inner, resource, &call.key(), &options).await?;
    match &deleted {
        Deleted::Marked(object) => render::object(call, StatusCode::OK, object),
        Deleted::Gone(object) => {
            let mut details = Map::new();
            details.insert("name".to_owned(), Value::from(call.name()));
            if !resource.group.is_empty() {
                details.insert("group".to_owned(), Value::from(resource.group.as_str()));
            }
            details.insert("kind".to_owned(), Value::from(resource.plural.as_str()));
            details.insert("uid".to_owned(), Value::from(text(&object.value, "/metadata/uid")));
            Ok(json_response(
                StatusCode::OK,
                &json!({
                    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
                    "details": details,
                }),
            ))
        }
    }
}

pub(super) async fn delete_collection(call: &Call<'_>) -> Result<Response<Body>, ApiError> {
    let options = DeleteOptions::of(call)?;
    let selection = Selection::of(call)?;
    let snapshot = call.inner.workspace.snapshot();
    let page = snapshot.page(&call.scope(), None, call.query.limit, |o| {
        selection.matches(&call.resource, &o.value)
    });
    let mut deleted = Vec::with_capacity(page.objects.len());
    for object in &page.objects {
        let old = convert::served(&call.resource, &object.value);
        access::admit(call, object.key.name(), Some(&old), None)?;
        match delete_one(call.inner, &call.resource, &object.key, &options).await {
            Ok(done) => deleted.push(Arc::clone(done.object())),
            Err(ApiError::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    let meta = ListMeta { revision: snapshot.revision(), continue_token: None, remaining: None };
    render::list(call, &deleted, &meta)
}

/// Deletes an object, or marks it when finalizers hold it.
pub(crate) async fn delete_one(
    inner: &Inner,
    resource: &Resource,
    key: &Key,
    options: &DeleteOptions,
) -> Result<Deleted, ApiError> {
    let qualified = resource.qualified();
    let fail = |e| ApiError::of_write(e, &qualified, key.name());
    for _ in 0..ATTEMPTS {
        let old = inner.workspace.latest(key).ok_or_else(|| ApiError::NotFound {
            resource: qualified.clone(),
            name: key.name().to_owned(),
        })?;
        check(resource, key, &old, options)?;
        let marked = mark(resource, &old.value, options);
        let precondition = Precondition::Revision(old.revision);
        let outcome = match marked {
            None if options.dry_run => return Ok(Deleted::Gone(old)),
            None => inner.workspace.delete(key, precondition).await.map(Deleted::Gone),
            Some(new) if new == old.value || options.dry_run => return Ok(Deleted::Marked(old)),
            Some(new) => {
                inner.workspace.put(key.clone(), new, precondition).await.map(Deleted::Marked)
            }
        };
        match outcome {
            Err(WriteError::Conflict { .. }) => {}
            Err(error) => return Err(fail(error)),
            Ok(done) => {
                if crd::is_definition(resource) {
                    inner.reload_catalog();
                }
                return Ok(done);
            }
        }
    }
    Err(ApiError::Conflict {
        resource: qualified,
        name: key.name().to_owned(),
        message: MODIFIED.to_owned(),
    })
}

fn check(
    resource: &Resource,
    key: &Key,
    old: &Object,
    options: &DeleteOptions,
) -> Result<(), ApiError> {
    let (qualified, name) = (resource.qualified(), key.name().to_owned());
    if qualified == "namespaces" && PERMANENT.contains(&key.name()) {
        return Err(ApiError::Forbidden {
            resource: qualified,
            name,
            message: "this namespace may not be deleted".to_owned(),
        });
    }
    let stale = |what: &str, wanted: &str, found: &str, why: &str| {
        let message = format!(
            "the {what} in the precondition ({wanted}) does not match the {what} in record ({found}). The object might have been {why}"
        );
        // Named by kind: kube does so in this one place.
        let dot = if resource.group.is_empty() { "" } else { "." };
        let resource = format!("{}{dot}{}", resource.kind, resource.group);
        Err(ApiError::Conflict { resource, name: name.clone(), message })
    };
    let uid = text(&old.value, "/metadata/uid");
    if let Some(wanted) = options.uid.as_deref().filter(|w| *w != uid) {
        return stale("UID", wanted, uid, "deleted and then recreated");
    }
    let revision = old.revision.to_string();
    if let Some(wanted) = options.resource_version.as_deref().filter(|w| *w != revision) {
        return stale("ResourceVersion", wanted, &revision, "modified");
    }
    Ok(())
}

/// The object as marked for deletion; `None` when nothing holds it.
fn mark(resource: &Resource, old: &Value, options: &DeleteOptions) -> Option<Value> {
    let mut finalizers: Vec<Value> =
        old.pointer("/metadata/finalizers").and_then(Value::as_array).cloned().unwrap_or_default();
    let had = finalizers.clone();
    if let Some(policy) = options.propagation {
        finalizers.retain(|f| f != ORPHAN && f != FOREGROUND);
        match policy {
            Propagation::Orphan => finalizers.push(json!(ORPHAN)),
            Propagation::Foreground => finalizers.push(json!(FOREGROUND)),
            Propagation::Background => {}
        }
    }
    if crd::is_definition(resource) && !finalizers.iter().any(|f| f == CLEANUP_FINALIZER) {
        finalizers.push(json!(CLEANUP_FINALIZER));
    }
    let is_namespace = resource.qualified() == "namespaces";
    let held_by_spec = is_namespace
        && old.pointer("/spec/finalizers").and_then(Value::as_array).is_some_and(|f| !f.is_empty());
    if finalizers.is_empty() && !held_by_spec {
        return None;
    }
    let mut new = old.clone();
    let already = !text(old, "/metadata/deletionTimestamp").is_empty();
    let metadata = new.get_mut("metadata")?.as_object_mut()?;
    if finalizers != had {
        metadata.insert("finalizers".to_owned(), Value::Array(finalizers));
    }
    if already {
        return Some(new);
    }
    metadata.insert("deletionTimestamp".to_owned(), Value::from(now_rfc3339()));
    if !is_namespace && !crd::is_definition(resource) {
        metadata.insert("deletionGracePeriodSeconds".to_owned(), json!(0));
    }
    if let Some(generation) = metadata.get("generation").and_then(Value::as_i64) {
        metadata.insert("generation".to_owned(), json!(generation + 1));
    }
    if is_namespace && let Some(map) = new.as_object_mut() {
        map.insert("status".to_owned(), json!({"phase": "Terminating"}));
    }
    Some(new)
}
