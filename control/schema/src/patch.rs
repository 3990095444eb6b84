//! The patch types that need no managed fields: JSON merge patch, JSON patch, strategic merge patch.

mod json;
mod strategic;
#[cfg(test)]
mod tests;

use serde_json::{Map, Value};

use crate::schema::Node;

/// Why a patch does not apply. `is_bad_request` tells 400 from 422.
#[derive(Debug, thiserror::Error)]
pub enum PatchError {
    /// The document is no patch of this type.
    #[error("{0}")]
    Malformed(String),
    /// An operation of a JSON patch does not apply to this object.
    #[error("{0}")]
    Operation(String),
    #[error("the allowed maximum operations in a JSON patch is {max}, got {found}")]
    TooManyOperations { max: usize, found: usize },
    #[error("testing value {path} failed")]
    TestFailed { path: String },
    #[error("map: {patch} does not contain declared merge key: {key}")]
    NoMergeKey { patch: String, key: String },
    #[error("unknown patch type {directive:?} found in strategic merge patch")]
    UnknownDirective { directive: String },
}

impl PatchError {
    /// A malformed patch is a bad request; one that does not apply is unprocessable.
    pub fn is_bad_request(&self) -> bool {
        matches!(self, Self::Malformed(_) | Self::NoMergeKey { .. } | Self::UnknownDirective { .. })
    }
}

/// JSON merge patch (RFC 7386).
pub fn merge(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        target.clone_from(patch);
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(object) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            object.remove(key);
        } else {
            merge(object.entry(key.as_str()).or_insert(Value::Null), value);
        }
    }
}

/// JSON patch (RFC 6902), all or nothing.
pub fn json(target: &mut Value, patch: &Value) -> Result<(), PatchError> {
    json::apply(target, patch)
}

/// Strategic merge patch of a built-in kind, by the patch strategies in its schema.
pub fn strategic(target: &mut Value, patch: &Value, schema: &Node) -> Result<(), PatchError> {
    let (Value::Object(object), Value::Object(patch)) = (&mut *target, patch) else {
        return Err(PatchError::Malformed("a strategic merge patch must be an object".to_owned()));
    };
    strategic::objects(object, patch, Some(schema))
}
