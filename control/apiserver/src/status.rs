//! Refusals, and the one place that turns them into Kubernetes `Status` objects.

use axum::body::Body;
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderValue, Response, StatusCode};
use control_schema::FieldError;
use control_schema::error::{causes, invalid_message};
use control_store::WriteError;
use serde_json::{Map, Value, json};

/// Every way a request can fail. Each variant carries what its message names.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    #[error("the server could not find the requested resource")]
    UnknownPath,
    /// A path that belongs to no kind at all: a page, as every web server has one, instead of a Status.
    #[error("404 page not found")]
    NoPage,
    #[error("Unauthorized")]
    Unauthorized,
    #[error("{resource} \"{name}\" not found")]
    NotFound { resource: String, name: String },
    #[error("{resource} \"{name}\" already exists")]
    AlreadyExists { resource: String, name: String },
    #[error("object is being deleted: {resource} \"{name}\" already exists")]
    BeingDeleted { resource: String, name: String },
    #[error("Operation cannot be fulfilled on {resource} \"{name}\": {message}")]
    Conflict { resource: String, name: String, message: String },
    #[error("{}", invalid_message(kind, group, name, errors))]
    Invalid { group: String, kind: String, name: String, errors: Vec<FieldError> },
    /// A patch that does not apply to the object; kube keeps the reason to itself.
    #[error("the server rejected our request due to an error in our request")]
    Unprocessable,
    #[error("{message}")]
    BadRequest { message: String },
    #[error("{resource}{} is forbidden: {message}", quoted(name))]
    Forbidden { resource: String, name: String, message: String },
    /// A write whose verb is allowed and whose content is not.
    #[error("{resource}{} is forbidden: {message}", quoted(name))]
    ForbiddenField { resource: String, name: String, message: String, field: String },
    #[error("forbidden: {message}")]
    ForbiddenPath { message: String },
    #[error("{resource} \"{name}\" is forbidden: {message}")]
    NamespaceTerminating { resource: String, name: String, message: String, namespace: String },
    #[error("the server does not allow this method on the requested resource")]
    MethodNotAllowed,
    /// The same for a kind that a definition brought in.
    #[error("{verb} is not supported on resources of kind \"{resource}\"")]
    MethodNotSupported { resource: String, verb: String },
    /// Refusals of a media type before any kind is asked.
    #[error("406: Not Acceptable\n\nAvailable representations: {available}")]
    NoRepresentation { available: &'static str },
    #[error("415: Unsupported Media Type")]
    NoSuchMediaType,
    #[error("only the following media types are accepted: {accepted}")]
    NotAcceptable { accepted: &'static str },
    /// A list where one object was asked for, or the other way round.
    #[error("{message}")]
    OtherShape { message: String },
    #[error("{message}")]
    UnsupportedMediaType { message: String },
    #[error("{message}")]
    Expired { message: String },
    /// With a token that goes on at the latest state instead.
    #[error(
        "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter, or use the continue token in this response to retrieve the remainder of the results. Continuing with the provided token results in an inconsistent list - objects that were created, modified, or deleted between the time the first chunk was returned and now may show up in the list."
    )]
    ContinueExpired { token: String },
    #[error("Timeout: Too large resource version: {wanted}, current: {current}")]
    TooLargeResourceVersion { wanted: u64, current: u64 },
    #[error("{message}")]
    ApplyConflict { message: String, causes: Vec<Value> },
    #[error("Request entity too large: limit is {limit}")]
    TooLarge { limit: usize },
    #[error("Request entity too large: {message}")]
    TooMany { message: String },
    /// An error that kube-apiserver passes on without a reason.
    #[error("{message}")]
    Unnamed { message: String },
    #[error("Internal error occurred: {message}")]
    Internal { message: String },
    #[error("the server is currently unable to handle the request: {message}")]
    Unavailable { message: String },
}

fn quoted(name: &str) -> String {
    if name.is_empty() { String::new() } else { format!(" \"{name}\"") }
}

