//! Background work of one server: dependents of gone owners, content of namespaces and of
//! definitions that are being deleted, the default account of every namespace.
//!
//! One task follows every change of the workspace and keeps an index of owners. It is the only
//! reader of the index; it changes objects through the store like everybody else, so a conflict
//! means that somebody was faster and that another event is on its way.

mod index;

use std::sync::Arc;

use control_store::{
    Event, EventKind, Key, Object, Precondition, Scope, Snapshot, Watch, WatchError, WriteError,
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::admission::text;
use crate::builtin::NAMESPACE_FINALIZER;
use crate::catalog::{self, CRDS};
use crate::crd::CLEANUP_FINALIZER;
use crate::render::now_rfc3339;
use crate::server::Inner;
use crate::status::ApiError;
use crate::verbs::{self, DeleteOptions, FOREGROUND, ORPHAN};
use index::{Index, Owner};

pub(crate) fn start(inner: &Arc<Inner>) -> Result<JoinHandle<()>, WatchError> {
    let (index, watch) = begin(inner)?;
    Ok(tokio::spawn(run(Arc::clone(inner), index, watch)))
}

fn begin(inner: &Inner) -> Result<(Index, Watch), WatchError> {
    let snapshot = inner.workspace.snapshot();
    let everything = Scope::everything();
    let watch = inner.workspace.watch(everything.clone(), snapshot.revision())?;
    let index = Index::of(snapshot.iter(&everything, None));
    Ok((index, watch))
}

async fn run(inner: Arc<Inner>, mut index: Index, mut watch: Watch) {
    let mut todo: Vec<Key> = index.keys().cloned().collect();
    loop {
        let mut janitor = Janitor { inner: &inner, index: &index };
        for key in std::mem::take(&mut todo) {
            if let Err(error) = janitor.look_at(&key).await {
                tracing::warn!(?key, %error, "background deletion failed; it is tried again with the next change");
            }
        }
        match watch.next().await {
            Ok(events) => {
                for event in &events {
                    follow(&inner, &mut index, event, &mut todo);
                }
                todo.sort();
                todo.dedup();
            }
            Err(WatchError::Closed) => return,
            // Slower than the log is long: start over from the present.
            Err(WatchError::Expired { .. }) => match begin(&inner) {
                Ok((fresh, from)) => {
                    (index, watch) = (fresh, from);
                    todo = index.keys().cloned().collect();
                }
                Err(_) => return,
            },
        }
    }
}

/// Brings the index up to date and notes which objects a change may concern.
fn follow(inner: &Inner, index: &mut Index, event: &Event, todo: &mut Vec<Key>) {
    let object = &event.object;
    let key = &object.key;
    if (key.group(), key.resource()) == CRDS {
        inner.reload_catalog();
    }
    let uid = text(&object.value, "/metadata/uid");
    if event.kind == EventKind::Deleted {
        index.remove(key);
        todo.extend(index.dependents(uid).cloned());
        // What waits for this object's end: its owners (foreground), namespace, definition.
        todo.extend(index.owners_in_store(&object.value));
        if !key.namespace().is_empty() {
            todo.push(Key::new("", "namespaces", "", key.namespace()));
        }
        todo.push(Key::new(CRDS.0, CRDS.1, "", &format!("{}.{}", key.resource(), key.group())));
    } else {
        index.insert(object);
        if interesting(&object.value) || (is_namespace(key) && event.kind == EventKind::Added) {
            todo.push(key.clone());
        }
    }
}

/// Only objects with owners or with a deletion under way need a look.
fn interesting(value: &Value) -> bool {
    !text(value, "/metadata/deletionTimestamp").is_empty()
        || value.pointer("/metadata/ownerReferences").is_some()
}

fn is_namespace(key: &Key) -> bool {
    (key.group(), key.resource()) == ("", "namespaces")
}

struct Janitor<'a> {
    inner: &'a Inner,
    index: &'a Index,
}

