//! `patch`: merge, JSON and strategic merge; server-side apply has its own module.

use axum::body::Body;
use axum::http::Response;
use control_schema::patch::{self, PatchError};
use control_schema::{FieldError, golang, strict};
use serde_json::{Map, Value};

use super::update::{ATTEMPTS, finish};
use crate::admission::{self, Part};
use crate::context::Call;
use crate::convert;
use crate::negotiate;
use crate::render;
use crate::request;
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
    if call.query.force.is_some() {
        let error = FieldError::forbidden("force", "may not be specified for non-apply patch");
        return Err(request::invalid_options("PatchOptions", vec![error]));
    }
    let (patch, duplicates) = decode(call)?;
    for _ in 0..ATTEMPTS {
        let old = call.inner.workspace.latest(&call.key()).ok_or_else(|| call.not_found())?;
        let before = convert::served(&call.resource, &old.value).into_owned();
        let mut new = before.clone();
        apply(call, &patch, &mut new)?;
        let warnings = check_fields(call, &patch, &duplicates, &mut new)?;
        // A patch that names another resource version than the current one is refused here.
        admission::update(call, &before, &mut new, part)?;
        admission::record(call, Some(&before), &mut new);
        let doubts = admission::finalizer_warnings(&call.resource, Some(&before), &new);
        if let Some(mut response) = finish(call, &old, new).await? {
            render::add_warnings(&mut response, &warnings);
            render::add_warnings(&mut response, &doubts);
            return Ok(response);
        }
    }
    Err(call.conflict(MODIFIED))
}

/// The patch, and which fields of it stand twice.
fn decode(call: &Call<'_>) -> Result<(Patch, Vec<String>), ApiError> {
    const MAP: &str = "map[string]interface {}";
    let json = |prefix: &str| {
        strict::decode_json(&call.body).map(|d| (d.value, d.duplicates)).map_err(|e| {
            let said = golang::syntax_error(&call.body).unwrap_or_else(|| e.to_string());
            ApiError::bad(format!("{prefix}{said}"))
        })
    };
    let object = |prefix: &str| {
        let (value, duplicates) = json(prefix)?;
        match golang::unmarshal_error(&value, MAP) {
            Some(error) => Err(ApiError::bad(format!("{prefix}{error}"))),
            None if value.is_null() => Ok((Value::Object(Map::new()), duplicates)),
            None => Ok((value, duplicates)),
        }
    };
    const DECODING: &str = "error decoding patch: ";
    match negotiate::content_type(&call.headers) {
        "application/merge-patch+json" => object(DECODING).map(|(v, d)| (Patch::Merge(v), d)),
        "application/json-patch+json" => json(DECODING).map(|(v, d)| (Patch::Json(v), d)),
        "application/strategic-merge-patch+json" if call.resource.builtin => {
            object("").map(|(v, d)| (Patch::Strategic(v), d))
        }
        _ if call.resource.builtin => Err(ApiError::NoSuchMediaType),
        _ => Err(ApiError::UnsupportedMediaType {
            message: "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml".to_owned(),
        }),
    }
}

fn apply(call: &Call<'_>, patch: &Patch, target: &mut Value) -> Result<(), ApiError> {
    let outcome = match patch {
        Patch::Merge(patch) => {
            patch::merge(target, patch);
            Ok(())
        }
        Patch::Json(patch) => patch::json(target, patch),
        Patch::Strategic(patch) => patch::strategic(target, patch, call.resource.schema.root()),
    };
    outcome.map_err(|error| match error {
        PatchError::TooManyOperations { max, found } => ApiError::TooMany {
            message: format!(
                "The allowed maximum operations in a JSON patch is {max}, got {found}"
            ),
        },
        error if error.is_bad_request() => ApiError::bad(error.to_string()),
        error => {
            tracing::debug!(name = call.name(), %error, "patch does not apply");
            ApiError::Unprocessable
        }
    })?;
    admission::check_type(&call.resource, target)?;
    if !call.resource.builtin {
        return Ok(());
    }
    let root = call.resource.schema.root();
    let problem = match patch {
        Patch::Strategic(_) => golang::unconvertible(root, target),
        Patch::Merge(_) | Patch::Json(_) => golang::mismatch(root, target, &call.resource.kind),
    };
    problem.map_or(Ok(()), |problem| Err(unusable(patch, target, &problem)))
}

/// A patch whose result is no object of the kind.
fn unusable(patch: &Patch, result: &Value, problem: &str) -> ApiError {
    let shown = match patch {
        Patch::Strategic(patch) => golang::plain(patch),
        Patch::Merge(_) | Patch::Json(_) => result.to_string(),
    };
    ApiError::Invalid {
        group: String::new(),
        kind: String::new(),
        name: String::new(),
        errors: vec![FieldError::invalid("patch", &Value::from(shown), problem)],
    }
}

/// Unknown fields that the patch brought in, and fields that stand twice in it.
fn check_fields(
    call: &Call<'_>,
    patch: &Patch,
    duplicates: &[String],
    new: &mut Value,
) -> Result<Vec<String>, ApiError> {
    let result = new.clone();
    admission::prune(call, new, duplicates).map_err(|message| unusable(patch, &result, &message))
}
