//! What reconcilers share.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use control_api::v1alpha1::{Domain, DomainPeer, Job, Node, Pod, Task, Workflow};
use k8s_openapi::{
    api::coordination::v1::Lease,
    apimachinery::pkg::apis::meta::v1::{MicroTime, Time},
    jiff::Timestamp,
};
use kube::runtime::reflector::Store;

use crate::{Config, notes::Notes};

/// Read side of the caches.
#[derive(Clone)]
pub(crate) struct Stores {
    pub(crate) domains: Store<Domain>,
    pub(crate) peers: Store<DomainPeer>,
    pub(crate) nodes: Store<Node>,
    pub(crate) jobs: Store<Job>,
    pub(crate) tasks: Store<Task>,
    pub(crate) workflows: Store<Workflow>,
    pub(crate) pods: Store<Pod>,
    pub(crate) leases: Store<Lease>,
}

pub(crate) struct Context {
    pub(crate) client: kube::Client,
    pub(crate) stores: Stores,
    pub(crate) notes: Notes,
    pub(crate) config: Config,
    heartbeats: Heartbeats,
}

impl Context {
    pub(crate) fn new(client: kube::Client, stores: Stores, config: Config) -> Self {
        let notes = Notes::new(client.clone());
        Self { client, stores, notes, config, heartbeats: Heartbeats::default() }
    }

    /// How long ago the Lease of a Node was last seen to change; none without a Lease.
    pub(crate) fn heartbeat_age(
        &self,
        namespace: &str,
        node: &str,
        lease: Option<&Lease>,
    ) -> Option<Duration> {
        self.heartbeats.age(&format!("{namespace}/{node}"), lease, Instant::now())
    }
}

/// Now, in whole seconds, as Kubernetes stores times.
pub(crate) fn now() -> Time {
    let now = Timestamp::now();
    Time(Timestamp::from_second(now.as_second()).unwrap_or(now))
}

/// When each Node's Lease was last seen to change, on this machine's own clock.
#[derive(Default)]
struct Heartbeats(Mutex<HashMap<String, (Option<MicroTime>, Instant)>>);

impl Heartbeats {
    fn age(&self, node: &str, lease: Option<&Lease>, now: Instant) -> Option<Duration> {
        let mut seen = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(lease) = lease else {
            seen.remove(node);
            return None;
        };
        let renewed = lease.spec.as_ref().and_then(|s| s.renew_time.clone());
        let entry = seen.entry(node.to_owned()).or_insert_with(|| (renewed.clone(), now));
        if entry.0 != renewed {
            *entry = (renewed, now);
        }
        Some(now.saturating_duration_since(entry.1))
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::coordination::v1::LeaseSpec;

    use super::*;

    fn lease(second: i64) -> Lease {
        Lease {
            spec: Some(LeaseSpec {
                renew_time: Some(MicroTime(Timestamp::from_second(second).unwrap())),
                ..LeaseSpec::default()
            }),
            ..Lease::default()
        }
    }

    #[test]
    fn age_is_counted_from_the_change_and_not_from_the_agents_clock() {
        let h = Heartbeats::default();
        let start = Instant::now();
        let s = Duration::from_secs(1);
        assert_eq!(h.age("a", None, start), None);
        assert_eq!(h.age("a", Some(&lease(1)), start), Some(Duration::ZERO));
        assert_eq!(h.age("a", Some(&lease(1)), start + 30 * s), Some(30 * s));
        assert_eq!(
            h.age("a", Some(&lease(-900)), start + 31 * s),
            Some(Duration::ZERO),
            "any change counts"
        );
    }
}
