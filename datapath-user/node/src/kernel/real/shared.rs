//! What the machine holds, and what is done to it: maps, and pods in their namespaces.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::fd::{AsFd as _, BorrowedFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    time::Duration,
};

use control_api::{attach::INTERFACE, session::ProbeHop};
use datapath_loader::{
    CgroupId, Datapath, Denial, DomainId as KernelDomain, Face, Guard, GuardConfig,
    Listeners as Listening, MapError, MirrorId, NetnsCookie, PodEntry, RELAY_MARK, Route,
};
use datapath_net::{
    netlink::{Netlink, NetlinkError},
    netns::Netns,
    packet::{Injector, Network},
    procfs,
    sockets::landing_listener,
    stock::Stock,
    vip::{VipInterface, enable_ipv6},
};
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use super::{changes::News, host::Hosts, sandbox};
use crate::{
    keeper::listed,
    kernel::{Cause, Join, KernelError, Socket},
    observe::hop,
    packets::no_such_pod,
    plan::{
        desired::{Desired, DomainId, Listeners, Pod, Way},
        diff::Op,
    },
};

/// How long the hook repeats a far end's refusal.
const REFUSAL_TTL: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) me: Weak<Self>,
    pub(super) datapath: Datapath,
    pub(super) hosts: Hosts,
    /// By namespace cookie.
    pub(super) pods: Mutex<BTreeMap<u64, Standing>>,
    /// What the maps hold, for the probe.
    pub(super) ways: Mutex<BTreeMap<(DomainId, IpAddr), Way>>,
    /// By namespace cookie, for pods with sockets that the hooks do not know.
    pub(super) older: Mutex<BTreeMap<u64, AbortOnDropHandle<()>>>,
    pub(super) seeding: Mutex<()>,
    pub(super) older_ended: Notify,
    pub(super) news: News,
}

impl Shared {
    pub(super) fn new(datapath: Datapath, hosts: Hosts) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            datapath,
            hosts,
            pods: Mutex::default(),
            ways: Mutex::default(),
            older: Mutex::default(),
            seeding: Mutex::default(),
            older_ended: Notify::new(),
            news: News::default(),
        })
    }
}

#[derive(Debug)]
pub(super) struct Standing {
    guard: Guard,
    netns: Arc<Netns>,
    stock: Arc<Stock>,
    pub(super) injector: Injector,
    landing: SocketAddr,
    /// Index of `rl0`; 0 when it is not known.
    device: u32,
    faces: Vec<crate::plan::desired::Face>,
}

pub(super) fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(super) fn entry(pod: &Pod) -> Result<PodEntry, Cause> {
    let faces = pod.faces.iter().map(|face| Face {
        vip: face.vip,
        real: face.real,
        network: face.cidr.network(),
        prefix_length: face.cidr.prefix_len(),
    });
    let entry = PodEntry::new(KernelDomain(pod.domain.0), faces)?;
    Ok(if pod.restricted { entry.restricted() } else { entry })
}

/// One interface, with what each family of addresses needs on it.
fn interfaces(pod: &Pod) -> impl Iterator<Item = VipInterface> {
    pod.faces.iter().map(|face| VipInterface {
        name: INTERFACE.to_owned(),
        vip: face.vip,
        network: face.cidr.network(),
        prefix_length: face.cidr.prefix_len(),
    })
}

fn take_away(pod: &Pod, netns: BorrowedFd<'_>) -> Result<(), NetlinkError> {
    interfaces(pod).try_for_each(|interface| interface.remove(netns))
}

fn route(way: Way) -> Route {
    let known = |listeners| match listeners {
        Listeners::Here(cookie) => Listening::Here(NetnsCookie(cookie)),
        Listeners::There(number) => Listening::Mirror(MirrorId(number)),
        Listeners::Unknown => Listening::Unknown,
    };
    match way {
        Way::Direct { real, listeners } => Route::Direct { real, listeners: known(listeners) },
        Way::Relay { listeners } => Route::Relay { listeners: known(listeners) },
    }
}

/// The pod's cgroup if it is on the host network.
pub(super) const fn on_host(cookie: u64) -> Option<CgroupId> {
    CgroupId::of_key(NetnsCookie(cookie))
}

