//! JSON patch on the `json-patch` crate, with its errors named.

use json_patch::{Patch, PatchErrorKind, PatchOperation};
use serde_json::Value;

use super::PatchError;

/// kube's limit of operations in one patch.
const MAX_OPERATIONS: usize = 10_000;

pub(super) fn apply(target: &mut Value, patch: &Value) -> Result<(), PatchError> {
    let patch: Patch =
        serde_json::from_value(patch.clone()).map_err(|e| PatchError::Malformed(e.to_string()))?;
    if patch.0.len() > MAX_OPERATIONS {
        let text = format!("the allowed maximum operations in a JSON patch is {MAX_OPERATIONS}");
        return Err(PatchError::Malformed(text));
    }
    json_patch::patch(target, &patch).map_err(|error| {
        let operation = patch.0.get(error.operation);
        let path = operation.map(path_of).unwrap_or_default();
        match error.kind {
            PatchErrorKind::TestFailed => PatchError::TestFailed { path },
            _ => {
                let name = operation.map(name_of).unwrap_or("patch");
                PatchError::Operation(format!(
                    "{name} operation does not apply: doc is missing path: {path:?}"
                ))
            }
        }
    })
}

fn path_of(operation: &PatchOperation) -> String {
    operation.path().to_string()
}

fn name_of(operation: &PatchOperation) -> &'static str {
    match operation {
        PatchOperation::Add(_) => "add",
        PatchOperation::Remove(_) => "remove",
        PatchOperation::Replace(_) => "replace",
        PatchOperation::Move(_) => "move",
        PatchOperation::Copy(_) => "copy",
        PatchOperation::Test(_) => "test",
    }
}
