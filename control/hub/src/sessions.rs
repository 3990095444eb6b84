//! The live sessions, one per machine, and the calls that the hub makes in them.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use axum::body::Body;
use bytes::Bytes;
use control_api::{
    ids::{ClusterId, NodeRef},
    session::{MachineRole, MachineSession, Refusal},
};
use control_identity::{KeyHash, peer::Peer};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use hyper::{
    body::Incoming,
    client::conn::http2::{self, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use serde::{Serialize, de::DeserializeOwned};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::Notify,
    time::timeout,
};
use tokio_util::sync::CancellationToken;

use crate::{Hub, machines::word, ports, push, standing::Member};

const PING_EVERY: Duration = Duration::from_secs(10);
const PING_TIMEOUT: Duration = Duration::from_secs(10);
/// For the head of an answer; streams go on as long as they like.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
const MAX_ANSWER: usize = 64 << 20;

/// Why a session was not taken or ended.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error("{user} has no session: only machines with a certificate in its validity have one")]
    NotAMachine { user: String },
    #[error("{role} {machine} has a session with another key")]
    OtherKey { role: &'static str, machine: NodeRef },
    #[error("machine-removed: {0}")]
    Removed(String),
    #[error("the session of {machine} failed")]
    Http {
        machine: NodeRef,
        #[source]
        source: hyper::Error,
    },
}

/// A call into a session that did not succeed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("{0} is not connected")]
    Offline(String),
    #[error("{machine} did not answer in time")]
    Timeout { machine: NodeRef },
    #[error("the session of {machine} broke")]
    Broken {
        machine: NodeRef,
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    #[error("{machine}: {refusal}")]
    Refused { machine: NodeRef, status: StatusCode, refusal: Refusal },
    #[error("the answer of {machine} is not what it should be")]
    Malformed {
        machine: NodeRef,
        #[source]
        source: serde_json::Error,
    },
}

struct Live {
    id: u64,
    key: KeyHash,
    remote: SocketAddr,
    since: Instant,
    sender: SendRequest<Body>,
    /// Ends the session; used when a newer one of the same machine takes its place.
    close: CancellationToken,
}

/// Registry of live sessions. The newest of a machine wins, provided that it has the same key.
#[derive(Default)]
pub(crate) struct Sessions {
    live: Mutex<HashMap<(MachineRole, NodeRef), Live>>,
    /// A session was opened.
    opened: Notify,
    next: AtomicU64,
}

impl Sessions {
    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<(MachineRole, NodeRef), Live>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the place of an older session of the same key; another key is turned away.
    fn insert(&self, role: MachineRole, machine: &NodeRef, live: Live) -> Result<(), SessionError> {
        let mut all = self.lock();
        if let Some(old) = all.get(&(role, machine.clone())) {
            if old.key != live.key {
                let machine = machine.clone();
                return Err(SessionError::OtherKey { role: word(role), machine });
            }
            old.close.cancel();
        }
        all.insert((role, machine.clone()), live);
        self.opened.notify_waiters();
        Ok(())
    }

    fn remove(&self, role: MachineRole, machine: &NodeRef, id: u64) {
        let mut all = self.lock();
        let key = (role, machine.clone());
        if all.get(&key).is_some_and(|live| live.id == id) {
            all.remove(&key);
        }
    }

    /// All sessions, sorted by machine.
    pub(crate) fn list(&self) -> Vec<MachineSession> {
        let mut list: Vec<_> = self
            .lock()
            .iter()
            .map(|((role, machine), live)| MachineSession {
                role: *role,
                machine: machine.clone(),
                remote: live.remote,
                age_seconds: live.since.elapsed().as_secs(),
            })
            .collect();
        list.sort_by(|a, b| a.machine.cmp(&b.machine).then(word(a.role).cmp(word(b.role))));
        list
    }

    pub(crate) fn nodes(&self) -> Vec<NodeRef> {
        let all = self.lock();
        let nodes = all.keys().filter(|(role, _)| *role == MachineRole::Node);
        let mut nodes: Vec<NodeRef> = nodes.map(|(_, n)| n.clone()).collect();
        nodes.sort();
        nodes
    }

    /// The address that the session of `node` comes from.
    pub(crate) fn remote_of(&self, node: &NodeRef) -> Option<IpAddr> {
        self.lock().get(&(MachineRole::Node, node.clone())).map(|live| live.remote.ip())
    }

    /// Waits until `node` has a session.
    pub(crate) async fn node_opened(&self, node: &NodeRef) {
        loop {
            let opened = self.opened.notified();
            tokio::pin!(opened);
            opened.as_mut().enable();
            if self.node_member(node).is_some() {
                return;
            }
            opened.await;
        }
    }

    /// The data path of `node` as it is connected now.
    pub(crate) fn node_member(&self, node: &NodeRef) -> Option<Member> {
        let key = (MachineRole::Node, node.clone());
        self.lock().get(&key).map(|live| Member::new(MachineRole::Node, node, live.key))
    }

    /// The agent that runs pods on `node` of `cluster`: the one of that machine, else any of the
    /// site (a Kubernetes agent serves all nodes of its cluster).
    pub(crate) fn agent_for(&self, cluster: &ClusterId, node: &str) -> Option<NodeRef> {
        let all = self.lock();
        let mut agents: Vec<&NodeRef> = all
            .keys()
            .filter(|(role, n)| *role == MachineRole::Agent && n.cluster == *cluster)
            .map(|(_, n)| n)
            .collect();
        agents.sort();
        let exact = agents.iter().find(|n| n.node.as_str() == node);
        exact.or_else(|| agents.first()).map(|n| (*n).clone())
    }

    /// A request into a session; the answer's head has arrived, its body may be a stream.
    pub(crate) async fn request(
        &self,
        role: MachineRole,
        machine: &NodeRef,
        method: Method,
        path: &str,
        body: Body,
    ) -> Result<Response<Incoming>, CallError> {
        let sender = {
            let all = self.lock();
            all.get(&(role, machine.clone())).map(|live| live.sender.clone())
        };
        let offline = || CallError::Offline(format!("{} {machine}", word(role)));
        let mut sender = sender.ok_or_else(offline)?;
        let broken = |source: Box<dyn std::error::Error + Send + Sync>| CallError::Broken {
            machine: machine.clone(),
            source,
        };
        let request = Request::builder()
            .method(method)
            .uri(format!("http://machine{path}"))
            .header(http::header::CONTENT_TYPE, "application/json")
            .body(body)
            .map_err(|e| broken(e.into()))?;
        let answer = async {
            sender.ready().await?;
            sender.send_request(request).await
        };
        match timeout(CALL_TIMEOUT, answer).await {
            Ok(Ok(answer)) if answer.status().is_success() => Ok(answer),
            Ok(Ok(answer)) => Err(refused(machine, answer).await),
            Ok(Err(e)) => Err(broken(e.into())),
            Err(_elapsed) => Err(CallError::Timeout { machine: machine.clone() }),
        }
    }

    /// A JSON call to a node.
    pub(crate) async fn call_node<Resp: DeserializeOwned>(
        &self,
        node: &NodeRef,
        method: Method,
        path: &str,
        body: Option<&(impl Serialize + Sync)>,
    ) -> Result<Resp, CallError> {
        let malformed = |source| CallError::Malformed { machine: node.clone(), source };
        let body = match body {
            Some(b) => serde_json::to_vec(b).map_err(malformed)?.into(),
            None => Body::empty(),
        };
        let answer = self.request(MachineRole::Node, node, method, path, body).await?;
        let bytes = collect(node, answer).await?;
        let bytes = if bytes.is_empty() { Bytes::from_static(b"null") } else { bytes };
        serde_json::from_slice(&bytes).map_err(malformed)
    }
}

async fn collect(machine: &NodeRef, answer: Response<Incoming>) -> Result<Bytes, CallError> {
    match timeout(CALL_TIMEOUT, Limited::new(answer.into_body(), MAX_ANSWER).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(source)) => Err(CallError::Broken { machine: machine.clone(), source }),
        Err(_elapsed) => Err(CallError::Timeout { machine: machine.clone() }),
    }
}