pub(super) fn step(join: &Join, step: &'static str) -> impl Fn(Cause) -> KernelError + use<> {
    let uid = join.uid.clone();
    move |source| KernelError::Pod { uid: uid.clone(), step, source }
}

impl Shared {
    pub(super) fn steers(&self) -> bool {
        self.datapath.hooks().next().is_some()
    }

    pub(super) fn netns(&self, cookie: u64) -> io::Result<Arc<Netns>> {
        match on_host(cookie) {
            Some(host) => self.hosts.netns(host),
            None => self.place(cookie).map(|(netns, ..)| netns),
        }
    }

    /// The network of which the pod's datagrams may leave by the wrong interface; none of IPv6.
    pub(super) fn network(&self, cookie: u64) -> io::Result<Option<Network>> {
        let pods = lock(&self.pods);
        let standing = pods.get(&cookie).ok_or_else(no_such_pod)?;
        Ok(standing.faces.iter().find_map(|face| match (face.vip, face.cidr.network()) {
            (IpAddr::V4(own), IpAddr::V4(network)) => {
                Some(Network { own, network, prefix_length: face.cidr.prefix_len() })
            }
            _ => None,
        }))
    }

    /// The pod's namespace, where the relay's listener is in it, and which interface `rl0`.
    fn place(&self, cookie: u64) -> io::Result<(Arc<Netns>, SocketAddr, u32)> {
        let pods = lock(&self.pods);
        let standing = pods.get(&cookie).ok_or_else(no_such_pod)?;
        Ok((Arc::clone(&standing.netns), standing.landing, standing.device))
    }

    pub(super) fn stock(&self, cookie: u64) -> io::Result<Arc<Stock>> {
        lock(&self.pods).get(&cookie).map(|s| Arc::clone(&s.stock)).ok_or_else(no_such_pod)
    }

    /// Connects to a pod's listener as its peer `source`. Where nobody listens on the VIP but on the real address, that is meant, as
    /// it is for direct connections.
    pub(super) async fn deliver(
        &self,
        cookie: u64,
        source: IpAddr,
        to: SocketAddr,
    ) -> io::Result<std::net::TcpStream> {
        let stock = self.stock(cookie)?;
        let result = stock.deliver(source, to).await;
        let refused = result.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
        if refused && let Some(real) = self.real_address(cookie, to.ip()) {
            let instead = stock.deliver(source, SocketAddr::new(real, to.port())).await;
            // Whatever stood in its way, there is no listener.
            return instead.or(result);
        }
        result
    }

    fn real_address(&self, cookie: u64, vip: IpAddr) -> Option<IpAddr> {
        let pods = lock(&self.pods);
        pods.get(&cookie)?.faces.iter().find(|face| face.vip == vip)?.real
    }

