//! The state at one revision.

use std::ops::Bound;
use std::sync::Arc;

use rpds::RedBlackTreeMapSync;

use crate::key::{Key, Scope};
use crate::object::Object;

pub(crate) type State = RedBlackTreeMapSync<Key, Arc<Object>>;

/// An immutable view; cloning copies a pointer.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(crate) revision: u64,
    pub(crate) state: State,
}

/// A part of a list.
#[derive(Debug)]
pub struct Page {
    pub objects: Vec<Arc<Object>>,
    /// Matching objects after this page; zero on the last one.
    pub remaining: usize,
}

impl Snapshot {
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    #[must_use]
    pub fn get(&self, key: &Key) -> Option<Arc<Object>> {
        self.state.get(key).map(Arc::clone)
    }

    /// Objects of `scope` in key order, those after `start_after` when given.
    pub fn iter<'a>(
        &'a self,
        scope: &'a Scope,
        start_after: Option<&'a str>,
    ) -> impl Iterator<Item = &'a Arc<Object>> {
        let lower = match start_after {
            Some(key) if key > scope.start() => Bound::Excluded(key),
            _ => Bound::Included(scope.start()),
        };
        self.state
            .range::<str, _>((lower, Bound::Unbounded))
            .map(|(_, object)| object)
            .take_while(|object| scope.contains(&object.key))
    }

    /// One page of the objects that `keep` accepts; `limit` 0 means all.
    pub fn page(
        &self,
        scope: &Scope,
        start_after: Option<&str>,
        limit: usize,
        mut keep: impl FnMut(&Object) -> bool,
    ) -> Page {
        let mut page = Page { objects: Vec::new(), remaining: 0 };
        for object in self.iter(scope, start_after).filter(|o| keep(o)) {
            if limit != 0 && page.objects.len() >= limit {
                page.remaining += 1;
            } else {
                page.objects.push(Arc::clone(object));
            }
        }
        page
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.state.size()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.state.is_empty()
    }
}
