//! JSON patch on the `json-patch` crate, with its errors named.

use json_patch::{Patch, PatchErrorKind, PatchOperation};
use serde_json::Value;

use super::PatchError;

/// kube's limit of operations in one patch.
const MAX_OPERATIONS: usize = 10_000;

pub(super) fn apply(target: &mut Value, patch: &Value) -> Result<(), PatchError> {
    check_shape(patch)?;
    // What is left to go wrong is an operation that is none, which is found out when it is applied.
    let patch: Patch =
        serde_json::from_value(patch.clone()).map_err(|e| PatchError::Operation(e.to_string()))?;
    if patch.0.len() > MAX_OPERATIONS {
        let found = patch.0.len();
        return Err(PatchError::TooManyOperations { max: MAX_OPERATIONS, found });
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

/// A list of objects, in the words of the decoder.
fn check_shape(patch: &Value) -> Result<(), PatchError> {
    const OPERATION: &str = "handlers.jsonPatchOp";
    let Some(list) = patch.as_array() else {
        let found = crate::golang::kind(patch);
        return Err(PatchError::Malformed(format!(
            "error decoding patch: json: cannot unmarshal {found} into Go value of type []{OPERATION}"
        )));
    };
    match list.iter().find_map(|item| crate::golang::unmarshal_error(item, OPERATION)) {
        Some(error) => Err(PatchError::Malformed(format!("error decoding patch: {error}"))),
        None => Ok(()),
    }
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
