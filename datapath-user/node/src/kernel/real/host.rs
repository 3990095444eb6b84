//! Pods on the host network: what stands for them in the machine's own namespace, which is a listener of the relay and nothing else.
//! No interface, route or guard is made there; the hooks know such a pod by its cgroup.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    sync::Mutex,
};

use control_api::session::ProbeHop;
use datapath_loader::{CgroupId, Datapath, NetnsCookie, RELAY_MARK, cgroup2_mount};
use datapath_net::{
    cgroup, procfs,
    sockets::{Bound, marked_landing_listener},
};

use super::shared::{entry, lock, step};
use crate::{
    kernel::{Cause, Join, KernelError},
    observe::hop,
    packets::no_such_pod,
    plan::desired::Pod,
};

/// Levels of cgroups below the root at which the hooks look for a pod's.
const DEEPEST: usize = 16;

/// The machine's own namespace, and the pods in it.
#[derive(Debug)]
pub(super) struct Hosts {
    pub(super) machine: NetnsCookie,
    /// Where the hooks are.
    hooked: PathBuf,
    pods: Mutex<BTreeMap<CgroupId, Standing>>,
}

#[derive(Clone, Debug)]
struct Standing {
    landing: SocketAddr,
    cgroup: PathBuf,
    pod: Pod,
}

const fn loopback(family_of: IpAddr) -> IpAddr {
    match family_of {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    }
}

/// Where in the machine's namespace the pod's VIP is.
fn real(pod: &Pod) -> IpAddr {
    let real = pod.real.filter(|real| real.is_ipv4() == pod.vip.is_ipv4());
    real.unwrap_or_else(|| loopback(pod.vip))
}

impl Hosts {
    pub(super) fn new(machine: NetnsCookie, hooked: &Path) -> Self {
        Self { machine, hooked: hooked.to_owned(), pods: Mutex::default() }
    }

    /// Which cgroup that is, if a pod can be known by it.
    pub(super) fn identify(&self, path: &Path) -> Result<CgroupId, KernelError> {
        let failed = |source: Cause| KernelError::Cgroup { path: path.to_owned(), source };
        let lineage = cgroup::lineage(path).map_err(|e| failed(e.into()))?;
        let hooked = cgroup::lineage(&self.hooked).map_err(|e| failed(e.into()))?;
        let (Some((id, above)), Some(hooked)) = (lineage.split_first(), hooked.first()) else {
            return Err(failed("it is not there".into()));
        };
        if !above.contains(hooked) {
            let why = format!("it is not below {}, where the hooks are", self.hooked.display());
            return Err(failed(why.into()));
        }
        if above.len() > DEEPEST {
            return Err(failed(format!("it is more than {DEEPEST} levels deep").into()));
        }
        let mine = cgroup2_mount().and_then(|mount| cgroup::own(&mount).ok());
        if mine.and_then(|mine| cgroup::lineage(&mine).ok()).is_some_and(|m| m.contains(id)) {
            return Err(failed("rlark-node itself is in it".into()));
        }
        Ok(CgroupId(*id))
    }

    pub(super) fn join(&self, id: CgroupId, join: &Join) -> Result<TcpListener, KernelError> {
        let failed = |e: io::Error| step(join, "the relay's listener")(e.into());
        let listener = marked_landing_listener(join.pod.vip, RELAY_MARK).map_err(failed)?;
        let landing = listener.local_addr().map_err(failed)?;
        let cgroup = join.cgroup.clone().unwrap_or_default();
        let standing = Standing { landing, cgroup, pod: join.pod.clone() };
        lock(&self.pods).insert(id, standing);
        Ok(listener)
    }

    /// The listener is its owner's to close.
    pub(super) fn leave(&self, id: CgroupId) {
        lock(&self.pods).remove(&id);
    }

    fn standing(&self, id: CgroupId) -> io::Result<Standing> {
        lock(&self.pods).get(&id).cloned().ok_or_else(no_such_pod)
    }

