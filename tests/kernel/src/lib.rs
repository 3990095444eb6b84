//! A site in namespaces with the real data path on it, for the tests of tier 2 in `tests/`.
//!
//! ```text
//!   pod a ─┐ 10.99.0.1, VIP 10.2.0.4      Domain 7: 10.2.0.0/24, fd00:2::/64
//!   pod b ─┼─ bridge, 10.99.0.2, VIP 10.2.0.5
//!   neighbour ┘ 10.99.0.9, in no Domain
//! ```
//!
//! The test process itself is moved into the hooked cgroup while a [`Lab`] lives, so its threads are the pods'
//! processes; labs are therefore one at a time per process. Needs root and says so; nothing is skipped.

mod cgroup;
pub mod host;

use std::{
    io,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd as _, BorrowedFd},
    path::Path,
    process::Command,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use datapath_loader::{
    Config, Datapath, DomainId, Face, Guard, GuardConfig, Listeners, NetnsCookie, PodEntry, Reason,
    Route,
};
use datapath_net::{
    netns::Netns,
    site::{Veth, create_bridge, veth_into},
    sockets::landing_listener,
    vip::VipInterface,
};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

pub use cgroup::Cgroup;

/// The Domain of the pods.
pub const DOMAIN: DomainId = DomainId(7);
/// A peer at another site.
pub const REMOTE: &str = "10.2.0.7";
/// A virtual address without a route.
pub const UNKNOWN: &str = "10.2.0.99";
/// Longer than anything here takes; a connect that hangs fails its test.
const TIMEOUT: Duration = Duration::from_secs(3);

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The programs of ours on a cgroup, as the kernel tells an outsider.
pub fn attached(cgroup: &Path) -> Result<usize> {
    let output = Command::new("bpftool").args(["cgroup", "show"]).arg(cgroup).output()?;
    ensure!(output.status.success(), "bpftool: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    Ok(text.split_whitespace().filter(|word| word.starts_with("rl_")).count())
}

/// Fails, loudly, unless the process is root.
pub fn require_root() -> Result<()> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "the kernel tests load BPF programs and make namespaces: run them as root"
    );
    Ok(())
}

/// A pod: a namespace on the site's bridge.
#[derive(Debug)]
pub struct Pod {
    pub netns: Netns,
    pub cookie: NetnsCookie,
    pub entry: PodEntry,
    pub real: IpAddr,
    pub vip: IpAddr,
    number: u8,
}

impl Pod {
    fn new(site: &Netns, number: u8) -> Result<Self> {
        let netns = on_bridge(site, number)?;
        let cookie = NetnsCookie(netns.cookie()?);
        let (real, vip) = ([10, 99, 0, number].into(), [10, 2, 0, number + 3].into());
        let (real6, vip6) = (v6(0xfd99, 0, number), v6(0xfd00, 2, number + 3));
        let v4 = Face { vip, real: Some(real), network: [10, 2, 0, 0].into(), prefix_length: 24 };
        let v6 =
            Face { vip: vip6, real: Some(real6), network: v6(0xfd00, 2, 0), prefix_length: 64 };
        let entry = PodEntry::new(DOMAIN, [v4, v6])?;
        Ok(Self { netns, cookie, entry, real, vip, number })
    }

    /// Its IPv6 VIP.
    #[must_use]
    pub fn vip6(&self) -> IpAddr {
        v6(0xfd00, 2, self.number + 3)
    }

    /// Its IPv6 address on the bridge.
    #[must_use]
    pub fn real6(&self) -> IpAddr {
        v6(0xfd99, 0, self.number)
    }

    /// What `rlark-node` gives a pod.
    pub fn interfaces(&self) -> [VipInterface; 2] {
        let rl0 = |vip, network, prefix_length| VipInterface {
            name: "rl0".to_owned(),
            vip,
            network,
            prefix_length,
        };
        [rl0(self.vip, [10, 2, 0, 0].into(), 24), rl0(self.vip6(), v6(0xfd00, 2, 0), 64)]
    }

    /// connect() in the pod.
    pub fn connect(&self, to: impl ToString) -> io::Result<TcpStream> {
        connect_in(&self.netns, to)
    }

    /// A listener in the pod.
    pub fn listen(&self, at: &str) -> Result<TcpListener> {
        self.netns.run(|| TcpListener::bind(at))?.with_context(|| format!("listen on {at}"))
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.netns.as_fd()
    }
}

fn v6(first: u16, second: u16, last: u8) -> IpAddr {
    [first, second, 0, 0, 0, 0, 0, u16::from(last)].into()
}

/// connect() in a namespace, with a deadline.
pub fn connect_in(netns: &Netns, to: impl ToString) -> io::Result<TcpStream> {
    let to: SocketAddr = to.to_string().parse().map_err(io::Error::other)?;
    netns.run(|| TcpStream::connect_timeout(&to, TIMEOUT)).map_err(io::Error::other)?
}

/// A blocking TCP socket in a namespace, bound to `source` if given.
pub fn socket_in(netns: &Netns, family: Domain, source: Option<SocketAddr>) -> Result<Socket> {
    Ok(netns.run(|| -> io::Result<Socket> {
        let socket = Socket::new(family, Type::STREAM, Some(Protocol::TCP))?;
        if let Some(source) = source {
            socket.bind(&SockAddr::from(source))?;
        }
        Ok(socket)
    })??)
}

