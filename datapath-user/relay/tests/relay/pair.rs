//! Two relays in one process, joined by real TCP on loopback, and applications beside them.

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use control_api::ids::{DomainName, NodeRef};
use datapath_relay::{
    BoxFuture, Counters, Deliver, DomainIdentity, Lane, Listening, OpenRequest, Path, Paths,
    Reason, Relay, RelayConfig,
};
use russh::keys::{Algorithm, Certificate, PrivateKey, ssh_key::certificate};

pub(crate) const VIP_A: Ipv4Addr = Ipv4Addr::new(10, 90, 0, 1);
pub(crate) const VIP_B: Ipv4Addr = Ipv4Addr::new(10, 90, 0, 2);

pub(crate) fn domain() -> DomainName {
    "fleet".parse().unwrap()
}
pub(crate) fn node(s: &str) -> NodeRef {
    s.parse().unwrap()
}

pub(crate) fn new_key() -> PrivateKey {
    PrivateKey::random(&mut rand::rng(), Algorithm::Ed25519).unwrap()
}

pub(crate) fn certify(
    ca: &PrivateKey,
    key: &PrivateKey,
    principal: &str,
    seconds: (i64, i64),
) -> Certificate {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let at = |d: i64| now.checked_add_signed(d).unwrap();
    let mut b = certificate::Builder::new_with_random_nonce(
        &mut rand::rng(),
        key.public_key(),
        at(seconds.0),
        at(seconds.1),
    )
    .unwrap();
    b.cert_type(certificate::CertType::User).unwrap();
    b.key_id(principal).unwrap();
    b.valid_principal(principal).unwrap();
    b.sign(ca).unwrap()
}

pub(crate) fn identity(ca: &PrivateKey, principal: &str) -> DomainIdentity {
    let key = new_key();
    let certificate = certify(ca, &key, principal, (-60, 3600));
    DomainIdentity { key, certificate, ca: ca.public_key().clone() }
}

/// One relay's way to the other, which a test can take away.
#[derive(Default)]
pub(crate) struct Way {
    me: OnceLock<NodeRef>,
    peer: Mutex<Option<Relay>>,
    pub(crate) blocked: AtomicBool,
    /// Carriers pass somebody between, who may fall silent.
    pub(crate) through: AtomicBool,
    silent: Mutex<Arc<AtomicBool>>,
    pub(crate) dials: AtomicUsize,
}

impl Way {
    /// From `me` to `peer`.
    pub(crate) fn leads(&self, me: &str, peer: &Relay) {
        self.me.set(node(me)).unwrap();
        *self.peer.lock().unwrap() = Some(peer.clone());
    }

    /// The carriers that stand lead nowhere from now on, and nothing tells.
    pub(crate) fn silence(&self) {
        std::mem::take(&mut *self.silent.lock().unwrap()).store(true, SeqCst);
    }

    fn between(&self) -> io::Result<(TcpStream, TcpStream)> {
        let ((here, near), (far, there)) = (tcp_pair()?, tcp_pair()?);
        for (mut from, mut to) in [(near.try_clone()?, far.try_clone()?), (far, near)] {
            let silent = Arc::clone(&self.silent.lock().unwrap());
            std::thread::spawn(move || {
                let mut b = vec![0; 64 << 10];
                while let Ok(n) = from.read(&mut b) {
                    while silent.load(SeqCst) {
                        std::thread::park();
                    }
                    if n == 0 || to.write_all(&b[..n]).is_err() {
                        break;
                    }
                }
                drop(to.shutdown(Shutdown::Both));
            });
        }
        Ok((here, there))
    }
}

impl Paths for Way {
    fn dial<'a>(
        &'a self,
        domain: &'a DomainName,
        _: &'a NodeRef,
        lane: Lane,
    ) -> BoxFuture<'a, io::Result<Path>> {
        Box::pin(async move {
            self.dials.fetch_add(1, SeqCst);
            if self.blocked.load(SeqCst) {
                return Err(io::ErrorKind::NetworkUnreachable.into());
            }
            let through = self.through.load(SeqCst);
            let (here, there) = if through { self.between()? } else { tcp_pair()? };
            let me = self.me.get().unwrap();
            let peer = self.peer.lock().unwrap().clone().ok_or(io::ErrorKind::ConnectionRefused)?;
            peer.accept(domain, me, lane, Path::hub(there)).map_err(io::Error::other)?;
            Ok(Path::hub(here))
        })
    }
}

