//! Counts of what this node's own code refused, by reason; the kernel and the relay count theirs.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
};

use datapath_relay::Reason;

/// By reason, since the start of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refusals(BTreeMap<&'static str, u64>);

impl Refusals {
    /// One more.
    pub fn count(of: &Mutex<Self>, reason: Reason) {
        Self::count_as(of, reason.as_str());
    }

    /// One more, of a reason that no peer is told.
    pub fn count_as(of: &Mutex<Self>, reason: &'static str) {
        let mut counts = of.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.0.entry(reason).or_default();
        *count = count.saturating_add(1);
    }

    /// All that occurred.
    pub fn snapshot(of: &Mutex<Self>) -> BTreeMap<&'static str, u64> {
        of.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }
}
