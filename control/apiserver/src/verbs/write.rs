//! The last steps every write shares: the namespace must be there, the stored form, the store.

use std::sync::Arc;

use control_store::{Object, Precondition, WriteError};
use serde_json::Value;

use crate::admission::text;
use crate::catalog;
use crate::context::Call;
use crate::convert;
use crate::crd;
use crate::server::Inner;
use crate::status::ApiError;

/// Refuses to create in a namespace that is missing or going.
pub(super) fn check_namespace(call: &Call<'_>, name: &str) -> Result<(), ApiError> {
    let Some(namespace) = call.namespace().filter(|_| call.resource.namespaced()) else {
        return Ok(());
    };
    let key = control_store::Key::new("", "namespaces", "", namespace);
    let Some(object) = call.inner.workspace.latest(&key) else {
        return Err(ApiError::NotFound {
            resource: "namespaces".to_owned(),
            name: namespace.to_owned(),
        });
    };
    if text(&object.value, "/metadata/deletionTimestamp").is_empty() {
        return Ok(());
    }
    Err(ApiError::NamespaceTerminating {
        resource: call.resource.qualified(),
        name: name.to_owned(),
        message: format!(
            "unable to create new content in namespace {namespace} because it is being terminated"
        ),
        namespace: namespace.to_owned(),
    })
}

/// A client's value as it is stored.
pub(super) fn stored_form(call: &Call<'_>, mut value: Value) -> Value {
    if crd::is_definition(&call.resource) && call.subresource().is_none() {
        let inner = call.inner;
        crd::accept_names(&inner.catalog.load(), &inner.workspace.snapshot(), &mut value);
    }
    let catalog = call.inner.catalog.load();
    let version = catalog.storage_api_version(&call.resource);
    let mut stored = convert::stored(&call.resource, &version, value);
    // What another version let through must be readable in the one that is stored.
    if !call.resource.builtin
        && let Some(kept) =
            catalog.storage_version(&call.resource).filter(|r| r.version != call.resource.version)
    {
        kept.schema.prune(&mut stored);
        kept.schema.default(&mut stored);
    }
    stored
}

/// What an update of one object came to.
pub(super) enum Replaced {
    Done(Arc<Object>),
    /// Somebody else wrote since `old` was read.
    Stale,
}

/// Writes the successor of `old`; nothing is written when nothing changed, and an object that was
/// only waiting for its last finalizer goes.
pub(super) async fn replace(
    call: &Call<'_>,
    old: &Arc<Object>,
    new: Value,
) -> Result<Replaced, ApiError> {
    let inner = call.inner;
    let name = call.name();
    if new == old.value && inner.workspace.get(&old.key).is_some_and(|o| o.revision == old.revision)
    {
        return Ok(Replaced::Done(Arc::clone(old)));
    }
    let precondition = Precondition::Revision(old.revision);
    let outcome = if is_finalized(&new) {
        inner.workspace.delete_as(&old.key, new, precondition).await
    } else {
        inner.workspace.put(old.key.clone(), new, precondition).await
    };
    let written = match outcome {
        Ok(object) => object,
        Err(WriteError::Conflict { .. }) => return Ok(Replaced::Stale),
        Err(error) => return Err(ApiError::of_write(error, &call.resource.qualified(), name)),
    };
    if crd::is_definition(&call.resource) {
        inner.reload_catalog();
    }
    Ok(Replaced::Done(written))
}

/// Marked for deletion with nothing left to wait for.
pub(crate) fn is_finalized(value: &Value) -> bool {
    let none =
        |pointer: &str| value.pointer(pointer).and_then(Value::as_array).is_none_or(Vec::is_empty);
    let namespace = text(value, "/kind") == "Namespace" && text(value, "/apiVersion") == "v1";
    !text(value, "/metadata/deletionTimestamp").is_empty()
        && none("/metadata/finalizers")
        && (!namespace || none("/spec/finalizers"))
}

/// For background work: writes `new` over `old` (or deletes, when it is finalized), unless somebody
/// else was faster, who then decides.
pub(crate) async fn replace_if_unchanged(
    inner: &Inner,
    old: &Object,
    new: Value,
) -> Result<(), WriteError> {
    let precondition = Precondition::Revision(old.revision);
    let outcome = if is_finalized(&new) {
        inner.workspace.delete_as(&old.key, new, precondition).await
    } else {
        inner.workspace.put(old.key.clone(), new, precondition).await
    };
    match outcome {
        Ok(_) | Err(WriteError::Conflict { .. } | WriteError::NotFound { .. }) => {}
        Err(error) => return Err(error),
    }
    if (old.key.group(), old.key.resource()) == catalog::CRDS {
        inner.reload_catalog();
    }
    Ok(())
}
