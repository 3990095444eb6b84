//! The public face, and the lanes' threads.

mod direct;

use std::{
    collections::HashMap,
    net::{IpAddr, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicU64},
    },
    time::Duration,
};

use control_api::ids::{DomainName, NodeRef};
use datapath_net::pace::LogPace;
use datapath_wire::frame::MAX_PACKET;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    api::{
        CarrierStats, Counters, Deliver, DomainIdentity, FlowStats, Lane, OpenRequest, PacketLoss,
        Path, Paths, Reason, RelayConfig, RelayError, Told, Via,
    },
    carrier::lane_name,
    flow::{self, Flow, Landed},
    histogram::Times,
    identity::Identity,
    shared::{Hold as _, LaneThread, Limits, Shared, Tally, add},
    ssh,
};

/// All flows of this node. Cheap to clone; when the last clone is dropped, every flow is reset,
/// every carrier closed and the lanes' threads end.
#[derive(Clone)]
pub struct Relay {
    shared: Arc<Shared>,
    _threads: Arc<Threads>,
}

impl std::fmt::Debug for Relay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Relay").field("node", &self.shared.config.node).finish_non_exhaustive()
    }
}

/// Ends the lanes when dropped.
struct Threads {
    stop: CancellationToken,
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// A place within the limits, given back when dropped.
pub struct Admitted {
    shared: Arc<Shared>,
    domain: DomainName,
    vip: IpAddr,
    descriptors: usize,
}

impl std::fmt::Debug for Admitted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Admitted").field("vip", &self.vip).finish_non_exhaustive()
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.shared.limits.dismiss(&self.domain, self.vip, self.descriptors);
    }
}

fn start_lane(
    config: &RelayConfig,
    lane: Lane,
    stop: &CancellationToken,
) -> Result<LaneThread, RelayError> {
    // In bulk the next frame is near or far.
    let halt_poll = match lane {
        Lane::Interactive => config.halt_poll,
        Lane::Bulk => config.halt_poll / 4,
    };
    let name = format!("relay-{}", lane_name(lane));
    // When it stops, dropping the runtime drops every task: sockets close, which resets.
    let handle = datapath_net::thread::start(name, halt_poll, stop.clone());
    let handle = handle.map_err(|source| RelayError::Thread { lane: lane_name(lane), source })?;
    Ok(LaneThread { handle, tasks: TaskTracker::new() })
}

impl Relay {
    /// Starts the lanes' threads.
    ///
    /// # Errors
    /// [`RelayError::Thread`].
    pub fn new(
        config: RelayConfig,
        deliver: Arc<dyn Deliver>,
        paths: Arc<dyn Paths>,
    ) -> Result<Self, RelayError> {
        let stop = CancellationToken::new();
        let threads = Arc::new(Threads { stop: stop.clone() });
        let shared = Arc::new(Shared {
            deliver,
            paths,
            interactive: start_lane(&config, Lane::Interactive, &stop)?,
            bulk: start_lane(&config, Lane::Bulk, &stop)?,
            config,
            identities: Mutex::new(HashMap::new()),
            links: Mutex::new(HashMap::new()),
            tally: Tally::default(),
            history: Mutex::default(),
            limits: Limits::default(),
            listeners: Mutex::default(),
            refusals_said: LogPace::default(),
            epoch: rand::random(),
            next_flow: AtomicU64::new(1),
            next_wire: AtomicU32::new(1),
        });
        Ok(Self { shared, _threads: threads })
    }

    /// Carries a landed connection to its target. Returns at once and never fails: what goes wrong
    /// is an RST to the application, a reason in [`Relay::flows`] and a count. `conn` may be in
    /// either blocking mode.
    pub fn open(&self, request: OpenRequest, conn: TcpStream) {
        self.open_landed(request, Landed::Plain(conn));
    }

    /// As [`Relay::open`], for a connection that was accepted by a task on [`Relay::runtime`]: it
    /// stays registered there and no other thread is woken. It must have TCP_NODELAY and, so that the
    /// application is told the truth if this process is killed, SO_LINGER 0: set on the listener, both
    /// are inherited.
    pub fn open_here(&self, request: OpenRequest, conn: tokio::net::TcpStream) {
        self.open_landed(request, Landed::Here(conn));
    }

    /// The runtime on whose thread flows begin: the place for accept loops, which must neither block
    /// nor compute there. Its tasks end with the last clone of the relay.
    #[must_use]
    pub fn runtime(&self) -> tokio::runtime::Handle {
        self.shared.lane(Lane::Interactive).handle.clone()
    }

