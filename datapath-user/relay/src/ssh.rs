//! Carriers over russh: handshake, mutual proof, one channel. Data enters through `Handler::data`
//! and is demultiplexed there, never awaited; russh's own channel queue is not used.

use std::{
    net::TcpStream,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use datapath_wire::{
    Decoder, Frame, Hello,
    frame::{LISTENERS, PACKETS, VERSION},
};
use russh::{
    Channel, ChannelId, ChannelWriteHalf, client,
    keys::{Certificate, PublicKeyOrCertificate},
    server,
};
use tokio::sync::Notify;

use crate::{
    api::{Lane, Listening, Path, RelayError},
    carrier::{Carrier, lane_name},
    identity::{self, Identity},
    link::Link,
    pipe::Pipe,
    queue::Linger,
    shared::{Hold as _, Shared, add},
};

/// Little unsent data in the kernel, so that a small frame need not wait behind megabytes.
const NOTSENT_LOWAT: u32 = 128 << 10;

/// One session's view of us: checks the peer, then takes its frames.
struct Hand {
    shared: Arc<Shared>,
    link: Arc<Link>,
    carrier: Arc<Carrier>,
    identity: Arc<Identity>,
    decoder: Decoder,
    proof: Arc<Proof>,
    has_channel: bool,
}

/// What the handshake learned, for the task that waits for it.
#[derive(Default)]
struct Proof {
    until: Mutex<Option<SystemTime>>,
    why: Mutex<Option<String>>,
    /// The channel stands.
    began: Notify,
    greeted: Notify,
}

impl Proof {
    fn refuse(&self, why: impl Into<String>) {
        self.why.hold().get_or_insert(why.into());
    }
}

impl Hand {
    fn user(&self) -> String {
        user(&self.link, self.carrier.lane)
    }

    fn check(&self, certificate: &Certificate) -> bool {
        match identity::verify(certificate, &self.identity.ca, &self.link.key.peer) {
            Ok(until) => {
                *self.proof.until.hold() = Some(until);
                true
            }
            Err(why) => {
                self.proof.refuse(why);
                add(&self.shared.tally.peers_refused);
                false
            }
        }
    }

    fn input(&mut self, data: &[u8]) -> Result<(), russh::Error> {
        // Only after both proofs: russh opens no channel before, but this must not rest on it.
        if self.carrier.is_dead() || self.proof.until.hold().is_none() {
            return Err(russh::Error::Disconnect);
        }
        self.carrier.heard();
        let (shared, link, carrier, proof) = (&self.shared, &self.link, &self.carrier, &self.proof);
        let result = self.decoder.feed(data, |frame| match frame {
            Frame::Hello(h) => greet(shared, link, carrier, proof, &h),
            Frame::Ping { token } => carrier.post(&Frame::Pong { token }),
            Frame::Pong { token } => {
                if let Some(rtt) = carrier.pong(token) {
                    shared.tally.rtt(carrier.via).add(rtt);
                }
            }
            Frame::Packet { bytes } => {
                carrier.used();
                shared.deliver.packet(&link.key.domain, &link.key.peer, bytes);
            }
            Frame::Listening { sequence, at, open } => {
                let (domain, peer) = (&link.key.domain, &link.key.peer);
                shared.deliver.peer_listens(domain, peer, Listening { sequence, at, open });
            }
            // What follows its HELLO when it is not let in.
            _ if carrier.is_dead() => {}
            frame => link.frame(shared, carrier, frame),
        });
        result.map_err(|e| {
            self.proof.refuse(e.to_string());
            tracing::warn!(carrier = %self.carrier.name, error = %e, "the peer broke the protocol");
            self.carrier.kill();
            russh::Error::Disconnect
        })
    }

    fn take_channel(&mut self) -> bool {
        !std::mem::replace(&mut self.has_channel, true)
    }
}

/// The SSH user name says what the carrier is for, so that a direct listener can route it.
fn user(link: &Link, lane: Lane) -> String {
    format!("{}:{}", link.key.domain, lane_name(lane))
}

fn greet(shared: &Arc<Shared>, link: &Arc<Link>, c: &Arc<Carrier>, proof: &Proof, h: &Hello) {
    if h.node != link.key.peer.to_string() {
        proof.refuse("its HELLO names another node than its certificate");
        add(&shared.tally.peers_refused);
        c.kill();
        return;
    }
    c.greeted(h.features);
    // First the pulse: a flow's credit follows the round trip.
    c.ping();
    link.ready(shared, c, h.epoch);
    proof.greeted.notify_one();
}

impl client::Handler for Hand {
    type Error = russh::Error;

    async fn check_server_key(
        &mut self,
        key: &PublicKeyOrCertificate,
    ) -> Result<bool, Self::Error> {
        let Some(certificate) = key.certificate() else {
            self.proof.refuse("it showed a bare host key instead of a certificate");
            add(&self.shared.tally.peers_refused);
            return Ok(false);
        };
        Ok(self.check(certificate))
    }
    async fn data(
        &mut self,
        _: ChannelId,
        data: &[u8],
        _: &mut client::Session,
    ) -> Result<(), Self::Error> {
        self.input(data)
    }
}

impl server::Handler for Hand {
    type Error = russh::Error;

    async fn auth_openssh_certificate(
        &mut self,
        name: &str,
        certificate: &Certificate,
    ) -> Result<server::Auth, Self::Error> {
        if name != self.user() {
            self.proof.refuse(format!("it asked for {name:?}"));
            add(&self.shared.tally.peers_refused);
            return Ok(server::Auth::reject());
        }
        Ok(if self.check(certificate) { server::Auth::Accept } else { server::Auth::reject() })
    }
    async fn channel_open_session(
        &mut self,
        channel: Channel<server::Msg>,
        reply: server::ChannelOpenHandle,
        _: &mut server::Session,
    ) -> Result<(), Self::Error> {
        if !self.take_channel() {
            return Ok(()); // dropping the handle refuses
        }
        reply.accept().await;
        let (_, half) = channel.split();
        start_writer(&self.shared, &self.carrier, Half::Server(half));
        self.proof.began.notify_one();
        Ok(())
    }
    async fn data(
        &mut self,
        _: ChannelId,
        data: &[u8],
        _: &mut server::Session,
    ) -> Result<(), Self::Error> {
        self.input(data)
    }
}

enum Half {
    Client(ChannelWriteHalf<client::Msg>),
    Server(ChannelWriteHalf<server::Msg>),
}

impl Half {
    async fn put(&self, b: Bytes) -> Result<(), russh::Error> {
        match self {
            Self::Client(h) => h.data_bytes(b).await,
            Self::Server(h) => h.data_bytes(b).await,
        }
    }
}

pub(crate) fn hello(shared: &Shared, carrier: &Carrier) {
    let hello = Frame::Hello(Hello {
        version: VERSION,
        features: PACKETS | LISTENERS,
        epoch: shared.epoch,
        node: shared.config.node.to_string(),
    });
    // The peer's may come before this one has left, and with it words that overtake all others.
    carrier.queue.push_first(hello.to_bytes());
}

/// Moves frames from the queue into the channel, no more than the connection takes.
fn start_writer(shared: &Shared, carrier: &Arc<Carrier>, half: Half) {
    let c = Arc::clone(carrier);
    shared.lane(carrier.lane).spawn(async move {
        let work = async {
            let mut linger = Linger::new();
            while let Some(b) = c.queue.next(&mut linger).await {
                if half.put(b).await.is_err() {
                    break;
                }
                c.gate.open().await;
            }
        };
        tokio::select! { () = work => {}, () = c.dead.cancelled() => {} }
        c.kill();
    });
}

struct Prepared {
    hand: Hand,
    pipe: Pipe,
}

fn prepare(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    identity: Arc<Identity>,
    lane: Lane,
    path: Path,
) -> std::io::Result<Prepared> {
    tune(&path.stream, shared.config.dead_after)?;
    let copy = path.stream.try_clone()?;
    let carrier = Arc::new(Carrier::new(&link.key.peer, lane, path.via, copy));
    carrier.suit_path();
    // First of all, so that neither the pulse nor a flow can come before it, whoever is faster.
    hello(shared, &carrier);
    let tcp = tokio::net::TcpStream::from_std(path.stream)?;
    let pipe = Pipe::new(tcp, Arc::clone(&carrier.gate));
    let hand = Hand {
        shared: Arc::clone(shared),
        link: Arc::clone(link),
        carrier,
        identity,
        decoder: Decoder::new(),
        proof: Arc::default(),
        has_channel: false,
    };
    Ok(Prepared { hand, pipe })
}

fn tune(tcp: &TcpStream, dead_after: Duration) -> std::io::Result<()> {
    tcp.set_nonblocking(true)?;
    tcp.set_nodelay(true)?;
    let s = socket2::SockRef::from(tcp);
    s.set_tcp_notsent_lowat(NOTSENT_LOWAT)?;
    s.set_tcp_user_timeout(Some(dead_after))
}

/// Dials `peer`'s carrier over `path`; we are the SSH client. Returns when the link can use it.
pub(crate) async fn connect(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    identity: Arc<Identity>,
    lane: Lane,
    path: Path,
) -> Result<(), RelayError> {
    let fail = |why: String| RelayError::Carrier {
        domain: link.key.domain.clone(),
        peer: link.key.peer.clone(),
        why,
    };
    let config = Arc::clone(&identity.client);
    let (key, certificate) = (Arc::clone(&identity.key), identity.certificate.clone());
    let p = prepare(shared, link, identity, lane, path).map_err(|e| fail(e.to_string()))?;
    let (carrier, proof) = (Arc::clone(&p.hand.carrier), Arc::clone(&p.hand.proof));
    let name = p.hand.user();
    let work = async {
        let mut session = client::connect_stream(config, p.pipe, p.hand).await?;
        if !session.authenticate_openssh_cert(name, key, certificate).await?.success() {
            return Err(russh::Error::NotAuthenticated);
        }
        let (_, half) = session.channel_open_session().await?.split();
        start_writer(shared, &carrier, Half::Client(half));
        proof.began.notify_one();
        Ok(session)
    };
    let result = tokio::time::timeout(shared.config.handshake_timeout, work).await;
    let session = match result {
        Ok(Ok(session)) => session,
        Ok(Err(e)) => {
            carrier.kill();
            return Err(fail(proof.why.hold().take().unwrap_or_else(|| e.to_string())));
        }
        Err(_) => {
            carrier.kill();
            return Err(fail("the handshake took too long".to_owned()));
        }
    };
    run(shared, link, &carrier, &proof, async move {
        drop(session.await);
    });
    let greeted = tokio::time::timeout(shared.config.handshake_timeout, proof.greeted.notified());
    tokio::select! {
        r = greeted => if r.is_err() { carrier.kill() },
        () = carrier.dead.cancelled() => {}
    }
    if carrier.is_dead() {
        return Err(fail(proof.why.hold().take().unwrap_or_else(|| "it said no HELLO".to_owned())));
    }
    Ok(())
}

/// Serves a carrier that the peer dialled; we are the SSH server. Returns when it is greeted.
pub(crate) async fn serve(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    identity: Arc<Identity>,
    lane: Lane,
    path: Path,
) -> Result<(), RelayError> {
    let fail = |why: String| RelayError::Carrier {
        domain: link.key.domain.clone(),
        peer: link.key.peer.clone(),
        why,
    };
    let config = Arc::clone(&identity.server);
    let p = prepare(shared, link, identity, lane, path).map_err(|e| fail(e.to_string()))?;
    let (carrier, proof) = (Arc::clone(&p.hand.carrier), Arc::clone(&p.hand.proof));
    let limit = shared.config.handshake_timeout;
    let started = tokio::time::timeout(limit, server::run_stream(config, p.pipe, p.hand)).await;
    let session = match started {
        Ok(Ok(s)) => s,
        Ok(Err(e)) => return Err(fail(e.to_string())),
        Err(_) => return Err(fail("the handshake took too long".to_owned())),
    };
    run(shared, link, &carrier, &proof, async move {
        drop(session.await);
    });
    tokio::select! {
        r = tokio::time::timeout(limit, proof.greeted.notified()) => if r.is_err() { carrier.kill() },
        () = carrier.dead.cancelled() => {}
    }
    if carrier.is_dead() {
        let why = proof.why.hold().take();
        if why.is_none() && proof.until.hold().is_none() {
            // russh itself refuses expired certificates and bad signatures.
            add(&shared.tally.peers_refused);
        }
        return Err(fail(why.unwrap_or_else(|| "it did not finish the handshake".to_owned())));
    }
    Ok(())
}

/// Owns the session until the carrier ends, and then tells the link.
fn run(
    shared: &Arc<Shared>,
    link: &Arc<Link>,
    carrier: &Arc<Carrier>,
    proof: &Arc<Proof>,
    session: impl Future<Output = ()> + Send + 'static,
) {
    let (s, l, c) = (Arc::clone(shared), Arc::clone(link), Arc::clone(carrier));
    let proof = Arc::clone(proof);
    shared.lane(carrier.lane).spawn(async move {
        let watch = async {
            // Before that there is nothing to watch; the caller has the deadline.
            tokio::select! {
                () = proof.began.notified() => {}
                () = c.dead.cancelled() => return "closed",
            }
            let until = proof.until.hold().unwrap_or(SystemTime::UNIX_EPOCH);
            c.watch(&s.config, until).await
        };
        let why = tokio::select! { () = session => "disconnected", why = watch => why };
        c.kill();
        l.lost(&s, &c, why);
    });
}
