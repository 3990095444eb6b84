//! Which machines stand: the index that every call and session of a machine is held against.
//!
//! A certificate lives for days; an administrator who deletes a machine's record means now. The
//! records are watched, so that asking costs a look-up in memory and an answer is as old as the
//! watch's delivery: milliseconds, in one process. One writer: [`follow`], which `Hub::run` runs.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use control_api::{ids::NodeRef, labels::SYSTEM_NAMESPACE, session::MachineRole};
use control_identity::{KeyHash, peer::Peer};
use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client,
    runtime::{WatchStreamExt as _, watcher},
};
use tokio::{sync::watch, time::timeout};

use crate::{
    Hub,
    machines::{self, ROLE_LABEL},
};

/// How long a call may wait for the index: at the start of the server, and for a record that has
/// just been written.
const PATIENCE: Duration = Duration::from_secs(5);

/// The machine behind a certificate, ready to be looked up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    record: String,
    key: String,
    /// `agent site-a/n1`, for messages.
    shown: String,
}

impl Member {
    /// `None` for callers that are no machines: nothing is recorded of them.
    #[must_use]
    pub fn of(peer: &Peer) -> Option<Self> {
        let (role, machine) = peer.machine()?;
        Some(Self::new(role, machine, peer.key))
    }

    pub(crate) fn new(role: MachineRole, machine: &NodeRef, key: KeyHash) -> Self {
        Self {
            record: machines::record_name(role, machine),
            key: key.to_string(),
            shown: format!("{} {machine}", machines::word(role)),
        }
    }

    /// What a caller hears that does not stand.
    #[must_use]
    pub fn removed(&self) -> String {
        format!("{} was removed by an administrator; enrol it again with a join token", self.shown)
    }
}

/// Names of records with the hash of the key that each is for.
type Index = HashMap<String, String>;

/// The index; `None` until the first complete list.
pub(crate) struct Standing(watch::Sender<Option<Index>>);

impl Default for Standing {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

fn holds(index: Option<&Index>, member: &Member) -> bool {
    index.is_some_and(|index| index.get(&member.record) == Some(&member.key))
}

impl Standing {
    /// Waits until the index knows the record of `member`; gives up after a while, which a machine
    /// notices as a refusal that goes away.
    pub(crate) async fn knows(&self, member: &Member) {
        let mut index = self.0.subscribe();
        let known = index.wait_for(|index| holds(index.as_ref(), member));
        if timeout(PATIENCE, known).await.is_err() {
            tracing::warn!(machine = member.shown, "a new record is not seen yet");
        }
    }

    /// Told of changes of who is enrolled.
    pub(crate) fn changes(&self) -> watch::Receiver<impl Sized> {
        self.0.subscribe()
    }

    /// Those of `nodes` that stand, each with the name of its key; `None` before the first list.
    pub(crate) fn keys_of<'a>(
        &self,
        role: MachineRole,
        nodes: impl IntoIterator<Item = &'a NodeRef>,
    ) -> Option<BTreeMap<NodeRef, String>> {
        let index = self.0.borrow();
        let index = index.as_ref()?;
        let key = |node: &NodeRef| index.get(&machines::record_name(role, node)).cloned();
        Some(nodes.into_iter().filter_map(|node| Some((node.clone(), key(node)?))).collect())
    }

    fn put(&self, map: &ConfigMap) {
        let Some((name, key)) = entry(map) else { return };
        self.0.send_if_modified(|index| {
            let Some(index) = index else { return false };
            index.insert(name, key.clone()).is_none_or(|before| before != key)
        });
    }

    fn forget(&self, map: &ConfigMap) {
        let name = map.metadata.name.as_deref().unwrap_or_default();
        self.0.send_if_modified(|index| {
            index.as_mut().is_some_and(|index| index.remove(name).is_some())
        });
    }

    fn replace(&self, fresh: Index) {
        self.0.send_if_modified(|index| {
            let news = index.as_ref() != Some(&fresh);
            *index = Some(fresh);
            news
        });
    }
}

/// A record without a key stands for nobody.
fn entry(map: &ConfigMap) -> Option<(String, String)> {
    Some((map.metadata.name.clone()?, machines::key_of(map)?.to_owned()))
}

impl Hub {
    /// Waits until the records are known, then says whether `member` stands. `false` also when they
    /// cannot be had: who cannot be checked is not let in.
    pub async fn admits(&self, member: &Member) -> bool {
        let mut index = self.inner.standing.0.subscribe();
        let ready = timeout(PATIENCE, index.wait_for(Option::is_some)).await;
        ready.is_ok_and(|index| index.is_ok()) && self.stands(member)
    }

    /// Whether `member` stands now. A look-up.
    #[must_use]
    pub fn stands(&self, member: &Member) -> bool {
        holds(self.inner.standing.0.borrow().as_ref(), member)
    }

    /// Resolves once `member` stands no more. Woken by changes of who is enrolled alone.
    pub async fn removal(&self, member: &Member) {
        let mut index = self.inner.standing.0.subscribe();
        // The sender lives as long as the hub; without it there is nobody to be removed by.
        if index.wait_for(|index| !holds(index.as_ref(), member)).await.is_err() {
            std::future::pending().await
        }
    }
}

/// Follows the records for ever; the watcher retries by itself, and what is known stays in force
/// meanwhile.
pub(crate) async fn follow(hub: &Hub, client: Client) {
    let api: Api<ConfigMap> = Api::namespaced(client, SYSTEM_NAMESPACE);
    let config = watcher::Config::default().labels(ROLE_LABEL);
    let events = watcher(api, config).default_backoff();
    let mut events = std::pin::pin!(events);
    let standing = &hub.inner.standing;
    let mut fresh = Index::new();
    loop {
        match events.try_next().await {
            Ok(Some(watcher::Event::Init)) => fresh.clear(),
            Ok(Some(watcher::Event::InitApply(map))) => fresh.extend(entry(&map)),
            Ok(Some(watcher::Event::InitDone)) => standing.replace(std::mem::take(&mut fresh)),
            Ok(Some(watcher::Event::Apply(map))) => standing.put(&map),
            Ok(Some(watcher::Event::Delete(map))) => standing.forget(&map),
            Ok(None) => return,
            Err(error) => tracing::warn!(%error, "watching machine records failed, trying again"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str, key: &str) -> ConfigMap {
        let mut map = ConfigMap::default();
        map.metadata.name = Some(name.to_owned());
        map.data = Some([("keySha256".to_owned(), key.to_owned())].into());
        map
    }

    #[tokio::test]
    async fn a_member_stands_from_its_record_until_it_is_deleted_or_of_another_key() {
        let standing = Standing::default();
        let member =
            Member { record: "m".to_owned(), key: "k1".to_owned(), shown: "agent a/n".to_owned() };
        let stands = || holds(standing.0.borrow().as_ref(), &member);
        standing.put(&record("m", "k1"));
        assert!(!stands(), "before the first list nobody stands");
        standing.replace(Index::new());
        assert!(!stands());
        standing.put(&record("m", "k1"));
        standing.knows(&member).await;
        assert!(stands());
        let mut woken = standing.0.subscribe();
        woken.mark_unchanged();
        standing.put(&record("m", "k1"));
        assert!(!woken.has_changed().unwrap(), "a renewal wakes nobody");
        standing.put(&record("m", "k2"));
        assert!(!stands(), "the name belongs to another key");
        standing.put(&record("m", "k1"));
        standing.forget(&record("m", ""));
        assert!(!stands());
    }
}
