//! Feeds the table of virtual networks from the Domain and Pod objects, and runs the hub's watches.

use std::{sync::Arc, time::Duration};

use control_api::{
    labels::SYSTEM_NAMESPACE,
    v1alpha1::{Domain, Pod},
};
use futures::{StreamExt as _, TryStreamExt as _};
use kube::{
    Api,
    runtime::{
        WatchStreamExt as _,
        reflector::{self, Store},
        watcher,
    },
};
use tokio::{sync::Notify, task::JoinSet};
use tokio_util::sync::CancellationToken;

use crate::{Hub, enrol::ensure_namespace, network::Network, standing};

/// Several objects change together (a Job starts); one table serves them all. Short, because pods
/// wait for it before they start.
const SETTLE: Duration = Duration::from_millis(5);
const RETRY: Duration = Duration::from_secs(1);

/// Why the hub cannot follow the objects.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    #[error("the hub cannot create the namespace {SYSTEM_NAMESPACE}")]
    Namespace(#[source] Box<kube::Error>),
    #[error("the hub's watch of {0} ended")]
    Ended(&'static str),
}

pub(crate) async fn run(hub: &Hub, stop: CancellationToken) -> Result<(), WatchError> {
    let client = &hub.inner.client;
    ensure_namespace(client, SYSTEM_NAMESPACE, None)
        .await
        .map_err(|e| WatchError::Namespace(Box::new(e)))?;
    let changed = Arc::new(Notify::new());
    let mut tasks = JoinSet::new();
    let domains = follow::<Domain>(Api::all(client.clone()), "domains", &changed, &mut tasks);
    let pods = follow::<Pod>(Api::all(client.clone()), "pods", &changed, &mut tasks);
    tokio::select! {
        () = stop.cancelled() => Ok(()),
        Some(ended) = tasks.join_next() => Err(WatchError::Ended(ended.unwrap_or("objects"))),
        () = publish(hub, &domains, &pods, &changed) => Ok(()),
        () = standing::follow(hub, client.clone()) => Err(WatchError::Ended("machine records")),
    }
}

/// Keeps a store of all objects of a kind; the watcher itself retries with a back-off.
fn follow<K>(
    api: Api<K>,
    what: &'static str,
    changed: &Arc<Notify>,
    tasks: &mut JoinSet<&'static str>,
) -> Store<K>
where
    K: kube::Resource<DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + serde::de::DeserializeOwned
        + Send
        + Sync
        + 'static,
{
    let (store, writer) = reflector::store();
    let changed = Arc::clone(changed);
    tasks.spawn(async move {
        let events = watcher(api, watcher::Config::default()).default_backoff().reflect(writer);
        let events = events
            .inspect_err(|error| tracing::warn!(%error, what, "watching failed, trying again"));
        events
            .for_each(|_| {
                changed.notify_one();
                std::future::ready(())
            })
            .await;
        what
    });
    store
}

/// Publishes the first table when both stores are complete, and a new one after each change.
async fn publish(hub: &Hub, domains: &Store<Domain>, pods: &Store<Pod>, changed: &Notify) {
    if domains.wait_until_ready().await.is_err() || pods.wait_until_ready().await.is_err() {
        // The writers are gone; `run` reports the watch that ended.
        return std::future::pending().await;
    }
    loop {
        let (all, pods) = (domains.state(), pods.state());
        match hub.inner.domains.ensure(&all).await {
            Ok(cas) => hub.inner.network.publish(Network::build(&all, &pods, &cas)),
            Err(error) => {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(%error, ?cause, "a Domain's authority cannot be had");
                tokio::time::sleep(RETRY).await;
                continue;
            }
        }
        changed.notified().await;
        tokio::time::sleep(SETTLE).await;
    }
}
