//! `patch`: merge, JSON and strategic merge; server-side apply has its own module.

use axum::body::Body;
use axum::http::Response;
use control_schema::FieldError;
use control_schema::patch::{self, PatchError};
use control_schema::strict;
use serde_json::Value;

use super::update::{ATTEMPTS, finish};
use crate::admission::{self, Part, text};
use crate::context::Call;
use crate::convert;
use crate::negotiate;
use crate::render;
use crate::status::{ApiError, MODIFIED};

enum Patch {
    Merge(Value),
    Json(Value),
    Strategic(Value),
}

pub(super) async fn patch(call: &Call<'_>, part: Part) -> Result<Response<Body>, ApiError> {
    if negotiate::content_type(&call.headers) == "application/apply-patch+yaml" {
        return super::apply::apply(call, part).await;
    }
    let patch = decode(call)?;
    for _ in 0..ATTEMPTS {
        let old = call.inner.workspace.latest(&call.key()).ok_or_else(|| call.not_found())?;
        let before = convert::served(&call.resource, &old.value).into_owned();
        let mut new = before.clone();
        apply(call, &patch, &mut new)?;
        let warnings = check_fields(call, &mut new)?;
        // A patch that names another resource version than the current one is refused here.
        admission::update(call, &before, &mut new, part)?;
        admission::record(call, Some(&before), &mut new);
        if let Some(mut response) = finish(call, &old, new).await? {
            render::add_warnings(&mut response, &warnings);
            return Ok(response);
        }
    }
    Err(call.conflict(MODIFIED))
}

fn decode(call: &Call<'_>) -> Result<Patch, ApiError> {
    let json = || {
        strict::decode_json(&call.body)
            .map(|d| d.value)
            .map_err(|e| ApiError::bad(format!("error decoding patch: {e}")))
    };
    match negotiate::content_type(&call.headers) {
        "application/merge-patch+json" => Ok(Patch::Merge(json()?)),
        "application/json-patch+json" => Ok(Patch::Json(json()?)),
        "application/strategic-merge-patch+json" if call.resource.builtin => {
            Ok(Patch::Strategic(json()?))
        }
        other => Err(unsupported(call, other)),
    }
}

fn unsupported(call: &Call<'_>, found: &str) -> ApiError {
    let mut accepted = vec![
        "application/json-patch+json",
        "application/merge-patch+json",
        "application/apply-patch+yaml",
    ];
    if call.resource.builtin {
        accepted.push("application/strategic-merge-patch+json");
    }
    ApiError::UnsupportedMediaType {
        message: format!(
            "the body of the request was in an unknown format - accepted media types include: {} (got {found})",
            accepted.join(", ")
        ),
    }
}

fn apply(call: &Call<'_>, patch: &Patch, target: &mut Value) -> Result<(), ApiError> {
    let outcome = match patch {
        Patch::Merge(patch) if !patch.is_object() => {
            return Err(ApiError::bad("error decoding patch: a merge patch must be an object"));
        }
        Patch::Merge(patch) => {
            patch::merge(target, patch);
            Ok(())
        }
        Patch::Json(patch) => patch::json(target, patch),
        Patch::Strategic(patch) => patch::strategic(target, patch, call.resource.schema.root()),
    };
    outcome.map_err(|error| refused(call, &error))?;
    admission::check_type(&call.resource, target)
}

fn refused(call: &Call<'_>, error: &PatchError) -> ApiError {
    if error.is_bad_request() {
        return ApiError::bad(error.to_string());
    }
    let name = call.name().to_owned();
    ApiError::Unprocessable {
        resource: call.resource.qualified(),
        name,
        message: error.to_string(),
    }
}

/// Unknown fields that the patch brought in.
fn check_fields(call: &Call<'_>, new: &mut Value) -> Result<Vec<String>, ApiError> {
    let shown = new.clone();
    admission::prune(call, new, &[]).map_err(|message| {
        let name = text(&shown, "/metadata/name");
        tracing::debug!(name, message, "patch refused");
        ApiError::Invalid {
            group: String::new(),
            kind: String::new(),
            name: String::new(),
            errors: vec![FieldError::invalid("patch", &Value::from(shown.to_string()), &message)],
        }
    })
}
