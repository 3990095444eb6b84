//! Two ways to a peer, one through the hub and one past it: which is used, what moves, and what a
//! bad one costs.

use std::{
    io::{self, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, Instant},
};

use control_api::ids::{DomainName, NodeRef};
use datapath_relay::{BoxFuture, DomainIdentity, Lane, Path, Paths, Race, Relay, RelayConfig, Via};

use crate::pair::{
    Local, VIP_A, VIP_B, check_pattern, config, domain, echo_server, eventually, identity, new_key,
    node, request, send_pattern, tcp_pair,
};

/// One relay's ways to the other; a test opens, delays, closes and cuts them.
#[derive(Default)]
struct Ways {
    me: String,
    through: Mutex<Option<Relay>>,
    /// Who is met at the peer's address.
    past: Mutex<Option<Relay>>,
    hub: AtomicBool,
    direct: AtomicBool,
    /// The hub does not know of the direct way when it is asked for all.
    unsaid: AtomicBool,
    hub_delay: Mutex<Duration>,
    direct_delay: Mutex<Duration>,
    /// The peer's end is taken by nobody for so long.
    deaf: Mutex<Duration>,
    streams: Mutex<Vec<TcpStream>>,
    hub_dials: AtomicUsize,
    direct_dials: AtomicUsize,
}

async fn wait(of: &Mutex<Duration>) {
    let delay = *of.lock().unwrap();
    tokio::time::sleep(delay).await;
}

impl Ways {
    async fn through_the_hub(&self, domain: &DomainName, lane: Lane) -> io::Result<Path> {
        self.hub_dials.fetch_add(1, SeqCst);
        wait(&self.hub_delay).await;
        if !self.hub.load(SeqCst) {
            return Err(io::ErrorKind::NetworkUnreachable.into());
        }
        let (here, there) = tcp_pair()?;
        let peer = self.through.lock().unwrap().clone().ok_or(io::ErrorKind::NotConnected)?;
        let path = Path::hub(there);
        peer.accept(domain, &node(&self.me), lane, path).map_err(io::Error::other)?;
        Ok(Path::hub(here))
    }

    async fn past_the_hub(&self, domain: &DomainName, lane: Lane) -> io::Result<Path> {
        self.direct_dials.fetch_add(1, SeqCst);
        wait(&self.direct_delay).await;
        if !self.direct.load(SeqCst) {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (here, there) = tcp_pair()?;
        self.streams.lock().unwrap().push(here.try_clone()?);
        let peer = self.past.lock().unwrap().clone().ok_or(io::ErrorKind::NotConnected)?;
        let (me, domain, deaf) = (self.me.clone(), domain.clone(), *self.deaf.lock().unwrap());
        thread::spawn(move || {
            thread::sleep(deaf);
            drop(peer.accept(&domain, &node(&me), lane, Path::direct(there)));
        });
        Ok(Path::direct(here))
    }

    fn cut_direct(&self) {
        for s in self.streams.lock().unwrap().drain(..) {
            drop(s.shutdown(Shutdown::Both));
        }
    }
}

struct Handle(Arc<Ways>);

impl Paths for Handle {
    fn dial<'a>(
        &'a self,
        domain: &'a DomainName,
        _: &'a NodeRef,
        lane: Lane,
    ) -> BoxFuture<'a, io::Result<Path>> {
        Box::pin(self.0.through_the_hub(domain, lane))
    }
    fn race<'a>(
        &'a self,
        domain: &'a DomainName,
        peer: &'a NodeRef,
        lane: Lane,
    ) -> BoxFuture<'a, io::Result<Race<'a>>> {
        let (ways, of) = (Arc::clone(&self.0), domain.clone());
        let direct: BoxFuture<'static, _> =
            Box::pin(async move { ways.past_the_hub(&of, lane).await });
        let hub = self.dial(domain, peer, lane);
        let direct = (!self.0.unsaid.load(SeqCst)).then_some(direct);
        Box::pin(async move { Ok(Race { hub, direct }) })
    }
    fn dial_direct<'a>(
        &'a self,
        domain: &'a DomainName,
        _: &'a NodeRef,
        lane: Lane,
    ) -> BoxFuture<'a, io::Result<Path>> {
        Box::pin(self.0.past_the_hub(domain, lane))
    }
}