/// Group and plural out of `jobs.rlinf.io`.
fn split(resource: &str) -> (&str, &str) {
    resource.split_once('.').unwrap_or((resource, ""))
}

fn details(name: &str, resource: &str) -> Map<String, Value> {
    let (kind, group) = split(resource);
    let mut map = Map::new();
    for (key, value) in [("name", name), ("group", group), ("kind", kind)] {
        if !value.is_empty() {
            map.insert(key.to_owned(), Value::from(value));
        }
    }
    map
}

impl ApiError {
    #[must_use]
    pub fn bad(message: impl Into<String>) -> Self {
        Self::BadRequest { message: message.into() }
    }

    #[must_use]
    pub fn internal(message: impl std::fmt::Display) -> Self {
        Self::Internal { message: message.to_string() }
    }

    fn code_and_reason(&self) -> (StatusCode, &'static str) {
        match self {
            Self::UnknownPath | Self::NoPage | Self::NotFound { .. } => {
                (StatusCode::NOT_FOUND, "NotFound")
            }
            Self::Unauthorized => (StatusCode::UNAUTHORIZED, "Unauthorized"),
            Self::AlreadyExists { .. } | Self::BeingDeleted { .. } => {
                (StatusCode::CONFLICT, "AlreadyExists")
            }
            Self::Conflict { .. } | Self::ApplyConflict { .. } => {
                (StatusCode::CONFLICT, "Conflict")
            }
            Self::Invalid { .. } | Self::Unprocessable => {
                (StatusCode::UNPROCESSABLE_ENTITY, "Invalid")
            }
            Self::BadRequest { .. } => (StatusCode::BAD_REQUEST, "BadRequest"),
            Self::Forbidden { .. }
            | Self::ForbiddenField { .. }
            | Self::ForbiddenPath { .. }
            | Self::NamespaceTerminating { .. } => (StatusCode::FORBIDDEN, "Forbidden"),
            Self::MethodNotAllowed | Self::MethodNotSupported { .. } => {
                (StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed")
            }
            Self::NotAcceptable { .. }
            | Self::OtherShape { .. }
            | Self::NoRepresentation { .. } => (StatusCode::NOT_ACCEPTABLE, "NotAcceptable"),
            Self::UnsupportedMediaType { .. } | Self::NoSuchMediaType => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType")
            }
            Self::Expired { .. } | Self::ContinueExpired { .. } => (StatusCode::GONE, "Expired"),
            Self::TooLargeResourceVersion { .. } => (StatusCode::GATEWAY_TIMEOUT, "Timeout"),
            Self::TooLarge { .. } | Self::TooMany { .. } => {
                (StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge")
            }
            Self::Unnamed { .. } => (StatusCode::INTERNAL_SERVER_ERROR, ""),
            Self::Internal { .. } => (StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
            Self::Unavailable { .. } => (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable"),
        }
    }

    fn details(&self) -> Map<String, Value> {
        match self {
            Self::NotFound { resource, name }
            | Self::AlreadyExists { resource, name }
            | Self::BeingDeleted { resource, name }
            | Self::Conflict { resource, name, .. }
            | Self::Forbidden { resource, name, .. } => details(name, resource),
            Self::Invalid { group, kind, name, errors } => {
                let mut map = details(name, kind);
                if !group.is_empty() {
                    map.insert("group".to_owned(), Value::from(group.as_str()));
                }
                map.insert("causes".to_owned(), Value::Array(causes(errors)));
                map
            }
            Self::ForbiddenField { resource, name, message, field } => {
                let mut map = details(name, resource);
                if !field.is_empty() {
                    let cause = json!({
                        "reason": "FieldValueForbidden", "message": message, "field": field,
                    });
                    map.insert("causes".to_owned(), json!([cause]));
                }
                map
            }
            Self::NamespaceTerminating { resource, name, namespace, .. } => {
                let mut map = details(name, resource);
                let cause = json!({
                    "reason": "NamespaceTerminating",
                    "message": format!("namespace {namespace} is being terminated"),
                    "field": "metadata.namespace",
                });
                map.insert("causes".to_owned(), json!([cause]));
                map
            }
            Self::MethodNotSupported { resource, .. } => details("", resource),
            Self::ApplyConflict { causes, .. } => {
                Map::from_iter([("causes".to_owned(), Value::Array(causes.clone()))])
            }
            Self::TooLargeResourceVersion { .. } => {
                let cause = json!({"reason": "ResourceVersionTooLarge", "message": "Too large resource version"});
                Map::from_iter([
                    ("causes".to_owned(), json!([cause])),
                    ("retryAfterSeconds".to_owned(), json!(1)),
                ])
            }
            _ => Map::new(),
        }
    }

    /// The `Status` object a client gets (or, for a watch, finds in an `ERROR` event).
    #[must_use]
    pub fn status(&self) -> Value {
        let (code, reason) = self.code_and_reason();
        let mut status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.to_string(), "reason": reason, "code": code.as_u16(),
        });
        if reason.is_empty()
            && let Some(map) = status.as_object_mut()
        {
            map.remove("reason");
        }
        if let (Self::ContinueExpired { token }, Some(map)) = (self, status.as_object_mut()) {
            map.insert("metadata".to_owned(), json!({"continue": token}));
        }
        let details = self.details();
        let always = matches!(
            self,
            Self::UnknownPath
                | Self::ForbiddenPath { .. }
                | Self::MethodNotAllowed
                | Self::NoRepresentation { .. }
                | Self::NoSuchMediaType
                | Self::Unprocessable
                | Self::Invalid { .. }
        );
        let wanted = !details.is_empty() || always;
        if wanted && let Some(map) = status.as_object_mut() {
            map.insert("details".to_owned(), Value::Object(details));
        }
        status
    }

    /// The response of the request that failed.
    #[must_use]
    pub fn response(&self) -> Response<Body> {
        let (code, _) = self.code_and_reason();
        if matches!(self, Self::NoPage) {
            return page(code, "404 page not found\n");
        }
        let mut response = json_response(code, &self.status());
        if matches!(self, Self::Forbidden { .. } | Self::ForbiddenPath { .. }) {
            response
                .headers_mut()
                .insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
        }
        if matches!(self, Self::TooLargeResourceVersion { .. } | Self::Unavailable { .. }) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }

    /// A refused write of one object, in the terms of its resource.
    #[must_use]
    pub fn of_write(error: WriteError, resource: &str, name: &str) -> Self {
        let (resource, name) = (resource.to_owned(), name.to_owned());
        match error {
            WriteError::AlreadyExists { .. } => Self::AlreadyExists { resource, name },
            WriteError::NotFound { .. } => Self::NotFound { resource, name },
            WriteError::Conflict { .. } => {
                Self::Conflict { resource, name, message: MODIFIED.to_owned() }
            }
            WriteError::Serialise { source, .. } => Self::internal(source),
            WriteError::Durability { reason, .. } => Self::internal(reason),
            WriteError::Closed => Self::Unavailable { message: "shutting down".to_owned() },
        }
    }
}

/// What a client hears whose copy is stale.
pub(crate) const MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

/// A response of plain text.
pub(crate) fn page(code: StatusCode, body: impl Into<Body>) -> Response<Body> {
    let mut response = Response::new(body.into());
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

/// A JSON response; a value that cannot be serialised becomes an empty 500, which cannot happen
/// for `serde_json::Value`.
pub(crate) fn json_response(code: StatusCode, value: &Value) -> Response<Body> {
    match serde_json::to_vec(value) {
        Ok(mut body) => {
            body.push(b'\n');
            bytes_response(code, body.into())
        }
        Err(_) => {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            response
        }
    }
}

pub(crate) fn bytes_response(code: StatusCode, body: bytes::Bytes) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