    fn open_landed(&self, request: OpenRequest, conn: Landed) {
        let shared = &self.shared;
        let (domain, ip) = (request.domain.clone(), request.src.ip());
        if shared.identity(&domain).is_none() {
            return self.refuse(&request, &conn, Reason::Denied);
        }
        if !shared.limits.enter(&shared.config, &domain, ip) {
            return self.refuse(&request, &conn, Reason::Limit);
        }
        let link = shared.link(&domain, &request.peer);
        let flow = Arc::new(Flow::opening(shared, link.next_id(shared), request));
        if !link.insert(&flow) {
            // The peer was dropped this very moment.
            flow.fail(Reason::PeerGone);
        }
        add(&shared.tally.opened);
        let s = Arc::clone(shared);
        shared
            .lane(Lane::Interactive)
            .spawn(async move { flow::open(&s, &link, flow, conn).await });
    }

    /// Counts a flow of the local pod `vip` that the owner carries itself, with so many descriptors (at least one), against the
    /// same limits; `None` when one is reached.
    #[must_use]
    pub fn admit(&self, domain: &DomainName, vip: IpAddr, descriptors: usize) -> Option<Admitted> {
        let (shared, descriptors) = (Arc::clone(&self.shared), descriptors.max(1));
        let admitted = shared.limits.admit(&shared.config, domain, vip, descriptors);
        admitted.then(|| Admitted { shared, domain: domain.clone(), vip, descriptors })
    }

    fn refuse(&self, r: &OpenRequest, conn: &Landed, reason: Reason) {
        if let Some(unsaid) = self.shared.refusals_said.may_say() {
            let (src, dst, peer) = (r.src, r.dst, &r.peer);
            tracing::warn!(%src, %dst, %peer, %reason, unsaid, "flow is refused here");
        }
        self.shared.tally.failed(reason);
        let told = || Told::Refused { domain: r.domain.clone(), src: r.src, dst: r.dst, reason };
        self.shared.tell(told);
        // With linger 0 the drop that follows is a reset.
        drop(conn.socket().set_linger(Some(Duration::ZERO)));
    }

    /// Serves a connection that `peer` dialled for (`domain`, `lane`): we are the SSH server.
    /// Returns at once; a peer that cannot prove to be `peer` is closed and counted.
    ///
    /// # Errors
    /// [`RelayError::NoIdentity`] when [`Relay::set_identity`] was not called for `domain`.
    pub fn accept(
        &self,
        domain: &DomainName,
        peer: &NodeRef,
        lane: Lane,
        path: Path,
    ) -> Result<(), RelayError> {
        let identity = self
            .shared
            .identity(domain)
            .ok_or_else(|| RelayError::NoIdentity { domain: domain.clone() })?;
        let (s, link) = (Arc::clone(&self.shared), self.shared.link(domain, peer));
        self.shared.lane(lane).spawn(async move {
            if let Err(e) = ssh::serve(&s, &link, identity, lane, path).await {
                tracing::warn!(error = %e, "an incoming carrier is refused");
            }
        });
        Ok(())
    }

    /// Sets or renews this node's identity in `domain`. Standing carriers stay, unless the
    /// certificate authority changed: then they are closed and flows resume on new ones.
    ///
    /// # Errors
    /// [`RelayError::BadIdentity`].
    pub fn set_identity(
        &self,
        domain: &DomainName,
        identity: DomainIdentity,
    ) -> Result<(), RelayError> {
        let new = Arc::new(Identity::new(domain, &self.shared.config.node, identity)?);
        let ca = new.ca;
        let old = self.shared.identities.hold().insert(domain.clone(), new);
        if old.is_some_and(|o| o.ca != ca) {
            for link in self.links(domain) {
                link.carriers().iter().for_each(|c| c.kill());
            }
        }
        Ok(())
    }

    /// When this node's certificate in `domain` ends, if it has one.
    #[must_use]
    pub fn identity_until(&self, domain: &DomainName) -> Option<std::time::SystemTime> {
        self.shared.identity(domain)?.certificate.valid_before_time()
    }

    fn links(&self, domain: &DomainName) -> Vec<Arc<crate::link::Link>> {
        self.shared.all_links().into_iter().filter(|l| l.key.domain == *domain).collect()
    }

    /// Forgets the Domain: resets its flows, closes its carriers, drops the key.
    pub fn drop_domain(&self, domain: &DomainName) {
        self.shared.identities.hold().remove(domain);
        for link in self.links(domain) {
            self.drop_peer(domain, &link.key.peer);
        }
    }

