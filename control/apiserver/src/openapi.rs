//! `/openapi/v2` and `/openapi/v3`: documents made on first use and kept until a kind changes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE, EXPIRES, LOCATION, VARY};
use axum::http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use bytes::Bytes;
use control_schema::{Resource, openapi};

use crate::catalog::Catalog;
use crate::common::{hash, tagged};
use crate::negotiate;
use crate::server::Inner;
use crate::status::ApiError;

/// Serialised documents by path (`api/v1`, `apis/rlinf.io/v1alpha1`, `v2`).
#[derive(Debug, Default)]
pub(crate) struct Cache {
    documents: Mutex<HashMap<String, Bytes>>,
}

impl Cache {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Bytes>> {
        self.documents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn clear(&self) {
        self.lock().clear();
    }

    fn get(&self, path: &str, make: impl FnOnce() -> serde_json::Value) -> Bytes {
        self.get_bytes(path, || Bytes::from(make().to_string()))
    }

    fn get_bytes(&self, path: &str, make: impl FnOnce() -> Bytes) -> Bytes {
        if let Some(found) = self.lock().get(path) {
            return found.clone();
        }
        let made = make();
        self.lock().insert(path.to_owned(), made.clone());
        made
    }
}

fn group_versions(catalog: &Catalog) -> Vec<(&str, &str)> {
    let mut all: Vec<(&str, &str)> = Vec::new();
    for r in catalog.resources() {
        let pair = (r.group.as_str(), r.version.as_str());
        if !all.contains(&pair) {
            all.push(pair);
        }
    }
    all
}

fn of<'a>(
    catalog: &'a Catalog,
    group: &'a str,
    version: &'a str,
) -> impl Iterator<Item = &'a Resource> {
    catalog
        .resources()
        .iter()
        .map(Arc::as_ref)
        .filter(move |r| r.group == group && r.version == version)
}

fn document(inner: &Inner, catalog: &Catalog, group: &str, version: &str) -> Bytes {
    let path = openapi::root(group, version);
    inner.open_api.get(&path, || openapi::v3(of(catalog, group, version)))
}

/// `/openapi/v3`.
pub(crate) fn index(
    inner: &Inner,
    catalog: &Catalog,
    headers: &HeaderMap,
) -> Result<Response<Body>, ApiError> {
    let entries: Vec<(&str, &str, String)> = group_versions(catalog)
        .into_iter()
        .map(|(group, version)| (group, version, hash(&document(inner, catalog, group, version))))
        .collect();
    let index = openapi::v3_index(entries.iter().map(|(g, v, hash)| (*g, *v, hash.as_str())));
    Ok(tagged(index.to_string().into(), headers))
}

/// `/openapi/v3/apis/GROUP/VERSION`; `path` is what follows `/openapi/v3/`.
pub(crate) fn group_version(
    inner: &Inner,
    catalog: &Catalog,
    path: &str,
    request: &Request<Body>,
) -> Result<Response<Body>, ApiError> {
    negotiate::plain_json(request.headers())?;
    let wanted = format!("/{path}");
    let (group, version) = group_versions(catalog)
        .into_iter()
        .find(|(group, version)| openapi::root(group, version) == wanted)
        .ok_or(ApiError::NoPage)?;
    let document = document(inner, catalog, group, version);
    let current = hash(&document);
    let wanted = request
        .uri()
        .query()
        .and_then(|q| q.split('&').find_map(|pair| pair.strip_prefix("hash=")))
        .map(|hash| hash.trim_matches('"').to_owned());
    match wanted {
        // A client with the address of an older document is sent to the present one.
        Some(hash) if hash != current => {
            let location = format!("/openapi/v3/{path}?hash={current}");
            Ok(moved(&location))
        }
        Some(_) => {
            let mut response = tagged(document, request.headers());
            // The hash is part of the address: what it names never changes.
            let forever = HeaderValue::from_static("public, immutable");
            response.headers_mut().insert(CACHE_CONTROL, forever);
            if let Ok(expires) = HeaderValue::from_str(&in_a_year()) {
                response.headers_mut().insert(EXPIRES, expires);
            }
            response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
            Ok(response)
        }
        None => Ok(tagged(document, request.headers())),
    }
}

/// `/openapi/v2`.
pub(crate) fn v2(
    inner: &Inner,
    catalog: &Catalog,
    headers: &HeaderMap,
) -> Result<Response<Body>, ApiError> {
    let all = catalog.resources().iter().map(Arc::as_ref);
    let json = inner.open_api.get("v2", || openapi::v2(all));
    if negotiate::wants_protobuf(headers) {
        let binary = inner.open_api.get_bytes("v2.pb", || {
            let document = serde_json::from_slice(&json).unwrap_or_default();
            openapi::v2_protobuf(&document).into()
        });
        let mut response = tagged(binary, headers);
        let media = HeaderValue::from_static(negotiate::OPENAPI_PROTOBUF);
        response.headers_mut().insert(CONTENT_TYPE, media);
        return Ok(response);
    }
    negotiate::plain_json(headers)?;
    Ok(tagged(json, headers))
}

fn moved(location: &str) -> Response<Body> {
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::MOVED_PERMANENTLY;
    if let Ok(location) = HeaderValue::from_str(location) {
        response.headers_mut().insert(LOCATION, location);
    }
    response
}

/// A year from now, as HTTP writes dates.
fn in_a_year() -> String {
    let year = jiff::SignedDuration::from_hours(365 * 24);
    let then = jiff::Timestamp::now().checked_add(year).unwrap_or(jiff::Timestamp::MAX);
    then.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string()
}
