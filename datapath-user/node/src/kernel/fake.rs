//! A machine without a kernel, for tests of everything above the seam: it keeps the maps, and its
//! namespaces and cgroups are files whose content is the cookie, or `machine`.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::Mutex,
    time::Duration,
};

use control_api::{ports::Ports, session::ProbeHop};
use datapath_net::packet::Tap;
use futures::{FutureExt as _, future::BoxFuture, stream::BoxStream};
use tokio::net::{TcpListener, TcpStream};

use super::{Changed, Count, DirectFlow, Join, Kernel, KernelError, Seen, Socket};
use crate::{
    keeper::listed,
    packets::no_such_pod,
    plan::{
        desired::{Desired, DomainId, Way},
        diff::Op,
    },
};

#[derive(Debug, Default)]
pub(crate) struct Fake {
    pub(crate) state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    pub(crate) maps: Desired,
    pub(crate) joined: BTreeMap<String, Join>,
    pub(crate) log: Vec<String>,
    /// Steps that shall fail: `join`, `pod`; `identify` for want of descriptors. `hooks`: there are none.
    pub(crate) broken: BTreeSet<&'static str>,
    pub(crate) listeners: BTreeMap<String, SocketAddr>,
    /// The pods' ends of their taps, and what was injected.
    pub(crate) taps: BTreeMap<u64, std::os::unix::net::UnixDatagram>,
    pub(crate) injected: Vec<(u64, IpAddr, Vec<u8>)>,
    /// By the source of connections of pods on the host network.
    pub(crate) asked: BTreeMap<SocketAddr, SocketAddr>,
    /// By number.
    pub(crate) mirror: BTreeMap<u64, Ports>,
    pub(crate) fresh: Duration,
    pub(crate) sockets: BTreeSet<Socket>,
    pub(crate) turned: Vec<Socket>,
    pub(crate) seen: Option<futures::channel::mpsc::UnboundedReceiver<Seen>>,
    pub(crate) watched: Duration,
    pub(crate) changes: Option<futures::channel::mpsc::UnboundedReceiver<Changed>>,
}

impl Kernel for Fake {
    fn steers(&self) -> bool {
        !self.state.lock().unwrap().broken.contains("hooks")
    }

    fn identify(&self, path: &Path, cgroup: Option<&Path>) -> Result<u64, KernelError> {
        let netns = |source| KernelError::Netns { path: path.to_owned(), source };
        if self.state.lock().unwrap().broken.contains("identify") {
            return Err(netns(io::Error::from(rustix::io::Errno::MFILE).into()));
        }
        let text = std::fs::read_to_string(path).map_err(|e| netns(e.into()))?;
        let Some(cgroup) = cgroup else {
            return text.trim().parse().map_err(|e: std::num::ParseIntError| netns(e.into()));
        };
        let failed = |source| KernelError::Cgroup { path: cgroup.to_owned(), source };
        if text != "machine" {
            return Err(failed("the pod has a namespace of its own".into()));
        }
        let id = std::fs::read_to_string(cgroup).map_err(|e| failed(e.into()))?;
        id.trim().parse::<u64>().map(|id| 1 << 63 | id).map_err(|e| failed(e.into()))
    }