    /// Resets all flows with `peer` and closes its carriers, in one Domain. The peer may come back.
    pub fn drop_peer(&self, domain: &DomainName, peer: &NodeRef) {
        let key = crate::shared::LinkKey { domain: domain.clone(), peer: peer.clone() };
        let link = self.shared.links.hold().remove(&key);
        if let Some(link) = link {
            link.end(&self.shared);
        }
    }

    /// Resets the flows of one local pod address, on either end.
    pub fn drop_pod(&self, domain: &DomainName, vip: IpAddr) {
        for link in self.links(domain) {
            for f in link.flows().iter().filter(|f| f.local().ip() == vip) {
                f.reset(Reason::PeerGone);
            }
        }
    }

    /// Asks [`Deliver::turned`] and tells peers, on every carrier of the Domain. The relay does so itself before anything
    /// leaves; the owner calls it when there is news, for what pods hear of each other in other ways.
    pub fn tell_listeners(&self) {
        self.shared.tell_listeners();
    }

    /// Sends an IP packet to the node `peer`. While no carrier stands a few wait for one, as they would for an address on a LAN.
    ///
    /// # Errors
    /// It is lost here.
    pub fn send_packet(
        &self,
        domain: &DomainName,
        peer: &NodeRef,
        packet: &[u8],
    ) -> Result<(), PacketLoss> {
        if packet.len() > MAX_PACKET {
            return Err(PacketLoss::TooLarge);
        }
        if self.shared.identity(domain).is_none() {
            return Err(PacketLoss::NoIdentity);
        }
        self.shared.tell_listeners();
        self.shared.link(domain, peer).send_packet(&self.shared, packet)
    }

    /// Brings up the interactive carrier to `peer` before a flow needs it.
    pub fn warm(&self, domain: &DomainName, peer: &NodeRef) {
        self.shared.link(domain, peer).warm(&self.shared);
    }

    /// Living flows, then recently ended ones, newest first.
    #[must_use]
    pub fn flows(&self) -> Vec<FlowStats> {
        self.look();
        let mut all: Vec<FlowStats> = self
            .shared
            .all_links()
            .iter()
            .flat_map(|l| l.flows().into_iter().map(|f| f.stats(l)).collect::<Vec<_>>())
            .collect();
        all.sort_by_key(|f| std::cmp::Reverse(f.id));
        all.extend(self.shared.history.hold().iter().cloned());
        all
    }

    fn look(&self) {
        self.shared.all_links().iter().flat_map(|l| l.carriers()).for_each(|c| c.look());
    }

    /// Standing carriers.
    #[must_use]
    pub fn carriers(&self) -> Vec<CarrierStats> {
        self.look();
        let of = |l: &Arc<crate::link::Link>| {
            let key = l.key.clone();
            l.carriers().into_iter().map(move |c| CarrierStats {
                name: c.name.clone(),
                domain: key.domain.clone(),
                peer: key.peer.clone(),
                lane: c.lane,
                via: c.via,
                rtt: c.rtt(),
                retransmits: c.retransmits(),
                age: c.born.elapsed(),
                flows: c.flows.load(std::sync::atomic::Ordering::Relaxed),
            })
        };
        self.shared.all_links().iter().flat_map(of).collect()
    }

    /// Closes the carriers with `peer` but keeps the flows: they resume on the next ones. For
    /// `rlark doctor` and tests, and when the way to a peer changed.
    pub fn cut(&self, domain: &DomainName, peer: &NodeRef) {
        let key = crate::shared::LinkKey { domain: domain.clone(), peer: peer.clone() };
        let link = self.shared.links.hold().get(&key).cloned();
        if let Some(link) = link {
            link.carriers().iter().for_each(|c| c.kill());
        }
    }

    /// This machine's addresses or routes changed: carriers that this ended are noticed now, not by their silence.
    pub fn moved(&self) {
        for link in self.shared.all_links() {
            link.moved(&self.shared);
        }
    }

    /// Round trips of carriers so far, by what they run over: each PING that was answered.
    #[must_use]
    pub fn round_trips(&self, via: Via) -> Times {
        self.shared.tally.rtt(via).times()
    }

    /// How long it took from a connection's landing here to the word that the far end accepted it, which travels with the
    /// target's first bytes or up to 5 ms later.
    #[must_use]
    pub fn accepted_after(&self) -> Times {
        self.shared.tally.accepted_after.times()
    }

    #[must_use]
    pub fn counters(&self) -> Counters {
        self.look();
        self.shared.counters()
    }
}
