//! Pods on the host network: what stands for them in the machine's own namespace, which are listeners of the relay and nothing else.
//! No interface, route or guard is made there; the hooks know such a pod by its cgroup.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use control_api::session::ProbeHop;
use datapath_loader::{ANY_V6_ONLY, CgroupId, Datapath, NetnsCookie, RELAY_MARK, cgroup2_mount};
use datapath_net::{
    cgroup,
    netns::{Netns, NetnsError},
    procfs,
    sockets::{Bound, marked_landing_listeners},
};
use rustix::io::Errno;

use super::shared::{entry, lock, step};
use crate::{
    keeper::listed,
    kernel::{Cause, Join, KernelError},
    observe::hop,
    packets::no_such_pod,
    plan::desired::{Face, Pod},
};

/// The machine's own namespace, and the pods in it.
#[derive(Debug)]
pub(super) struct Hosts {
    pub(super) machine: NetnsCookie,
    netns: Arc<Netns>,
    /// Where the hooks are, if there are any.
    hooked: Option<PathBuf>,
    pods: Mutex<BTreeMap<CgroupId, Standing>>,
}

#[derive(Clone, Debug)]
struct Standing {
    /// Of each family of its addresses, with one port.
    landing: Vec<SocketAddr>,
    cgroup: PathBuf,
    pod: Pod,
}

const fn loopback(face: &Face) -> IpAddr {
    match face.vip {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    }
}

/// Where in the machine's namespace the VIP is.
fn real(face: &Face) -> IpAddr {
    face.real.unwrap_or_else(|| loopback(face))
}

impl Hosts {
    pub(super) fn new(hooked: Option<PathBuf>) -> Result<Self, NetnsError> {
        let netns = Netns::current()?;
        let machine = NetnsCookie(netns.cookie()?);
        let netns = Arc::new(netns);
        Ok(Self { machine, netns, hooked, pods: Mutex::default() })
    }

    /// The namespace of a pod that stands here.
    pub(super) fn netns(&self, id: CgroupId) -> io::Result<Arc<Netns>> {
        self.standing(id).map(|_| Arc::clone(&self.netns))
    }

    /// Which cgroup that is, if a pod can be known by it.
    pub(super) fn identify(&self, path: &Path) -> Result<CgroupId, KernelError> {
        let failed = |source: Cause| KernelError::Cgroup { path: path.to_owned(), source };
        let Some(place) = &self.hooked else {
            let why =
                "this machine has no cgroup hooks, by which alone a pod on its network is known";
            return Err(failed(why.into()));
        };
        let lineage = cgroup::lineage(path).map_err(|e| failed(e.into()))?;
        let hooked = cgroup::lineage(place).map_err(|e| failed(e.into()))?;
        let (Some((id, above)), Some(hooked)) = (lineage.split_first(), hooked.first()) else {
            return Err(failed("it is not there".into()));
        };
        if !above.contains(hooked) {
            let why = format!("it is not below {}, where the hooks are", place.display());
            return Err(failed(why.into()));
        }
        if above.len() > CgroupId::DEEPEST {
            return Err(failed(
                format!("it is more than {} levels deep", CgroupId::DEEPEST).into(),
            ));
        }
        let mine = cgroup2_mount().and_then(|mount| cgroup::own(&mount).ok());
        if mine.and_then(|mine| cgroup::lineage(&mine).ok()).is_some_and(|m| m.contains(id)) {
            return Err(failed("rlark-node itself is in it".into()));
        }
        Ok(CgroupId(*id))
    }

    pub(super) fn join(&self, id: CgroupId, join: &Join) -> Result<Vec<TcpListener>, KernelError> {
        let failed = |e: io::Error| step(join, "the relay's listeners")(e.into());
        let listeners = listen(&join.pod).map_err(failed)?;
        let landing = listeners.iter().map(TcpListener::local_addr).collect::<io::Result<_>>();
        let landing = landing.map_err(failed)?;
        let cgroup = join.cgroup.clone().unwrap_or_default();
        let standing = Standing { landing, cgroup, pod: join.pod.clone() };
        lock(&self.pods).insert(id, standing);
        Ok(listeners)
    }

    /// The listeners are their owner's to close.
    pub(super) fn leave(&self, id: CgroupId) {
        lock(&self.pods).remove(&id);
    }

    fn standing(&self, id: CgroupId) -> io::Result<Standing> {
        lock(&self.pods).get(&id).cloned().ok_or_else(no_such_pod)
    }

