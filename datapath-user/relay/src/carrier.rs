//! One carrier: its queue, its pulse, its end. Made by `ssh`, owned by its link.

use std::{
    net::{IpAddr, Shutdown, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime},
};

use bytes::{Bytes, BytesMut};
use control_api::ids::NodeRef;
use datapath_net::path as net_path;
use datapath_net::sockets::tcp_info;
use datapath_wire::{
    Frame,
    frame::{HEAD, LISTENERS, PACKETS},
};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use crate::{
    api::{Lane, Listening, PacketLoss, RelayConfig, Via},
    pipe::Gate,
    queue::{Closed, Queue},
    shared::Hold as _,
};

/// A path whose round trip is so many times the least one, and at least so long (in microseconds), so often in a row, is
/// another path.
const GROWN: u64 = 8;
const FAR: u64 = 4000;
const SAMPLES: u32 = 3;
/// How long a retired carrier may still send what is queued.
const FAREWELL: Duration = Duration::from_millis(500);

/// One SSH connection with one channel.
pub(crate) struct Carrier {
    pub(crate) name: String,
    pub(crate) lane: Lane,
    pub(crate) via: Via,
    pub(crate) born: Instant,
    pub(crate) queue: Queue,
    pub(crate) gate: Arc<Gate>,
    pub(crate) dead: CancellationToken,
    /// Flows that use it now.
    pub(crate) flows: AtomicUsize,
    /// Another carrier does its work.
    pub(crate) spare: AtomicBool,
    /// It was told that it is up, and not yet that it is gone.
    pub(crate) up: AtomicBool,
    /// The same connection that russh reads: shutting it down ends the session at once.
    tcp: TcpStream,
    path: Mutex<Option<net_path::Path>>,
    /// Microseconds after `born`.
    heard: AtomicU64,
    busy: AtomicU64,
    /// [`datapath_wire::Hello::features`] of the peer, once greeted.
    features: AtomicU32,
    /// Smoothed and least round trip in microseconds; 0 until measured.
    rtt: AtomicU64,
    rtt_min: AtomicU64,
    /// So many round trips in a row were far from the least.
    far: AtomicU32,
    retransmits: AtomicU64,
}

