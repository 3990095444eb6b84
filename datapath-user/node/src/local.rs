//! Relayed flows whose both ends are on this node: two sockets joined, half-close and reset kept.

use std::{
    collections::BTreeMap,
    future::Future,
    net::IpAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Instant,
};

use control_api::{
    events::{Refused, Refuser, What},
    ids::DomainName,
    session::{Flow, FlowState, Protocol, Verdict},
};
use datapath_net::{
    sockets::{Tuning, arm_reset, tune},
    splice::{self, Meter},
};
use datapath_relay::{OpenRequest, Reason};
use tokio::net::TcpStream;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{events::Feed, landing::reset};

/// Distinguishes these ids from the relay's.
const ID_BASE: u64 = 1 << 62;

/// Descriptors of one: two sockets, and a pipe for each direction.
pub const DESCRIPTORS: usize = 6;

/// Living local flows and the tasks that carry them.
#[derive(Clone, Debug, Default)]
pub struct LocalFlows {
    tasks: TaskTracker,
    flows: Arc<Mutex<BTreeMap<u64, Arc<Entry>>>>,
    next: Arc<AtomicU64>,
    feed: Arc<Feed>,
}

#[derive(Debug)]
struct Entry {
    request: OpenRequest,
    started: Instant,
    open: AtomicBool,
    meter: Meter,
    /// A pod of its ends is no member any more.
    gone: CancellationToken,
}

impl LocalFlows {
    /// Tells `feed` of them.
    #[must_use]
    pub fn new(feed: Arc<Feed>) -> Self {
        Self { feed, ..Self::default() }
    }

    /// Carries one flow: `connect` makes the other end, `place` is held as long as it lives. Must be called inside the node's
    /// runtime.
    pub fn spawn<F, C>(
        &self,
        request: OpenRequest,
        stream: TcpStream,
        place: impl Send + 'static,
        connect: C,
    ) where
        C: FnOnce(OpenRequest) -> F + Send + 'static,
        F: Future<Output = Result<std::net::TcpStream, Reason>> + Send,
    {
        let id = ID_BASE | self.next.fetch_add(1, Ordering::Relaxed);
        let entry = Arc::new(Entry {
            request: request.clone(),
            started: Instant::now(),
            open: AtomicBool::new(false),
            meter: Meter::default(),
            gone: CancellationToken::new(),
        });
        let flows = Arc::clone(&self.flows);
        lock(&flows).insert(id, Arc::clone(&entry));
        let feed = Arc::clone(&self.feed);
        self.tasks.spawn(async move {
            match connect(request).await.map(TcpStream::from_std) {
                Ok(Ok(other)) => {
                    entry.open.store(true, Ordering::Relaxed);
                    feed.tell(|| What::Opened(entry.flow(id)));
                    let in_order = tokio::select! {
                        in_order = carry(stream, other, &entry.meter) => in_order,
                        () = entry.gone.cancelled() => false,
                    };
                    feed.tell(|| What::Closed(entry.ended(id, in_order)));
                }
                Ok(Err(e)) => {
                    tracing::warn!(error = %e, "local flow lost");
                    reset(stream);
                }
                // Counted by the delivery.
                Err(reason) => {
                    feed.tell(|| entry.refused(reason));
                    reset(stream);
                }
            }
            lock(&flows).remove(&id);
            drop(place);
        });
    }

    /// Resets the flows from and to a pod that has left its address or Domain.
    pub fn drop_pod(&self, domain: &DomainName, vip: IpAddr) {
        for e in lock(&self.flows).values() {
            let r = &e.request;
            if r.domain == *domain && (r.src.ip() == vip || r.dst.ip() == vip) {
                e.gone.cancel();
            }
        }
    }

    /// As people see them.
    #[must_use]
    pub fn list(&self) -> Vec<Flow> {
        lock(&self.flows).iter().map(|(id, e)| e.flow(*id)).collect()
    }
}