    pub(super) fn put(&self, dp: &Datapath, id: CgroupId, pod: &Pod) -> Result<(), Cause> {
        let Standing { landing, cgroup, .. } = self.standing(id)?;
        dp.set_host_pod(self.machine, id, &entry(pod)?, port(&landing))?;
        // Listeners that are older than the hooks. What was bound to a VIP is at what leads there.
        let mut found = cgroup::listeners(&cgroup)?;
        let at_vip = |at: &SocketAddr| {
            let face = pod.faces.iter().find(|face| real(face) == at.ip())?;
            Some(SocketAddr::new(face.vip, at.port()))
        };
        let at_vips: Vec<_> = found.iter().filter_map(at_vip).collect();
        found.extend(at_vips);
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
        let asked = dp.crossed(from, port(&landing));
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
        let face = pod.faces.iter().find(|face| face.vip == to.ip()).ok_or_else(no_such_pod)?;
        if !listens(dp, id, face, to.port())? {
            return Err(Errno::CONNREFUSED.into());
        }
        let at = real(face);
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
        let vips = listed(join.pod.faces.iter().map(|face| &face.vip));
        let mut checks = vec![hop("cgroup", same, format!("{path}, {vips}"))];
        let port = port(&standing.landing);
        for at in join.pod.faces.iter().map(|face| SocketAddr::new(loopback(face), port)) {
            checks.push(match procfs::own_listeners() {
                Ok(all) if all.iter().any(|(found, _)| *found == at) => {
                    hop("relay listener", true, at.to_string())
                }
                Ok(_) => hop("relay listener", false, format!("nothing listens on {at}")),
                Err(e) => hop("relay listener", false, e.to_string()),
            });
        }
        checks
    }
}

/// The landing port; none stands without a listener.
fn port(landing: &[SocketAddr]) -> u16 {
    landing.first().map_or(0, SocketAddr::port)
}

/// The relay's listeners for the families of the pod's addresses. A machine may be without IPv6: then the hooks refuse the pod's
/// connections of that family, and those of the other one go on.
fn listen(pod: &Pod) -> io::Result<Vec<TcpListener>> {
    let all: Vec<IpAddr> = pod.faces.iter().map(loopback).collect();
    let absent = match marked_landing_listeners(&all, RELAY_MARK) {
        Err(e) if is_absent(&e) => e,
        done => return done,
    };
    let v4: Vec<IpAddr> = all.into_iter().filter(IpAddr::is_ipv4).collect();
    if v4.is_empty() {
        return Err(absent);
    }
    tracing::warn!(error = %absent, "the machine has no IPv6: a pod on its network is without");
    marked_landing_listeners(&v4, RELAY_MARK)
}

fn is_absent(e: &io::Error) -> bool {
    matches!(Errno::from_io_error(e), Some(Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT))
}

/// Whether a socket of the pod listens where its VIP leads to.
fn listens(dp: &Datapath, id: CgroupId, face: &Face, port: u16) -> io::Result<bool> {
    let any_of_family = if face.vip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { ANY_V6_ONLY };
    let all = [Ipv6Addr::UNSPECIFIED.into(), any_of_family, face.vip];
    for at in all.into_iter().chain(face.real) {
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

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd as _;

    use datapath_net::netlink::Netlink;

    use super::*;
    use crate::plan::desired::DomainId;

    fn pod(faces: &[(&str, &str)]) -> Pod {
        let face = |(vip, cidr): &(&str, &str)| Face {
            cidr: cidr.parse().unwrap(),
            vip: vip.parse().unwrap(),
            real: None,
        };
        Pod { domain: DomainId(1), faces: faces.iter().map(face).collect(), restricted: false }
    }

    #[test]
    fn a_machine_without_ipv6_serves_the_other_family() {
        let (v4, v6) = (("10.2.0.1", "10.2.0.0/24"), ("fd00:2::1", "fd00:2::/64"));
        let netns = Netns::anonymous().unwrap();
        let listening = |pod: &Pod| {
            let at = |l: &TcpListener| l.local_addr().unwrap().ip();
            listen(pod).map(|all| all.iter().map(at).collect::<Vec<_>>())
        };
        let (both, alone) = (pod(&[v6, v4]), pod(&[v6]));
        let (v4, v6): (IpAddr, IpAddr) = (Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into());
        netns
            .run(|| {
                let here = Netns::current().unwrap();
                let mut links = Netlink::in_netns(here.as_fd()).unwrap();
                links.set_up("lo").unwrap();
                assert_eq!(listening(&both).unwrap(), [v6, v4]);
                std::fs::write("/proc/sys/net/ipv6/conf/lo/disable_ipv6", "1").unwrap();
                assert_eq!(listening(&both).unwrap(), [v4]);
                assert!(listening(&alone).is_err());
            })
            .unwrap();
    }
}