async fn refused(machine: &NodeRef, answer: Response<Incoming>) -> CallError {
    let status = answer.status();
    let body = match collect(machine, answer).await {
        Ok(body) => body,
        Err(e) => return e,
    };
    let refusal = serde_json::from_slice(&body).unwrap_or_else(|_| Refusal {
        reason: "unexplained".to_owned(),
        message: format!("answered {status} without an explanation"),
    });
    CallError::Refused { machine: machine.clone(), status, refusal }
}

impl Hub {
    /// Owns one session until it ends: the TLS stream of ALPN `rlark-session/1` that a machine
    /// dialled. Pushes routes into it when the machine is a node.
    pub async fn serve_session<S>(
        &self,
        stream: S,
        peer: Peer,
        remote: SocketAddr,
        stop: CancellationToken,
    ) -> Result<(), SessionError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let not_a_machine = || SessionError::NotAMachine { user: peer.principal.user() };
        if peer.expired(std::time::SystemTime::now()) {
            return Err(not_a_machine());
        }
        let (role, machine) = peer.machine().ok_or_else(not_a_machine)?;
        let member = Member::of(&peer).ok_or_else(not_a_machine)?;
        if !self.admits(&member).await {
            return Err(SessionError::Removed(member.removed()));
        }
        let http = |source| SessionError::Http { machine: machine.clone(), source };
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .keep_alive_interval(PING_EVERY)
            .keep_alive_timeout(PING_TIMEOUT)
            .keep_alive_while_idle(true)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(http)?;
        let close = CancellationToken::new();
        let id = self.inner.sessions.next.fetch_add(1, Ordering::Relaxed);
        let live = Live {
            id,
            key: peer.key,
            remote,
            since: Instant::now(),
            sender: sender.clone(),
            close: close.clone(),
        };
        self.inner.sessions.insert(role, machine, live)?;
        tracing::info!(role = word(role), %machine, %remote, "session opened");
        let source = ports::Source { node: machine.clone(), session: id };
        let pushing = async {
            match role {
                MachineRole::Node => tokio::select! {
                    () = push::routes(self, machine, sender.clone()) => {}
                    () = ports::collect(self, source, sender) => {}
                },
                MachineRole::Agent => std::future::pending().await,
            }
        };
        let end = tokio::select! {
            end = connection => end.map_err(http),
            () = pushing => Ok(()),
            () = close.cancelled() => Ok(()),
            () = self.removal(&member) => Err(SessionError::Removed(member.removed())),
            () = stop.cancelled() => Ok(()),
        };
        self.inner.sessions.remove(role, machine, id);
        tracing::info!(role = word(role), %machine, "session closed");
        end
    }
}
