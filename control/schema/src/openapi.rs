//! OpenAPI documents of the served kinds: v3 per group and version (kubectl explain, field validation, patch
//! strategies), v2 for all together. The v2 document is the v3 one, rewritten.

mod operations;
mod protobuf;
mod schemas;
#[cfg(test)]
mod tests;
mod v2;

use serde_json::{Map, Value, json};

use crate::resource::Resource;

/// Where v3 documents keep their schemas.
pub(crate) const V3_PREFIX: &str = "#/components/schemas/";

/// The document of one group and version, served at `/openapi/v3/apis/GROUP/VERSION`. `resources` are those of that
/// group and version.
pub fn v3<'a>(resources: impl IntoIterator<Item = &'a Resource>) -> Value {
    let (paths, schemas) = parts(resources);
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Kubernetes", "version": "v1.34.0"},
        "paths": paths,
        "components": {"schemas": schemas},
    })
}

/// The swagger document of everything, served at `/openapi/v2`.
pub fn v2<'a>(resources: impl IntoIterator<Item = &'a Resource>) -> Value {
    let (paths, schemas) = parts(resources);
    v2::document(paths, schemas)
}

/// The swagger document in protobuf form; `document` is what [`v2`] made.
pub fn v2_protobuf(document: &Value) -> Vec<u8> {
    protobuf::document(document)
}

/// The index at `/openapi/v3`: one entry per (group, version, hash of the document).
pub fn v3_index<'a>(documents: impl IntoIterator<Item = (&'a str, &'a str, &'a str)>) -> Value {
    let paths: Map<String, Value> = documents
        .into_iter()
        .map(|(group, version, hash)| {
            let path = root(group, version);
            let url = format!("/openapi/v3{path}?hash={hash}");
            (path.trim_start_matches('/').to_owned(), json!({"serverRelativeURL": url}))
        })
        .collect();
    json!({"paths": paths})
}

/// `/api/v1` or `/apis/GROUP/VERSION`.
pub fn root(group: &str, version: &str) -> String {
    if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") }
}

fn parts<'a>(
    resources: impl IntoIterator<Item = &'a Resource>,
) -> (Map<String, Value>, Map<String, Value>) {
    let (mut paths, mut definitions) = (Map::new(), Map::new());
    schemas::common(&mut definitions);
    for resource in resources {
        let name = schemas::of_resource(resource, &mut definitions);
        operations::of_resource(resource, &name, &mut paths);
    }
    (paths, definitions)
}