struct Two {
    a: Relay,
    b: Relay,
    a_ways: Arc<Ways>,
    b_ways: Arc<Ways>,
}

fn ways(me: &str) -> Arc<Ways> {
    let ways = Ways { me: me.to_owned(), ..Ways::default() };
    ways.hub.store(true, SeqCst);
    Arc::new(ways)
}

fn relay(name: &str, change: &impl Fn(&mut RelayConfig), ways: &Arc<Ways>) -> Relay {
    let mut c = config(name);
    c.ping_every = Duration::from_millis(100);
    c.spare_carrier = Duration::from_millis(500);
    c.direct_every = Duration::from_secs(3600);
    c.offer_delay = Duration::from_millis(100);
    c.cut_for = Duration::from_millis(1500);
    change(&mut c);
    let (mine, theirs) = if name == "east/a" { (VIP_A, VIP_B) } else { (VIP_B, VIP_A) };
    let paths = Arc::new(Handle(Arc::clone(ways)));
    Relay::new(c, Arc::new(Local { mine, theirs, listeners: Arc::default() }), paths).unwrap()
}

impl Two {
    /// The hub serves at once, and both may dial directly after this delay.
    fn new(direct_delay: Duration) -> Self {
        Self::with(
            |_| {},
            |p| {
                for ways in [&p.a_ways, &p.b_ways] {
                    ways.direct.store(true, SeqCst);
                    *ways.direct_delay.lock().unwrap() = direct_delay;
                }
            },
        )
    }

    fn with(change: impl Fn(&mut RelayConfig), prepare: impl FnOnce(&Self)) -> Self {
        let (a_ways, b_ways) = (ways("east/a"), ways("west/b"));
        let a = relay("east/a", &change, &a_ways);
        let b = relay("west/b", &change, &b_ways);
        for (ways, peer) in [(&a_ways, &b), (&b_ways, &a)] {
            *ways.through.lock().unwrap() = Some(peer.clone());
            *ways.past.lock().unwrap() = Some(peer.clone());
        }
        let p = Self { a, b, a_ways, b_ways };
        prepare(&p);
        let ca = new_key();
        p.a.set_identity(&domain(), identity(&ca, "east/a")).unwrap();
        p.b.set_identity(&domain(), identity(&ca, "west/b")).unwrap();
        p
    }

    fn connect(&self, port: u16) -> TcpStream {
        let (app, landed) = tcp_pair().unwrap();
        app.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        self.a.open(request("west/b", (VIP_A, 40_000).into(), (VIP_B, port).into()), landed);
        app
    }

    fn connect_back(&self, port: u16) -> TcpStream {
        let (app, landed) = tcp_pair().unwrap();
        app.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        self.b.open(request("east/a", (VIP_B, 40_000).into(), (VIP_A, port).into()), landed);
        app
    }

    fn cut_direct(&self) {
        self.a_ways.cut_direct();
        self.b_ways.cut_direct();
    }

    fn direct_dials(&self) -> usize {
        self.a_ways.direct_dials.load(SeqCst) + self.b_ways.direct_dials.load(SeqCst)
    }

    fn failed(&self) -> u64 {
        let all = [self.a.counters(), self.b.counters()];
        all.iter().flat_map(|c| &c.flows_failed).map(|f| f.1).sum()
    }
}

fn uses(relay: &Relay, via: &str) -> bool {
    relay.flows().iter().any(|f| f.carrier.starts_with(via))
}

fn standing(relay: &Relay, via: Via) -> usize {
    relay.carriers().iter().filter(|c| c.via == via).count()
}

fn exchange(s: &mut TcpStream, text: &[u8]) {
    s.write_all(text).unwrap();
    let mut answer = vec![0; text.len()];
    s.read_exact(&mut answer).unwrap();
    assert_eq!(answer, text);
}

/// Echoes this much both ways, from both sides at once, until `stop` says that it is enough.
fn load(p: &Two, total: u64) -> Vec<thread::JoinHandle<()>> {
    let port = echo_server();
    let streams = [p.connect(port), p.connect_back(port), p.connect(port)];
    let run = |mut s: TcpStream| {
        thread::spawn(move || {
            let mut w = s.try_clone().unwrap();
            let sending = thread::spawn(move || {
                send_pattern(&mut w, total);
                w.shutdown(Shutdown::Write).unwrap();
            });
            assert_eq!(check_pattern(&mut s), total);
            sending.join().unwrap();
        })
    };
    streams.map(run).into()
}

