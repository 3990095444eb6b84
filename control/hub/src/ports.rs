//! What is open at pods, as their nodes report it and other nodes are told: the mirror of listeners. Kept for live sessions only; a
//! node that is not heard of for some seconds is not believed any more.

use std::{
    collections::{BTreeMap, HashMap},
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
/// Changes that a slow node may be behind; then it is told everything again.
const BEHIND: usize = 1024;

type Key = (DomainName, String);

/// A pod's ports by the word of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Word {
    node: NodeRef,
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
        words.get(key).filter(|w| w.node == *node).map(|w| Arc::clone(&w.ports))
    }

    fn put(&self, node: &NodeRef, pod: PodPorts) {
        let key = (pod.domain, pod.uid);
        let word = Word { node: node.clone(), ports: Arc::new(pod.ports) };
        let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        if words.get(&key) == Some(&word) {
            return;
        }
        words.insert(key.clone(), word);
        drop(words);
        self.tell(key);
    }

    fn remove(&self, node: &NodeRef, key: Key) {
        let mut words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        if words.get(&key).is_some_and(|w| w.node == *node) {
            words.remove(&key);
            drop(words);
            self.tell(key);
        }
    }

    /// Forgets what a node said, but of these pods.
    fn keep_only(&self, node: &NodeRef, keep: &[PodPorts]) {
        let kept = |key: &Key| keep.iter().any(|p| (&p.domain, &p.uid) == (&key.0, &key.1));
        let words = self.words.lock().unwrap_or_else(PoisonError::into_inner);
        let gone: Vec<Key> = words
            .iter()
            .filter(|(key, word)| word.node == *node && !kept(key))
            .map(|(key, _)| key.clone())
            .collect();
        drop(words);
        gone.into_iter().for_each(|key| self.remove(node, key));
    }

    /// Nobody listening is no fault.
    fn tell(&self, key: Key) {
        drop(self.changes.send(Changed(key)));
    }
}

/// Reads a node's report until its session ends.
pub(crate) async fn collect(hub: &Hub, node: &NodeRef, sender: SendRequest<Body>) {
    let open = &hub.inner.open_ports;
    let _forget = Forget { open, node };
    match read(open, node, sender).await {
        Ok(()) => tracing::debug!(%node, "the report of ports ended"),
        Err(error) => tracing::info!(%node, error, "no report of ports any more"),
    }
    // The session goes on without.
    open.keep_only(node, &[]);
    std::future::pending().await
}

struct Forget<'a> {
    open: &'a OpenPorts,
    node: &'a NodeRef,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        self.open.keep_only(self.node, &[]);
    }
}

async fn read(
    open: &OpenPorts,
    node: &NodeRef,
    mut sender: SendRequest<Body>,
) -> Result<(), String> {
    let request = Request::get(format!("http://machine{}", machine::REPORT)).body(Body::empty());
    let request = request.map_err(|e| e.to_string())?;
    let answer = timeout(SILENCE, sender.send_request(request)).await;
    let answer = answer.map_err(|_late| "no answer")?.map_err(|e| e.to_string())?;
    if !answer.status().is_success() {
        return Err(format!("answered {}", answer.status()));
    }
    let bytes = answer.into_body().into_data_stream().map_err(std::io::Error::other);
    let mut reader = BufReader::new(StreamReader::new(bytes));
    let (mut line, mut silent) = (Vec::new(), false);
    loop {
        line.clear();
        let n = {
            let mut limited = (&mut reader).take(MAX_LINE);
            let mut read = std::pin::pin!(limited.read_until(b'\n', &mut line));
            match timeout(SILENCE, &mut read).await {
                Ok(n) => n,
                Err(_late) => {
                    // It may still come, but what was said counts no longer.
                    open.keep_only(node, &[]);
                    silent = true;
                    read.await
                }
            }
        };
        if n.map_err(|e| e.to_string())? == 0 {
            return Ok(());
        }
        if silent {
            return Err("it was silent".to_owned());
        }
        match serde_json::from_slice(&line).map_err(|e| e.to_string())? {
            NodeUpdate::Snapshot { pods, .. } => {
                open.keep_only(node, &pods);
                pods.into_iter().for_each(|pod| open.put(node, pod));
            }
            NodeUpdate::Pod { pod } => open.put(node, pod),
            NodeUpdate::PodGone { domain, uid } => open.remove(node, (domain, uid)),
            NodeUpdate::Direct { .. } | NodeUpdate::KeepAlive => {}
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
        let mut seen = BTreeMap::new();
        for domain in view {
            for member in domain.members.iter().filter(|m| m.node != *node) {
                let key = (domain.name.clone(), member.uid.clone());
                seen.insert(key.clone(), ());
                let ports = hub.inner.open_ports.of(&key, &member.node);
                lines.extend(self.update(&key, ports));
            }
        }
        let gone: Vec<Key> = self.0.keys().filter(|k| !seen.contains_key(*k)).cloned().collect();
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
        let ports = Ports { tcp: tcp.to_vec(), udp_vip: vec![] };
        PodPorts { domain: "d".parse().unwrap(), uid: uid.to_owned(), ports }
    }

    #[test]
    fn a_node_is_believed_of_its_own_pods_until_it_is_gone() {
        let open = OpenPorts::default();
        let mut changes = open.subscribe();
        let (here, other): (NodeRef, NodeRef) = ("a/n1".parse().unwrap(), "b/n1".parse().unwrap());
        let key = ("d".parse().unwrap(), "u".to_owned());
        open.put(&here, pod("u", &[80]));
        assert_eq!(open.of(&key, &here).unwrap().tcp, [80]);
        assert_eq!(open.of(&key, &other), None, "the pod is elsewhere by now");
        open.put(&here, pod("u", &[80]));
        assert_eq!(changes.try_recv().unwrap().0, key);
        assert!(changes.try_recv().is_err(), "nothing new");
        open.remove(&other, key.clone());
        open.keep_only(&other, &[]);
        assert!(open.of(&key, &here).is_some());
        open.keep_only(&here, &[pod("v", &[])]);
        assert_eq!(open.of(&key, &here), None);
        assert_eq!(changes.try_recv().unwrap().0, key);
    }
}
