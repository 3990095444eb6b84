//! One stored object, parsed and serialised once.

use std::ops::Range;

use bytes::Bytes;
use serde_json::{Map, Value};

use crate::key::Key;

/// An object as of one revision. Shared by snapshots, the log and every reader.
#[derive(Debug, PartialEq)]
pub struct Object {
    pub key: Key,
    /// The revision that wrote it.
    pub revision: u64,
    /// With `metadata.resourceVersion` equal to `revision`.
    pub value: Value,
    /// `value` as JSON: what is on disk and what lists send.
    pub json: Bytes,
    /// Where `metadata` stands in `json`.
    metadata: Range<usize>,
}

impl Object {
    /// Stamps `metadata.resourceVersion`. A value that is no object, or whose metadata is none, is
    /// stored as it is.
    pub(crate) fn stamp(
        key: Key,
        mut value: Value,
        revision: u64,
    ) -> Result<Self, serde_json::Error> {
        if let Some(map) = value.as_object_mut() {
            let metadata = map.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
            if let Some(metadata) = metadata.as_object_mut() {
                metadata.insert("resourceVersion".to_owned(), Value::String(revision.to_string()));
            }
        }
        Self::of(key, value, revision)
    }

    pub(crate) fn from_stored(
        key: Key,
        revision: u64,
        json: &[u8],
    ) -> Result<Self, serde_json::Error> {
        Self::of(key, serde_json::from_slice(json)?, revision)
    }

    fn of(key: Key, value: Value, revision: u64) -> Result<Self, serde_json::Error> {
        let (json, metadata) = serialise(&value)?;
        Ok(Self { key, revision, value, json: json.into(), metadata })
    }

    /// The JSON of `metadata` alone; empty when there is none.
    #[must_use]
    pub fn metadata_json(&self) -> &[u8] {
        self.json.get(self.metadata.clone()).unwrap_or_default()
    }
}

/// JSON of a value, and where its `metadata` stands in it.
fn serialise(value: &Value) -> Result<(Vec<u8>, Range<usize>), serde_json::Error> {
    let Some(map) = value.as_object() else {
        return Ok((serde_json::to_vec(value)?, 0..0));
    };
    let mut json = vec![b'{'];
    let mut metadata = 0..0;
    for (key, value) in map {
        if json.len() > 1 {
            json.push(b',');
        }
        serde_json::to_writer(&mut json, key)?;
        json.push(b':');
        let start = json.len();
        serde_json::to_writer(&mut json, value)?;
        if key == "metadata" {
            metadata = start..json.len();
        }
    }
    json.push(b'}');
    Ok((json, metadata))
}