#[test]
fn a_direct_way_that_comes_later_takes_over_under_load_and_the_hub_is_left() {
    let p = Two::new(Duration::from_millis(300));
    let work = load(&p, 96 << 20);
    eventually("flows of both sides are on the hub first", || uses(&p.a, "hub:"));
    for w in work {
        w.join().unwrap();
    }
    let (a, b) = (p.a.counters(), p.b.counters());
    assert!(a.flows_upgraded > 0 && b.flows_upgraded > 0, "{a:?} {b:?}");
    assert_eq!(p.failed(), 0);
    eventually("nothing stands through the hub", || {
        standing(&p.a, Via::Hub) + standing(&p.b, Via::Hub) == 0
    });
    assert!(standing(&p.a, Via::Direct) > 0);
    let mut s = p.connect(echo_server());
    exchange(&mut s, b"after");
    assert!(uses(&p.a, "direct:west/b:interactive"));
}

#[test]
fn a_direct_way_that_is_first_needs_no_hub() {
    let p = Two::new(Duration::ZERO);
    *p.a_ways.hub_delay.lock().unwrap() = Duration::from_secs(4);
    let begin = Instant::now();
    let mut s = p.connect(echo_server());
    exchange(&mut s, b"x");
    assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    p.a_ways.hub.store(false, SeqCst);
    p.b_ways.hub.store(false, SeqCst);
    exchange(&mut s, b"the hub is away");
    let mut new = p.connect(echo_server());
    exchange(&mut new, b"for new flows too");
    assert_eq!((standing(&p.a, Via::Hub), p.a.counters().dials_failed), (0, 0));
}

#[test]
fn a_direct_carrier_that_breaks_leaves_its_flows_to_the_hub() {
    let p = Two::new(Duration::ZERO);
    let mut s = p.connect(echo_server());
    exchange(&mut s, b"x");
    eventually("direct", || uses(&p.a, "direct:"));
    p.cut_direct();
    exchange(&mut s, b"y");
    eventually("hub", || uses(&p.a, "hub:"));
    let dials = p.direct_dials();
    let mut new = p.connect(echo_server());
    exchange(&mut new, b"z");
    assert_eq!(p.direct_dials(), dials, "what broke at once rests");
    let told = p.a.directs();
    assert!(!told[0].stands && told[0].failure.as_ref().unwrap().contains("broke"), "{told:?}");
    // The network changed: that is a reason to try again.
    p.a.probe_direct();
    eventually("direct again", || p.a.flows().iter().all(|f| f.carrier.starts_with("direct:")));
    exchange(&mut s, b"w");
    assert!(p.a.directs()[0].stands);
    assert_eq!(p.failed(), 0);
}

#[test]
fn flows_that_change_ways_many_times_under_load_lose_and_double_no_byte() {
    let p = Two::new(Duration::ZERO);
    let work = load(&p, 64 << 20);
    let mut changes = 0;
    while changes < 12 && work.iter().any(|w| !w.is_finished()) {
        let stands = || standing(&p.a, Via::Direct) > 0 || work.iter().all(|w| w.is_finished());
        eventually("a direct carrier", stands);
        thread::sleep(Duration::from_millis(100));
        p.cut_direct();
        p.a.probe_direct();
        p.b.probe_direct();
        changes += 1;
    }
    for w in work {
        w.join().unwrap();
    }
    let c = p.a.counters();
    assert!(changes > 2 && c.flows_resumed > 2, "{changes} changes, {c:?}");
    assert_eq!(p.failed(), 0);
}

#[test]
fn a_way_that_swallows_everything_is_not_noticed() {
    let p = Two::new(Duration::ZERO);
    for ways in [&p.a_ways, &p.b_ways] {
        *ways.deaf.lock().unwrap() = Duration::from_secs(3600);
    }
    let begin = Instant::now();
    let mut s = p.connect(echo_server());
    exchange(&mut s, b"x");
    assert!(begin.elapsed() < Duration::from_secs(2), "{:?}", begin.elapsed());
    assert!(uses(&p.a, "hub:"));
    assert_eq!(p.failed(), 0);
}