    fn join(&self, join: Join) -> BoxFuture<'_, Result<Vec<TcpListener>, KernelError>> {
        async move {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let mut s = self.state.lock().unwrap();
            if s.broken.contains("join") {
                let source = io::Error::other("no guard").into();
                return Err(KernelError::Pod { uid: join.uid, step: "guard", source });
            }
            let vips = listed(join.pod.faces.iter().map(|f| &f.vip));
            s.log.push(format!("join {} {vips}", join.uid));
            s.listeners.insert(join.uid.clone(), listener.local_addr().unwrap());
            s.joined.insert(join.uid.clone(), join);
            Ok(vec![listener])
        }
        .boxed()
    }

    fn leave(&self, join: Join) -> BoxFuture<'_, Result<(), KernelError>> {
        let mut s = self.state.lock().unwrap();
        s.log.push(format!("leave {}", join.uid));
        s.joined.remove(&join.uid);
        futures::future::ready(Ok(())).boxed()
    }

    fn apply(&self, op: &Op) -> Result<(), KernelError> {
        let mut s = self.state.lock().unwrap();
        if matches!(op, Op::PutPod(..)) && s.broken.contains("pod") {
            return Err(KernelError::Map { map: "PODS", source: "full".into() });
        }
        s.maps.note(op);
        Ok(())
    }

    fn sweep(&self, keep: &Desired) -> Result<(), KernelError> {
        let mut s = self.state.lock().unwrap();
        s.maps.pods.retain(|k, _| keep.pods.contains_key(k));
        s.maps.vips.retain(|k, _| keep.vips.contains_key(k));
        s.maps.reals.retain(|k, _| keep.reals.contains_key(k));
        Ok(())
    }

    fn way(&self, domain: DomainId, vip: IpAddr) -> Option<Way> {
        self.state.lock().unwrap().maps.vips.get(&(domain, vip)).copied()
    }

    fn connect(
        &self,
        _cookie: u64,
        _from: Option<IpAddr>,
        to: SocketAddr,
        _within: Duration,
    ) -> BoxFuture<'_, io::Result<std::net::TcpStream>> {
        async move {
            TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], to.port()))).await?.into_std()
        }
        .boxed()
    }

    fn asked(&self, _cookie: u64, from: SocketAddr) -> Option<SocketAddr> {
        self.state.lock().unwrap().asked.remove(&from)
    }

    fn tap(&self, cookie: u64) -> io::Result<Tap> {
        let (pod, tap) = std::os::unix::net::UnixDatagram::pair()?;
        tap.set_nonblocking(true)?;
        let mut s = self.state.lock().unwrap();
        if !s.joined.values().any(|j| j.cookie == cookie) {
            return Err(no_such_pod());
        }
        s.taps.insert(cookie, pod);
        Tap::over(tap.into())
    }

    fn inject(&self, cookie: u64, to: IpAddr, packet: &[u8]) -> io::Result<()> {
        let mut s = self.state.lock().unwrap();
        if !s.joined.values().any(|j| j.cookie == cookie) {
            return Err(no_such_pod());
        }
        s.injected.push((cookie, to, packet.to_vec()));
        Ok(())
    }

    fn checks(&self) -> Vec<ProbeHop> {
        Vec::new()
    }

    fn pod_checks(&self, _join: Join) -> BoxFuture<'_, Vec<ProbeHop>> {
        futures::future::ready(Vec::new()).boxed()
    }

    fn direct_flows(&self) -> Vec<DirectFlow> {
        Vec::new()
    }

    fn counts(&self) -> Vec<Count> {
        Vec::new()
    }

    fn remember_refusal(&self, _: DomainId, to: SocketAddr, errno: i32) {
        self.state.lock().unwrap().log.push(format!("refusal {to} {errno}"));
    }

    fn mirror(
        &self,
        number: u64,
        _old: Option<&Ports>,
        new: Option<&Ports>,
    ) -> Result<(), KernelError> {
        let mut s = self.state.lock().unwrap();
        match new {
            Some(ports) => s.mirror.insert(number, ports.clone()),
            None => s.mirror.remove(&number),
        };
        Ok(())
    }

    fn trust_mirror(&self, within: Duration) {
        self.state.lock().unwrap().fresh = within;
    }

    fn changes(&self) -> Option<BoxStream<'static, Changed>> {
        self.state.lock().unwrap().changes.take().map(futures::StreamExt::boxed)
    }

    fn turned(&self) -> Vec<Socket> {
        std::mem::take(&mut self.state.lock().unwrap().turned)
    }

    fn sockets(&self) -> Vec<Socket> {
        self.state.lock().unwrap().sockets.iter().copied().collect()
    }

    fn is_open(&self, socket: &Socket) -> bool {
        self.state.lock().unwrap().sockets.contains(socket)
    }

    fn answer_on_vip(&self, _: DomainId, member: SocketAddr, _: Duration) {
        self.state.lock().unwrap().log.push(format!("on vip {member}"));
    }

    fn seen(&self) -> Option<BoxStream<'static, Seen>> {
        self.state.lock().unwrap().seen.take().map(futures::StreamExt::boxed)
    }

    fn watch(&self, within: Duration) {
        self.state.lock().unwrap().watched = within;
    }

    fn echo(
        &self,
        cookie: u64,
        _: IpAddr,
        _: IpAddr,
        _: Duration,
    ) -> BoxFuture<'_, io::Result<Duration>> {
        let here = self.state.lock().unwrap().joined.values().any(|j| j.cookie == cookie);
        let answer = if here { Ok(Duration::from_millis(1)) } else { Err(no_such_pod()) };
        futures::future::ready(answer).boxed()
    }

    fn shut_down(&self, joins: Vec<Join>) -> BoxFuture<'_, ()> {
        let mut s = self.state.lock().unwrap();
        s.log.push(format!("shut down with {} pods", joins.len()));
        futures::future::ready(()).boxed()
    }
}
