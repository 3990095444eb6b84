//! What this node tells the hub of its pods' ports, as it changes; the hub tells the Domain's other nodes.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::body::Bytes;
use control_api::{
    ids::DomainName,
    ports::{PodPorts, Ports},
    session::NodeUpdate,
};
use futures::{Stream, StreamExt as _};
use tokio::sync::watch;

use crate::{
    keeper::{Keeper, LocalPod, View},
    kernel::{ANY_V6_ONLY, Changed, Kernel, Socket},
    plan::desired::Face,
};

const KEEP_ALIVE: Duration = Duration::from_secs(1);

/// By Domain and uid.
pub type Open = BTreeMap<(DomainName, String), Ports>;

/// Follows the hooks and the pods and publishes what is open, until dropped. `tell` tells peers of new listeners; what waits to be
/// sent does it itself, so this matters where nothing is.
pub async fn follow(
    kernel: Arc<dyn Kernel>,
    keeper: Keeper,
    publish: watch::Sender<Arc<Open>>,
    tell: impl Fn(),
) {
    let mut view = keeper.watch();
    // Without events the lists would be wrong as soon as a socket comes: then nothing is said, and nobody is refused for it. The
    // report goes on: it has more to say.
    let Some(mut changes) = kernel.changes() else { return publish.closed().await };
    let mut sockets: BTreeSet<Socket> = kernel.sockets().into_iter().collect();
    loop {
        let pods = Arc::clone(&view.borrow_and_update());
        let open = Arc::new(open(pods.pods.values().map(Arc::as_ref), &sockets));
        publish.send_if_modified(|old| {
            let news = **old != *open;
            *old = open;
            news
        });
        tokio::select! {
            changed = view.changed() => {
                if changed.is_err() { return }
                // A pod that comes brings sockets that are older than its entry.
                sockets = kernel.sockets().into_iter().collect();
            }
            changed = changes.next() => {
                tell();
                match changed {
                    Some(Changed::Socket(s)) if kernel.is_open(&s) => drop(sockets.insert(s)),
                    Some(Changed::Socket(s)) => drop(sockets.remove(&s)),
                    Some(Changed::All) => sockets = kernel.sockets().into_iter().collect(),
                    None => return,
                }
            }
        }
    }
}

/// What peers can reach of these pods.
fn open<'a>(pods: impl Iterator<Item = &'a LocalPod>, sockets: &BTreeSet<Socket>) -> Open {
    let of = |pod: &LocalPod| {
        let faces = &pod.join.pod.faces;
        let (mut tcp, mut tcp6, mut udp) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for s in sockets.iter().filter(|s| s.cookie == pod.join.cookie) {
            if s.udp {
                udp.insert(s.at.port());
                continue;
            }
            for face in faces.iter().filter(|face| leads_to(face, s.at.ip())) {
                let of_family = if face.vip.is_ipv4() { &mut tcp } else { &mut tcp6 };
                of_family.insert(s.at.port());
            }
        }
        let list = |ports: BTreeSet<u16>| ports.into_iter().collect();
        Ports { tcp: list(tcp), tcp6: list(tcp6), udp_vip: list(udp) }
    };
    pods.map(|pod| ((pod.attached.domain.clone(), pod.attached.uid.clone()), of(pod))).collect()
}

/// Where peers see it that these TCP sockets began to listen or ended, and whether something listens there now.
pub fn turned(
    view: &View,
    sockets: &[Socket],
    is_open: impl Fn(&Socket) -> bool,
) -> Vec<(DomainName, SocketAddr, bool)> {
    let mut seen = BTreeSet::new();
    for s in sockets {
        for pod in view.pods.values().filter(|pod| pod.join.cookie == s.cookie) {
            let faces = &pod.join.pod.faces;
            for face in faces.iter().filter(|face| leads_to(face, s.at.ip())) {
                let mut places = places(face).map(|ip| SocketAddr::new(ip, s.at.port()));
                let open = places.any(|at| is_open(&Socket { at, ..*s }));
                let at = SocketAddr::new(face.vip, s.at.port());
                seen.insert((pod.attached.domain.clone(), at, open));
            }
        }
    }
    seen.into_iter().collect()
}

/// All addresses of listeners that this VIP leads to.
fn places(face: &Face) -> impl Iterator<Item = IpAddr> {
    let any = Ipv6Addr::UNSPECIFIED.into();
    let own = if face.vip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { ANY_V6_ONLY };
    [any, own, face.vip].into_iter().chain(face.real)
}

/// Whether a VIP leads to a listener at this address.
fn leads_to(face: &Face, at: IpAddr) -> bool {
    match at {
        ANY_V6_ONLY => face.vip.is_ipv6(),
        // IPv6's takes IPv4 as well.
        IpAddr::V6(any) if any.is_unspecified() => true,
        IpAddr::V4(any) if any.is_unspecified() => face.vip.is_ipv4(),
        at => at.to_canonical() == face.vip || Some(at.to_canonical()) == face.real,
    }
}

/// The lines that lead from what was told to what is.
fn updates(told: Option<&Open>, open: &Open, relayed_only: bool) -> Vec<NodeUpdate> {
    let pod = |((domain, uid), ports): (&(DomainName, String), &Ports)| PodPorts {
        domain: domain.clone(),
        uid: uid.clone(),
        ports: ports.clone(),
    };
    let Some(told) = told else {
        return vec![NodeUpdate::Snapshot { pods: open.iter().map(pod).collect(), relayed_only }];
    };
    let gone = told.keys().filter(|key| !open.contains_key(*key));
    let gone =
        gone.map(|(domain, uid)| NodeUpdate::PodGone { domain: domain.clone(), uid: uid.clone() });
    let news = open.iter().filter(|(key, ports)| told.get(*key) != Some(*ports));
    gone.chain(news.map(|entry| NodeUpdate::Pod { pod: pod(entry) })).collect()
}

/// The report as the body of an answer: a snapshot, then changes, and a line every second. `relayed_only`: the machine has no hooks.
pub fn lines(
    open: watch::Receiver<Arc<Open>>,
    relayed_only: bool,
) -> impl Stream<Item = Result<Bytes, Infallible>> {
    futures::stream::unfold((open, None::<Arc<Open>>), move |(mut open, told)| async move {
        let first = told.is_none();
        if !first {
            match tokio::time::timeout(KEEP_ALIVE, open.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_ended)) => return None,
                Err(_late) => return Some((Ok(line(&[NodeUpdate::KeepAlive])), (open, told))),
            }
        }
        let now = Arc::clone(&open.borrow_and_update());
        let updates = updates(told.as_deref(), &now, relayed_only);
        Some((Ok(line(&updates)), (open, Some(now))))
    })
}

fn line(updates: &[NodeUpdate]) -> Bytes {
    let mut text = Vec::new();
    for update in updates {
        // Names and numbers always have a text.
        if let Ok(json) = serde_json::to_vec(update) {
            text.extend(json);
            text.push(b'\n');
        }
    }
    text.into()
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
