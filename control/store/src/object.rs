//! One stored object, parsed and serialised once.

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
        let json = Bytes::from(serde_json::to_vec(&value)?);
        Ok(Self { key, revision, value, json })
    }

    pub(crate) fn from_stored(
        key: Key,
        revision: u64,
        json: &[u8],
    ) -> Result<Self, serde_json::Error> {
        let value = serde_json::from_slice(json)?;
        Ok(Self { key, revision, value, json: Bytes::copy_from_slice(json) })
    }
}
