//! Real eBPF, real namespaces, real relay: pods of one node reach each other directly, pods of two
//! nodes through SSH. Only the hub is absent: peers are joined by loopback TCP. Needs root.
#![expect(clippy::unwrap_used, clippy::print_stderr, reason = "a test's helpers may end the test")]

use std::{
    collections::BTreeMap,
    fs, io,
    net::SocketAddr,
    os::fd::AsFd as _,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use control_api::{
    attach::AttachRequest,
    ids::{DomainName, NodeRef},
    session::{DomainRoutes, FlowState, Member, ProbeRequest, Protocol, RouteUpdate, Verdict},
};
use control_identity::session::SessionState;
use datapath_net::{
    netlink::Netlink,
    netns::{NamedNetns, visit_netns},
};
use datapath_relay::{
    BoxFuture, DomainIdentity, Lane, Path as CarrierPath, Paths, Relay, RelayConfig,
};
use rlark_node::{
    attach::Insight as _,
    keeper::Keeper,
    kernel::real::{Hooks, Machine, Pins},
    node::Core,
    observe::Observer,
};
use russh::keys::{
    Algorithm, PrivateKey,
    ssh_key::certificate::{Builder, CertType},
};
use socket2::{Domain, Protocol as Protocol4, Socket, Type};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpSocket, TcpStream, UdpSocket},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

type Tested = Result<(), Box<dyn std::error::Error>>;

/// The process moves between cgroups as a whole, so the tests take turns.
static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// A cgroup of our own: the hooks see this process and nobody else's.
struct Cgroup {
    path: PathBuf,
    root: PathBuf,
}

impl Cgroup {
    fn enter() -> io::Result<Self> {
        let root =
            datapath_loader::cgroup2_mount().ok_or_else(|| io::Error::other("no cgroup v2"))?;
        let path = root.join(format!("rlark-node-test-{}", std::process::id()));
        fs::create_dir(&path)?;
        let own = Self { path, root };
        own.move_to(&own.path)?;
        Ok(own)
    }

    fn move_to(&self, path: &Path) -> io::Result<()> {
        fs::write(path.join("cgroup.procs"), std::process::id().to_string())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let moved = self.move_to(&self.root).and_then(|()| fs::remove_dir(&self.path));
        if let Err(e) = moved {
            eprintln!("{} is left behind: {e}", self.path.display());
        }
    }
}

/// Peers in this process.
#[derive(Clone, Default)]
struct Loopback {
    relays: Arc<Mutex<BTreeMap<NodeRef, Relay>>>,
}

struct Dialler {
    me: NodeRef,
    all: Loopback,
}

impl Paths for Dialler {
    fn dial<'a>(
        &'a self,
        domain: &'a DomainName,
        peer: &'a NodeRef,
        lane: Lane,
    ) -> BoxFuture<'a, io::Result<CarrierPath>> {
        Box::pin(async move {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let to = listener.local_addr()?;
            let (ours, theirs) = tokio::try_join!(TcpStream::connect(to), listener.accept())?;
            let relay = self.all.relays.lock().unwrap().get(peer).cloned();
            let relay = relay.ok_or_else(|| io::Error::other("no such peer"))?;
            let path = CarrierPath::direct(theirs.0.into_std()?);
            relay.accept(domain, &self.me, lane, path).map_err(io::Error::other)?;
            Ok(CarrierPath::direct(ours.into_std()?))
        })
    }
}

struct Node {
    keeper: Keeper,
    observer: Arc<Observer>,
    relay: Relay,
    stop: CancellationToken,
    task: AbortOnDropHandle<()>,
    dir: tempfile::TempDir,
}

impl Node {
    fn start(
        name: &str,
        cgroup: &Cgroup,
        peers: &Loopback,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let machine = Machine::start(Hooks::Below(cgroup.path.clone()), None)?;
        Self::on(name, machine, peers, tempfile::tempdir()?)
    }

