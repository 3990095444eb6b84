//! `/openapi/v2` and `/openapi/v3`: documents made on first use and kept until a kind changes.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::body::Body;
use axum::http::header::ETAG;
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode};
use bytes::Bytes;
use control_schema::{Resource, openapi};

use crate::catalog::Catalog;
use crate::negotiate;
use crate::server::Inner;
use crate::status::{ApiError, bytes_response, json_response};

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
        if let Some(found) = self.lock().get(path) {
            return found.clone();
        }
        let made = Bytes::from(make().to_string());
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

fn hash(document: &Bytes) -> String {
    let mut hasher = DefaultHasher::new();
    document.hash(&mut hasher);
    format!("{:016X}", hasher.finish())
}

/// `/openapi/v3`.
pub(crate) fn index(inner: &Inner, catalog: &Catalog) -> Result<Response<Body>, ApiError> {
    let entries: Vec<(&str, &str, String)> = group_versions(catalog)
        .into_iter()
        .map(|(group, version)| (group, version, hash(&document(inner, catalog, group, version))))
        .collect();
    let index = openapi::v3_index(entries.iter().map(|(g, v, hash)| (*g, *v, hash.as_str())));
    Ok(json_response(StatusCode::OK, &index))
}

/// `/openapi/v3/apis/GROUP/VERSION`; `path` is what follows `/openapi/v3/`.
pub(crate) fn group_version(
    inner: &Inner,
    catalog: &Catalog,
    path: &str,
    headers: &HeaderMap,
) -> Result<Response<Body>, ApiError> {
    negotiate::plain_json(headers)?;
    let wanted = format!("/{path}");
    let (group, version) = group_versions(catalog)
        .into_iter()
        .find(|(group, version)| openapi::root(group, version) == wanted)
        .ok_or(ApiError::UnknownPath)?;
    Ok(tagged(document(inner, catalog, group, version)))
}

/// `/openapi/v2`.
pub(crate) fn v2(
    inner: &Inner,
    catalog: &Catalog,
    headers: &HeaderMap,
) -> Result<Response<Body>, ApiError> {
    negotiate::plain_json(headers)?;
    let all = catalog.resources().iter().map(Arc::as_ref);
    Ok(tagged(inner.open_api.get("v2", || openapi::v2(all))))
}

fn tagged(document: Bytes) -> Response<Body> {
    let tag = format!("\"{}\"", hash(&document));
    let mut response = bytes_response(StatusCode::OK, document);
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        response.headers_mut().insert(ETAG, tag);
    }
    response
}