/// accept() with a deadline.
pub fn accept(listener: &TcpListener) -> Result<(TcpStream, SocketAddr)> {
    let socket = socket2::SockRef::from(listener);
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    listener.accept().context("nobody came")
}

/// Whether nobody waits in the listener's queue.
pub fn is_quiet(listener: &TcpListener) -> Result<bool> {
    listener.set_nonblocking(true)?;
    match listener.accept() {
        Ok(_) => Ok(false),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(true),
        Err(e) => Err(e.into()),
    }
}

/// The errno of a failed call; `None`: it succeeded.
pub fn errno<T>(result: &io::Result<T>) -> Option<i32> {
    result.as_ref().err().map(|e| e.raw_os_error().unwrap_or(0))
}

fn on_bridge(site: &Netns, number: u8) -> Result<Netns> {
    let netns = Netns::anonymous()?;
    let host_name = format!("v{number}");
    site.run(|| {
        veth_into(&Veth {
            netns: netns.as_fd(),
            bridge: "br0",
            host_name: &host_name,
            name: "eth0",
            address: [10, 99, 0, number].into(),
            prefix_length: 24,
            gateway: None,
        })
    })??;
    let mut netlink = datapath_net::netlink::Netlink::in_netns(netns.as_fd())?;
    netlink.add_address("eth0", v6(0xfd99, 0, number), 64)?;
    Ok(netns)
}

/// The site with the data path on it. Everything goes with it.
#[derive(Debug)]
pub struct Lab {
    pub datapath: Option<Datapath>,
    pub guards: Vec<Guard>,
    pub a: Pod,
    pub b: Pod,
    pub neighbour: Netns,
    pub site: Netns,
    pub cgroup: Cgroup,
    _turn: MutexGuard<'static, ()>,
}

impl Lab {
    /// Both pods in the Domain, b reachable directly and with known listeners, [`REMOTE`] relayed.
    pub fn new() -> Result<Self> {
        Self::with_pins(None)
    }

    /// The same, pinned.
    pub fn with_pins(pins: Option<&Path>) -> Result<Self> {
        Self::build(true, pins)
    }

    /// As on a machine without cgroup v2: guards alone.
    pub fn without_hooks() -> Result<Self> {
        Self::build(false, None)
    }

    fn build(hooks: bool, pins: Option<&Path>) -> Result<Self> {
        require_root()?;
        let turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let cgroup = Cgroup::join()?;
        let site = Netns::anonymous()?;
        site.run(|| create_bridge("br0", [10, 99, 0, 254].into(), 24))??;
        let (a, b) = (Pod::new(&site, 1)?, Pod::new(&site, 2)?);
        let neighbour = on_bridge(&site, 9)?;
        let config =
            Config { cgroup: hooks.then(|| cgroup.path().to_owned()), pins: pins.map(Into::into) };
        let mut lab = Self {
            datapath: Some(Datapath::load(config)?),
            guards: Vec::new(),
            a,
            b,
            neighbour,
            site,
            cgroup,
            _turn: turn,
        };
        lab.attach()?;
        Ok(lab)
    }

    /// The loaded data path.
    pub fn datapath(&self) -> Result<&Datapath> {
        self.datapath.as_ref().context("the data path was dropped")
    }

    /// The guard of pod a.
    pub fn guard_a(&self) -> Result<&Guard> {
        self.guards.first().context("the guard was dropped")
    }

    fn attach(&mut self) -> Result<()> {
        let datapath = self.datapath.as_ref().context("loaded")?;
        let (a, b) = (&self.a, &self.b);
        for (vip, real, peer) in [
            (a.vip, a.real, a),
            (b.vip, b.real, b),
            (a.vip6(), a.real6(), a),
            (b.vip6(), b.real6(), b),
        ] {
            datapath.set_real(DOMAIN, real, vip)?;
            datapath.set_vip(
                DOMAIN,
                vip,
                Route::Direct { real, listeners: Listeners::Here(peer.cookie) },
            )?;
        }
        let relay = Route::Relay { listeners: Listeners::Unknown };
        datapath.set_vip(DOMAIN, REMOTE.parse()?, relay)?;
        datapath.set_vip(DOMAIN, v6(0xfd00, 2, 7), relay)?;
        for pod in [a, b] {
            let config = GuardConfig { netns: pod.cookie, pod: pod.entry };
            self.guards.push(datapath.attach_guard(pod.fd(), config)?);
            for interface in pod.interfaces() {
                interface.ensure(pod.fd())?;
            }
            let mut netlink = datapath_net::netlink::Netlink::in_netns(pod.fd())?;
            let device = netlink.index("rl0")?.context("rl0 was just made")?;
            datapath.set_pod(pod.cookie, &pod.entry.on_device(device))?;
        }
        Ok(())
    }

    /// The relay's listener in pod a, landed on.
    pub fn land(&self) -> Result<TcpListener> {
        self.land_in(&self.a, self.guard_a()?)
    }

    /// The relay's listener in a pod whose guard that is, landed on.
    pub fn land_in(&self, pod: &Pod, guard: &Guard) -> Result<TcpListener> {
        let listener = landing_listener(pod.fd(), pod.vip)?;
        self.datapath()?.land(guard.slot(), &listener)?;
        Ok(listener)
    }

    /// A counter of the Domain.
    pub fn count(&self, reason: Reason) -> Result<u64> {
        let counts = self.datapath()?.counters()?;
        Ok(counts
            .iter()
            .filter(|c| c.domain == DOMAIN && c.reason == reason)
            .map(|c| c.count)
            .sum())
    }
}