#[test]
fn a_way_that_fails_is_tried_again_after_a_while() {
    let p = Two::with(|c| c.direct_every = Duration::from_millis(300), |_| {});
    let mut s = p.connect(echo_server());
    exchange(&mut s, b"x");
    eventually("tried again", || p.a_ways.direct_dials.load(SeqCst) >= 3);
    assert!(uses(&p.a, "hub:"));
    let told = p.a.directs();
    assert!(!told[0].stands && told[0].failure.is_some(), "{told:?}");
    p.a_ways.direct.store(true, SeqCst);
    eventually("upgraded", || uses(&p.a, "direct:"));
    exchange(&mut s, b"y");
    // Nothing is left to improve.
    let dials = p.direct_dials();
    thread::sleep(Duration::from_secs(1));
    assert_eq!(p.direct_dials(), dials);
}

#[test]
fn a_direct_way_that_was_known_is_asked_for_when_the_hub_has_forgotten_it() {
    let p = Two::with(|_| {}, |_| {});
    let mut s = p.connect(echo_server());
    exchange(&mut s, b"x");
    eventually("tried in vain", || p.a.directs().iter().any(|d| d.failure.is_some()));
    // The hub and the peer start anew: the peer's session stands, and has not said much yet.
    p.a_ways.unsaid.store(true, SeqCst);
    p.a_ways.direct.store(true, SeqCst);
    p.a.cut(&domain(), &node("west/b"));
    exchange(&mut s, b"y");
    eventually("direct soon", || uses(&p.a, "direct:"));
    exchange(&mut s, b"z");
    assert_eq!(p.failed(), 0);
}

/// The way of one that does not know that there may be a direct one.
struct OnlyHub(Arc<Ways>);

impl Paths for OnlyHub {
    fn dial<'a>(
        &'a self,
        domain: &'a DomainName,
        _: &'a NodeRef,
        lane: Lane,
    ) -> BoxFuture<'a, io::Result<Path>> {
        Box::pin(self.0.through_the_hub(domain, lane))
    }
    fn dial_direct<'a>(
        &'a self,
        _: &'a DomainName,
        _: &'a NodeRef,
        _: Lane,
    ) -> BoxFuture<'a, io::Result<Path>> {
        self.0.direct_dials.fetch_add(1, SeqCst);
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }
}

#[test]
fn the_side_that_can_reach_the_other_makes_the_carrier_for_both() {
    let ca = new_key();
    let (a_ways, b_ways) = (ways("east/a"), ways("west/b"));
    let deliver = Arc::new(Local { mine: VIP_A, theirs: VIP_B, listeners: Arc::default() });
    let paths = Arc::new(OnlyHub(Arc::clone(&a_ways)));
    let a = Relay::new(config("east/a"), deliver, paths).unwrap();
    let b = relay("west/b", &|_| {}, &b_ways);
    *a_ways.through.lock().unwrap() = Some(b.clone());
    *b_ways.past.lock().unwrap() = Some(a.clone());
    a.set_identity(&domain(), identity(&ca, "east/a")).unwrap();
    b.set_identity(&domain(), identity(&ca, "west/b")).unwrap();
    let p = Two { a, b, a_ways, b_ways };
    // A opens, through the hub: it cannot reach B.
    let mut s = p.connect(echo_server());
    exchange(&mut s, b"x");
    assert!(uses(&p.a, "hub:"));
    assert_eq!(p.direct_dials(), 0, "nobody was told anything");
    // B hears where A listens; at first in vain.
    let first: SocketAddr = "192.0.2.1:7400".parse().unwrap();
    p.b.offer(&domain(), &node("east/a"), &[first]);
    eventually("tried", || p.direct_dials() == 1);
    p.b.offer(&domain(), &node("east/a"), &[first]);
    thread::sleep(Duration::from_millis(500));
    assert_eq!(p.direct_dials(), 1, "the same offer is no news");
    p.b_ways.direct.store(true, SeqCst);
    p.b.offer(&domain(), &node("east/a"), &["192.0.2.2:7400".parse().unwrap()]);
    eventually("A's flow uses B's carrier", || uses(&p.a, "direct:west/b"));
    exchange(&mut s, b"y");
    assert_eq!(p.failed(), 0);
}

