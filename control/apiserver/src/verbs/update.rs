//! `update` of an object, of its status, and of a namespace's finalizers.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Response, StatusCode};
use control_schema::FieldError;
use control_store::Object;
use serde_json::{Value, json};

use super::write::{self, Replaced};
use crate::admission::{self, Part, text};
use crate::context::Call;
use crate::convert;
use crate::render;
use crate::status::{ApiError, MODIFIED};

/// Attempts of an update that names no resource version, against others who write all the time.
pub(super) const ATTEMPTS: usize = 50;

pub(super) async fn update(call: &Call<'_>, part: Part) -> Result<Response<Body>, ApiError> {
    let decoded = admission::decode(call)?;
    let mut sent = decoded.value;
    let warnings = admission::prune(call, &mut sent, &decoded.duplicates)
        .map_err(|message| admission::strict_refusal(&call.resource, &message))?;
    let conditional = !text(&sent, "/metadata/resourceVersion").is_empty();
    for _ in 0..ATTEMPTS {
        let old = call.inner.workspace.latest(&call.key()).ok_or_else(|| call.not_found())?;
        if !conditional && !call.resource.builtin {
            return Err(unconditional(call));
        }
        let mut new = sent.clone();
        let before = convert::served(&call.resource, &old.value);
        admission::update(call, &before, &mut new, part)?;
        admission::record(call, Some(&before), &mut new);
        if let Some(mut response) = finish(call, &old, new).await? {
            render::add_warnings(&mut response, &warnings);
            return Ok(response);
        }
        if conditional {
            break;
        }
    }
    Err(call.conflict(MODIFIED))
}

/// Stores (or, in a dry run, only shows) a checked successor; `None` when `old` is stale.
pub(super) async fn finish(
    call: &Call<'_>,
    old: &Arc<Object>,
    new: Value,
) -> Result<Option<Response<Body>>, ApiError> {
    let stored = write::stored_form(call, new);
    if call.query.dry_run {
        return render::value(call, StatusCode::OK, &stored).map(Some);
    }
    match write::replace(call, old, stored).await? {
        Replaced::Done(object) => render::object(call, StatusCode::OK, &object).map(Some),
        Replaced::Stale => Ok(None),
    }
}

fn unconditional(call: &Call<'_>) -> ApiError {
    ApiError::Invalid {
        group: call.resource.group.clone(),
        kind: call.resource.kind.clone(),
        name: call.name().to_owned(),
        errors: vec![FieldError::invalid(
            "metadata.resourceVersion",
            &json!(0),
            "must be specified for an update",
        )],
    }
}

/// `PUT …/finalize`: only `spec.finalizers` changes.
pub(super) async fn finalize_namespace(call: &Call<'_>) -> Result<Response<Body>, ApiError> {
    let sent = admission::decode(call)?.value;
    let finalizers = sent.pointer("/spec/finalizers").cloned().unwrap_or_else(|| json!([]));
    for _ in 0..ATTEMPTS {
        let old = call.inner.workspace.latest(&call.key()).ok_or_else(|| call.not_found())?;
        let mut new = old.value.clone();
        if let Some(map) = new.as_object_mut() {
            map.insert("spec".to_owned(), json!({"finalizers": finalizers}));
        }
        if let Replaced::Done(object) = write::replace(call, &old, new).await? {
            return render::object(call, StatusCode::OK, &object);
        }
    }
    Err(call.conflict(MODIFIED))
}
