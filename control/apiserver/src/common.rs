//! What all responses have in common: headers for caches and for audit, and how documents are written.

use std::hash::{DefaultHasher, Hash, Hasher};

use axum::body::{Body, HttpBody};
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, IF_NONE_MATCH, USER_AGENT};
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use bytes::Bytes;
use http_body_util::BodyExt;
use serde_json::Value;

use crate::negotiate;
use crate::status::{ApiError, bytes_response};

const AUDIT_ID: &str = "audit-id";

/// Adds what every response carries; what a handler said about caching stays.
pub(crate) fn finish(mut response: Response<Body>) -> Response<Body> {
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&uuid::Uuid::new_v4().to_string()) {
        headers.insert(AUDIT_ID, id);
    }
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
    response
}

/// How a document is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    Compact,
    /// JSON for the eye: asked for with `?pretty=true`, or by a tool that people use by hand.
    Pretty,
    Yaml,
}

impl Style {
    pub(crate) fn of(request: &Request<Body>) -> Self {
        if negotiate::wants_yaml(request.headers()) {
            return Self::Yaml;
        }
        let query = request.uri().query().unwrap_or_default();
        let asked = query.split('&').find_map(|pair| pair.strip_prefix("pretty="));
        let agent = request.headers().get(USER_AGENT).and_then(|v| v.to_str().ok());
        let by_hand = || {
            let agent = agent.unwrap_or_default();
            ["curl", "Wget", "Mozilla/5.0"].iter().any(|tool| agent.starts_with(tool))
        };
        let pretty = asked.map_or_else(by_hand, |value| matches!(value, "" | "1" | "true"));
        if pretty { Self::Pretty } else { Self::Compact }
    }
}

/// A JSON document in the style that is wanted; streams and what is no JSON stay as they are.
pub(crate) async fn present(response: Response<Body>, style: Style) -> Response<Body> {
    let json = response.headers().get(CONTENT_TYPE).is_some_and(|v| v == "application/json");
    if style == Style::Compact || !json || response.body().size_hint().exact().is_none() {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let Ok(bytes) = body.collect().await.map(http_body_util::Collected::to_bytes) else {
        return ApiError::internal("the response could not be read").response();
    };
    let Ok(value) = serde_json::from_slice::<Value>(&bytes) else {
        return Response::from_parts(parts, Body::from(bytes));
    };
    let text = if style == Style::Yaml {
        parts.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/yaml"));
        control_schema::yaml::document(&value)
    } else {
        format!("{value:#}")
    };
    Response::from_parts(parts, Body::from(text))
}

/// A short name for a document's content.
pub(crate) fn hash(document: &Bytes) -> String {
    let mut hasher = DefaultHasher::new();
    document.hash(&mut hasher);
    format!("{:016X}", hasher.finish())
}

/// A document that clients may keep as long as its tag is current; 304 for those who have it.
pub(crate) fn tagged(document: Bytes, headers: &HeaderMap) -> Response<Body> {
    let tag = format!("\"{}\"", hash(&document));
    let known = headers
        .get_all(IF_NONE_MATCH)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .any(|t| t.trim() == tag || t.trim() == "*");
    let mut response = if known {
        let mut empty = Response::new(Body::empty());
        *empty.status_mut() = StatusCode::NOT_MODIFIED;
        empty
    } else {
        bytes_response(StatusCode::OK, document)
    };
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(ETAG, tag);
    }
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("public"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_has_the_document_is_told_so() {
        let document = Bytes::from_static(b"{}");
        let first = tagged(document.clone(), &HeaderMap::new());
        let tag = first.headers().get(ETAG).unwrap().clone();
        let mut headers = HeaderMap::new();
        headers.insert(IF_NONE_MATCH, tag);
        assert_eq!(tagged(document, &headers).status(), StatusCode::NOT_MODIFIED);
        assert_eq!(tagged(Bytes::from_static(b"[]"), &headers).status(), StatusCode::OK);
    }
}
