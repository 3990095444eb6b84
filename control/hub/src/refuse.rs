//! Refusals as HTTP answers, and the causes that are ours and not the caller's.

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use control_api::session::Refusal;
use http::StatusCode;

/// What a handler answers instead of success.
#[derive(Debug)]
pub(crate) struct Refused {
    status: StatusCode,
    refusal: Refusal,
}

impl Refused {
    pub(crate) fn new(status: StatusCode, reason: &str, message: impl Into<String>) -> Self {
        Self { status, refusal: Refusal { reason: reason.to_owned(), message: message.into() } }
    }

    pub(crate) fn bad(reason: &str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, reason, message)
    }

    pub(crate) fn forbidden(reason: &str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, reason, message)
    }

    pub(crate) fn conflict(reason: &str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, reason, message)
    }

    pub(crate) fn not_found(reason: &str, message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, reason, message)
    }

    /// A failure on our side: logged with its cause, answered without it.
    pub(crate) fn internal(what: &'static str, error: &(dyn std::error::Error + 'static)) -> Self {
        let cause = error.source().map(ToString::to_string);
        tracing::error!(%error, ?cause, "{what} failed");
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "unavailable",
            format!("{what} failed on the server; see its log"),
        )
    }

    #[cfg(test)]
    pub(crate) fn reason(&self) -> &str {
        &self.refusal.reason
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.status, Json(self.refusal)).into_response()
    }
}
