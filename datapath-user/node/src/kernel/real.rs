//! The machine itself: the BPF programs, the pods' namespaces, sockets inside them.

mod changes;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, SocketAddr},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use control_api::{attach::INTERFACE, ports::Ports, session::ProbeHop};
use datapath_loader::{
    Config, Datapath, Denial, DomainId as KernelDomain, Face, Guard, GuardConfig,
    Listeners as Listening, Listening as Found, LoadError, MapError, MirrorId, NetnsCookie,
    Open as OpenPorts, PodEntry, Probe, Route, mount_bpffs, probe,
};
use datapath_net::{
    netlink::Netlink,
    netns::{Netns, visit_netns},
    packet::{Injector, Tap},
    procfs,
    sockets::landing_listener,
    stock::Stock,
    vip::VipInterface,
};
use futures::{FutureExt as _, future::BoxFuture, stream::BoxStream};
use tokio::net::{TcpListener, TcpSocket};

use super::{Cause, Changed, Count, DirectFlow, Join, Kernel, KernelError, Socket};
use crate::{
    observe::hop,
    packets::no_such_pod,
    plan::{
        desired::{Desired, DomainId, Listeners, Pod, Way},
        diff::Op,
    },
};

const BPFFS: &str = "/sys/fs/bpf";
/// How long the hook repeats a far end's refusal.
const REFUSAL_TTL: Duration = Duration::from_secs(1);

