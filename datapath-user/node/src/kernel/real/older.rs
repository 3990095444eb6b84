//! Sockets that are older than the hooks or their pod's entry: the hooks saw neither and will not see their end. Both are asked
//! of the kernel, and only while a pod has such sockets.

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    os::fd::AsFd as _,
    sync::Weak,
};

use datapath_loader::{Datapath, NetnsCookie};
use datapath_net::{
    bound::{Bound, Ended, Sockets},
    netns::Netns,
    procfs,
    ready::Ready,
};
use tokio_util::task::AbortOnDropHandle;

use super::shared::{Shared, lock};
use crate::{
    kernel::{ANY_V6_ONLY, Cause},
    plan::desired::Pod,
};

/// Of one pod.
#[derive(Debug)]
struct Older {
    pod: NetnsCookie,
    sockets: Sockets,
    /// The relay's own listener, which is not the pod's.
    landing: SocketAddr,
    vips: Vec<IpAddr>,
    /// All that stood when they were last asked for.
    known: BTreeSet<u64>,
}

impl Older {
    /// Makes the maps say what stands; how many older ones that are.
    fn seed(&mut self, datapath: &Datapath) -> Result<usize, Cause> {
        let mut listeners = self.sockets.listeners()?;
        listeners.retain(|l| l.at != self.landing);
        let mut datagrams = self.sockets.datagrams()?;
        datagrams.retain(|d| self.vips.contains(&d.at.ip()));
        self.known = listeners.iter().chain(&datagrams).map(|b| b.cookie).collect();
        let listeners = datapath.seed_listeners(self.pod, listeners.iter().map(address))?;
        let ports = datagrams.iter().map(|d| d.at.port());
        Ok(listeners + datapath.seed_udp_on_vip(self.pod, ports)?)
    }

    /// Whether what ended may have been one of them.
    fn has_lost(&mut self) -> Option<bool> {
        let first = self.sockets.ended()?;
        let more = std::iter::from_fn(|| self.sockets.ended());
        let all: Vec<Ended> = std::iter::once(first).chain(more).collect();
        Some(all.iter().any(|ended| match ended {
            Ended::Socket(cookie) => self.known.contains(cookie),
            Ended::Some => true,
        }))
    }
}

fn address(of: &Bound) -> SocketAddr {
    match of.at.ip() {
        IpAddr::V6(any) if any.is_unspecified() && of.only_v6 => {
            SocketAddr::new(ANY_V6_ONLY, of.at.port())
        }
        _ => of.at,
    }
}

/// As [`Older::seed`], from what every kernel tells. Ends are not noticed, and that a listener takes no IPv4 is not known.
fn seed_once(
    datapath: &Datapath,
    pod: NetnsCookie,
    netns: &Netns,
    vips: &[IpAddr],
    landing: SocketAddr,
) -> Result<(), Cause> {
    let mut found = procfs::listeners(netns.as_fd())?;
    found.retain(|at| *at != landing);
    datapath.seed_listeners(pod, found)?;
    let bound = procfs::udp_sockets(netns.as_fd())?.into_iter();
    let ports = bound.filter(|at| vips.contains(&at.ip())).map(|at| at.port());
    datapath.seed_udp_on_vip(pod, ports)?;
    Ok(())
}

impl Shared {
    /// Enters the older sockets of a pod, and follows them if there are any. Without hooks nobody knows of any socket. Must be called
    /// inside a runtime.
    pub(super) fn seed(
        &self,
        cookie: u64,
        netns: &Netns,
        pod: &Pod,
        landing: SocketAddr,
    ) -> Result<(), Cause> {
        if !self.steers() {
            return Ok(());
        }
        let vips: Vec<IpAddr> = pod.faces.iter().map(|face| face.vip).collect();
        let pod = NetnsCookie(cookie);
        match self.seed_and_follow(pod, netns, vips.clone(), landing) {
            Ok(()) => Ok(()),
            Err(error) => {
                tracing::warn!(
                    cookie,
                    error,
                    "the end of sockets older than the hooks is not noticed"
                );
                lock(&self.older).remove(&cookie);
                seed_once(&self.datapath, pod, netns, &vips, landing)
            }
        }
    }

    fn seed_and_follow(
        &self,
        pod: NetnsCookie,
        netns: &Netns,
        vips: Vec<IpAddr>,
        landing: SocketAddr,
    ) -> Result<(), Cause> {
        let sockets = Sockets::open(netns.as_fd())?;
        let mut older = Older { pod, sockets, landing, vips, known: BTreeSet::new() };
        let left = self.seed_again(&mut older)?;
        let follower = (left > 0).then(|| {
            let ready = older.sockets.as_fd().try_clone_to_owned().and_then(Ready::new)?;
            let followed = follow(Weak::clone(&self.me), ready, older);
            Ok::<_, Cause>(AbortOnDropHandle::new(tokio::spawn(followed)))
        });
        let mut followers = lock(&self.older);
        match follower.transpose()? {
            Some(follower) => drop(followers.insert(pod.0, follower)),
            None => drop(followers.remove(&pod.0)),
        }
        Ok(())
    }

    /// One at a time: who asked the kernel earlier must not write later.
    fn seed_again(&self, older: &mut Older) -> Result<usize, Cause> {
        let _turn = lock(&self.seeding);
        older.seed(&self.datapath)
    }
}

/// Until none is left, or the data path goes.
async fn follow(shared: Weak<Shared>, ready: Ready, mut older: Older) {
    loop {
        match ready.until(|| older.has_lost()).await {
            Ok(true) => {}
            Ok(false) => continue,
            Err(error) => return tracing::warn!(%error, "older sockets are not followed"),
        }
        let Some(shared) = Weak::upgrade(&shared) else { return };
        let left = shared.seed_again(&mut older);
        shared.older_ended.notify_one();
        match left {
            Ok(0) => return,
            Ok(_) => {}
            // What is in doubt stays open: the far kernel refuses.
            Err(error) => tracing::warn!(error, "older sockets cannot be read"),
        }
    }
}
