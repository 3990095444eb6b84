//! Objects and lists in the shape the client asked for.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderValue, Response, StatusCode};
use bytes::Bytes;
use control_schema::Resource;
use control_schema::table::IncludeObject;
use control_store::Object;
use serde_json::{Map, Value, json};

use crate::context::Call;
use crate::convert;
use crate::negotiate::Shape;
use crate::status::{ApiError, bytes_response, json_response};

/// Seconds since the epoch, for ages.
pub(crate) fn now_seconds() -> i64 {
    jiff::Timestamp::now().as_second()
}

/// Now as Kubernetes writes instants.
pub(crate) fn now_rfc3339() -> String {
    jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

pub(crate) fn include(call: &Call<'_>) -> Result<IncludeObject, ApiError> {
    IncludeObject::parse(&call.query.include_object).ok_or_else(|| {
        let value = &call.query.include_object;
        ApiError::bad(format!("unrecognized includeObject value: \"{value}\""))
    })
}

/// One stored object.
pub(crate) fn object(
    call: &Call<'_>,
    code: StatusCode,
    object: &Object,
) -> Result<Response<Body>, ApiError> {
    match call.shape {
        Shape::Object => {
            let mut json = convert::served_json(&call.resource, object).into_owned();
            json.push(b'\n');
            Ok(bytes_response(code, json.into()))
        }
        Shape::Table | Shape::Metadata | Shape::MetadataList => value(call, code, &object.value),
    }
}

/// One value in stored form that need not be stored (a dry run).
pub(crate) fn value(
    call: &Call<'_>,
    code: StatusCode,
    stored: &Value,
) -> Result<Response<Body>, ApiError> {
    let served = convert::served(&call.resource, stored);
    Ok(match call.shape {
        Shape::Object => json_response(code, &served),
        Shape::Metadata => json_response(code, &convert::partial(&served)),
        Shape::MetadataList => {
            return Err(other_shape("PartialObjectMetadataList", "not a list", &call.resource, ""));
        }
        Shape::Table => {
            let version = served.pointer("/metadata/resourceVersion").cloned().unwrap_or_default();
            let metadata = json!({"resourceVersion": version});
            let columns = &call.resource.columns;
            let one = std::iter::once(&*served);
            json_response(code, &columns.table(one, metadata, now_seconds(), include(call)?))
        }
    })
}

/// A list was asked for as one object, or the other way round. Names the Go type, as kube does.
fn other_shape(wanted: &str, is: &str, resource: &Resource, suffix: &str) -> ApiError {
    let ty = if resource.builtin {
        let package = match resource.group.split('.').next() {
            Some("" | "events") | None => "core",
            Some(first) => first,
        };
        format!("*{package}.{}{suffix}", resource.kind)
    } else {
        format!("*unstructured.Unstructured{suffix}")
    };
    ApiError::OtherShape {
        message: format!("you requested {wanted}, but the requested object is {is} ({ty})"),
    }
}

/// Metadata of a list.
pub(crate) struct ListMeta {
    pub(crate) revision: u64,
    pub(crate) continue_token: Option<String>,
    pub(crate) remaining: Option<usize>,
}

impl ListMeta {
    fn value(&self) -> Value {
        let mut map = Map::new();
        if let Some(token) = &self.continue_token {
            map.insert("continue".to_owned(), Value::from(token.as_str()));
        }
        if let Some(remaining) = self.remaining {
            map.insert("remainingItemCount".to_owned(), Value::from(remaining));
        }
        map.insert("resourceVersion".to_owned(), Value::from(self.revision.to_string()));
        Value::Object(map)
    }
}

pub(crate) fn list(
    call: &Call<'_>,
    objects: &[Arc<Object>],
    meta: &ListMeta,
) -> Result<Response<Body>, ApiError> {
    let resource = &call.resource;
    Ok(match call.shape {
        Shape::Object => bytes_response(StatusCode::OK, list_json(resource, objects, meta)),
        Shape::Metadata => {
            return Err(other_shape("PartialObjectMetadata", "a list", resource, "List"));
        }
        Shape::MetadataList => {
            let items: Vec<Value> = objects
                .iter()
                .map(|o| convert::partial(&convert::served(resource, &o.value)))
                .collect();
            json_response(
                StatusCode::OK,
                &json!({
                    "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                    "metadata": meta.value(), "items": items,
                }),
            )
        }
        Shape::Table => {
            bytes_response(StatusCode::OK, table_json(resource, objects, meta, include(call)?))
        }
    })
}

/// A list is put together from the objects' own JSON; nothing is parsed or serialised again.
fn list_json(resource: &Resource, objects: &[Arc<Object>], meta: &ListMeta) -> Bytes {
    let size: usize = objects.iter().map(|o| o.json.len() + 1).sum();
    let mut out = Vec::with_capacity(size + 256);
    out.extend_from_slice(b"{\"kind\":");
    out.extend_from_slice(Value::from(resource.list_kind.as_str()).to_string().as_bytes());
    out.extend_from_slice(b",\"apiVersion\":");
    out.extend_from_slice(Value::from(resource.api_version()).to_string().as_bytes());
    out.extend_from_slice(b",\"metadata\":");
    out.extend_from_slice(meta.value().to_string().as_bytes());
    out.extend_from_slice(b",\"items\":[");
    for (index, object) in objects.iter().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        out.extend_from_slice(&convert::served_json(resource, object));
    }
    out.extend_from_slice(b"]}\n");
    out.into()
}

/// A Table is put together from the cells and the objects' own JSON.
fn table_json(
    resource: &Resource,
    objects: &[Arc<Object>],
    meta: &ListMeta,
    include: IncludeObject,
) -> Bytes {
    let now = now_seconds();
    let empty = resource.columns.table(std::iter::empty(), meta.value(), now, include);
    // Keys are sorted, so the empty rows are the last thing in the document.
    let head = empty.to_string();
    let head = head.strip_suffix("]}").unwrap_or(&head);
    let mut out = Vec::with_capacity(head.len() + objects.len() * 512);
    out.extend_from_slice(head.as_bytes());
    for (index, object) in objects.iter().enumerate() {
        out.extend_from_slice(if index > 0 { b",{\"cells\":" } else { b"{\"cells\":" });
        let served = convert::served(resource, &object.value);
        let cells = Value::Array(resource.columns.cells(&served, now));
        out.extend_from_slice(cells.to_string().as_bytes());
        out.extend_from_slice(b",\"object\":");
        match include {
            IncludeObject::None => out.extend_from_slice(b"null"),
            IncludeObject::Object => {
                out.extend_from_slice(&convert::served_json(resource, object));
            }
            IncludeObject::Metadata => {
                out.extend_from_slice(
                    b"{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/v1\",\"metadata\":",
                );
                out.extend_from_slice(object.metadata_json());
                out.push(b'}');
            }
        }
        out.push(b'}');
    }
    out.extend_from_slice(b"]}\n");
    out.into()
}

/// `Warning` headers, which kubectl prints.
pub(crate) fn add_warnings(response: &mut Response<Body>, warnings: &[String]) {
    for warning in warnings {
        let text = warning.replace('\\', "\\\\").replace('"', "\\\"");
        // A warning that cannot be a header (control characters) is not worth failing for.
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{text}\"")) {
            response.headers_mut().append("warning", value);
        }
    }
}
