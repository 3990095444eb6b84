//! The `scale` subresource of custom resources: `autoscaling/v1` Scale over two paths of the object.

use axum::body::Body;
use axum::http::{Response, StatusCode};
use control_schema::patch;
use control_schema::resource::Scale;
use control_schema::{FieldError, strict};
use control_store::Object;
use serde_json::{Map, Value, json};

use super::update::ATTEMPTS;
use super::write::{self, Replaced};
use crate::admission::{self, Part, text};
use crate::context::Call;
use crate::convert;
use crate::negotiate::{self, Shape};
use crate::render::now_seconds;
use crate::request::Verb;
use crate::status::{ApiError, MODIFIED, json_response};

pub(super) async fn serve(call: &Call<'_>, verb: Verb) -> Result<Response<Body>, ApiError> {
    let scale = call.resource.scale.as_ref().ok_or(ApiError::NoPage)?;
    match verb {
        Verb::Get => {
            let object = call.inner.workspace.get(&call.key()).ok_or_else(|| call.not_found())?;
            let wanted = object.value.pointer(&pointer(&scale.spec_replicas));
            if wanted.is_none_or(Value::is_null) {
                let path = &scale.spec_replicas;
                return Err(ApiError::internal(format!(
                    "the spec replicas field {path:?} does not exist"
                )));
            }
            let found = shown(scale, &object);
            let body = if call.shape == Shape::Table { table(call, &found) } else { found };
            Ok(json_response(StatusCode::OK, &body))
        }
        Verb::Update | Verb::Patch => change(call, scale, verb).await,
        _ => Err(call.not_allowed(verb)),
    }
}

/// A scale as people see it.
fn table(call: &Call<'_>, scale: &Value) -> Value {
    let at = |pointer: &str| scale.pointer(pointer).cloned().unwrap_or_default();
    let column = |name: &str, ty: &str, format: &str, description: &str| json!({"name": name, "type": ty, "format": format, "description": description, "priority": 0});
    let age =
        control_schema::table::since(text(scale, "/metadata/creationTimestamp"), now_seconds());
    let own = call.resource.columns.columns().first();
    let name_text = own.map(|c| c.description.as_str()).unwrap_or_default();
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": at("/metadata/resourceVersion")},
        "columnDefinitions": [
            column("Name", "string", "name", name_text),
            column("Desired", "integer", "", "Number of desired replicas"),
            column("Available", "integer", "", "Number of actual replicas"),
            column("Age", "date", "", "CreationTimestamp is a timestamp representing the server time when this object was created."),
        ],
        "rows": [{
            "cells": [at("/metadata/name"), at("/spec/replicas"), at("/status/replicas"), age],
            "object": {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": at("/metadata")},
        }],
    })
}

/// `.spec.replicas` as a JSON pointer.
fn pointer(path: &str) -> String {
    path.replace('.', "/")
}

fn shown(scale: &Scale, object: &Object) -> Value {
    let value = &object.value;
    let number = |path: &str| value.pointer(&pointer(path)).cloned().unwrap_or_else(|| json!(0));
    let mut status = json!({"replicas": number(&scale.status_replicas)});
    if let Some(selector) = scale.label_selector.as_ref().and_then(|p| value.pointer(&pointer(p)))
        && let Some(map) = status.as_object_mut()
    {
        map.insert("selector".to_owned(), selector.clone());
    }
    let kept = ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"];
    let metadata: Map<String, Value> = kept
        .iter()
        .filter_map(|k| Some(((*k).to_owned(), value.pointer(&format!("/metadata/{k}"))?.clone())))
        .collect();
    json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": metadata,
        "spec": {"replicas": number(&scale.spec_replicas)}, "status": status,
    })
}

async fn change(call: &Call<'_>, scale: &Scale, verb: Verb) -> Result<Response<Body>, ApiError> {
    let sent = strict::decode_json(&call.body).map_err(|e| ApiError::bad(e.to_string()))?.value;
    for _ in 0..ATTEMPTS {
        let old = call.inner.workspace.latest(&call.key()).ok_or_else(|| call.not_found())?;
        let mut wanted = shown(scale, &old);
        match (verb, negotiate::content_type(&call.headers)) {
            (Verb::Update, _) => wanted.clone_from(&sent),
            (_, "application/json-patch+json") => {
                patch::json(&mut wanted, &sent).map_err(|e| {
                    if e.is_bad_request() {
                        ApiError::bad(e.to_string())
                    } else {
                        ApiError::Unprocessable
                    }
                })?;
            }
            _ => patch::merge(&mut wanted, &sent),
        }
        let version = text(&wanted, "/metadata/resourceVersion");
        if !version.is_empty() && version != old.revision.to_string() {
            return Err(call.conflict(MODIFIED));
        }
        let before = convert::served(&call.resource, &old.value).into_owned();
        let mut new = before.clone();
        let replicas = wanted.pointer("/spec/replicas").cloned().unwrap_or_else(|| json!(0));
        if replicas.as_i64().is_none_or(|n| n < 0) {
            return Err(negative(call, &scale.spec_replicas, &replicas));
        }
        set(&mut new, &scale.spec_replicas, replicas);
        admission::update(call, &before, &mut new, Part::Main)?;
        admission::record(call, Some(&before), &mut new);
        let stored = write::stored_form(call, new);
        if call.query.dry_run {
            return Ok(json_response(StatusCode::OK, &wanted));
        }
        if let Replaced::Done(object) = write::replace(call, &old, stored).await? {
            return Ok(json_response(StatusCode::OK, &shown(scale, &object)));
        }
    }
    Err(call.conflict(MODIFIED))
}

fn negative(call: &Call<'_>, path: &str, replicas: &Value) -> ApiError {
    let detail = "should be a non-negative integer";
    ApiError::Invalid {
        group: call.resource.group.clone(),
        kind: call.resource.kind.clone(),
        name: call.name().to_owned(),
        errors: vec![FieldError::invalid(path, replicas, detail)],
    }
}

/// Sets a dotted path, making the objects on the way.
fn set(value: &mut Value, path: &str, number: Value) {
    let mut at = value;
    for part in path.trim_start_matches('.').split('.') {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        let Some(map) = at.as_object_mut() else { return };
        at = map.entry(part).or_insert(Value::Null);
    }
    *at = number;
}