impl Janitor<'_> {
    async fn look_at(&mut self, key: &Key) -> Result<(), ApiError> {
        let Some(object) = self.inner.workspace.latest(key) else { return Ok(()) };
        if !interesting(&object.value) {
            if is_namespace(key) {
                return self.give_account(key.name()).await;
            }
            return Ok(());
        }
        if !text(&object.value, "/metadata/deletionTimestamp").is_empty() {
            self.finalize(&object).await?;
        }
        self.check_owners(&object).await
    }

    /// Every namespace has an account for those who name none.
    async fn give_account(&self, namespace: &str) -> Result<(), ApiError> {
        let key = Key::new("", "serviceaccounts", namespace, "default");
        if self.inner.workspace.latest(&key).is_some() {
            return Ok(());
        }
        let value = json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {
                "name": "default", "namespace": namespace,
                "uid": uuid::Uuid::new_v4().to_string(), "creationTimestamp": now_rfc3339(),
            },
        });
        match self.inner.workspace.put(key, value, Precondition::Absent).await {
            Ok(_) | Err(WriteError::AlreadyExists { .. }) => Ok(()),
            Err(error) => Err(ApiError::of_write(error, "serviceaccounts", "default")),
        }
    }

    /// Does the part of a deletion that the server itself owes.
    async fn finalize(&self, object: &Object) -> Result<(), ApiError> {
        let finalizers = finalizers(&object.value);
        if finalizers.contains(&ORPHAN) {
            return self.orphan(object).await;
        }
        if finalizers.contains(&FOREGROUND) {
            return self.foreground(object).await;
        }
        let key = &object.key;
        if is_namespace(key) {
            return self.empty_namespace(object).await;
        }
        if (key.group(), key.resource()) == CRDS && finalizers.contains(&CLEANUP_FINALIZER) {
            return self.empty_definition(object).await;
        }
        if verbs::is_finalized(&object.value) {
            return self.write(object, object.value.clone()).await;
        }
        Ok(())
    }

    /// Dependents lose their reference to the owner, then the owner its finalizer.
    async fn orphan(&self, owner: &Object) -> Result<(), ApiError> {
        let uid = text(&owner.value, "/metadata/uid");
        for key in self.index.dependents(uid) {
            if let Some(dependent) = self.inner.workspace.latest(key) {
                self.write(&dependent, without_owners(&dependent.value, &[uid])).await?;
            }
        }
        self.write(owner, without_finalizer(&owner.value, ORPHAN)).await
    }

    /// The owner stays until the dependents that block it are gone.
    async fn foreground(&self, owner: &Object) -> Result<(), ApiError> {
        let uid = text(&owner.value, "/metadata/uid");
        let mut blocked = false;
        for key in self.index.dependents(uid) {
            let Some(dependent) = self.inner.workspace.latest(key) else { continue };
            blocked |= index::owners(&dependent.value).any(|o| o.uid == uid && o.blocks);
            if text(&dependent.value, "/metadata/deletionTimestamp").is_empty() {
                self.delete(&dependent, &DeleteOptions::foreground()).await?;
            }
        }
        let left = self.index.dependents(uid).any(|k| self.inner.workspace.latest(k).is_some());
        if blocked && left {
            return Ok(());
        }
        self.write(owner, without_finalizer(&owner.value, FOREGROUND)).await
    }

    async fn empty_namespace(&self, namespace: &Object) -> Result<(), ApiError> {
        let name = namespace.key.name();
        let catalog = self.inner.catalog.load_full();
        let snapshot = self.inner.workspace.snapshot();
        let mut left = 0;
        for resource in catalog.stored_kinds().filter(|r| r.namespaced()) {
            left += self.empty(&snapshot, &catalog::scope(resource, Some(name))).await?;
        }
        if left > 0 {
            return Ok(());
        }
        let mut new = namespace.value.clone();
        if let Some(list) = new.pointer_mut("/spec/finalizers").and_then(Value::as_array_mut) {
            list.retain(|f| f != NAMESPACE_FINALIZER);
        }
        self.write(namespace, new).await
    }

    async fn empty_definition(&self, crd: &Object) -> Result<(), ApiError> {
        let group = text(&crd.value, "/spec/group");
        let plural = text(&crd.value, "/spec/names/plural");
        let snapshot = self.inner.workspace.snapshot();
        if self.empty(&snapshot, &Scope::resource(group, plural, None)).await? > 0 {
            return Ok(());
        }
        self.write(crd, without_finalizer(&crd.value, CLEANUP_FINALIZER)).await
    }

    /// Deletes what is in a scope; returns how many objects still wait for finalizers.
    async fn empty(&self, snapshot: &Snapshot, scope: &Scope) -> Result<usize, ApiError> {
        let mut left = 0;
        for object in snapshot.iter(scope, None) {
            self.delete(object, &DeleteOptions::default()).await?;
            left += usize::from(self.inner.workspace.latest(&object.key).is_some());
        }
        Ok(left)
    }

    /// Deletes an object whose owners are all gone; drops references to gone owners otherwise.
    async fn check_owners(&self, object: &Object) -> Result<(), ApiError> {
        let mut gone = Vec::new();
        let mut present = 0;
        let mut cascading = 0;
        for owner in index::owners(&object.value) {
            match self.state_of(&owner, &object.key) {
                OwnerState::Gone => gone.push(owner.uid),
                OwnerState::Deleting if owner.blocks => cascading += 1,
                OwnerState::Deleting | OwnerState::Present => present += 1,
            }
        }
        if gone.is_empty() {
            return Ok(());
        }
        if present + cascading == 0 {
            return self.delete(object, &DeleteOptions::default()).await;
        }
        self.write(object, without_owners(&object.value, &gone)).await
    }

    fn state_of(&self, owner: &Owner<'_>, dependent: &Key) -> OwnerState {
        let catalog = self.inner.catalog.load();
        let group = owner.api_version.split_once('/').map_or("", |(group, _)| group);
        // A kind that is not served may come back; nothing is deleted on such a doubt.
        let Some(resource) = catalog.find_kind(group, owner.kind) else {
            return OwnerState::Present;
        };
        let namespace = resource.namespaced().then(|| dependent.namespace());
        let key = catalog::key(&resource, namespace, owner.name);
        match self.inner.workspace.latest(&key) {
            Some(found) if text(&found.value, "/metadata/uid") == owner.uid => {
                if finalizers(&found.value).contains(&FOREGROUND) {
                    OwnerState::Deleting
                } else {
                    OwnerState::Present
                }
            }
            _ => OwnerState::Gone,
        }
    }

    async fn delete(&self, object: &Object, options: &DeleteOptions) -> Result<(), ApiError> {
        let catalog = self.inner.catalog.load_full();
        let key = &object.key;
        let resource = catalog
            .stored_kinds()
            .find(|r| catalog::storage_group(r) == key.group() && r.plural == key.resource());
        let Some(resource) = resource else { return Ok(()) };
        match verbs::delete_one(self.inner, resource, key, options).await {
            Ok(_) | Err(ApiError::NotFound { .. } | ApiError::Conflict { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn write(&self, old: &Object, new: Value) -> Result<(), ApiError> {
        let outcome: Result<(), WriteError> =
            verbs::replace_if_unchanged(self.inner, old, new).await;
        outcome.map_err(|e| ApiError::of_write(e, old.key.resource(), old.key.name()))
    }
}

enum OwnerState {
    Present,
    Deleting,
    Gone,
}

fn finalizers(value: &Value) -> Vec<&str> {
    let list = value.pointer("/metadata/finalizers").and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str).collect()
}

fn without_finalizer(value: &Value, finalizer: &str) -> Value {
    without(value, "finalizers", |f| f == finalizer)
}

fn without_owners(value: &Value, uids: &[&str]) -> Value {
    without(value, "ownerReferences", |o| uids.contains(&text(o, "/uid")))
}

/// A list of the metadata without some of its entries, and without the list when it is empty then.
fn without(value: &Value, list: &str, gone: impl Fn(&Value) -> bool) -> Value {
    let mut new = value.clone();
    if let Some(metadata) = new.get_mut("metadata").and_then(Value::as_object_mut)
        && let Some(entries) = metadata.get_mut(list).and_then(Value::as_array_mut)
    {
        entries.retain(|entry| !gone(entry));
        if entries.is_empty() {
            metadata.remove(list);
        }
    }
    new
}
