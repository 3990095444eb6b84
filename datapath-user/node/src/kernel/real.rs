//! The machine itself: the BPF programs, the pods' namespaces, sockets inside them.

mod changes;
mod host;
mod older;
mod pins;
mod sandbox;
mod seen;
mod shared;

use std::{
    io,
    net::{IpAddr, SocketAddr},
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use control_api::{attach::INTERFACE, ports::Ports, session::ProbeHop};
use datapath_loader::{
    BpffsMount, DomainId as KernelDomain, Finding, Listening as Found, LoadError, MapError,
    MirrorId, Need, Open as OpenPorts, Probe, probe,
};
use datapath_net::{
    echo::echo,
    netns::{Netns, NetnsError, visit_netns},
    packet::Tap,
};
use futures::{FutureExt as _, future::BoxFuture, stream::BoxStream};
use tokio::net::{TcpListener, TcpSocket};

pub use self::pins::Pins;
use self::{
    host::Hosts,
    shared::{Shared, lock, on_host, step},
};
use super::{Changed, Count, DirectFlow, Join, Kernel, KernelError, Seen, Socket};
use crate::{
    observe::hop,
    packets::no_such_pod,
    plan::{
        desired::{Desired, DomainId, Way},
        diff::Op,
    },
};

/// Why the data path does not start on this machine.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("the kernel {kernel} lacks {feature}: {why}")]
    Missing { kernel: String, feature: String, why: String },
    #[error("no BPF file system at {}", path.display())]
    Bpffs {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error(transparent)]
    Load(#[from] LoadError),
    #[error("the machine's own network namespace")]
    Machine(#[source] NetnsError),
    #[error("what an earlier process knew of other machines' ports")]
    Mirror(#[from] MapError),
}

/// Where the cgroup hooks go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hooks {
    /// To the root of the cgroup v2 hierarchy. A machine that has none, or whose kernel refuses a hook, does without.
    Everywhere,
    /// To this cgroup v2 directory.
    Below(PathBuf),
    /// Nowhere: connections to all members are relayed, and refusals are resets ([`datapath_loader::Config::cgroup`]).
    Off,
}

/// The data path of this machine; one per machine and cgroup.
#[derive(Debug)]
pub struct Machine {
    shared: Arc<Shared>,
    probe: Probe,
    /// Where the hooks are, for people; or why there are none.
    hooked: Result<String, String>,
    pins: Option<Pins>,
    /// Unmounted after all else is gone.
    mount: Mutex<Option<BpffsMount>>,
}

impl Machine {
    /// Probes the kernel, loads the programs and attaches them.
    ///
    /// # Errors
    /// A needed feature is missing (named), or loading fails.
    pub fn start(hooks: Hooks, pins: Option<Pins>) -> Result<Self, StartError> {
        let probe = probe();
        let lacks = |missing: &Finding| StartError::Missing {
            kernel: probe.kernel.clone(),
            feature: missing.feature.to_string(),
            why: missing.result.clone().err().unwrap_or_default(),
        };
        if let Some(missing) = probe.missing(Need::All) {
            return Err(lacks(missing));
        }
        let (cgroup, hooked) = match (hooks, probe.missing(Need::Hooks), &probe.cgroup) {
            (Hooks::Off, ..) => (None, Err("as configured".to_owned())),
            (Hooks::Below(path), ..) => (Some(path.clone()), Ok(path.display().to_string())),
            (Hooks::Everywhere, None, Some(root)) => (Some(root.path()), Ok(root.to_string())),
            (Hooks::Everywhere, missing, _) => {
                let why = missing.map_or_else(String::new, |m| lacks(m).to_string());
                tracing::warn!("no cgroup hooks, so every connection is relayed: {why}");
                (None, Err(why))
            }
        };
        // Until all stands, what an earlier process left is not ours to take away: its guards are still needed.
        let mount = pins.as_ref().map(Pins::mount).transpose()?.flatten();
        let datapath = pins::load(cgroup.as_deref(), pins.as_ref())?;
        datapath.forget_mirror()?;
        let hosts = Hosts::new(cgroup).map_err(StartError::Machine)?;
        let mount = pins.as_ref().and_then(|pins| pins.take_over(mount?));
        let shared = Shared::new(datapath, hosts);
        Ok(Self { shared, probe, hooked, pins, mount: Mutex::new(mount) })
    }

    /// Guards stay for pods that could not be taken down, or that a killed process left and this one has not taken over.
    fn unpin(&self) {
        let Some(Pins::UntilStop(_)) = self.pins else { return };
        let Some(mount) = lock(&self.mount).take() else { return };
        let datapath = &self.shared.datapath;
        let done = datapath.pinned_guards().and_then(|guards| {
            datapath.unpin(guards == 0)?;
            Ok(guards)
        });
        match done {
            Ok(0) => drop(mount),
            Ok(guards) => {
                tracing::warn!(guards, "guards stay, their pods still have routes to the Domain");
                mount.keep();
            }
            Err(error) => {
                tracing::warn!(%error, "pins could not be removed");
                mount.keep();
            }
        }
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.unpin();
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
    fn steers(&self) -> bool {
        self.shared.steers()
    }

    fn identify(&self, netns: &Path, cgroup: Option<&Path>) -> Result<u64, KernelError> {
        let failed = |source| KernelError::Netns { path: netns.to_owned(), source };
        let cookie = Netns::open(netns).and_then(|n| n.cookie()).map_err(|e| failed(e.into()))?;
        let hosts = &self.shared.hosts;
        match cgroup {
            None if cookie == hosts.machine.0 => {
                let why = "it is the machine's own, where a pod is known by its cgroup: name that";
                Err(failed(why.into()))
            }
            None => Ok(cookie),
            Some(cgroup) if cookie == hosts.machine.0 => Ok(hosts.identify(cgroup)?.key().0),
            Some(cgroup) => {
                let why = "the pod has a network namespace of its own and is known by that";
                Err(KernelError::Cgroup { path: cgroup.to_owned(), source: why.into() })
            }
        }
    }

    fn join(&self, join: Join) -> BoxFuture<'_, Result<Vec<TcpListener>, KernelError>> {
        async move {
            let failed = step(&join, "the relay's listener");
            let listeners = blocking(&self.shared, move |s| s.join(&join)).await??;
            let all = listeners.into_iter().map(TcpListener::from_std).collect::<io::Result<_>>();
            all.map_err(|e| failed(e.into()))
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
                let Shared { datapath, hosts, .. } = &*self.shared;
                match (on_host(cookie), from) {
                    (Some(host), Some(peer)) => hosts.deliver(datapath, host, peer, to).await,
                    // This process is in no pod's cgroup: what it does is no proof.
                    (Some(_), None) => Err(io::Error::other(
                        "a pod on the host network cannot be probed from; probe towards it",
                    )),
                    (None, Some(source)) => self.shared.deliver(cookie, source, to).await,
                    (None, None) => connect(&*self.shared.netns(cookie)?, to).await,
                }
            };
            let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no answer in time");
            tokio::time::timeout(within, work).await.map_err(late)?
        }
        .boxed()
    }

    fn asked(&self, cookie: u64, from: SocketAddr) -> Option<SocketAddr> {
        let Shared { datapath, hosts, .. } = &*self.shared;
        hosts.asked(datapath, on_host(cookie)?, from)
    }

    fn tap(&self, cookie: u64) -> io::Result<Tap> {
        let network = self.shared.network(cookie)?;
        Tap::open(self.shared.netns(cookie)?.as_fd(), INTERFACE, network)
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
                Err(why) => (finding.feature.need() != Need::All, why),
            };
            checks.push(hop(finding.feature.to_string(), ok, detail.clone()));
        }
        let hooks: Vec<String> = self.shared.datapath.hooks().map(|h| h.to_string()).collect();
        let pins = match &self.pins {
            Some(Pins::Kept(_)) => ", pinned",
            Some(Pins::UntilStop(_)) => ", pinned until the node stops",
            None => "",
        };
        checks.push(match &self.hooked {
            Ok(cgroup) => {
                let detail = format!("{} on {cgroup}{pins}", hooks.join(", "));
                hop("attached", !hooks.is_empty(), detail)
            }
            Err(why) => {
                let detail = format!("no hooks, every connection is relayed ({why}){pins}");
                hop("attached", true, detail)
            }
        });
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
        seen::with_sockets(&self.shared, &flows)
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
        self.shared.datapath.mirror(MirrorId(number), old, new).map_err(failed)
    }

    fn trust_mirror(&self, within: Duration) {
        if let Err(e) = self.shared.datapath.trust_mirror(within) {
            tracing::warn!(error = %e, "the mirror's age cannot be set");
        }
    }

    fn changes(&self) -> Option<BoxStream<'static, Changed>> {
        // Without hooks nobody tells of listeners.
        let events = self.steers().then(|| self.shared.datapath.take_events())??;
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

    fn turned(&self) -> Vec<Socket> {
        self.shared.news.turned()
    }

    fn is_open(&self, socket: &Socket) -> bool {
        self.shared.is_open(socket)
    }

    fn answer_on_vip(&self, domain: DomainId, member: SocketAddr, ttl: Duration) {
        let done = self.shared.datapath.answer_on_vip(KernelDomain(domain.0), member, ttl);
        if let Err(e) = done {
            tracing::debug!(%member, error = %e, "a socket on a VIP not remembered");
        }
    }

    fn seen(&self) -> Option<BoxStream<'static, Seen>> {
        let watch = self.shared.datapath.take_watch()?;
        seen::stream(Arc::clone(&self.shared), watch)
    }

    fn watch(&self, within: Duration) {
        if let Err(e) = self.shared.datapath.watch(within) {
            tracing::warn!(error = %e, "the hooks cannot be asked to tell");
        }
    }

    fn echo(
        &self,
        cookie: u64,
        from: IpAddr,
        to: IpAddr,
        within: Duration,
    ) -> BoxFuture<'_, io::Result<Duration>> {
        async move {
            if on_host(cookie).is_some() {
                return Err(io::Error::other("echoes do not pass a pod on the host network"));
            }
            let netns = self.shared.netns(cookie)?;
            let late = |_| io::Error::new(io::ErrorKind::TimedOut, "no answer in time");
            let asked = echo(netns.as_fd(), from, to, rand::random());
            tokio::time::timeout(within, asked).await.map_err(late)?
        }
        .boxed()
    }

    fn shut_down(&self, joins: Vec<Join>) -> BoxFuture<'_, ()> {
        async move {
            if self.pins.as_ref().is_some_and(Pins::stay) {
                return;
            }
            for join in joins {
                let uid = join.uid.clone();
                if let Err(e) = self.leave(join).await {
                    tracing::warn!(pod = uid, error = crate::keeper::chain(&e), "left behind");
                }
            }
            self.unpin();
        }
        .boxed()
    }
}
