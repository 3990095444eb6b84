//! What is open at pods, as their nodes report it and other nodes are told: the mirror of listeners. Kept for live sessions only; a
//! node that is not heard of for some seconds is not believed any more.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::body::Body;
use control_api::{
    ids::{DomainName, NodeRef},
    ports::{PodPorts, Ports},
    session::{DomainRoutes, NodeUpdate, RouteUpdate, machine},
};
use futures::TryStreamExt as _;
use http::Request;
use http_body_util::BodyExt as _;
use hyper::client::conn::http2::SendRequest;
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader},
    sync::broadcast,
    time::timeout,
};
use tokio_util::io::StreamReader;

use crate::Hub;

/// A node sends a line every second.
const SILENCE: Duration = Duration::from_secs(3);
/// One line of a report: a pod with every port open, many times over.
const MAX_LINE: u64 = 4 << 20;
/// Before a report that ended is asked for again.
const RETRY: Duration = Duration::from_secs(1);
/// A pod with more open ports than this is not mirrored: connects to it are told the truth by itself, a little later.
const MAX_PORTS: usize = 4096;
/// Changes that a slow node may be behind; then it is told everything again.
const BEHIND: usize = 1024;

type Key = (DomainName, String);

/// Who says something: a node, in one of its sessions. The end of an older session takes nothing from a newer one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Source {
    pub(crate) node: NodeRef,
    pub(crate) session: u64,
}

/// A pod's ports by the word of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Word {
    by: Source,
    ports: Arc<Ports>,
}

/// Something changed at this pod.
#[derive(Clone, Debug)]
pub(crate) struct Changed(pub(crate) Key);

/// What all nodes said. One writer per session.
pub(crate) struct OpenPorts {
    words: Mutex<HashMap<Key, Word>>,
    changes: broadcast::Sender<Changed>,
}

impl Default for OpenPorts {
    fn default() -> Self {
        Self { words: Mutex::default(), changes: broadcast::channel(BEHIND).0 }
    }
}

impl OpenPorts {
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<Changed> {
        self.changes.subscribe()
    }

    /// What is known of a pod, provided that the node where it is said so.
    fn of(&self, key: &Key, node: &NodeRef) -> Option<Arc<Ports>> {
        let words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        words.get(key).filter(|w| w.by.node == *node).map(|w| Arc::clone(&w.ports))
    }

    fn put(&self, by: &Source, pod: PodPorts) {
        let key = (pod.domain, pod.uid);
        let Some(ports) = tidy(pod.ports) else { return self.remove(by, key) };
        let word = Word { by: by.clone(), ports: Arc::new(ports) };
        let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        if words.get(&key) == Some(&word) {
            return;
        }
        words.insert(key.clone(), word);
        drop(words);
        self.tell(key);
    }

    fn remove(&self, by: &Source, key: Key) {
        let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        if words.get(&key).is_some_and(|w| w.by == *by) {
            words.remove(&key);
            drop(words);
            self.tell(key);
        }
    }

    /// Forgets what was said there, but of these pods.
    fn keep_only(&self, by: &Source, keep: &[PodPorts]) {
        let kept = |key: &Key| keep.iter().any(|p| (&p.domain, &p.uid) == (&key.0, &key.1));
        let words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        let gone: Vec<Key> = words
            .iter()
            .filter(|(key, word)| word.by == *by && !kept(key))
            .map(|(key, _)| key.clone())
            .collect();
        drop(words);
        gone.into_iter().for_each(|key| self.remove(by, key));
    }

    /// Nobody listening is no fault.
    fn tell(&self, key: Key) {
        drop(self.changes.send(Changed(key)));
    }
}