    pub(super) fn put(&self, dp: &Datapath, id: CgroupId, pod: &Pod) -> Result<(), Cause> {
        let Standing { landing, cgroup, .. } = self.standing(id)?;
        dp.set_host_pod(self.machine, id, &entry(pod)?, landing.port())?;
        // Listeners that are older than the hooks. What was bound to the VIP is at the real address.
        let mut found = cgroup::listeners(&cgroup)?;
        let at_real = found.iter().filter(|at| at.ip() == real(pod));
        let at_vip: Vec<_> = at_real.map(|at| SocketAddr::new(pod.vip, at.port())).collect();
        found.extend(at_vip);
        dp.seed_listeners(id.key(), found)?;
        Ok(())
    }

    /// A connection that the relay accepted from `from` at the pod's landing port: what it asked for.
    pub(super) fn asked(
        &self,
        dp: &Datapath,
        id: CgroupId,
        from: SocketAddr,
    ) -> Option<SocketAddr> {
        let landing = self.standing(id).ok()?.landing;
        let asked = dp.crossed(from, landing.port());
        let asked = asked.inspect_err(|error| tracing::warn!(%error, "landed connection lost"));
        asked.ok()?.filter(|(of, _)| *of == id).map(|(_, to)| to)
    }

    /// Connects to a listener of the pod, which sees it come from `peer`. Other listeners of the machine are none of the Domain's.
    pub(super) async fn deliver(
        &self,
        dp: &Datapath,
        id: CgroupId,
        peer: IpAddr,
        to: SocketAddr,
    ) -> io::Result<std::net::TcpStream> {
        let pod = self.standing(id)?.pod;
        if !listens(dp, id, &pod, to.port())? {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let at = real(&pod);
        let socket = Bound::at(at, RELAY_MARK)?;
        let peer = SocketAddr::new(peer, socket.from.port());
        let failed = |e: datapath_loader::MapError| io::Error::other(e);
        dp.announce_peer(id, socket.from, to.port(), peer).map_err(failed)?;
        let mut announced = Announced { dp, from: socket.from, to: to.port(), accepted: false };
        let stream = socket.connect(SocketAddr::new(at, to.port())).await?;
        announced.accepted = true;
        Ok(stream)
    }

    pub(super) fn checks(&self, id: CgroupId, join: &Join) -> Vec<ProbeHop> {
        let Ok(standing) = self.standing(id) else {
            return vec![hop("cgroup", false, "not attached")];
        };
        let path = standing.cgroup.display();
        let same = self.identify(&standing.cgroup).is_ok_and(|now| now == id);
        let mut checks = vec![hop("cgroup", same, format!("{path}, {}", join.pod.vip))];
        let landing = standing.landing;
        checks.push(match procfs::own_listeners() {
            Ok(all) if all.iter().any(|(at, _)| *at == landing) => {
                hop("relay listener", true, landing.to_string())
            }
            Ok(_) => hop("relay listener", false, format!("nothing listens on {landing}")),
            Err(e) => hop("relay listener", false, e.to_string()),
        });
        checks
    }
}

/// Whether a socket of the pod listens where its VIP leads to.
fn listens(dp: &Datapath, id: CgroupId, pod: &Pod, port: u16) -> io::Result<bool> {
    let (any, any_v6_only) = (Ipv6Addr::UNSPECIFIED.into(), Ipv6Addr::from(u128::MAX).into());
    let v6_only = pod.vip.is_ipv6().then_some(any_v6_only);
    for at in [any, pod.vip, real(pod)].into_iter().chain(v6_only) {
        let open = dp.is_listening(id.key(), SocketAddr::new(at, port));
        if open.map_err(io::Error::other)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// A connection that did not come about, or was given up, must not give its name to the next one.
struct Announced<'a> {
    dp: &'a Datapath,
    from: SocketAddr,
    to: u16,
    accepted: bool,
}

impl Drop for Announced<'_> {
    fn drop(&mut self) {
        if self.accepted {
            return;
        }
        if let Err(error) = self.dp.forget_peer(self.from, self.to) {
            tracing::warn!(%error, "an announced connection could not be taken back");
        }
    }
}