    fn on(
        name: &str,
        machine: Machine,
        peers: &Loopback,
        dir: tempfile::TempDir,
    ) -> Result<Self, Box<dyn std::error::Error>> {
        let me: NodeRef = name.parse()?;
        let paths = Dialler { me: me.clone(), all: peers.clone() };
        let (_, session) = tokio::sync::watch::channel(SessionState::Connected);
        let config = RelayConfig::new(me.clone());
        let core = Core::build(config, dir.path(), Arc::new(machine), Arc::new(paths), session)?;
        let Core { keeper, task, relay, observer, .. } = core;
        peers.relays.lock().unwrap().insert(me, relay.clone());
        let stop = CancellationToken::new();
        let task = AbortOnDropHandle::new(tokio::spawn(task.run(stop.clone())));
        Ok(Self { keeper, observer, relay, stop, task, dir })
    }

    async fn routes(&self, domain: DomainRoutes) -> Tested {
        let update = RouteUpdate::Snapshot { domains: vec![domain] };
        self.keeper.update(update).await?.map_err(|e| format!("{e:?}"))?;
        Ok(())
    }

    async fn attach(
        &self,
        uid: &str,
        pod: &NamedNetns,
    ) -> Result<PathBuf, Box<dyn std::error::Error>> {
        let hosts = self.dir.path().join(format!("hosts-{uid}"));
        fs::write(&hosts, "127.0.0.1 localhost\n")?;
        let request = AttachRequest {
            domain: "demo".parse()?,
            netns: pod.path().to_owned(),
            cgroup: None,
            hosts: Some(hosts.clone()),
            timeout_ms: 5000,
        };
        self.keeper.attach(uid.to_owned(), request).await?;
        Ok(hosts)
    }

    async fn probe(&self, from: &str, to: &str, port: u16) -> String {
        let domain = "demo".parse().unwrap();
        let request = ProbeRequest { domain, from: from.into(), to: to.into(), port };
        let hops = self.observer.probe(&request).await.hops;
        hops.iter().map(|h| format!("{}:{}:{}\n", h.hop, h.ok, h.detail)).collect()
    }

    /// Its data directory, for a successor.
    async fn stop(self) -> tempfile::TempDir {
        self.stop.cancel();
        self.task.await.unwrap();
        self.dir
    }
}

fn pod(name: &str) -> Result<NamedNetns, Box<dyn std::error::Error>> {
    Ok(NamedNetns::create(&format!("rlnode-{}-{name}", std::process::id()))?)
}

fn member(uid: &str, vip: &str, node: &str, local_ip: Option<&str>) -> Member {
    Member {
        uid: uid.into(),
        vips: vec![vip.parse().unwrap()],
        pod: format!("{uid}-0"),
        pod_namespace: "rlark-system".into(),
        node: node.parse().unwrap(),
        local_ips: local_ip.map(|ip| ip.parse().unwrap()).into_iter().collect(),
        task: String::new(),
        job: String::new(),
    }
}

fn domain(ca: &PrivateKey, members: Vec<Member>) -> DomainRoutes {
    DomainRoutes {
        name: "demo".parse().unwrap(),
        cidr: "10.213.0.0/24".into(),
        ssh_ca: ca.public_key().to_openssh().unwrap(),
        encrypt_within_site: false,
        allowed_ports: None,
        members,
    }
}

fn ca() -> PrivateKey {
    PrivateKey::random(&mut rand::rng(), Algorithm::Ed25519).unwrap()
}

fn identity(ca: &PrivateKey, node: &str) -> DomainIdentity {
    let key = PrivateKey::random(&mut rand::rng(), Algorithm::Ed25519).unwrap();
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
    let public = key.public_key().clone();
    let mut builder =
        Builder::new_with_random_nonce(&mut rand::rng(), public, now - 60, now + 3600).unwrap();
    builder.cert_type(CertType::User).unwrap();
    builder.key_id(node).unwrap();
    builder.valid_principal(node).unwrap();
    let certificate = builder.sign(ca).unwrap();
    DomainIdentity { key, certificate, ca: ca.public_key().clone() }
}

