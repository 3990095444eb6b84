//! `create`.

use axum::body::Body;
use axum::http::{Response, StatusCode};
use control_store::{Precondition, WriteError};
use serde_json::Value;

use super::write;
use crate::admission::{self, text};
use crate::catalog;
use crate::context::Call;
use crate::convert;
use crate::crd;
use crate::render;
use crate::status::ApiError;

pub(super) async fn create(call: &Call<'_>) -> Result<Response<Body>, ApiError> {
    let decoded = admission::decode(call)?;
    let mut value = decoded.value;
    let warnings = admission::prune(call, &mut value, &decoded.duplicates)
        .map_err(|message| admission::strict_refusal(&call.resource, &message))?;
    create_value(call, value, warnings).await
}

/// Creates from a value of which unknown fields are gone already.
pub(super) async fn create_value(
    call: &Call<'_>,
    mut value: Value,
    mut warnings: Vec<String>,
) -> Result<Response<Body>, ApiError> {
    let resource = &call.resource;
    // The namespace comes first, as in kube: a missing one hides what else is wrong.
    admission::settle_namespace(call, &mut value)?;
    write::check_namespace(call, text(&value, "/metadata/name"))?;
    admission::create(call, &mut value)?;
    admission::record(call, None, &mut value);
    warnings.extend(admission::finalizer_warnings(resource, None, &value));
    let name = text(&value, "/metadata/name").to_owned();
    let key = catalog::key(resource, call.namespace(), &name);
    let stored = write::stored_form(call, value);
    let mut response = if call.query.dry_run {
        if call.inner.workspace.latest(&key).is_some() {
            return Err(ApiError::AlreadyExists { resource: resource.qualified(), name });
        }
        render::value(call, StatusCode::CREATED, &stored)?
    } else {
        match call.inner.workspace.put(key.clone(), stored, Precondition::Absent).await {
            Ok(object) => {
                if crd::is_definition(resource) {
                    call.inner.reload_catalog();
                }
                render::object(call, StatusCode::CREATED, &object)?
            }
            Err(WriteError::AlreadyExists { .. }) => return Err(exists(call, &key, name)),
            Err(error) => return Err(ApiError::of_write(error, &resource.qualified(), &name)),
        }
    };
    render::add_warnings(&mut response, &warnings);
    Ok(response)
}

fn exists(call: &Call<'_>, key: &control_store::Key, name: String) -> ApiError {
    let resource = call.resource.qualified();
    let going = call.inner.workspace.latest(key).is_some_and(|object| {
        let value = convert::served(&call.resource, &object.value);
        !text(&value, "/metadata/deletionTimestamp").is_empty()
    });
    if going {
        ApiError::BeingDeleted { resource, name }
    } else {
        ApiError::AlreadyExists { resource, name }
    }
}
