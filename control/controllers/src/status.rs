//! Writing status: only what differs, and only over the version it was decided on.

use kube::{
    Api, Resource,
    api::{Patch, PatchParams},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

/// Why a status was not written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StatusError {
    #[error("status of {name} cannot be written as JSON")]
    Encode {
        name: String,
        #[source]
        source: serde_json::Error,
    },
    #[error("status of {name} was not accepted")]
    Write {
        name: String,
        #[source]
        source: Box<kube::Error>,
    },
}

impl StatusError {
    /// Whether the object changed meanwhile (its change wakes us again) or is gone.
    pub(crate) fn is_overtaken(&self) -> bool {
        matches!(self, Self::Write { source, .. } if is_overtaken(source))
    }
}

/// Whether someone else was faster: conflict, gone, or there already.
pub(crate) fn is_overtaken(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(s) if s.code == 404 || s.code == 409)
}

/// Writes `new` over `old`, both the status of `object`. Returns whether anything differed.
pub(crate) async fn write<K, S>(
    api: &Api<K>,
    object: &K,
    old: Option<&S>,
    new: &S,
) -> Result<bool, StatusError>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
    S: Serialize + Sync,
{
    let name = object.meta().name.clone().unwrap_or_default();
    let encode = |source| StatusError::Encode { name: name.clone(), source };
    let old = serde_json::to_value(old).map_err(encode)?;
    let new = serde_json::to_value(new).map_err(encode)?;
    let Some(difference) = difference(&old, &new) else { return Ok(false) };
    let body = json!({
        "metadata": { "resourceVersion": object.meta().resource_version },
        "status": difference,
    });
    api.patch_status(&name, &PatchParams::default(), &Patch::Merge(&body))
        .await
        .map_err(|source| StatusError::Write { name, source: Box::new(source) })?;
    Ok(true)
}

/// The merge patch (RFC 7396) that makes `new` of `old`; none when they are equal.
fn difference(old: &Value, new: &Value) -> Option<Value> {
    if old == new {
        return None;
    }
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        return Some(new.clone());
    };
    let mut patch = Map::new();
    for key in old.keys().filter(|k| !new.contains_key(*k)) {
        patch.insert(key.clone(), Value::Null);
    }
    for (key, value) in new {
        match old.get(key) {
            Some(before) => {
                if let Some(d) = difference(before, value) {
                    patch.insert(key.clone(), d);
                }
            }
            None => {
                patch.insert(key.clone(), value.clone());
            }
        }
    }
    Some(Value::Object(patch))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_holds_what_differs_and_nulls_what_is_gone() {
        let old =
            json!({ "phase": "Failed", "endTime": "x", "tasks": [1], "n": { "a": 1, "b": 2 } });
        let new = json!({ "phase": "Pending", "tasks": [1], "n": { "a": 1 } });
        assert_eq!(
            difference(&old, &new),
            Some(json!({ "phase": "Pending", "endTime": null, "n": { "b": null } }))
        );
        assert_eq!(difference(&new, &new), None);
        assert_eq!(difference(&Value::Null, &new), Some(new));
    }
}