fn listen(pod: &NamedNetns, at: &str) -> io::Result<TcpListener> {
    let at: SocketAddr = at.parse().map_err(io::Error::other)?;
    let listener = visit_netns(pod.netns().as_fd(), || std::net::TcpListener::bind(at))??;
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

async fn dial(pod: &NamedNetns, to: &str) -> io::Result<TcpStream> {
    let socket = visit_netns(pod.netns().as_fd(), TcpSocket::new_v4)??;
    let to = to.parse().map_err(io::Error::other)?;
    tokio::time::timeout(Duration::from_secs(10), socket.connect(to)).await?
}

fn kind<T>(result: io::Result<T>) -> Option<io::ErrorKind> {
    result.err().map(|e| e.kind())
}

/// Both directions, a half-close, and the names that both ends see.
async fn converse(mut client: TcpStream, listener: &TcpListener, vips: (&str, &str)) -> Tested {
    let (mut server, from) =
        tokio::time::timeout(Duration::from_secs(10), listener.accept()).await??;
    assert_eq!(from.ip().to_string(), vips.0);
    assert_eq!(server.peer_addr()?.ip().to_string(), vips.0);
    assert_eq!(client.peer_addr()?.ip().to_string(), vips.1);
    assert_eq!(client.local_addr()?.ip().to_string(), vips.0);
    let payload: Vec<u8> = (0..1_000_000_u32).map(|n| n.to_le_bytes()[0] ^ 0x5a).collect();
    let (sent, echoed) = tokio::join!(
        async {
            client.write_all(&payload).await?;
            client.shutdown().await?;
            let mut back = Vec::new();
            client.read_to_end(&mut back).await?;
            Ok::<_, io::Error>(back)
        },
        async {
            let mut got = Vec::new();
            server.read_to_end(&mut got).await?;
            server.write_all(&got).await?;
            drop(server);
            Ok::<_, io::Error>(got.len())
        }
    );
    assert_eq!(echoed?, payload.len());
    assert!(sent? == payload, "the echo differs");
    Ok(())
}

fn udp(pod: &NamedNetns, at: &str) -> Result<UdpSocket, Box<dyn std::error::Error>> {
    let at: SocketAddr = at.parse()?;
    let socket = visit_netns(pod.netns().as_fd(), || std::net::UdpSocket::bind(at))??;
    socket.set_nonblocking(true)?;
    Ok(UdpSocket::from_std(socket)?)
}

/// As `ping` does.
async fn echo(pod: &NamedNetns, to: &str) -> Tested {
    let open = || Socket::new(Domain::IPV4, Type::RAW, Some(Protocol4::ICMPV4));
    let socket = visit_netns(pod.netns().as_fd(), open)??;
    socket.set_read_timeout(Some(Duration::from_secs(10)))?;
    let to: SocketAddr = format!("{to}:0").parse()?;
    // An echo request, number 1 of 77; the last word but two is its checksum.
    socket.send_to(&[8, 0, 0xf7, 0xb1, 0, 77, 0, 1], &to.into())?;
    let answer = tokio::task::spawn_blocking(move || {
        let mut buffer = [std::mem::MaybeUninit::uninit(); 100];
        socket.recv_from(&mut buffer)
    });
    assert_eq!(answer.await??.1.as_socket(), Some(to));
    Ok(())
}

/// Between sites: names, sizes, who speaks first, and the far kernel's refusal.
async fn datagrams(near: &Node, (a, b): (&NamedNetns, &NamedNetns)) -> Tested {
    let (server, client) = (udp(b, "0.0.0.0:9000")?, udp(a, "0.0.0.0:0")?);
    let mut buffer = vec![0; 70_000];
    let patience = Duration::from_secs(10);
    for size in [0, 1, 1472, 60_000, 65_507] {
        let sent = vec![7; size];
        client.send_to(&sent, "10.213.0.2:9000").await?;
        let (n, from) = tokio::time::timeout(patience, server.recv_from(&mut buffer)).await??;
        assert_eq!((n, from.ip().to_string().as_str()), (size, "10.213.0.1"));
        server.send_to(&sent, from).await?;
        let (n, from) = tokio::time::timeout(patience, client.recv_from(&mut buffer)).await??;
        assert_eq!((n, from.to_string().as_str()), (size, "10.213.0.2:9000"));
    }
    let own = client.local_addr()?.port();
    udp(b, "0.0.0.0:0")?.send_to(b"news", format!("10.213.0.1:{own}")).await?;
    let (n, from) = tokio::time::timeout(patience, client.recv_from(&mut buffer)).await??;
    assert_eq!((n, from.ip().to_string().as_str()), (4, "10.213.0.2"));

    client.connect("10.213.0.2:9").await?;
    client.send(b"?").await?;
    let refused = tokio::time::timeout(patience, client.recv(&mut buffer)).await?;
    assert_eq!(kind(refused), Some(io::ErrorKind::ConnectionRefused));

    echo(a, "10.213.0.2").await?;

    let flows = near.observer.all_flows();
    let flow = flows.iter().find(|f| f.protocol == Protocol::Udp && f.to.port() == 9000);
    let flow = flow.ok_or("the datagrams are not listed")?;
    assert_eq!((flow.from_pod.as_str(), flow.to_pod.as_str()), ("a-0", "b-0"));
    assert_eq!(flow.carrier, "direct:s2/n1:interactive");
    assert!(flow.bytes_out > 125_000 && flow.bytes_in > 125_000, "{flow:?}");
    Ok(())
}

/// Two pods of one site on a wire of their own.
fn wired(names: (&str, &str)) -> Result<(NamedNetns, NamedNetns), Box<dyn std::error::Error>> {
    let (a, b) = (pod(names.0)?, pod(names.1)?);
    Netlink::in_netns(a.netns().as_fd())?.add_veth("eth0", "eth0", b.netns().as_fd())?;
    for (pod, ip) in [(&a, [172, 29, 0, 1]), (&b, [172, 29, 0, 2])] {
        let mut netlink = Netlink::in_netns(pod.netns().as_fd())?;
        netlink.add_address("eth0", ip.into(), 24)?;
        netlink.set_up("eth0")?;
    }
    Ok((a, b))
}

fn one_site() -> Vec<Member> {
    vec![
        member("a", "10.213.0.1", "s1/n1", Some("172.29.0.1")),
        member("b", "10.213.0.2", "s1/n1", Some("172.29.0.2")),
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_of_one_site_talk_directly_and_lose_everything_on_detach() -> Tested {
    let _turn = TURN.lock().await;
    let (cgroup, ca) = (Cgroup::enter()?, ca());
    let node = Node::start("s1/n1", &cgroup, &Loopback::default())?;
    let (a, b) = wired(("a", "b"))?;
    node.routes(domain(&ca, one_site())).await?;
    let hosts = node.attach("a", &a).await?;
    node.attach("b", &b).await?;
    assert!(fs::read_to_string(&hosts)?.contains("10.213.0.2 b-0.rlark-domain"));

    let listener = listen(&b, "0.0.0.0:9000")?;
    let client = dial(&a, "10.213.0.2:9000").await?;
    let flows = node.observer.all_flows();
    let flow = flows.iter().find(|f| f.verdict == Verdict::Direct).ok_or("no direct flow")?;
    assert_eq!((flow.from_pod.as_str(), flow.to_pod.as_str()), ("a-0", "b-0"));
    converse(client, &listener, ("10.213.0.1", "10.213.0.2")).await?;
    assert_eq!(kind(dial(&a, "10.213.0.2:9001").await), Some(io::ErrorKind::ConnectionRefused));
    assert_eq!(kind(dial(&a, "10.213.0.99:9000").await), Some(io::ErrorKind::HostUnreachable));
    let probe = node.probe("a-0", "b-0", 9000).await;
    assert!(probe.contains("verdict:true:direct") && probe.contains("listener:true"), "{probe}");
    let probe = node.probe("a-0", "b-0", 9001).await;
    assert!(probe.contains("listener:false"), "{probe}");
    let report = node.observer.report().await;
    assert!(report.checks.iter().all(|c| c.ok), "{report:?}");
    assert!(node.observer.refusal_counts().get("unknown_vip").is_some_and(|n| *n > 0));

    node.keeper.detach("a".into()).await?;
    assert!(Netlink::in_netns(a.netns().as_fd())?.index("rl0")?.is_none());
    assert!(!fs::read_to_string(&hosts)?.contains("rlark"));
    drop(node.stop().await);
    assert!(Netlink::in_netns(b.netns().as_fd())?.index("rl0")?.is_none());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_of_two_sites_talk_through_ssh_with_the_same_names_and_ends() -> Tested {
    let _turn = TURN.lock().await;
    let (cgroup, ca, peers) = (Cgroup::enter()?, ca(), Loopback::default());
    let (near, far) =
        (Node::start("s1/n1", &cgroup, &peers)?, Node::start("s2/n1", &cgroup, &peers)?);
    let (a, b) = (pod("c")?, pod("d")?);
    // The same real address at both sites: it must mean nothing between them.
    let members = vec![
        member("a", "10.213.0.1", "s1/n1", Some("172.29.0.1")),
        member("b", "10.213.0.2", "s2/n1", Some("172.29.0.1")),
    ];
    for (node, name) in [(&near, "s1/n1"), (&far, "s2/n1")] {
        node.routes(domain(&ca, members.clone())).await?;
        node.relay.set_identity(&"demo".parse()?, identity(&ca, name))?;
    }
    near.attach("a", &a).await?;
    far.attach("b", &b).await?;

    let listener = listen(&b, "0.0.0.0:9000")?;
    let client = dial(&a, "10.213.0.2:9000").await?;
    converse(client, &listener, ("10.213.0.1", "10.213.0.2")).await?;
    let flows = near.observer.all_flows();
    assert!(flows.iter().any(|f| f.verdict == Verdict::Relay && f.to_pod == "b-0"), "{flows:?}");
    assert!(far.observer.all_flows().iter().any(|f| !f.outgoing && f.from_pod == "a-0"));

    // Nobody listens: the first connect lands and is reset, the next is refused in the hook.
    // The reset may come before connect() has been looked at.
    let landed = async { dial(&a, "10.213.0.2:9001").await?.read_u8().await };
    assert_eq!(kind(landed.await), Some(io::ErrorKind::ConnectionReset));
    assert_eq!(kind(dial(&a, "10.213.0.2:9001").await), Some(io::ErrorKind::ConnectionRefused));
    let refused = |f: &control_api::session::Flow| f.state == FlowState::Refused;
    assert!(near.observer.all_flows().iter().any(refused));

    datagrams(&near, (&a, &b)).await?;

    let probe = near.probe("a-0", "b-0", 9000).await;
    for part in ["verdict:true:relay", "carrier:true:direct:s2/n1", "listener:true"] {
        assert!(probe.contains(part), "{part} is not in\n{probe}");
    }
    drop(near.stop().await);
    drop(far.stop().await);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pinned_verdicts_work_without_the_node_and_its_successor_adopts_the_pods() -> Tested {
    let _turn = TURN.lock().await;
    let (cgroup, ca, peers) = (Cgroup::enter()?, ca(), Loopback::default());
    let mount = tempfile::tempdir()?;
    let _bpffs = datapath_loader::mount_bpffs(mount.path())?;
    let pins = mount.path().join("rlark");
    let start =
        || Machine::start(Hooks::Below(cgroup.path.clone()), Some(Pins::Kept(pins.clone())));
    let (a, b) = wired(("e", "f"))?;
    let node = Node::on("s1/n1", start()?, &peers, tempfile::tempdir()?)?;
    node.routes(domain(&ca, one_site())).await?;
    node.attach("a", &a).await?;
    node.attach("b", &b).await?;
    let listener = listen(&b, "0.0.0.0:9000")?;
    let dir = node.stop().await;
    peers.relays.lock().unwrap().clear();

    let client = dial(&a, "10.213.0.2:9000").await?;
    converse(client, &listener, ("10.213.0.1", "10.213.0.2")).await?;
    assert_eq!(kind(dial(&a, "10.213.0.99:9000").await), Some(io::ErrorKind::HostUnreachable));

    // No hub, no routes: the successor goes by what is on disk.
    let node = Node::on("s1/n1", start()?, &peers, dir)?;
    let mut views = node.keeper.watch();
    tokio::time::timeout(Duration::from_secs(10), views.wait_for(|v| v.pods.len() == 2)).await??;
    let client = dial(&a, "10.213.0.2:9000").await?;
    converse(client, &listener, ("10.213.0.1", "10.213.0.2")).await?;
    let report = node.observer.report().await;
    assert!(report.checks.iter().all(|c| c.ok), "{report:?}");
    for uid in ["a", "b"] {
        node.keeper.detach(uid.to_owned()).await?;
    }
    drop(node.stop().await);
    assert!(Netlink::in_netns(a.netns().as_fd())?.index("rl0")?.is_none());
    fs::remove_dir_all(&pins)?;
    Ok(())
}