/// As [`Ports`] promises, whatever the node sent; `None`: too many.
fn tidy(mut ports: Ports) -> Option<Ports> {
    for list in [&mut ports.tcp, &mut ports.tcp6, &mut ports.udp_vip] {
        list.sort_unstable();
        list.dedup();
        list.retain(|port| *port != 0);
    }
    (ports.tcp.len() + ports.tcp6.len() + ports.udp_vip.len() <= MAX_PORTS).then_some(ports)
}

/// Reads a node's report, again when it ended, until dropped with its session.
pub(crate) async fn collect(hub: &Hub, by: Source, sender: SendRequest<Body>) {
    let words = Said { open: &hub.inner.open_ports, by };
    let _listens = Listens { hub, by: words.by.clone() };
    loop {
        let end = read(hub, &words.by, sender.clone()).await;
        tracing::debug!(node = %words.by.node, ?end, "a report of ports ended");
        words.open.keep_only(&words.by, &[]);
        tokio::time::sleep(RETRY).await;
    }
}

/// What was said in a session goes with it.
struct Said<'a> {
    open: &'a OpenPorts,
    by: Source,
}

impl Drop for Said<'_> {
    fn drop(&mut self) {
        self.open.keep_only(&self.by, &[]);
    }
}

/// As [`Said`], of where the node listens.
struct Listens<'a> {
    hub: &'a Hub,
    by: Source,
}

impl Drop for Listens<'_> {
    fn drop(&mut self) {
        self.hub.inner.addresses.forget(&self.by);
    }
}

async fn read(hub: &Hub, by: &Source, mut sender: SendRequest<Body>) -> Result<(), String> {
    let open = &hub.inner.open_ports;
    let request = Request::get(format!("http://machine{}", machine::REPORT)).body(Body::empty());
    let request = request.map_err(|e| e.to_string())?;
    let answer = timeout(SILENCE, sender.send_request(request)).await;
    let answer = answer.map_err(|_late| "no answer")?.map_err(|e| e.to_string())?;
    if !answer.status().is_success() {
        return Err(format!("answered {}", answer.status()));
    }
    let bytes = answer.into_body().into_data_stream().map_err(std::io::Error::other);
    let mut reader = BufReader::new(StreamReader::new(bytes));
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut limited = (&mut reader).take(MAX_LINE);
        let read = timeout(SILENCE, limited.read_until(b'\n', &mut line)).await;
        if read.map_err(|_late| "silent")?.map_err(|e| e.to_string())? == 0 {
            return Ok(());
        }
        match serde_json::from_slice(&line).map_err(|e| e.to_string())? {
            NodeUpdate::Snapshot { pods, relayed_only } => {
                hub.inner.relayed.say(&by.node, relayed_only);
                open.keep_only(by, &pods);
                pods.into_iter().for_each(|pod| open.put(by, pod));
            }
            NodeUpdate::Pod { pod } => open.put(by, pod),
            NodeUpdate::PodGone { domain, uid } => open.remove(by, (domain, uid)),
            NodeUpdate::Direct { addresses, port } => {
                let seen = hub.inner.sessions.remote_of(&by.node);
                hub.inner.addresses.put(by, addresses, seen, port);
            }
            NodeUpdate::KeepAlive => {}
        }
    }
}

/// What one node has been told of the ports of others.
#[derive(Debug, Default)]
pub(crate) struct Told(BTreeMap<Key, Arc<Ports>>);

impl Told {
    /// The line for one pod, if it is one that `node` may know and has news.
    pub(crate) fn one(
        &mut self,
        hub: &Hub,
        node: &NodeRef,
        view: &[DomainRoutes],
        key: &Key,
    ) -> Option<RouteUpdate> {
        let domain = view.iter().find(|d| d.name == key.0)?;
        let at = domain.members.binary_search_by(|m| m.uid.as_str().cmp(&key.1)).ok()?;
        let member = domain.members.get(at).filter(|m| m.node != *node)?;
        let ports = hub.inner.open_ports.of(key, &member.node);
        self.update(key, ports)
    }