pub(crate) fn tcp_pair() -> io::Result<(TcpStream, TcpStream)> {
    let l = TcpListener::bind("127.0.0.1:0")?;
    let here = TcpStream::connect(l.local_addr()?)?;
    here.set_nodelay(true)?;
    Ok((here, l.accept()?.0))
}

/// Delivers `10.90.0.2:port` to `127.0.0.1:port`, from the peer's own address only.
pub(crate) struct Local {
    pub(crate) mine: Ipv4Addr,
    pub(crate) theirs: Ipv4Addr,
    pub(crate) listeners: Arc<Listeners>,
}

/// Of one node: what began to listen on it or ended, and what it has heard of the other.
#[derive(Debug, Default)]
pub(crate) struct Listeners {
    pub(crate) turned: Mutex<Vec<(SocketAddr, bool)>>,
    pub(crate) heard: Mutex<Vec<Listening>>,
}

impl Deliver for Local {
    fn turned(&self) -> Vec<(DomainName, SocketAddr, bool)> {
        let turned = std::mem::take(&mut *self.listeners.turned.lock().unwrap());
        turned.into_iter().map(|(at, open)| (domain(), at, open)).collect()
    }

    fn peer_listens(&self, of: &DomainName, peer: &NodeRef, said: Listening) {
        let from = node(if said.at.ip() == VIP_A { "east/a" } else { "west/b" });
        assert_eq!((of, peer), (&domain(), &from));
        self.listeners.heard.lock().unwrap().push(said);
    }

    fn deliver<'a>(
        &'a self,
        _: &'a DomainName,
        _: &'a NodeRef,
        src: SocketAddr,
        dst: SocketAddr,
    ) -> BoxFuture<'a, Result<TcpStream, Reason>> {
        Box::pin(async move {
            if src.ip() != self.theirs {
                return Err(Reason::SourceForged);
            }
            if dst.ip() != self.mine {
                return Err(Reason::NotHere);
            }
            let errno = |e: io::Error| Reason::from_connect_errno(e.raw_os_error().unwrap_or(0));
            let kind = socket2::Type::STREAM.nonblocking();
            let s = socket2::Socket::new(socket2::Domain::IPV4, kind, None).map_err(errno)?;
            s.set_tcp_nodelay(true)
                .and_then(|()| s.set_linger(Some(Duration::ZERO)))
                .map_err(errno)?;
            let to = (Ipv4Addr::LOCALHOST, dst.port()).into();
            datapath_net::sockets::connect(s, to).await.map_err(errno)
        })
    }
}

pub(crate) struct Pair {
    pub(crate) a: Relay,
    pub(crate) b: Relay,
    pub(crate) a_way: Arc<Way>,
    pub(crate) b_way: Arc<Way>,
    pub(crate) a_listeners: Arc<Listeners>,
    pub(crate) b_listeners: Arc<Listeners>,
    pub(crate) ca: PrivateKey,
}

pub(crate) fn config(name: &str) -> RelayConfig {
    RelayConfig::new(node(name))
}

impl Pair {
    pub(crate) fn new() -> Self {
        Self::with(|_| {})
    }
    pub(crate) fn with(change: impl Fn(&mut RelayConfig)) -> Self {
        let p = Self::strangers(change);
        p.a.set_identity(&domain(), identity(&p.ca, "east/a")).unwrap();
        p.b.set_identity(&domain(), identity(&p.ca, "west/b")).unwrap();
        p
    }
    /// Without identities.
    pub(crate) fn strangers(change: impl Fn(&mut RelayConfig)) -> Self {
        let (a_way, b_way) = (Arc::<Way>::default(), Arc::<Way>::default());
        let (a_listeners, b_listeners) = (Arc::<Listeners>::default(), Arc::<Listeners>::default());
        let make = |name: &str, mine, theirs, way: &Arc<Way>, listeners: &Arc<Listeners>| {
            let mut c = config(name);
            change(&mut c);
            way.me.set(node(name)).unwrap();
            let way: Arc<dyn Paths> = Arc::<Way>::clone(way);
            let listeners = Arc::clone(listeners);
            Relay::new(c, Arc::new(Local { mine, theirs, listeners }), way).unwrap()
        };
        let a = make("east/a", VIP_A, VIP_B, &a_way, &a_listeners);
        let b = make("west/b", VIP_B, VIP_A, &b_way, &b_listeners);
        *a_way.peer.lock().unwrap() = Some(b.clone());
        *b_way.peer.lock().unwrap() = Some(a.clone());
        Self { a, b, a_way, b_way, a_listeners, b_listeners, ca: new_key() }
    }