impl Entry {
    fn flow(&self, id: u64) -> Flow {
        let r = &self.request;
        Flow {
            id,
            domain: r.domain.clone(),
            protocol: Protocol::Tcp,
            from_pod: r.from_pod.clone(),
            from: r.src,
            to_pod: r.to_pod.clone(),
            to: r.dst,
            verdict: Verdict::Relay,
            carrier: "local".to_owned(),
            state: match self.open.load(Ordering::Relaxed) {
                false => FlowState::Opening,
                true => FlowState::Open,
            },
            bytes_out: self.meter.a_to_b.load(Ordering::Relaxed),
            bytes_in: self.meter.b_to_a.load(Ordering::Relaxed),
            rtt_us: None,
            retransmits: None,
            lost: 0,
            age_ms: u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX),
            outgoing: true,
            reason: String::new(),
        }
    }

    fn ended(&self, id: u64, in_order: bool) -> Flow {
        let (state, reason) = if in_order {
            (FlowState::Closed, String::new())
        } else {
            (FlowState::Reset, Reason::Reset.as_str().to_owned())
        };
        Flow { state, reason, ..self.flow(id) }
    }

    fn refused(&self, reason: Reason) -> What {
        let r = &self.request;
        What::Refused(Refused {
            domain: r.domain.clone(),
            protocol: Protocol::Tcp,
            from_pod: r.from_pod.clone(),
            from: r.src,
            to_pod: r.to_pod.clone(),
            to: r.dst,
            reason: reason.as_str().to_owned(),
            errno: None,
            by: Refuser::Node,
            pid: None,
        })
    }
}

fn lock<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// False when it was reset.
async fn carry(a: TcpStream, b: TcpStream, meter: &Meter) -> bool {
    for stream in [&a, &b] {
        // Also when it is not carried to its end.
        if let Err(e) = arm_reset(stream).and_then(|()| tune(stream, Tuning::default())) {
            tracing::debug!(error = %e, "local flow without its socket options");
        }
    }
    let joined = splice::join(a, b, meter).await;
    joined.inspect_err(|e| tracing::debug!(error = %e, "local flow reset")).is_ok()
}

#[cfg(test)]
mod tests {
    use std::io;

    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::TcpListener,
    };

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (a, b) = tokio::join!(TcpStream::connect(address), listener.accept());
        (a.unwrap(), b.unwrap().0)
    }

    fn request() -> OpenRequest {
        OpenRequest {
            domain: "d".parse().unwrap(),
            peer: "s/n".parse().unwrap(),
            src: "10.2.0.1:1".parse().unwrap(),
            dst: "10.2.0.2:2".parse().unwrap(),
            from_pod: "a".into(),
            to_pod: "b".into(),
        }
    }

    #[tokio::test]
    async fn a_half_closed_flow_still_answers_and_then_disappears_from_the_list() {
        let flows = LocalFlows::default();
        let ((mut client, landed), (delivered, mut server)) = (pair().await, pair().await);
        let other = delivered.into_std().unwrap();
        flows.spawn(request(), landed, (), |_| async move { Ok(other) });
        client.write_all(b"question").await.unwrap();
        client.shutdown().await.unwrap();
        let mut got = String::new();
        server.read_to_string(&mut got).await.unwrap();
        assert_eq!(got, "question");
        assert_eq!(flows.list().first().unwrap().bytes_out, 8);
        server.write_all(b"answer").await.unwrap();
        drop(server);
        let mut got = String::new();
        client.read_to_string(&mut got).await.unwrap();
        assert_eq!(got, "answer");
        flows.tasks.close();
        flows.tasks.wait().await;
        assert!(flows.list().is_empty());
    }

    #[tokio::test]
    async fn a_reset_crosses_as_a_reset() {
        let flows = LocalFlows::default();
        let ((mut client, landed), (delivered, server)) = (pair().await, pair().await);
        let other = delivered.into_std().unwrap();
        flows.spawn(request(), landed, (), |_| async move { Ok(other) });
        reset(server);
        let e = client.read_u8().await.unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::ConnectionReset);
    }

    #[tokio::test]
    async fn flows_of_a_pod_that_left_its_address_are_reset_at_both_ends() {
        let flows = LocalFlows::default();
        let ((mut client, landed), (delivered, mut server)) = (pair().await, pair().await);
        let other = delivered.into_std().unwrap();
        flows.spawn(request(), landed, (), |_| async move { Ok(other) });
        client.write_all(b"q").await.unwrap();
        assert_eq!(server.read_u8().await.unwrap(), b'q');
        let (domain, another) = ("d".parse().unwrap(), "e".parse().unwrap());
        flows.drop_pod(&another, [10, 2, 0, 2].into());
        flows.drop_pod(&domain, [10, 2, 0, 3].into());
        client.write_all(b"r").await.unwrap();
        assert_eq!(server.read_u8().await.unwrap(), b'r');
        flows.drop_pod(&domain, [10, 2, 0, 2].into());
        for end in [&mut client, &mut server] {
            let e = end.read_u8().await.unwrap_err();
            assert_eq!(e.kind(), io::ErrorKind::ConnectionReset);
        }
    }

    #[tokio::test]
    async fn a_refused_flow_is_reset() {
        let flows = LocalFlows::default();
        let (mut client, landed) = pair().await;
        flows.spawn(request(), landed, (), |_| async { Err(Reason::Refused) });
        let e = client.read_u8().await.unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::ConnectionReset);
    }
}
