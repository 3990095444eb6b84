//! What all responses have in common: headers for caches and for audit.

use std::hash::{DefaultHasher, Hash, Hasher};

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, ETAG, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use bytes::Bytes;

use crate::status::bytes_response;

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
