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
        let mut counts = of.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.0.entry(reason.as_str()).or_default();
        *count = count.saturating_add(1);
    }

    /// All that occurred.
    pub fn snapshot(of: &Mutex<Self>) -> BTreeMap<&'static str, u64> {
        of.lock().unwrap_or_else(PoisonError::into_inner).0.clone()
    }
}
