//! Which objects depend on which owners. Pure.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use control_store::{Key, Object};
use serde_json::Value;

use crate::admission::text;

/// One owner reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner<'a> {
    pub(super) uid: &'a str,
    pub(super) api_version: &'a str,
    pub(super) kind: &'a str,
    pub(super) name: &'a str,
    /// `blockOwnerDeletion`.
    pub(super) blocks: bool,
}

pub(super) fn owners(value: &Value) -> impl Iterator<Item = Owner<'_>> {
    let list = value.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    list.into_iter().flatten().map(|owner| Owner {
        uid: text(owner, "/uid"),
        api_version: text(owner, "/apiVersion"),
        kind: text(owner, "/kind"),
        name: text(owner, "/name"),
        blocks: owner.get("blockOwnerDeletion") == Some(&Value::Bool(true)),
    })
}

/// Owners and their dependents by uid, kept up to date from the log.
#[derive(Debug, Default)]
pub(super) struct Index {
    dependents: HashMap<String, BTreeSet<Key>>,
    owners_of: HashMap<Key, Vec<String>>,
    by_uid: HashMap<String, Key>,
    uid_of: HashMap<Key, String>,
}

impl Index {
    pub(super) fn of<'a>(objects: impl Iterator<Item = &'a Arc<Object>>) -> Self {
        let mut index = Self::default();
        for object in objects {
            index.insert(object);
        }
        index
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.uid_of.keys()
    }

    pub(super) fn insert(&mut self, object: &Object) {
        let key = &object.key;
        self.remove(key);
        let uid = text(&object.value, "/metadata/uid").to_owned();
        self.by_uid.insert(uid.clone(), key.clone());
        self.uid_of.insert(key.clone(), uid);
        let owners: Vec<String> = owners(&object.value).map(|o| o.uid.to_owned()).collect();
        for owner in &owners {
            self.dependents.entry(owner.clone()).or_default().insert(key.clone());
        }
        if !owners.is_empty() {
            self.owners_of.insert(key.clone(), owners);
        }
    }

    pub(super) fn remove(&mut self, key: &Key) {
        for owner in self.owners_of.remove(key).unwrap_or_default() {
            if let Some(set) = self.dependents.get_mut(&owner) {
                set.remove(key);
                if set.is_empty() {
                    self.dependents.remove(&owner);
                }
            }
        }
        if let Some(uid) = self.uid_of.remove(key)
            && self.by_uid.get(&uid) == Some(key)
        {
            self.by_uid.remove(&uid);
        }
    }

    pub(super) fn dependents(&self, uid: &str) -> impl Iterator<Item = &Key> {
        self.dependents.get(uid).into_iter().flatten()
    }

    /// Keys of the owners that exist.
    pub(super) fn owners_in_store(&self, value: &Value) -> Vec<Key> {
        owners(value).filter_map(|o| self.by_uid.get(o.uid).cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_reference_that_is_no_object_is_harmless() {
        let value = serde_json::json!({"metadata": {"ownerReferences": ["x", {"uid": "u"}]}});
        assert_eq!(owners(&value).map(|o| o.uid).collect::<Vec<_>>(), ["", "u"]);
    }
}