impl std::fmt::Debug for Carrier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Carrier").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Carrier {
    pub(crate) fn new(peer: &NodeRef, lane: Lane, via: Via, tcp: TcpStream) -> Self {
        Self {
            name: format!("{}:{peer}:{}", via.as_str(), lane_name(lane)),
            lane,
            via,
            born: Instant::now(),
            queue: Queue::default(),
            gate: Arc::default(),
            dead: CancellationToken::new(),
            flows: AtomicUsize::new(0),
            spare: AtomicBool::new(false),
            up: AtomicBool::new(false),
            tcp,
            path: Mutex::default(),
            heard: AtomicU64::new(0),
            busy: AtomicU64::new(0),
            features: AtomicU32::new(0),
            rtt: AtomicU64::new(0),
            rtt_min: AtomicU64::new(0),
            far: AtomicU32::new(0),
            retransmits: AtomicU64::new(0),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    pub(crate) fn is_dead(&self) -> bool {
        self.dead.is_cancelled()
    }

    /// Queues a frame of the carrier or an answer; never waits. A peer that does not read what it
    /// provokes loses the carrier.
    pub(crate) fn post(&self, frame: &Frame<'_>) {
        if self.queue.push(frame.to_bytes(), None).is_err() {
            self.kill();
        }
    }

    /// As [`Carrier::post`], for what nobody waits for: it may travel with the next frame.
    pub(crate) fn post_lazily(&self, frame: &Frame<'_>) {
        if self.queue.push_lazily(frame.to_bytes()).is_err() {
            self.kill();
        }
    }

    /// Queues an IP packet.
    pub(crate) fn send_packet(&self, packet: &[u8]) -> Result<(), PacketLoss> {
        if self.features.load(Relaxed) & PACKETS == 0 {
            return Err(PacketLoss::NoPeer);
        }
        self.used();
        let mut frame = BytesMut::with_capacity(HEAD + packet.len());
        Frame::Packet { bytes: packet }.encode(&mut frame);
        match self.queue.push_packet(frame.freeze()) {
            Ok(true) => Ok(()),
            Ok(false) => Err(PacketLoss::QueueFull),
            Err(Closed) => Err(PacketLoss::NoPeer),
        }
    }

    /// Says, ahead of everything that waits, whether something listens there.
    pub(crate) fn tell_listening(&self, told: Listening) {
        let Listening { sequence, at, open } = told;
        if self.features.load(Relaxed) & LISTENERS != 0 {
            self.queue.push_first(Frame::Listening { sequence, at, open }.to_bytes());
        }
    }

    pub(crate) fn greeted(&self, features: u32) {
        self.features.store(features, Relaxed);
    }

    /// It carries something, though perhaps no flow.
    pub(crate) fn used(&self) {
        self.busy.store(self.now(), Relaxed);
    }

    /// Queues a flow's DATA, OPEN or FIN with its turn.
    pub(crate) fn send(&self, frame: Bytes, turn: OwnedSemaphorePermit) -> Result<(), Closed> {
        self.queue.push(frame, Some(turn))
    }

    /// Ends the carrier at once. Its task then tells the link.
    pub(crate) fn kill(&self) {
        self.dead.cancel();
        self.queue.close();
        // Fails when the peer closed first: then the session ends by itself.
        drop(self.tcp.shutdown(Shutdown::Both));
    }

    /// Lets queued frames (the RSTs of a dropped link) leave, then ends the carrier. What arrives
    /// meanwhile is ignored by the caller.
    pub(crate) async fn retire(&self) {
        let end = tokio::time::Instant::now() + FAREWELL;
        while !self.queue.is_empty() && !self.is_dead() && tokio::time::Instant::now() < end {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // The last write may still be inside russh.
        tokio::time::sleep(Duration::from_millis(20)).await;
        self.kill();
    }

    pub(crate) fn heard(&self) {
        self.heard.store(self.now(), Relaxed);
    }

    /// Since when the peer cannot be heard: now for a carrier that broke, earlier for one that fell silent before
    /// that was noticed.
    pub(crate) fn silent_since(&self, c: &RelayConfig) -> tokio::time::Instant {
        let silence = Duration::from_micros(self.now().saturating_sub(self.heard.load(Relaxed)));
        let now = tokio::time::Instant::now();
        if silence > 2 * c.ping_every { now.checked_sub(silence).unwrap_or(now) } else { now }
    }

    /// Sends PING.
    pub(crate) fn ping(&self) {
        self.post(&Frame::Ping { token: self.now() });
    }

    /// As [`Carrier::ping`]; the result is for [`Carrier::was_heard_since`].
    pub(crate) fn asks(&self) -> u64 {
        self.ping();
        self.now()
    }

    pub(crate) fn was_heard_since(&self, asked: u64) -> bool {
        self.heard.load(Relaxed) > asked
    }

    /// This end's address.
    pub(crate) fn local_ip(&self) -> Option<IpAddr> {
        self.tcp.local_addr().ok().map(|a| a.ip())
    }

    /// PONG: the token is the time of the PING, and this the round trip. A token from the future is the peer's invention.
    pub(crate) fn pong(&self, token: u64) -> Option<Duration> {
        let sample = self.now().checked_sub(token)?;
        self.look();
        let sample = sample.max(1);
        let old = self.rtt.load(Relaxed);
        self.rtt.store(if old == 0 { sample } else { old - old / 8 + sample / 8 }, Relaxed);
        let least = self.rtt_min.load(Relaxed);
        if least == 0 || sample < least {
            self.rtt_min.store(sample, Relaxed);
        }
        // A queue makes some round trips long, another path all of them.
        if sample < (least * GROWN).max(FAR) {
            self.far.store(0, Relaxed);
        } else if self.far.fetch_add(1, Relaxed) >= SAMPLES {
            self.far.store(0, Relaxed);
            self.rtt_min.store(self.rtt.load(Relaxed), Relaxed);
        }
        Some(Duration::from_micros(sample))
    }

    /// Asks the kernel how many segments it sent again.
    pub(crate) fn look(&self) {
        if let Ok(info) = tcp_info(&self.tcp) {
            self.retransmits.store(info.retransmits.into(), Relaxed);
        }
    }

    /// As of the last look or answer to a PING.
    pub(crate) fn retransmits(&self) -> u64 {
        self.retransmits.load(Relaxed)
    }

    pub(crate) fn rtt(&self) -> Option<Duration> {
        Some(self.rtt.load(Relaxed)).filter(|&v| v > 0).map(Duration::from_micros)
    }
    pub(crate) fn rtt_min(&self) -> Option<Duration> {
        Some(self.rtt_min.load(Relaxed)).filter(|&v| v > 0).map(Duration::from_micros)
    }

    /// Chooses congestion control and buffers for the path of the connection, and later for what became of the path.
    pub(crate) fn suit_path(&self) {
        let mut path = self.path.hold();
        let suited = match &mut *path {
            Some(path) => path.look(&self.tcp),
            None => net_path::Path::choose(&self.tcp).map(|chosen| {
                *path = Some(chosen);
                false
            }),
        };
        match suited {
            Ok(true) => tracing::info!(carrier = %self.name, "the path became long or lossy"),
            Ok(false) => {}
            Err(error) => {
                tracing::debug!(carrier = %self.name, %error, "the carrier keeps the machine's settings");
            }
        }
    }

    /// Keeps the pulse until the carrier must end; returns why.
    pub(crate) async fn watch(&self, c: &RelayConfig, peer_until: SystemTime) -> &'static str {
        let mut tick = tokio::time::interval(c.ping_every);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut look = tokio::time::interval(net_path::LOOK_EVERY);
        look.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = tick.tick() => {}
                _ = look.tick() => {
                    self.suit_path();
                    continue;
                }
                () = self.dead.cancelled() => return "closed",
            }
            if self.now().saturating_sub(self.heard.load(Relaxed)) > micros(c.dead_after) {
                return "silent";
            }
            if SystemTime::now() >= peer_until {
                return "the peer's certificate ended";
            }
            if self.flows.load(Relaxed) > 0 {
                self.busy.store(self.now(), Relaxed);
            } else {
                let spare = self.spare.load(Relaxed);
                let limit = if spare { c.spare_carrier } else { c.idle_carrier };
                if self.now().saturating_sub(self.busy.load(Relaxed)) > micros(limit) {
                    return "idle";
                }
            }
            self.ping();
        }
    }
}

fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX)
}

pub(crate) fn lane_name(lane: Lane) -> &'static str {
    match lane {
        Lane::Interactive => "interactive",
        Lane::Bulk => "bulk",
    }
}
