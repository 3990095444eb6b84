use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Mutex,
        atomic::{AtomicU32, AtomicU64},
    },
};

use control_api::ids::{DomainName, NodeRef};
use datapath_wire::frame::side_bit;
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
        refusals_said: crate::pace::LogPace::default(),
        epoch: 1,
        next_flow: AtomicU64::new(1),
        next_wire: AtomicU32::new(1),
    })
}

/// The peer reads nothing.
fn carrier(peer: &NodeRef) -> (Arc<Carrier>, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let near = listener.accept().unwrap().0;
    (Arc::new(Carrier::new(peer, Lane::Interactive, Via::Hub, near)), far)
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
