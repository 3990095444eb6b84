//! A peer that floods us with OPENs is refused, counted and disturbs nobody.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use bytes::BytesMut;
use control_api::ids::{DomainName, NodeRef};
use datapath_relay::{BoxFuture, Deliver, Lane, Path, Paths, Reason, Relay};
use datapath_wire::{
    Decoder, Frame, Hello, Open,
    frame::{PACKETS, VERSION, side_bit},
};
use russh::{
    ChannelId, Preferred, cipher, client,
    keys::{Algorithm, PublicKeyOrCertificate},
};

use crate::pair::{
    Local, VIP_A, VIP_B, Way, certify, config, domain, echo_server, eventually, failed, identity,
    new_key, node, request, tcp_pair,
};

const VIP_C: Ipv4Addr = Ipv4Addr::new(10, 90, 0, 3);
/// B's limit for a pod; a peer gets three quarters.
const PER_POD: usize = 400;
const ROUNDS: usize = 2000;
/// So many OPENs of C wait for their answers: whoever leaves more unread loses his carrier.
const UNANSWERED: u64 = 4096;
/// So many are written at once, at most.
const AT_ONCE: u64 = 1024;
/// Of each kind of refusal, to say that there is a flood.
const MANY: u64 = 200;
/// The slowest of a hundred may be so many times slower than without a flood, or take so long: a few of the scheduler's turns, since the
/// refusal of a million OPENs a second computes on the same two CPUs (measured: 9 to 13 ms).
const FACTOR: u32 = 20;
const FLOOR: Duration = Duration::from_millis(50);

/// A's pod is at A and C's at C.
struct ByPeer(Local, Local);

impl Deliver for ByPeer {
    fn deliver<'a>(
        &'a self,
        domain: &'a DomainName,
        peer: &'a NodeRef,
        src: SocketAddr,
        dst: SocketAddr,
    ) -> BoxFuture<'a, Result<TcpStream, Reason>> {
        let of = if *peer == node("east/a") { &self.0 } else { &self.1 };
        of.deliver(domain, peer, src, dst)
    }
}

/// What C is told.
#[derive(Default)]
struct Told {
    sent: AtomicU64,
    answered: AtomicU64,
    news: tokio::sync::Notify,
    rejected: Mutex<BTreeMap<&'static str, u64>>,
}

struct Hand(Arc<Told>, Decoder);

impl client::Handler for Hand {
    type Error = russh::Error;

    async fn check_server_key(&mut self, _: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        Ok(true)
    }

    async fn data(
        &mut self,
        _: ChannelId,
        data: &[u8],
        _: &mut client::Session,
    ) -> Result<(), russh::Error> {
        let told = &self.0;
        let fed = self.1.feed(data, |frame| {
            match frame {
                Frame::Reject { reason, .. } => {
                    *told.rejected.lock().unwrap().entry(reason.as_str()).or_default() += 1;
                }
                Frame::Accept { .. } => {}
                _ => return,
            }
            told.answered.fetch_add(1, SeqCst);
        });
        told.news.notify_one();
        fed.map_err(|_broken| russh::Error::Disconnect)
    }
}

