//! `update` of an object, of its status, and of a namespace's finalizers.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Response, StatusCode};
use control_schema::FieldError;
use control_store::Object;
use serde_json::{Value, json};

use super::write::{self, Replaced};
use crate::admission::{self, Part, text};
use crate::builtin;
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
    let conditional = !matches!(text(&sent, "/metadata/resourceVersion"), "" | "0");
    for _ in 0..ATTEMPTS {
        let Some(old) = call.inner.workspace.latest(&call.key()) else {
            if part == Part::Main && builtin::created_by_update(&call.resource) {
                return create_instead(call, sent, warnings).await;
            }
            return Err(call.not_found());
        };
        let mut new = sent.clone();
        let before = convert::served(&call.resource, &old.value);
        admission::settle_namespace(call, &mut new)?;
        admission::check_identity(call, &before, &new)?;
        if !conditional && !builtin::updated_blindly(&call.resource) {
            return Err(unconditional(call));
        }
        admission::update(call, &before, &mut new, part)?;
        admission::record(call, Some(&before), &mut new);
        let doubts = admission::finalizer_warnings(&call.resource, Some(&before), &new);
        if let Some(mut response) = finish(call, &old, new).await? {
            render::add_warnings(&mut response, &warnings);
            render::add_warnings(&mut response, &doubts);
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

/// An update of what is not there, for the kinds that allow it.
async fn create_instead(
    call: &Call<'_>,
    mut sent: Value,
    warnings: Vec<String>,
) -> Result<Response<Body>, ApiError> {
    let name = text(&sent, "/metadata/name");
    if name != call.name() {
        return Err(admission::wrong_name(call.name(), name));
    }
    if let Some(metadata) = sent.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("resourceVersion");
    }
    super::create::create_value(call, sent, warnings).await
}

/// The resource stands for the kind here, as in kube.
fn unconditional(call: &Call<'_>) -> ApiError {
    ApiError::Invalid {
        group: call.resource.group.clone(),
        kind: call.resource.plural.clone(),
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
