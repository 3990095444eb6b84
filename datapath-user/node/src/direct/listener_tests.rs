use control_api::ids::{DomainName, NodeRef};
use datapath_relay::{BoxFuture, Deliver, Lane, Paths, Reason, RelayConfig};
use tokio_util::task::AbortOnDropHandle;

use super::*;
use crate::direct::expected::Meeting;

/// A relay without pods or peers.
struct Nothing;

impl Deliver for Nothing {
    fn deliver<'a>(
        &'a self,
        _: &'a DomainName,
        _: &'a NodeRef,
        _: SocketAddr,
        _: SocketAddr,
    ) -> BoxFuture<'a, Result<std::net::TcpStream, Reason>> {
        Box::pin(async { Err(Reason::NotHere) })
    }
}

impl Paths for Nothing {
    fn dial<'a>(
        &'a self,
        _: &'a DomainName,
        _: &'a NodeRef,
        _: Lane,
    ) -> BoxFuture<'a, io::Result<Path>> {
        Box::pin(async { Err(io::ErrorKind::NotConnected.into()) })
    }
}

struct Port {
    at: SocketAddr,
    expected: Arc<Expected>,
    refusals: Arc<Mutex<Refusals>>,
    _task: AbortOnDropHandle<()>,
}

impl Port {
    async fn open() -> Self {
        let config = RelayConfig::new("s/me".parse().unwrap());
        let relay = Relay::new(config, Arc::new(Nothing), Arc::new(Nothing)).unwrap();
        let (expected, refusals) = (Arc::<Expected>::default(), Arc::<Mutex<Refusals>>::default());
        let listener =
            Listener { expected: Arc::clone(&expected), relay, refusals: Arc::clone(&refusals) };
        let socket = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = socket.local_addr().unwrap();
        let task = AbortOnDropHandle::new(tokio::spawn(listener.serve(socket)));
        Self { at, expected, refusals, _task: task }
    }

    fn expect(&self, ticket: &str) {
        let meeting = Meeting {
            domain: "d".parse().unwrap(),
            peer: "s/peer".parse().unwrap(),
            lane: Lane::Bulk,
        };
        assert!(self.expected.expect(Instant::now(), ticket, meeting));
    }

    /// All that the port answers to `bytes`, until it closes.
    async fn say(&self, bytes: &[u8]) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.at).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        let end = timeout(HELLO_TIMEOUT * 3, stream.read_to_end(&mut answer)).await;
        drop(end.expect("the port closes"));
        answer
    }

    fn count(&self, reason: &str) -> u64 {
        Refusals::snapshot(&self.refusals).get(reason).copied().unwrap_or(0)
    }

    async fn counted(&self, reason: &str, n: u64) {
        let wait = async {
            while self.count(reason) != n {
                tokio::task::yield_now().await;
            }
        };
        let waited = timeout(HELLO_TIMEOUT * 3, wait).await;
        waited.unwrap_or_else(|_| panic!("{reason}: {} instead of {n}", self.count(reason)));
    }
}

fn hello(ticket: &str) -> Vec<u8> {
    format!("{HELLO}{ticket}\n").into_bytes()
}

#[tokio::test]
async fn a_ticket_opens_the_door_once_and_a_stranger_is_told_nothing() {
    let port = Port::open().await;
    let ticket = "ab".repeat(32);
    assert_eq!(port.say(&hello(&ticket)).await, b"", "not expected yet");
    port.counted("direct-ticket", 1).await;
    port.expect(&ticket);
    // The relay has no identity in the Domain, so it closes then.
    assert_eq!(port.say(&hello(&ticket)).await, READY);
    assert_eq!(port.say(&hello(&ticket)).await, b"", "spent");
    port.counted("direct-ticket", 2).await;
    let not_hex = "zz".repeat(32);
    for stranger in [&hello(&not_hex)[..], &[b'x'; 200], &b"SSH-2.0-OpenSSH_9.9\r\n".repeat(10)] {
        assert_eq!(port.say(stranger).await, b"");
    }
    port.counted("direct-hello", 3).await;
}

#[tokio::test]
async fn who_says_nothing_is_closed_and_few_of_one_address_may_wait() {
    let port = Port::open().await;
    let mut silent = Vec::new();
    for _ in 0..MAX_FROM_ONE {
        silent.push(TcpStream::connect(port.at).await.unwrap());
    }
    // The door is full: this one is closed unheard, though its ticket is good.
    let ticket = "cd".repeat(32);
    port.expect(&ticket);
    assert_eq!(port.say(&hello(&ticket)).await, b"");
    port.counted("direct-busy", 1).await;
    for stream in &mut silent {
        let end = timeout(HELLO_TIMEOUT * 3, stream.read(&mut [0; 1])).await.unwrap();
        assert!(matches!(end, Ok(0) | Err(_)));
    }
    port.counted("direct-hello", MAX_FROM_ONE as u64).await;
    assert_eq!(port.say(&hello(&ticket)).await, READY, "there is room again, and it is unspent");
}

#[test]
fn one_network_of_ipv6_counts_as_one_address() {
    let ip = |s: &str| s.parse::<IpAddr>().unwrap();
    assert_eq!(block(ip("2001:db8::1")), block(ip("2001:db8::ffff:1")));
    assert_ne!(block(ip("2001:db8::1")), block(ip("2001:db8:0:1::1")));
    assert_eq!(block(ip("::ffff:192.0.2.1")), ip("192.0.2.1"));
}

#[tokio::test]
async fn the_port_takes_both_families() {
    let socket = bind(0).unwrap();
    let port = socket.local_addr().unwrap().port();
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
    let v6 = TcpListener::bind("[::1]:0").await.is_ok();
    assert_eq!(TcpStream::connect((Ipv6Addr::LOCALHOST, port)).await.is_ok(), v6);
}