/// A node of the Domain with all its proofs, which opens as fast as its carrier takes it.
struct Flooder {
    told: Arc<Told>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Flooder {
    fn start(b: &Relay, ca: &russh::keys::PrivateKey, open_port: u16) -> Self {
        let (there, here) = tcp_pair().unwrap();
        b.accept(&domain(), &node("north/c"), Lane::Interactive, Path::hub(here)).unwrap();
        there.set_nonblocking(true).unwrap();
        let key = new_key();
        let certificate = certify(ca, &key, "north/c", (-60, 3600));
        let (told, stop) = (Arc::<Told>::default(), Arc::<AtomicBool>::default());
        let (counts, halt) = (Arc::clone(&told), Arc::clone(&stop));
        let work = async move {
            let only: Cow<'static, [Algorithm]> = Cow::Owned(vec![Algorithm::Ed25519]);
            let preferred = Preferred {
                key: only.clone(),
                host_key_certificates: only,
                cipher: Cow::Owned(vec![cipher::AES_128_GCM]),
                ..Preferred::default()
            };
            let config = Arc::new(client::Config { preferred, ..Default::default() });
            let tcp = tokio::net::TcpStream::from_std(there).unwrap();
            let hand = Hand(Arc::clone(&counts), Decoder::new());
            let mut session = client::connect_stream(config, tcp, hand).await.unwrap();
            let user = format!("{}:interactive", domain());
            let proved = session.authenticate_openssh_cert(user, Arc::new(key), certificate);
            assert!(proved.await.unwrap().success());
            // The half that reads would stop the session when nobody takes from it.
            let (_, half) = session.channel_open_session().await.unwrap().split();
            let hello = Frame::Hello(Hello {
                version: VERSION,
                features: PACKETS,
                epoch: 1,
                node: "north/c".into(),
            });
            let mut frames = BytesMut::new();
            hello.encode(&mut frames);
            let side = side_bit("north/c", "west/b");
            let mut n = 0;
            while !halt.load(SeqCst) {
                while frames.len() < 16 << 10 {
                    n += 1;
                    // In turns: to who listens, to nobody, in another's name.
                    let (from, port) =
                        [(VIP_C, open_port), (VIP_C, 1), (VIP_A, open_port)][n as usize % 3];
                    let open = Open {
                        generation: 0,
                        credit: 1 << 16,
                        src: (from, 40_000).into(),
                        dst: (VIP_B, port).into(),
                    };
                    Frame::Open { flow: side | n, open, first: &[] }.encode(&mut frames);
                }
                counts.sent.store(n.into(), SeqCst);
                half.data_bytes(frames.split().freeze()).await.unwrap();
                while u64::from(n) > counts.answered.load(SeqCst) + UNANSWERED {
                    counts.news.notified().await;
                }
            }
        };
        let thread = std::thread::spawn(move || {
            // Its CPU is another machine's: here it takes what the relays leave, or the scheduler's turns are what is measured.
            rustix::process::setpriority_process(None, 19).unwrap();
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(work);
        });
        Self { told, stop, thread: Some(thread) }
    }

    fn rejected(&self, reason: Reason) -> u64 {
        self.told.rejected.lock().unwrap().get(reason.as_str()).copied().unwrap_or(0)
    }

    /// An error of its carrier is a failure of the test.
    fn end(mut self) -> u64 {
        self.stop.store(true, SeqCst);
        self.thread.take().unwrap().join().unwrap();
        self.told.sent.load(SeqCst)
    }
}

fn ping_pong(s: &mut TcpStream) -> [Duration; 2] {
    let mut times: Vec<Duration> = (0..ROUNDS)
        .map(|_| {
            let begin = Instant::now();
            s.write_all(b"ping").unwrap();
            s.read_exact(&mut [0; 4]).unwrap();
            begin.elapsed()
        })
        .collect();
    times.sort();
    [times[ROUNDS / 2], times[ROUNDS * 99 / 100]]
}

#[test]
fn a_flood_of_opens_is_refused_with_reasons_and_other_peers_go_on() {
    let ca = new_key();
    let (a_way, b_way) = (Arc::<Way>::default(), Arc::<Way>::default());
    let ways = || -> [Arc<dyn Paths>; 2] { [Arc::<Way>::clone(&a_way), Arc::<Way>::clone(&b_way)] };
    let [to_b, to_a] = ways();
    let local = |mine, theirs| Local { mine, theirs, listeners: Arc::default() };
    let a = Relay::new(config("east/a"), Arc::new(local(VIP_A, VIP_B)), to_b).unwrap();
    let mut of_b = config("west/b");
    of_b.flows_per_pod = PER_POD;
    let by_peer = ByPeer(local(VIP_B, VIP_A), local(VIP_B, VIP_C));
    let b = Relay::new(of_b, Arc::new(by_peer), to_a).unwrap();
    a_way.leads("east/a", &b);
    b_way.leads("west/b", &a);
    a.set_identity(&domain(), identity(&ca, "east/a")).unwrap();
    b.set_identity(&domain(), identity(&ca, "west/b")).unwrap();
    let port = echo_server();
    let connect = || {
        let (app, landed) = tcp_pair().unwrap();
        app.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        a.open(request("west/b", (VIP_A, 40_000).into(), (VIP_B, port).into()), landed);
        app
    };
    let mut flow = connect();
    let quiet = ping_pong(&mut flow);

    let flooder = Flooder::start(&b, &ca, port);
    let share = (PER_POD / 4 * 3) as u64;
    eventually("the flood is refused", || {
        let all = [Reason::Limit, Reason::Refused, Reason::SourceForged];
        all.iter().all(|r| flooder.rejected(*r) > MANY)
    });
    let (begin, before) = (Instant::now(), flooder.told.sent.load(SeqCst));
    let flooded = ping_pong(&mut flow);
    let mut slowest = Duration::ZERO;
    let mut held = Vec::new();
    for _ in 0..50 {
        let begin = Instant::now();
        let mut s = connect();
        s.write_all(b"x").unwrap();
        s.read_exact(&mut [0]).unwrap();
        slowest = slowest.max(begin.elapsed());
        held.push(s);
    }
    let sent = (flooder.told.sent.load(SeqCst) - before) as f64;
    println!(
        "{:.0} OPENs/s; ping-pong p50 and p99 {quiet:?}, flooded {flooded:?}; slowest of 50 opens {slowest:?}",
        sent / begin.elapsed().as_secs_f64()
    );
    let counts = b.counters();
    assert!(counts.flows_now <= share + 51, "{} flows", counts.flows_now);
    assert!(sent > 1000.0, "no flood meanwhile: {sent}");
    assert!(flooded[1] < (quiet[1] * FACTOR).max(FLOOR), "{quiet:?} {flooded:?}");
    assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    let told = Arc::clone(&flooder.told);
    let all = flooder.end();
    let (answered, rejected) =
        (told.answered.load(SeqCst), told.rejected.lock().unwrap().values().sum::<u64>());
    // But for those behind the end of the carrier, which were nobody's any more.
    assert!(all <= answered + UNANSWERED + AT_ONCE, "{answered} answers to {all} OPENs");
    assert!(answered - rejected <= share, "{answered} answers, {rejected} refusals");
    eventually("every refusal is counted", || {
        let c = b.counters();
        c.flows_failed.iter().map(|f| f.1).sum::<u64>() >= rejected
    });
    for reason in [Reason::Limit, Reason::Refused, Reason::SourceForged] {
        assert!(failed(&b.counters(), reason) > MANY, "{reason}");
    }
    assert_eq!(failed(&a.counters(), Reason::Limit), 0);
    drop(held);
}