    /// Landing listener, guard, interface and route, in this order; all or nothing.
    pub(super) fn join(&self, join: &Join) -> Result<Vec<std::net::TcpListener>, KernelError> {
        if let Some(host) = on_host(join.cookie) {
            return self.hosts.join(host, join);
        }
        let opened = Netns::open(&join.netns).map_err(|e| step(join, "its namespace")(e.into()))?;
        if let Some(runtime) = sandbox::runtime(&opened) {
            let why = format!(
                "{runtime} in it has a kernel of its own, whose connections cannot be steered: \
                 give the pod an ordinary runtime class"
            );
            return Err(KernelError::Netns { path: join.netns.clone(), source: why.into() });
        }
        let opened = Arc::new(opened);
        let fd = opened.as_fd();
        let up = |e: NetlinkError| step(join, "loopback")(e.into());
        Netlink::in_netns(fd).and_then(|mut n| n.set_up("lo")).map_err(up)?;
        // One of IPv6 takes connections of both families.
        let v6 = join.pod.faces.iter().map(|f| f.vip).find(IpAddr::is_ipv6);
        if v6.is_some() {
            enable_ipv6(fd, "lo").map_err(up)?;
        }
        let listener = landing_listener(fd, v6.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)))
            .map_err(|e| step(join, "the relay's listener")(e.into()))?;
        let landing =
            listener.local_addr().map_err(|e| step(join, "the relay's listener")(e.into()))?;
        let landing = SocketAddr::new(landing.ip().to_canonical(), landing.port());
        let injector =
            Injector::open(fd).map_err(|e| step(join, "its socket for packets")(e.into()))?;
        let netns = NetnsCookie(join.cookie);
        let pod = entry(&join.pod).map_err(step(join, "its addresses"))?;
        let guard = self
            .datapath
            .attach_guard(fd, GuardConfig { netns, pod })
            .map_err(|e| step(join, "its guard")(e.into()))?;
        let stand = || {
            let landed = self.datapath.land(guard.slot(), &listener);
            landed.map_err(|e| step(join, "landing on the relay's listener")(e.into()))?;
            let rl0 = interfaces(&join.pod).try_for_each(|interface| interface.ensure(fd));
            rl0.map_err(|e| step(join, "interface rl0")(e.into()))?;
            let device = Netlink::in_netns(fd).and_then(|mut n| n.index(INTERFACE));
            let device = device.map_err(|e| step(join, "interface rl0")(e.into()))?.unwrap_or(0);
            let seeded = self.seed(join.cookie, &opened, &join.pod, landing);
            seeded.map_err(step(join, "its listeners"))?;
            Ok(device)
        };
        let stood = stand();
        let device = *stood.as_ref().unwrap_or(&0);
        if let Err(e) = stood {
            // The route goes before the guard in every case; while it stands the guard must.
            match take_away(&join.pod, fd) {
                Ok(()) => drop(guard.detach()),
                Err(error) => {
                    tracing::error!(pod = join.uid, %error, "rl0 cannot be taken away again");
                    let stock = Arc::new(Stock::new(Arc::clone(&opened), RELAY_MARK));
                    let netns = Arc::clone(&opened);
                    let faces = join.pod.faces.clone();
                    let standing =
                        Standing { guard, netns, stock, injector, landing, device, faces };
                    lock(&self.pods).insert(join.cookie, standing);
                }
            }
            return Err(e);
        }
        let stock = Arc::new(Stock::new(Arc::clone(&opened), RELAY_MARK));
        let netns = opened;
        let faces = join.pod.faces.clone();
        let standing = Standing { guard, netns, stock, injector, landing, device, faces };
        lock(&self.pods).insert(join.cookie, standing);
        Ok(vec![listener])
    }

    pub(super) fn leave(&self, join: &Join) -> Result<(), KernelError> {
        if let Some(host) = on_host(join.cookie) {
            self.hosts.leave(host);
            return Ok(());
        }
        let Some(standing) = lock(&self.pods).remove(&join.cookie) else { return Ok(()) };
        drop(lock(&self.older).remove(&join.cookie));
        let removed = take_away(&join.pod, standing.netns.as_fd());
        if let Err(e) = removed {
            // With the route still there, the guard must stay; it goes with the namespace.
            let error = step(join, "taking interface rl0 away")(e.into());
            lock(&self.pods).insert(join.cookie, standing);
            return Err(error);
        }
        standing.guard.detach().map_err(|e| step(join, "detaching its guard")(e.into()))
    }

    pub(super) fn apply(&self, op: &Op) -> Result<(), Cause> {
        let dp = &self.datapath;
        let domain = |d: &DomainId| KernelDomain(d.0);
        match op {
            Op::PutReal(d, real, vip) => dp.set_real(domain(d), *real, *vip)?,
            Op::DeleteReal(d, real) => drop(dp.remove_real(domain(d), *real)?),
            Op::PutVip(d, vip, way) => {
                dp.set_vip(domain(d), *vip, route(*way))?;
                lock(&self.ways).insert((*d, *vip), *way);
            }
            Op::DeleteVip(d, vip) => {
                dp.remove_vip(domain(d), *vip)?;
                lock(&self.ways).remove(&(*d, *vip));
            }
            Op::PutPod(cookie, pod) => {
                if let Some(host) = on_host(*cookie) {
                    return self.hosts.put(dp, host, pod);
                }
                let (netns, landing, device) = self.place(*cookie)?;
                dp.set_pod(NetnsCookie(*cookie), &entry(pod)?.on_device(device))?;
                // Sockets that began to listen between joining and this moment.
                self.seed(*cookie, &netns, pod, landing)?;
            }
            Op::DeletePod(cookie) => match on_host(*cookie) {
                Some(host) => dp.remove_host_pod(self.hosts.machine, host)?,
                None => dp.remove_pod(NetnsCookie(*cookie))?,
            },
            Op::PutPorts(d, allowed) => {
                let ranges: Vec<_> = allowed.iter().map(|r| r.first..=r.last).collect();
                dp.set_ports(domain(d), &ranges)?;
            }
            Op::DeletePorts(d) => dp.set_ports(domain(d), &[])?,
            Op::WriteHosts { .. } => {}
        }
        Ok(())
    }

    pub(super) fn sweep(&self, keep: &Desired) -> Result<(), MapError> {
        let dp = &self.datapath;
        let mut domains: BTreeSet<KernelDomain> =
            keep.vips.keys().map(|(d, _)| KernelDomain(d.0)).collect();
        for (cookie, pod) in dp.pods()? {
            domains.insert(pod.domain());
            if !keep.pods.contains_key(&cookie.0) {
                dp.remove_pod(cookie)?;
            }
        }
        for (cgroup, pod) in dp.host_pods()? {
            domains.insert(pod.domain());
            if !keep.pods.contains_key(&cgroup.key().0) {
                dp.remove_host_pod(self.hosts.machine, cgroup)?;
            }
        }
        for domain in domains {
            let own = |d: &DomainId| d.0 == domain.0;
            let routes: BTreeMap<IpAddr, Route> = keep
                .vips
                .iter()
                .filter(|((d, _), _)| own(d))
                .map(|((_, vip), way)| (*vip, route(*way)))
                .collect();
            dp.reconcile(domain, &routes)?;
            // Addresses that several pods share have no name here.
            for route in routes.values() {
                let Route::Direct { real, .. } = route else { continue };
                if !keep.reals.contains_key(&(DomainId(domain.0), *real)) {
                    dp.remove_real(domain, *real)?;
                }
            }
        }
        if let Err(error) = dp.sweep_pins() {
            tracing::warn!(%error, "pins of earlier processes could not be removed");
        }
        Ok(())
    }

    pub(super) fn pod_checks(&self, join: &Join) -> Vec<ProbeHop> {
        if let Some(host) = on_host(join.cookie) {
            return self.hosts.checks(host, join);
        }
        let Ok((netns, landing, _)) = self.place(join.cookie) else {
            return vec![hop("guard", false, "not attached")];
        };
        let detail = format!("attached to network namespace {}", join.cookie);
        let mut checks = vec![hop("guard", true, detail)];
        let index = Netlink::in_netns(netns.as_fd()).and_then(|mut n| n.index(INTERFACE));
        checks.push(match index {
            Ok(Some(_)) => hop(INTERFACE, true, listed(join.pod.faces.iter().map(|f| &f.vip))),
            Ok(None) => hop(INTERFACE, false, "somebody removed it"),
            Err(e) => hop(INTERFACE, false, e.to_string()),
        });
        checks.push(match procfs::listeners(netns.as_fd()) {
            Ok(all) if all.contains(&landing) => hop("relay listener", true, landing.to_string()),
            Ok(_) => hop("relay listener", false, format!("nothing listens on {landing}")),
            Err(e) => hop("relay listener", false, e.to_string()),
        });
        checks
    }

    pub(super) fn is_open(&self, socket: &Socket) -> bool {
        let netns = NetnsCookie(socket.cookie);
        let found = if socket.udp {
            self.datapath.is_udp_on_vip(netns, socket.at.port())
        } else {
            self.datapath.is_listening(netns, socket.at)
        };
        // What cannot be read must not be refused.
        found.unwrap_or(true)
    }

    pub(super) fn remember_refusal(&self, domain: DomainId, to: SocketAddr, errno: i32) {
        // Only what is true of the far end whoever asks.
        let denial = match io::Error::from_raw_os_error(errno).kind() {
            io::ErrorKind::ConnectionRefused => Denial::Refused,
            io::ErrorKind::HostUnreachable => Denial::Unreachable,
            _ => return,
        };
        let done = self.datapath.remember_refusal(KernelDomain(domain.0), to, denial, REFUSAL_TTL);
        if let Err(e) = done {
            tracing::debug!(%to, error = %e, "refusal not remembered");
        }
    }
}
