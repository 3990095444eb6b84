use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Mutex,
        atomic::{AtomicU32, AtomicU64},
    },
};

use control_api::ids::{DomainName, NodeRef};
use datapath_wire::{
    Decoder,
    frame::{LISTENERS, side_bit},
};
use tokio_util::task::TaskTracker;

use super::*;
use crate::{
    api::{BoxFuture, Deliver, Lane, Path, Paths, RelayConfig, Via},
    shared::{LaneThread, LinkKey, Tally},
};

/// A target that does not answer, and no way to anybody.
struct Nobody;

impl Deliver for Nobody {
    fn deliver<'a>(
        &'a self,
        _: &'a DomainName,
        _: &'a NodeRef,
        _: SocketAddr,
        _: SocketAddr,
    ) -> BoxFuture<'a, Result<TcpStream, Reason>> {
        Box::pin(std::future::pending())
    }
}

impl Paths for Nobody {
    fn dial<'a>(
        &'a self,
        _: &'a DomainName,
        _: &'a NodeRef,
        _: Lane,
    ) -> BoxFuture<'a, std::io::Result<Path>> {
        Box::pin(async { Err(std::io::ErrorKind::NetworkUnreachable.into()) })
    }
}

fn shared(me: &NodeRef) -> Arc<Shared> {
    let lane =
        || LaneThread { handle: tokio::runtime::Handle::current(), tasks: TaskTracker::new() };
    Arc::new(Shared {
        config: RelayConfig::new(me.clone()),
        deliver: Arc::new(Nobody),
        paths: Arc::new(Nobody),
        interactive: lane(),
        bulk: lane(),
        identities: Mutex::default(),
        links: Mutex::default(),
        tally: Tally::default(),
        history: Mutex::default(),
        limits: crate::shared::Limits::default(),
        listeners: Default::default(),
        refusals_said: datapath_net::pace::LogPace::default(),
        epoch: 1,
        next_flow: AtomicU64::new(1),
        next_wire: AtomicU32::new(1),
    })
}

/// The peer reads nothing.
fn carrier(peer: &NodeRef) -> (Arc<Carrier>, TcpStream) {
    carrier_by(peer, Via::Hub)
}

fn carrier_by(peer: &NodeRef, via: Via) -> (Arc<Carrier>, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let near = listener.accept().unwrap().0;
    (Arc::new(Carrier::new(peer, Lane::Interactive, via, near)), far)
}

struct Peers {
    shared: Arc<Shared>,
    link: Arc<Link>,
    peer: NodeRef,
}

impl Peers {
    fn new() -> Self {
        let (me, peer): (NodeRef, NodeRef) = ("west/b".parse().unwrap(), "east/a".parse().unwrap());
        let key = LinkKey { domain: "d".parse().unwrap(), peer: peer.clone() };
        Self { shared: shared(&me), link: Arc::new(Link::new(key, &me)), peer }
    }

    /// The peer opens its `n`th flow.
    fn open(&self, c: &Arc<Carrier>, n: u32, generation: u32) -> u32 {
        let open = Open {
            generation,
            credit: 1 << 20,
            src: ([10, 0, 0, 1], 1).into(),
            dst: ([10, 0, 0, 2], 2).into(),
        };
        let flow = n | side_bit("east/a", "west/b");
        self.link.frame(&self.shared, c, Frame::Open { flow, open, first: &[] });
        flow
    }
}

#[tokio::test]
async fn a_lane_without_a_carrier_gets_the_other_lanes_best_and_not_its_spare() {
    let p = Peers::new();
    let ((hub, _far), (direct, _far2)) = (carrier(&p.peer), carrier_by(&p.peer, Via::Direct));
    for c in [&direct, &hub] {
        p.link.ready(&p.shared, c, 1);
    }
    let got = p.link.any_carrier(Lane::Bulk).unwrap();
    assert!(Arc::ptr_eq(&got, &direct) && hub.spare.load(Relaxed));
}

async fn sent(c: &Carrier) -> Vec<u8> {
    let mut linger = crate::queue::Linger::new();
    let next = c.queue.next(&mut linger);
    let limit = std::time::Duration::from_secs(1);
    tokio::time::timeout(limit, next).await.unwrap().unwrap().to_vec()
}

#[tokio::test]
async fn a_flow_that_comes_to_a_carrier_which_is_not_listed_learns_of_its_end() {
    let p = Peers::new();
    let (c, _far) = carrier(&p.peer);
    let flow = p.link.flow(p.open(&c, 7, 0)).unwrap();
    assert!(flow.need().is_none());
    c.kill();
    p.link.lost(&p.shared, &c, "disconnected");
    assert!(flow.need().is_some(), "it waits for another");
}

#[tokio::test]
async fn who_resumes_a_flow_that_was_reset_here_is_told_so() {
    let p = Peers::new();
    let ((old, _far), (new, _far2)) = (carrier(&p.peer), carrier(&p.peer));
    let id = p.open(&old, 7, 0);
    let flow = p.link.flow(id).unwrap();
    p.link.lost(&p.shared, &old, "disconnected");
    flow.reset(Reason::Limit);
    let resume = Frame::Resume { flow: id, generation: 1, received: 0, limit: 1 << 20 };
    p.link.frame(&p.shared, &new, resume);
    assert_eq!(
        sent(&new).await,
        Frame::Rst { flow: id, reason: Reason::Limit, after: 0 }.to_bytes()
    );
    assert!(new.queue.is_empty());
    assert_eq!(new.flows.load(Relaxed), 0);
}

