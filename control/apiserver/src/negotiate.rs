//! Which representation a client wants, from its `Accept` header; which it sent, from `Content-Type`.

use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE};

use crate::request::Verb;
use crate::status::ApiError;

/// Shape of a response body; always JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Object,
    Table,
    /// `PartialObjectMetadata`, of one object.
    Metadata,
    /// `PartialObjectMetadataList`.
    MetadataList,
}

/// Shape of a discovery document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Discovery {
    Legacy,
    /// `apidiscovery.k8s.io`, with its version.
    Aggregated(&'static str),
}

const ACCEPTED: &str = "application/json, application/yaml, application/vnd.kubernetes.protobuf";

struct Media<'a> {
    ty: &'a str,
    parameters: Vec<(&'a str, &'a str)>,
}

impl<'a> Media<'a> {
    fn parse(text: &'a str) -> Self {
        let mut parts = text.split(';').map(str::trim);
        let ty = parts.next().unwrap_or_default();
        let parameters = parts.filter_map(|p| p.split_once('=')).collect();
        Self { ty, parameters }
    }

    fn get(&self, name: &str) -> Option<&'a str> {
        self.parameters.iter().find(|(key, _)| *key == name).map(|(_, value)| *value)
    }

    fn is_json(&self) -> bool {
        matches!(self.ty, "application/json" | "application/*" | "*/*")
    }

    fn is_yaml(&self) -> bool {
        self.ty == "application/yaml"
    }

    fn quality(&self) -> f32 {
        self.get("q").and_then(|q| q.parse().ok()).unwrap_or(1.0)
    }
}

fn accepted(headers: &HeaderMap) -> Vec<Media<'_>> {
    let mut media: Vec<Media<'_>> = headers
        .get_all(ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(|text| Media::parse(text.trim()))
        .filter(|m| !m.ty.is_empty())
        .collect();
    // Stable: equal qualities keep the client's order.
    media.sort_by(|a, b| b.quality().total_cmp(&a.quality()));
    media
}

/// The shape of an object or a list.
pub(crate) fn shape(headers: &HeaderMap) -> Result<Shape, ApiError> {
    let media = accepted(headers);
    if media.is_empty() {
        return Ok(Shape::Object);
    }
    for m in media.iter().filter(|m| m.is_json() || m.is_yaml()) {
        match m.get("as") {
            None => return Ok(Shape::Object),
            Some("Table") if meta_v1(m) => return Ok(Shape::Table),
            Some("PartialObjectMetadata") if meta_v1(m) => return Ok(Shape::Metadata),
            Some("PartialObjectMetadataList") if meta_v1(m) => return Ok(Shape::MetadataList),
            Some(_) => {}
        }
    }
    Err(ApiError::NotAcceptable { accepted: ACCEPTED })
}

/// What a router says that has no route with such a representation.
pub(crate) fn no_representation(verb: Verb) -> ApiError {
    let available = match verb {
        Verb::List | Verb::Watch => {
            "application/json, application/yaml, application/vnd.kubernetes.protobuf, application/json;stream=watch, application/vnd.kubernetes.protobuf;stream=watch"
        }
        _ => ACCEPTED,
    };
    ApiError::NoRepresentation { available }
}

/// Whether a client prefers YAML to JSON.
pub(crate) fn wants_yaml(headers: &HeaderMap) -> bool {
    accepted(headers).iter().find(|m| m.is_json() || m.is_yaml()).is_some_and(|m| m.is_yaml())
}

fn meta_v1(media: &Media<'_>) -> bool {
    media.get("g") == Some("meta.k8s.io") && media.get("v") == Some("v1")
}

/// The shape of `/api` and `/apis`.
pub(crate) fn discovery(headers: &HeaderMap) -> Result<Discovery, ApiError> {
    let media = accepted(headers);
    if media.is_empty() {
        return Ok(Discovery::Legacy);
    }
    for m in media.iter().filter(|m| m.is_json()) {
        match (m.get("as"), m.get("v")) {
            (None, _) => return Ok(Discovery::Legacy),
            (Some("APIGroupDiscoveryList"), Some("v2")) => return Ok(Discovery::Aggregated("v2")),
            (Some("APIGroupDiscoveryList"), Some("v2beta1")) => {
                return Ok(Discovery::Aggregated("v2beta1"));
            }
            _ => {}
        }
    }
    Err(ApiError::NotAcceptable { accepted: ACCEPTED })
}

/// The media type of an OpenAPI v2 document in protobuf form.
pub(crate) const OPENAPI_PROTOBUF: &str =
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// Whether a client prefers an OpenAPI document in protobuf form; old clients write `@` for the first dot of the version.
pub(crate) fn wants_protobuf(headers: &HeaderMap) -> bool {
    accepted(headers).first().is_some_and(|m| m.ty.replace('@', ".") == OPENAPI_PROTOBUF)
}

/// Whether plain JSON is acceptable, for documents that have no other form.
pub(crate) fn plain_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let media = accepted(headers);
    if media.is_empty() || media.iter().any(|m| m.is_json() && m.get("as").is_none()) {
        return Ok(());
    }
    Err(ApiError::NotAcceptable { accepted: "application/json" })
}

/// How a request body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyFormat {
    Json,
    Yaml,
    Protobuf,
}

/// Media type of a body, without parameters; empty when there is none.
pub(crate) fn content_type(headers: &HeaderMap) -> &str {
    let value = headers.get(CONTENT_TYPE).and_then(|v| v.to_str().ok()).unwrap_or_default();
    value.split(';').next().unwrap_or_default().trim()
}

/// The format of a whole object in a body.
pub(crate) fn body_format(headers: &HeaderMap) -> Result<BodyFormat, ApiError> {
    match content_type(headers) {
        "" | "application/json" | "*/*" => Ok(BodyFormat::Json),
        "application/yaml" => Ok(BodyFormat::Yaml),
        "application/vnd.kubernetes.protobuf" => Ok(BodyFormat::Protobuf),
        _ => Err(ApiError::UnsupportedMediaType {
            message: format!(
                "the body of the request was in an unknown format - accepted media types include: {ACCEPTED}"
            ),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(accept: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, accept.parse().unwrap());
        headers
    }

    #[test]
    fn kubectl_gets_a_table_and_curl_an_object() {
        let kubectl = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        assert_eq!(shape(&with(kubectl)).unwrap(), Shape::Table);
        assert_eq!(shape(&with("*/*")).unwrap(), Shape::Object);
        assert_eq!(
            shape(&with("application/vnd.kubernetes.protobuf,application/json")).unwrap(),
            Shape::Object
        );
        assert!(shape(&with("text/html")).is_err());
    }

    #[test]
    fn discovery_takes_the_first_form_it_knows() {
        let accept =
            "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
        assert_eq!(discovery(&with(accept)).unwrap(), Discovery::Aggregated("v2"));
        assert_eq!(discovery(&with("application/json")).unwrap(), Discovery::Legacy);
    }
}