#[test]
fn a_peer_that_listens_nowhere_is_not_asked_again() {
    let p = Two::with(|c| c.direct_every = Duration::from_millis(50), |_| {});
    let deliver = Arc::new(Local { mine: VIP_A, theirs: VIP_B, listeners: Arc::default() });
    let a = Relay::new(
        RelayConfig { direct_every: Duration::from_millis(50), ..config("east/a") },
        deliver,
        Arc::new(OnlyHub(Arc::clone(&p.a_ways))),
    )
    .unwrap();
    let ca = new_key();
    a.set_identity(&domain(), identity(&ca, "east/a")).unwrap();
    p.b.set_identity(&domain(), identity(&ca, "west/b")).unwrap();
    let (mut app, landed) = tcp_pair().unwrap();
    a.open(request("west/b", (VIP_A, 1).into(), (VIP_B, echo_server()).into()), landed);
    exchange(&mut app, b"x");
    a.probe_direct();
    eventually("asked", || p.a_ways.direct_dials.load(SeqCst) == 1);
    thread::sleep(Duration::from_millis(500));
    assert_eq!(p.a_ways.direct_dials.load(SeqCst), 1, "and not again");
    exchange(&mut app, b"y");
    assert_eq!((a.counters().dials_failed, p.failed()), (0, 0));
}

#[test]
fn a_cut_peer_gets_in_by_no_direct_way_that_was_begun_before() {
    let p = Two::new(Duration::ZERO);
    *p.a_ways.deaf.lock().unwrap() = Duration::from_millis(800);
    let mut s = p.connect(echo_server());
    exchange(&mut s, b"x");
    assert!(uses(&p.a, "hub:"));
    assert_eq!(p.a_ways.direct_dials.load(SeqCst), 1, "under way");
    p.b_ways.direct.store(false, SeqCst);
    p.a_ways.direct.store(false, SeqCst);
    p.a.cut_direct(&node("west/b"));
    thread::sleep(Duration::from_millis(1800));
    assert_eq!(standing(&p.a, Via::Direct), 0, "its handshake was over after the cut");
    exchange(&mut s, b"still through the hub");
    // And one that stands is closed; its flows look for another way.
    *p.a_ways.deaf.lock().unwrap() = Duration::ZERO;
    p.a_ways.direct.store(true, SeqCst);
    p.a.probe_direct();
    eventually("direct", || uses(&p.a, "direct:"));
    p.a_ways.direct.store(false, SeqCst);
    p.a.cut_direct(&node("west/b"));
    exchange(&mut s, b"through the hub again");
    assert_eq!((standing(&p.a, Via::Direct), p.failed()), (0, 0));
    p.a.cut_direct(&node("west/other"));
    assert_eq!(p.failed(), 0);
}

/// What a stranger at the peer's address proves itself with.
fn met_at_the_address(stranger: impl Fn(&russh::keys::PrivateKey) -> DomainIdentity, name: &str) {
    let p = Two::new(Duration::ZERO);
    let ca = new_key();
    for (r, me) in [(&p.a, "east/a"), (&p.b, "west/b")] {
        r.set_identity(&domain(), identity(&ca, me)).unwrap();
    }
    let other = relay(name, &|_| {}, &ways(name));
    other.set_identity(&domain(), stranger(&ca)).unwrap();
    *p.a_ways.past.lock().unwrap() = Some(other.clone());
    p.b_ways.direct.store(false, SeqCst);
    let mut s = p.connect(echo_server());
    exchange(&mut s, b"x");
    eventually("refused", || p.a.counters().peers_refused + other.counters().peers_refused > 0);
    exchange(&mut s, b"y");
    assert!(uses(&p.a, "hub:"));
    assert_eq!((standing(&p.a, Via::Direct), other.counters().carriers_up, p.failed()), (0, 0, 0));
}

#[test]
fn another_domains_node_at_the_peers_address_is_refused() {
    met_at_the_address(|_| identity(&new_key(), "west/b"), "west/b");
}

#[test]
fn another_node_of_the_domain_at_the_peers_address_is_refused() {
    met_at_the_address(|ca| identity(ca, "west/c"), "west/c");
}