#[tokio::test]
async fn a_refused_open_that_comes_again_elsewhere_stays_refused() {
    let mut p = Peers::new();
    let most = p.shared.config.flows_per_pod;
    Arc::get_mut(&mut p.shared).unwrap().config.flows_per_pod = 0;
    let ((first, _far), (second, _far2)) = (carrier(&p.peer), carrier(&p.peer));
    let id = p.open(&first, 7, 1);
    assert_eq!(sent(&first).await, Frame::Reject { flow: id, reason: Reason::Limit }.to_bytes());
    Arc::get_mut(&mut p.shared).unwrap().config.flows_per_pod = most;
    p.open(&second, 7, 0);
    let gone = Frame::Rst { flow: id, reason: Reason::PeerGone, after: 0 };
    assert_eq!(sent(&second).await, gone.to_bytes());
    assert!(p.link.flow(id).is_none());
}

#[tokio::test]
async fn a_reset_that_overtook_bytes_on_another_carrier_waits_for_them() {
    let p = Peers::new();
    let ((old, _far), (new, _far2)) = (carrier(&p.peer), carrier(&p.peer));
    let id = p.open(&old, 7, 0);
    let flow = p.link.flow(id).unwrap();
    let rst = |reason| Frame::Rst { flow: id, reason, after: 5 };
    p.link.frame(&p.shared, &new, rst(Reason::Reset));
    assert_eq!(flow.reset_due(), None);
    // Nor does one that knows less about it end the flow.
    p.link.frame(&p.shared, &old, Frame::Rst { flow: id, reason: Reason::PeerGone, after: 0 });
    assert_eq!(flow.reset_due(), None);
    p.link.frame(&p.shared, &old, Frame::Data { flow: id, offset: 0, bytes: b"bytes" });
    assert_eq!(flow.reset_due(), Some(Reason::Reset));
    assert_eq!(flow.waiting().concat(), b"bytes", "for a target that is still being connected to");
}

#[tokio::test(start_paused = true)]
async fn a_reset_waits_for_lost_bytes_a_moment_only() {
    let p = Peers::new();
    let (c, _far) = carrier(&p.peer);
    let id = p.open(&c, 7, 0);
    let flow = p.link.flow(id).unwrap();
    p.link.frame(&p.shared, &c, Frame::Rst { flow: id, reason: Reason::Reset, after: u64::MAX });
    assert_eq!(flow.reset_due(), None);
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    assert_eq!(flow.reset_due(), Some(Reason::Reset));
}

#[tokio::test]
async fn single_bytes_that_wait_share_their_memory() {
    let p = Peers::new();
    let (c, _far) = carrier(&p.peer);
    let id = p.open(&c, 7, 0);
    for offset in 0..20_000_u32 {
        let byte = [u8::try_from(offset % 251).unwrap()];
        let data = Frame::Data { flow: id, offset: offset.into(), bytes: &byte };
        p.link.frame(&p.shared, &c, data);
    }
    let flow = p.link.flow(id).unwrap();
    let pieces = flow.waiting();
    assert!(pieces.len() <= 5, "{} pieces", pieces.len());
    let all: Vec<u8> = pieces.into_iter().flatten().collect();
    assert!((0..20_000).map(|n| u8::try_from(n % 251).unwrap()).eq(all));
}

#[tokio::test]
async fn an_open_that_its_repetition_overtook_still_gives_its_first_bytes() {
    let (me, peer): (NodeRef, NodeRef) = ("west/b".parse().unwrap(), "east/a".parse().unwrap());
    let shared = shared(&me);
    let key = LinkKey { domain: "d".parse().unwrap(), peer: peer.clone() };
    let link = Arc::new(Link::new(key, &me));
    let ((old, _far), (new, _far2)) = (carrier(&peer), carrier(&peer));
    let id = 7 | side_bit("east/a", "west/b");
    let open = |generation| Open {
        generation,
        credit: 1 << 20,
        src: ([10, 0, 0, 1], 1).into(),
        dst: ([10, 0, 0, 2], 2).into(),
    };
    link.frame(&shared, &new, Frame::Open { flow: id, open: open(1), first: &[] });
    link.frame(&shared, &old, Frame::Open { flow: id, open: open(0), first: b"first" });
    link.frame(&shared, &old, Frame::Data { flow: id, offset: 5, bytes: b"second" });
    link.frame(&shared, &new, Frame::Data { flow: id, offset: 0, bytes: b"firstsecondthird" });
    let flow = link.flow(id).unwrap();
    let stats = flow.stats(&link);
    assert_eq!((stats.reason, stats.bytes_out), (None, 16));
    assert!(Arc::ptr_eq(&link.flow(id).unwrap(), &flow) && !new.is_dead() && !old.is_dead());
}

/// The peer was faster, and something has just begun to listen here.
#[tokio::test]
async fn hello_leaves_before_what_overtakes_everything() {
    let (me, peer): (NodeRef, NodeRef) = ("s1/a".parse().unwrap(), "s2/b".parse().unwrap());
    let shared = shared(&me);
    let (carrier, _far) = carrier(&peer);
    crate::ssh::hello(&shared, &carrier);
    carrier.greeted(LISTENERS);
    let at = ([10, 98, 0, 1], 40_123).into();
    carrier.ping();
    carrier.tell_listening(crate::api::Listening { sequence: 1, at, open: true });
    let (mut decoder, mut linger) = (Decoder::new(), crate::queue::Linger::new());
    let mut kinds = Vec::new();
    while !carrier.queue.is_empty() {
        let bytes = carrier.queue.next(&mut linger).await.unwrap();
        let kind = |frame: Frame<'_>| match frame {
            Frame::Hello(_) => "hello",
            Frame::Listening { .. } => "listening",
            _ => "other",
        };
        decoder.feed(&bytes, |frame| kinds.push(kind(frame))).unwrap();
    }
    assert_eq!(kinds, ["hello", "listening", "other"]);
}
