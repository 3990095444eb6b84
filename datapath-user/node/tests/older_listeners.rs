//! Listeners that stood before the data path: peers reach them, and are refused by the hook when they have ended. Needs root.

use std::{
    fs, io,
    net::{IpAddr, SocketAddr, TcpListener, UdpSocket},
    path::PathBuf,
    time::{Duration, Instant},
};

use control_api::cidr::Cidr;
use datapath_net::netns::NamedNetns;
use futures::StreamExt as _;
use rlark_node::{
    kernel::{
        ANY_V6_ONLY, Changed, Join, Kernel as _, Socket,
        real::{Hooks, Machine},
    },
    plan::{
        desired::{DomainId, Face, Listeners, Pod, Way},
        diff::Op,
    },
};
use socket2::{Domain, Type};

type Tested = Result<(), Box<dyn std::error::Error>>;

const DOMAIN: DomainId = DomainId(7);
/// What a listener's end may take until a connect is refused for it.
const AT_ONCE: Duration = Duration::from_millis(500);

/// The process moves between cgroups as a whole, so the tests take turns.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// The hooked cgroup, with this process in it while it lives.
struct Cgroup(PathBuf, PathBuf);

impl Cgroup {
    fn enter() -> io::Result<Self> {
        let root = datapath_loader::cgroup2_mount().ok_or(io::ErrorKind::NotFound)?;
        let path = root.join(format!("rlark-older-{}", std::process::id()));
        fs::create_dir(&path)?;
        fs::write(path.join("cgroup.procs"), "0")?;
        Ok(Self(path, root))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _back = fs::write(self.1.join("cgroup.procs"), "0");
        let _busy = fs::remove_dir(&self.0);
    }
}

struct Place {
    netns: NamedNetns,
    cookie: u64,
    join: Join,
}

fn place(
    machine: &Machine,
    netns: NamedNetns,
    last: u8,
) -> Result<Place, Box<dyn std::error::Error>> {
    let cookie = machine.identify(netns.path(), None)?;
    let face = |cidr: &str, vip: String| -> Result<Face, Box<dyn std::error::Error>> {
        Ok(Face { cidr: cidr.parse::<Cidr>()?, vip: vip.parse()?, real: None })
    };
    let faces = vec![
        face("10.215.0.0/24", format!("10.215.0.{last}"))?,
        face("fd15::/64", format!("fd15::{last}"))?,
    ];
    let pod = Pod { domain: DOMAIN, faces, restricted: false };
    let (uid, path) = (format!("pod-{last}"), netns.path().to_owned());
    Ok(Place { netns, cookie, join: Join { uid, netns: path, cgroup: None, cookie, pod } })
}

fn connect(from: &Place, to: SocketAddr) -> io::Result<std::net::TcpStream> {
    let connect = || std::net::TcpStream::connect_timeout(&to, Duration::from_secs(3));
    from.netns.netns().run(connect).map_err(io::Error::other)?
}

fn is_refused(from: &Place, to: SocketAddr) -> bool {
    connect(from, to).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused)
}

fn refused_at_once(from: &Place, to: SocketAddr) {
    let begin = Instant::now();
    while !is_refused(from, to) {
        assert!(begin.elapsed() < AT_ONCE, "{to} is still open");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_older_than_the_hooks_is_followed_to_its_end() -> Tested {
    let _turn = TURN.lock().await;
    let name = |of: &str| format!("rlolder-{}-{of}", std::process::id());
    let (client, server) = (NamedNetns::create(&name("a"))?, NamedNetns::create(&name("b"))?);
    // No hook sees these begin.
    let listen = |at: &'static str| server.netns().run(move || TcpListener::bind(at));
    let (first, other) = (listen("0.0.0.0:7301")??, listen("[::]:7302")??);
    let only_v6 = server.netns().run(|| -> io::Result<_> {
        let socket = socket2::Socket::new(Domain::IPV6, Type::STREAM, None)?;
        socket.set_only_v6(true)?;
        socket.bind(&SocketAddr::from(([0u16; 8], 7303)).into())?;
        socket.listen(8)?;
        Ok(socket)
    })??;

    let cgroup = Cgroup::enter()?;
    let machine = Machine::start(Hooks::Below(cgroup.0.clone()), None)?;
    let (client, server) = (place(&machine, client, 1)?, place(&machine, server, 2)?);
    let mut landing = Vec::new();
    for place in [&client, &server] {
        landing.push(machine.join(place.join.clone()).await?);
        machine.apply(&Op::PutPod(place.cookie, place.join.pod.clone()))?;
    }
    let [v4, v6]: [IpAddr; 2] = ["10.215.0.2".parse()?, "fd15::2".parse()?];
    for vip in [v4, v6] {
        let listeners = Listeners::Here(server.cookie);
        machine.apply(&Op::PutVip(DOMAIN, vip, Way::Relay { listeners }))?;
    }
    let at = |ip, port| SocketAddr::new(ip, port);
    let mut changes = machine.changes().ok_or("events")?;

    for (ip, port, open) in [
        (v4, 7301, true),
        (v6, 7301, false),
        (v4, 7302, true),
        (v6, 7302, true),
        (v4, 7303, false),
        (v6, 7303, true),
        (v4, 7304, false),
    ] {
        assert_eq!(!is_refused(&client, at(ip, port)), open, "{ip} {port}");
    }
    let seeded: Vec<SocketAddr> = machine.sockets().iter().map(|s| s.at).collect();
    assert!(seeded.contains(&at(ANY_V6_ONLY, 7303)), "{seeded:?}");

    // One ends, the others stay.
    let socket = Socket { cookie: server.cookie, udp: false, at: at([0; 4].into(), 7301) };
    assert!(machine.is_open(&socket));
    drop(first);
    refused_at_once(&client, at(v4, 7301));
    assert!(!machine.is_open(&socket));
    let told = tokio::time::timeout(AT_ONCE, changes.next()).await?;
    assert_eq!(told, Some(Changed::All));
    assert!(!is_refused(&client, at(v4, 7302)) && !is_refused(&client, at(v6, 7303)));
    drop(only_v6);
    refused_at_once(&client, at(v6, 7303));

    drop(other);
    refused_at_once(&client, at(v4, 7302));
    assert!(machine.sockets().iter().all(|s| s.cookie != server.cookie), "all have ended");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn an_older_socket_that_is_bound_to_its_vip_is_followed_too() -> Tested {
    let _turn = TURN.lock().await;
    let server = NamedNetns::create(&format!("rlolder-{}-u", std::process::id()))?;
    let cgroup = Cgroup::enter()?;
    let machine = Machine::start(Hooks::Below(cgroup.0.clone()), None)?;
    let server = place(&machine, server, 3)?;
    let _landing = machine.join(server.join.clone()).await?;
    // Its pod has no entry yet: the hooks do not count it.
    let vip: SocketAddr = "10.215.0.3:7400".parse()?;
    let udp = server.netns.netns().run(move || UdpSocket::bind(vip))??;
    machine.apply(&Op::PutPod(server.cookie, server.join.pod.clone()))?;
    let mut changes = machine.changes().ok_or("events")?;
    let open = || machine.sockets().iter().any(|s| s.udp && s.at.port() == 7400);
    assert!(open());
    drop(udp);
    let told = tokio::time::timeout(AT_ONCE, changes.next()).await?;
    assert_eq!(told, Some(Changed::All));
    assert!(!open());
    Ok(())
}