    /// An application at A connects to `10.90.0.2:port`.
    pub(crate) fn connect(&self, port: u16) -> TcpStream {
        self.connect_from((VIP_A, 40_000).into(), (VIP_B, port).into())
    }
    pub(crate) fn connect_from(&self, src: SocketAddr, dst: SocketAddr) -> TcpStream {
        let (app, landed) = tcp_pair().unwrap();
        app.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        self.a.open(request("west/b", src, dst), landed);
        app
    }
    pub(crate) fn connect_back(&self, port: u16) -> TcpStream {
        let (app, landed) = tcp_pair().unwrap();
        app.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        self.b.open(request("east/a", (VIP_B, 40_000).into(), (VIP_A, port).into()), landed);
        app
    }
    /// B's process dies and starts again.
    pub(crate) fn restart_b(&mut self) {
        let way: Arc<dyn Paths> = Arc::<Way>::clone(&self.b_way);
        let listeners = Arc::clone(&self.b_listeners);
        let deliver = Arc::new(Local { mine: VIP_B, theirs: VIP_A, listeners });
        let new = Relay::new(config("west/b"), deliver, way).unwrap();
        new.set_identity(&domain(), identity(&self.ca, "west/b")).unwrap();
        *self.a_way.peer.lock().unwrap() = Some(new.clone());
        self.b = new;
    }
    pub(crate) fn block(&self, yes: bool) {
        self.a_way.blocked.store(yes, SeqCst);
        self.b_way.blocked.store(yes, SeqCst);
    }
    pub(crate) fn cut(&self) {
        self.a.cut(&domain(), &node("west/b"));
    }
}

pub(crate) fn request(peer: &str, src: SocketAddr, dst: SocketAddr) -> OpenRequest {
    OpenRequest {
        domain: domain(),
        peer: node(peer),
        src,
        dst,
        from_pod: "actor-0".to_owned(),
        to_pod: "rollout-0".to_owned(),
    }
}

pub(crate) fn failed(c: &Counters, r: Reason) -> u64 {
    c.flows_failed.iter().find(|x| x.0 == r).map_or(0, |x| x.1)
}

/// Waits for a condition that another thread brings about.
pub(crate) fn eventually(what: &str, mut ok: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !ok() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A server at `127.0.0.1`: one thread per connection.
pub(crate) fn serve(work: impl Fn(TcpStream) + Send + Sync + 'static) -> u16 {
    let l = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = l.local_addr().unwrap().port();
    let work = Arc::new(work);
    std::thread::spawn(move || {
        for s in l.incoming().flatten() {
            s.set_nodelay(true).unwrap();
            let work = Arc::clone(&work);
            std::thread::spawn(move || work(s));
        }
    });
    port
}

/// Sends back what comes, then the end.
pub(crate) fn echo_server() -> u16 {
    serve(|mut s| {
        let mut b = vec![0; 64 << 10];
        while let Ok(n) = s.read(&mut b) {
            if n == 0 || s.write_all(&b[..n]).is_err() {
                break;
            }
        }
        drop(s.shutdown(Shutdown::Write));
    })
}

/// Bytes that show where they are: a lost or doubled one changes all that follow.
pub(crate) fn pattern(from: u64, buf: &mut [u8]) {
    for (i, b) in buf.iter_mut().enumerate() {
        let at = from + i as u64;
        *b = (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    }
}

pub(crate) fn send_pattern(s: &mut TcpStream, total: u64) {
    let mut buf = vec![0; 64 << 10];
    let mut at = 0;
    while at < total {
        let n = usize::try_from(total - at).unwrap().min(buf.len());
        pattern(at, &mut buf[..n]);
        s.write_all(&buf[..n]).unwrap();
        at += n as u64;
    }
}

/// Reads to the end and checks every byte.
pub(crate) fn check_pattern(s: &mut TcpStream) -> u64 {
    let (mut buf, mut want, mut at) = (vec![0; 64 << 10], vec![0; 64 << 10], 0);
    loop {
        let n = s.read(&mut buf).unwrap();
        if n == 0 {
            return at;
        }
        pattern(at, &mut want[..n]);
        assert!(buf[..n] == want[..n], "bytes differ within {at}..{}", at + n as u64);
        at += n as u64;
    }
}