    /// The lines for all pods that `node` may know.
    pub(crate) fn all(
        &mut self,
        hub: &Hub,
        node: &NodeRef,
        view: &[DomainRoutes],
    ) -> Vec<RouteUpdate> {
        let mut lines = Vec::new();
        let mut seen = BTreeSet::new();
        for domain in view {
            for member in domain.members.iter().filter(|m| m.node != *node) {
                let key = (domain.name.clone(), member.uid.clone());
                seen.insert(key.clone());
                let ports = hub.inner.open_ports.of(&key, &member.node);
                lines.extend(self.update(&key, ports));
            }
        }
        let gone: Vec<Key> = self.0.keys().filter(|k| !seen.contains(*k)).cloned().collect();
        lines.extend(gone.into_iter().filter_map(|key| self.update(&key, None)));
        lines
    }

    fn update(&mut self, key: &Key, ports: Option<Arc<Ports>>) -> Option<RouteUpdate> {
        if self.0.get(key) == ports.as_ref() {
            return None;
        }
        match &ports {
            Some(ports) => drop(self.0.insert(key.clone(), Arc::clone(ports))),
            None => drop(self.0.remove(key)),
        }
        let (domain, uid) = key.clone();
        Some(RouteUpdate::Ports { domain, uid, ports: ports.map(Arc::unwrap_or_clone) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(uid: &str, tcp: &[u16]) -> PodPorts {
        let ports = Ports { tcp: tcp.to_vec(), ..Ports::default() };
        PodPorts { domain: "d".parse().unwrap(), uid: uid.to_owned(), ports }
    }

    fn source(node: &str, session: u64) -> Source {
        Source { node: node.parse().unwrap(), session }
    }

    #[test]
    fn a_node_is_believed_of_its_own_pods_until_it_is_gone() {
        let open = OpenPorts::default();
        let mut changes = open.subscribe();
        let (here, other) = (source("a/n1", 1), source("b/n1", 2));
        let key = ("d".parse().unwrap(), "u".to_owned());
        open.put(&here, pod("u", &[80]));
        assert_eq!(open.of(&key, &here.node).unwrap().tcp, [80]);
        assert_eq!(open.of(&key, &other.node), None, "the pod is elsewhere by now");
        open.put(&here, pod("u", &[80]));
        assert_eq!(changes.try_recv().unwrap().0, key);
        assert!(changes.try_recv().is_err(), "nothing new");
        open.remove(&other, key.clone());
        open.keep_only(&other, &[]);
        assert!(open.of(&key, &here.node).is_some());
        open.keep_only(&here, &[pod("v", &[])]);
        assert_eq!(open.of(&key, &here.node), None);
        assert_eq!(changes.try_recv().unwrap().0, key);
    }

    #[test]
    fn the_end_of_an_older_session_takes_nothing_from_the_newer_one() {
        let open = OpenPorts::default();
        let key = ("d".parse().unwrap(), "u".to_owned());
        let (old, new) = (source("a/n1", 1), source("a/n1", 2));
        open.put(&old, pod("u", &[80]));
        open.put(&new, pod("u", &[81]));
        drop(Said { open: &open, by: old });
        assert_eq!(open.of(&key, &new.node).unwrap().tcp, [81]);
        drop(Said { open: &open, by: new.clone() });
        assert_eq!(open.of(&key, &new.node), None);
    }

    #[test]
    fn whatever_a_node_sends_peers_get_a_short_and_tidy_list() {
        let open = OpenPorts::default();
        let (by, key) = (source("a/n1", 1), ("d".parse().unwrap(), "u".to_owned()));
        open.put(&by, pod("u", &[81, 80, 0, 81]));
        assert_eq!(open.of(&key, &by.node).unwrap().tcp, [80, 81]);
        let all: Vec<u16> = (0..=u16::MAX).collect();
        open.put(&by, pod("u", &all));
        assert_eq!(open.of(&key, &by.node), None);
    }
}