/// Why the data path does not start on this machine.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the kernel {kernel} lacks {feature}: {why}")]
    Missing { kernel: String, feature: String, why: String },
    #[error("no BPF file system at {BPFFS} for --pins")]
    Bpffs(#[source] io::Error),
    #[error(transparent)]
    Load(#[from] LoadError),
}

/// The data path of this machine; one per machine and cgroup.
#[derive(Debug)]
pub struct Machine {
    shared: Arc<Shared>,
    probe: Probe,
    cgroup: PathBuf,
    pinned: bool,
}

#[derive(Debug)]
struct Shared {
    datapath: Datapath,
    /// By namespace cookie.
    pods: Mutex<BTreeMap<u64, Standing>>,
    /// What the maps hold, for the probe.
    ways: Mutex<BTreeMap<(DomainId, IpAddr), Way>>,
}

#[derive(Debug)]
struct Standing {
    guard: Guard,
    netns: Arc<Netns>,
    stock: Arc<Stock>,
    injector: Injector,
    landing: SocketAddr,
    vip: IpAddr,
}

impl Machine {
    /// Probes the kernel, loads the programs and attaches them to `cgroup` (the root of the cgroup
    /// v2 mount if not given).
    ///
    /// # Errors
    /// A needed feature is missing (named), or loading fails.
    pub fn start(cgroup: Option<PathBuf>, pins: Option<PathBuf>) -> Result<Self, StartError> {
        let probe = probe();
        if let Some(missing) = probe.missing() {
            return Err(StartError::Missing {
                kernel: probe.kernel.clone(),
                feature: missing.feature.to_string(),
                why: missing.result.clone().err().unwrap_or_default(),
            });
        }
        let cgroup = cgroup.or_else(|| probe.cgroup.clone()).unwrap_or_default();
        if pins.as_ref().is_some_and(|p| p.starts_with(BPFFS)) {
            mount_bpffs(Path::new(BPFFS)).map_err(StartError::Bpffs)?.keep();
        }
        let pinned = pins.is_some();
        let datapath = Datapath::load(Config { cgroup: cgroup.clone(), pins })?;
        let shared = Shared { datapath, pods: Mutex::default(), ways: Mutex::default() };
        Ok(Self { shared: Arc::new(shared), probe, cgroup, pinned })
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

fn entry(pod: &Pod) -> Result<PodEntry, Cause> {
    let entry = PodEntry::new(KernelDomain(pod.domain.0), [face_of(pod)])?;
    Ok(if pod.restricted { entry.restricted() } else { entry })
}

fn face_of(pod: &Pod) -> Face {
    Face {
        vip: pod.vip,
        real: pod.real.filter(|real| real.is_ipv4() == pod.vip.is_ipv4()),
        network: pod.cidr.first_address(),
        prefix_length: pod.cidr.network_length(),
    }
}

fn interface(pod: &Pod) -> VipInterface {
    VipInterface {
        name: INTERFACE.to_owned(),
        vip: pod.vip,
        network: pod.cidr.first_address(),
        prefix_length: pod.cidr.network_length(),
    }
}

fn route(way: Way) -> Route {
    let known = |listeners| match listeners {
        Listeners::Here(cookie) => Listening::Here(NetnsCookie(cookie)),
        Listeners::There(number) => Listening::Mirror(MirrorId::new(number)),
    };
    match way {
        Way::Direct { real, listeners } => Route::Direct { real, listeners: known(listeners) },
        Way::Relay { listeners } => Route::Relay { listeners: known(listeners) },
    }
}

fn step(join: &Join, step: &'static str) -> impl Fn(Cause) -> KernelError + use<> {
    let uid = join.uid.clone();
    move |source| KernelError::Pod { uid: uid.clone(), step, source }
}

impl Shared {
    fn netns(&self, cookie: u64) -> io::Result<Arc<Netns>> {
        lock(&self.pods).get(&cookie).map(|s| Arc::clone(&s.netns)).ok_or_else(no_such_pod)
    }

    fn stock(&self, cookie: u64) -> io::Result<Arc<Stock>> {
        lock(&self.pods).get(&cookie).map(|s| Arc::clone(&s.stock)).ok_or_else(no_such_pod)
    }

    /// Landing listener, guard, interface and route, in this order; all or nothing.
    fn join(&self, join: &Join) -> Result<std::net::TcpListener, KernelError> {
        let opened = Netns::open(&join.netns).map_err(|e| step(join, "its namespace")(e.into()))?;
        let opened = Arc::new(opened);
        let fd = opened.as_fd();
        let up = |e: datapath_net::netlink::NetlinkError| step(join, "loopback")(e.into());
        Netlink::in_netns(fd).and_then(|mut n| n.set_up("lo")).map_err(up)?;
        let listener = landing_listener(fd, join.pod.vip)
            .map_err(|e| step(join, "the relay's listener")(e.into()))?;
        let landing =
            listener.local_addr().map_err(|e| step(join, "the relay's listener")(e.into()))?;
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
            let rl0 = interface(&join.pod).ensure(fd);
            rl0.map_err(|e| step(join, "interface rl0")(e.into()))?;
            self.seed(join.cookie, &opened).map_err(step(join, "its listeners"))
        };
        if let Err(e) = stand() {
            // The route goes before the guard in every case; while it stands the guard must.
            match interface(&join.pod).remove(fd) {
                Ok(()) => drop(guard.detach()),
                Err(error) => {
                    tracing::error!(pod = join.uid, %error, "rl0 cannot be taken away again");
                    let stock = Arc::new(Stock::new(Arc::clone(&opened)));
                    let (netns, vip) = (Arc::clone(&opened), join.pod.vip);
                    let standing = Standing { guard, netns, stock, injector, landing, vip };
                    lock(&self.pods).insert(join.cookie, standing);
                }
            }
            return Err(e);
        }
        let stock = Arc::new(Stock::new(Arc::clone(&opened)));
        let (netns, vip) = (opened, join.pod.vip);
        let standing = Standing { guard, netns, stock, injector, landing, vip };
        lock(&self.pods).insert(join.cookie, standing);
        Ok(listener)
    }

    /// Listeners that are older than the hooks or the pod's entry. The relay's own is not the pod's.
    fn seed(&self, cookie: u64, netns: &Netns) -> Result<(), Cause> {
        let landing = lock(&self.pods).get(&cookie).map(|s| s.landing);
        let mut found = procfs::listeners(netns.as_fd())?;
        found.retain(|at| Some(*at) != landing);
        self.datapath.seed_listeners(NetnsCookie(cookie), found)?;
        let vips = lock(&self.pods).get(&cookie).map(|s| s.vip);
        let mut bound = procfs::udp_sockets(netns.as_fd())?;
        bound.retain(|at| Some(at.ip()) == vips);
        let ports = bound.into_iter().map(|at| at.port());
        self.datapath.seed_udp_on_vip(NetnsCookie(cookie), ports)?;
        Ok(())
    }

    fn leave(&self, join: &Join) -> Result<(), KernelError> {
        let Some(standing) = lock(&self.pods).remove(&join.cookie) else { return Ok(()) };
        let removed = interface(&join.pod).remove(standing.netns.as_fd());
        if let Err(e) = removed {
            // With the route still there, the guard must stay; it goes with the namespace.
            let error = step(join, "taking interface rl0 away")(e.into());
            lock(&self.pods).insert(join.cookie, standing);
            return Err(error);
        }
        standing.guard.detach().map_err(|e| step(join, "detaching its guard")(e.into()))
    }

    fn apply(&self, op: &Op) -> Result<(), Cause> {
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
                dp.set_pod(NetnsCookie(*cookie), &entry(pod)?)?;
                // Sockets that began to listen between joining and this moment.
                let netns = self.netns(*cookie)?;
                self.seed(*cookie, &netns)?;
            }
            Op::DeletePod(cookie) => dp.remove_pod(NetnsCookie(*cookie))?,
            Op::PutPorts(d, allowed) => {
                let ranges: Vec<_> = allowed.iter().map(|r| r.first..=r.last).collect();
                dp.set_ports(domain(d), &ranges)?;
            }
            Op::DeletePorts(d) => dp.set_ports(domain(d), &[])?,
            Op::WriteHosts { .. } => {}
        }
        Ok(())
    }

    fn sweep(&self, keep: &Desired) -> Result<(), MapError> {
        let dp = &self.datapath;
        let mut domains: BTreeSet<KernelDomain> =
            keep.vips.keys().map(|(d, _)| KernelDomain(d.0)).collect();
        for (cookie, pod) in dp.pods()? {
            domains.insert(pod.domain());
            if !keep.pods.contains_key(&cookie.0) {
                dp.remove_pod(cookie)?;
            }
        }
        // The mirror is told anew by the hub.
        dp.sweep_mirror(&BTreeSet::new())?;
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
        Ok(())
    }

    fn pod_checks(&self, join: &Join) -> Vec<ProbeHop> {
        let (netns, landing) = match lock(&self.pods).get(&join.cookie) {
            Some(s) => (Arc::clone(&s.netns), s.landing),
            None => return vec![hop("guard", false, "not attached")],
        };
        let detail = format!("attached to network namespace {}", join.cookie);
        let mut checks = vec![hop("guard", true, detail)];
        let index = Netlink::in_netns(netns.as_fd()).and_then(|mut n| n.index(INTERFACE));
        checks.push(match index {
            Ok(Some(_)) => hop(INTERFACE, true, join.pod.vip.to_string()),
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

    fn remember_refusal(&self, domain: DomainId, to: SocketAddr, errno: i32) {
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

/// Runs what blocks for milliseconds on the pool for such work.
async fn blocking<T: Send + 'static>(
    shared: &Arc<Shared>,
    work: impl FnOnce(&Shared) -> T + Send + 'static,
) -> Result<T, KernelError> {
    let shared = Arc::clone(shared);
    tokio::task::spawn_blocking(move || work(&shared)).await.map_err(|e| KernelError::Probe {
        what: "a step of the data path did not end".to_owned(),
        source: e.into(),
    })
}

fn open(ports: &Ports) -> OpenPorts<'_> {
    OpenPorts { tcp: &ports.tcp, udp_on_vip: &ports.udp_vip }
}

/// As a program of the pod would: from its own address.
async fn connect(netns: &Netns, to: SocketAddr) -> io::Result<std::net::TcpStream> {
    let socket = visit_netns(netns.as_fd(), || match to {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    })??;
    socket.connect(to).await?.into_std()
}

impl Kernel for Machine {
    fn cookie(&self, path: &Path) -> Result<u64, KernelError> {
        let cookie = Netns::open(path).and_then(|n| n.cookie());
        cookie.map_err(|e| KernelError::Netns { path: path.to_owned(), source: e.into() })
    }

    fn join(&self, join: Join) -> BoxFuture<'_, Result<TcpListener, KernelError>> {
        async move {
            let failed = step(&join, "the relay's listener");
            let listener = blocking(&self.shared, move |s| s.join(&join)).await??;
            TcpListener::from_std(listener).map_err(|e| failed(e.into()))
        }
        .boxed()
    }

    fn leave(&self, join: Join) -> BoxFuture<'_, Result<(), KernelError>> {
        async move { blocking(&self.shared, move |s| s.leave(&join)).await? }.boxed()
    }

    fn apply(&self, op: &Op) -> Result<(), KernelError> {
        let map = match op {
            Op::PutReal(..) | Op::DeleteReal(..) => "of real addresses",
            Op::PutVip(..) | Op::DeleteVip(..) => "of virtual addresses",
            Op::PutPod(..) | Op::DeletePod(..) => "of pods",
            Op::PutPorts(..) | Op::DeletePorts(_) => "of allowed ports",
            Op::WriteHosts { .. } => "",
        };
        self.shared.apply(op).map_err(|source| KernelError::Map { map, source })
    }

    fn sweep(&self, keep: &Desired) -> Result<(), KernelError> {
        let failed = |e: MapError| KernelError::Map { map: "clean-up", source: e.into() };
        self.shared.sweep(keep).map_err(failed)
    }

    fn way(&self, domain: DomainId, vip: IpAddr) -> Option<Way> {
        // The loader lists what the map holds; a way that is only remembered is no verdict.
        let held = self.shared.datapath.vips(KernelDomain(domain.0)).ok()?;
        held.contains(&vip).then(|| lock(&self.shared.ways).get(&(domain, vip)).copied())?
    }

    fn connect(
        &self,
        cookie: u64,
        from: Option<IpAddr>,
        to: SocketAddr,
        within: Duration,
    ) -> BoxFuture<'_, io::Result<std::net::TcpStream>> {
        async move {
            let work = async {
                match from {
                    Some(source) => self.shared.stock(cookie)?.deliver(source, to).await,
                    None => connect(&*self.shared.netns(cookie)?, to).await,
                }
            };
            let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no answer in time");
            tokio::time::timeout(within, work).await.map_err(late)?
        }
        .boxed()
    }

    fn tap(&self, cookie: u64) -> io::Result<Tap> {
        Tap::open(self.shared.netns(cookie)?.as_fd(), INTERFACE)
    }

    fn inject(&self, cookie: u64, to: IpAddr, packet: &[u8]) -> io::Result<()> {
        let pods = lock(&self.shared.pods);
        pods.get(&cookie).ok_or_else(no_such_pod)?.injector.send(to, packet)
    }

    fn checks(&self) -> Vec<ProbeHop> {
        let mut checks = vec![hop("kernel", true, self.probe.kernel.clone())];
        for finding in &self.probe.findings {
            let (ok, detail) = match &finding.result {
                Ok(found) => (true, found),
                Err(why) => (!finding.feature.required(), why),
            };
            checks.push(hop(finding.feature.to_string(), ok, detail.clone()));
        }
        let hooks: Vec<String> = self.shared.datapath.hooks().map(|h| h.to_string()).collect();
        let pins = if self.pinned { ", pinned" } else { "" };
        let detail = format!("{} on {}{pins}", hooks.join(", "), self.cgroup.display());
        checks.push(hop("attached", !hooks.is_empty(), detail));
        checks
    }

    fn pod_checks(&self, join: Join) -> BoxFuture<'_, Vec<ProbeHop>> {
        async move {
            let checks = blocking(&self.shared, move |s| s.pod_checks(&join)).await;
            checks.unwrap_or_else(|e| vec![hop("checks", false, e.to_string())])
        }
        .boxed()
    }

    fn direct_flows(&self) -> Vec<DirectFlow> {
        let flows = self.shared.datapath.direct_flows().unwrap_or_else(|e| {
            tracing::warn!(error = %e, "direct flows cannot be read");
            Vec::new()
        });
        let flows = flows.into_iter().map(|f| DirectFlow {
            id: f.cookie,
            domain: DomainId(f.domain.0),
            from: f.source,
            to: f.destination,
            established: f.established,
            rtt: f.rtt,
            age: f.age,
        });
        flows.collect()
    }

    fn counts(&self) -> Vec<Count> {
        let counts = self.shared.datapath.counters().unwrap_or_else(|e| {
            tracing::warn!(error = %e, "counters cannot be read");
            Vec::new()
        });
        let counts = counts.into_iter().map(|c| Count {
            domain: DomainId(c.domain.0),
            verdict: c.verdict(),
            reason: c.label(),
            count: c.count,
        });
        counts.collect()
    }

    fn remember_refusal(&self, domain: DomainId, to: SocketAddr, errno: i32) {
        self.shared.remember_refusal(domain, to, errno);
    }

    fn mirror(
        &self,
        number: u64,
        old: Option<&Ports>,
        new: Option<&Ports>,
    ) -> Result<(), KernelError> {
        let failed = |e: MapError| KernelError::Map { map: "of listeners", source: e.into() };
        let (old, new) = (old.map(open), new.map(open));
        self.shared.datapath.mirror(MirrorId::new(number), old, new).map_err(failed)
    }

    fn mirror_is_fresh(&self, within: Duration) {
        if let Err(e) = self.shared.datapath.mirror_is_fresh(within) {
            tracing::warn!(error = %e, "the mirror's age cannot be set");
        }
    }

    fn changes(&self) -> Option<BoxStream<'static, Changed>> {
        let events = self.shared.datapath.take_events()?;
        changes::stream(Arc::clone(&self.shared), events)
    }

    fn sockets(&self) -> Vec<Socket> {
        let dp = &self.shared.datapath;
        let all = |listed: Result<Vec<Found>, MapError>, udp| {
            let listed = listed.unwrap_or_else(|e| {
                tracing::warn!(error = %e, "listeners cannot be read");
                Vec::new()
            });
            listed.into_iter().map(move |l| Socket { cookie: l.netns.0, udp, at: l.at })
        };
        all(dp.listeners(), false).chain(all(dp.udp_on_vip(), true)).collect()
    }

    fn is_open(&self, socket: &Socket) -> bool {
        let (dp, netns) = (&self.shared.datapath, NetnsCookie(socket.cookie));
        let found = if socket.udp {
            dp.is_udp_on_vip(netns, socket.at.port())
        } else {
            dp.is_listening(netns, socket.at)
        };
        // What cannot be read must not be refused.
        found.unwrap_or(true)
    }

    fn answer_on_vip(&self, domain: DomainId, member: SocketAddr, ttl: Duration) {
        let done = self.shared.datapath.answer_on_vip(KernelDomain(domain.0), member, ttl);
        if let Err(e) = done {
            tracing::debug!(%member, error = %e, "a socket on a VIP not remembered");
        }
    }

    fn shut_down(&self, joins: Vec<Join>) -> BoxFuture<'_, ()> {
        async move {
            if self.pinned {
                return;
            }
            for join in joins {
                let uid = join.uid.clone();
                if let Err(e) = self.leave(join).await {
                    tracing::warn!(pod = uid, error = crate::keeper::chain(&e), "left behind");
                }
            }
        }
        .boxed()
    }
}
