//! `get` of one object.

use axum::body::Body;
use axum::http::{Response, StatusCode};

use crate::context::Call;
use crate::render;
use crate::status::ApiError;

pub(super) fn get(call: &Call<'_>) -> Result<Response<Body>, ApiError> {
    let object = call.inner.workspace.get(&call.key()).ok_or_else(|| call.not_found())?;
    render::object(call, StatusCode::OK, &object)
}
