//! The assembly: builds the parts, runs them, and takes all of them down when one ends.

use std::{
    future::Future,
    io,
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::Router;
use control_api::{ids::NodeRef, session::MachineRole};
use control_identity::{
    client::Client,
    machine::{EnrolError, Identity, MachineConfig},
    session::{self, Moved, SessionState},
};
use datapath_net::pace::LogPace;
use datapath_relay::{Deliver, Paths, Relay, RelayConfig, RelayError};
use tokio::{
    net::{TcpListener, UnixListener},
    runtime::Handle,
    sync::watch,
    task::JoinSet,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    attach::{self, SocketError},
    carriers::HubPaths,
    certificates::Certificates,
    config::Config,
    deliver::Delivery,
    descriptors,
    direct::{
        Direct,
        addresses::{Announcer, Own},
        expected::Expected,
        listener,
        peers::Peers,
    },
    events::{Feed, pump},
    keeper::{Keeper, Task, chain},
    kernel::{
        Kernel,
        real::{Machine, Pins, StartError},
    },
    local::LocalFlows,
    metrics,
    mirror::Mirror,
    observe::Observer,
    open::Opener,
    packets::Packets,
    persist::PersistError,
    refusals::Refusals,
    report, roaming, session as served,
};

const ENROL_RETRY: Duration = Duration::from_secs(2);
/// For the parts to end after a signal.
const DRAIN: Duration = Duration::from_secs(10);

/// Why the node did not start or did not go on.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    #[error("rlark-node must run as root: it loads eBPF programs and enters network namespaces")]
    NotRoot,
    #[error("the data path does not start")]
    Kernel(#[from] StartError),
    #[error("the socket for runtimes")]
    Socket(#[from] SocketError),
    #[error("enrolling this machine")]
    Enrol(#[from] EnrolError),
    #[error("the data directory")]
    Persist(#[from] PersistError),
    #[error("cannot make the data directory {path}")]
    DataDir {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the relay")]
    Relay(#[from] RelayError),
    #[error("metrics cannot be served on {address}")]
    Metrics {
        address: std::net::SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("the direct port {port} cannot be taken")]
    DirectPort {
        port: u16,
        #[source]
        source: io::Error,
    },
    #[error("{part} ended, so the node was stopped")]
    Part { part: &'static str },
}

/// The parts that do not depend on where peers are found; tests run them without a hub.
pub struct Core {
    pub keeper: Keeper,
    pub task: Task,
    pub relay: Relay,
    pub observer: Arc<Observer>,
    pub mirror: Arc<Mirror>,
    pub kernel: Arc<dyn Kernel>,
}

impl std::fmt::Debug for Core {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Core(..)")
    }
}

impl Core {
    /// Wires keeper, relay, delivery and landing together. Must be called inside the runtime.
    ///
    /// # Errors
    /// The attachments file is unusable or the relay's threads do not start.
    pub fn build(
        relay_config: RelayConfig,
        data_dir: &std::path::Path,
        kernel: Arc<dyn Kernel>,
        paths: Arc<dyn Paths>,
        session: watch::Receiver<SessionState>,
    ) -> Result<Self, NodeError> {
        let (keeper, inbox) = Keeper::new(relay_config.node.clone());
        let refusals = Arc::new(Mutex::new(Refusals::default()));
        let feed = Arc::new(Feed::default());
        let packets = Arc::new(Packets::new(
            keeper.clone(),
            Arc::clone(&kernel),
            Arc::clone(&refusals),
            Arc::clone(&feed),
        ));
        let mirror = Arc::new(Mirror::new(Arc::clone(&kernel)));
        let delivery = Arc::new(Delivery::new(
            keeper.clone(),
            Arc::clone(&kernel),
            Arc::clone(&refusals),
            Arc::clone(&packets),
            Arc::clone(&feed),
            Arc::clone(&mirror),
        ));
        let deliver: Arc<dyn Deliver> = Arc::<Delivery>::clone(&delivery);
        let relay = Relay::new(relay_config, deliver, paths)?;
        let local = LocalFlows::new(Arc::clone(&feed));
        let opener = Arc::new(Opener {
            keeper: keeper.clone(),
            relay: relay.clone(),
            delivery,
            local: local.clone(),
            packets: Arc::clone(&packets),
            refusals: Arc::clone(&refusals),
            feed: Arc::clone(&feed),
            runtime: Handle::current(),
            said: LogPace::default(),
        });
        let task = Task::load(inbox, data_dir, Arc::clone(&kernel), opener)?;
        let observer = Arc::new(Observer {
            keeper: keeper.clone(),
            kernel: Arc::clone(&kernel),
            relay: relay.clone(),
            local,
            packets,
            refusals,
            feed,
            session,
        });
        Ok(Self { keeper, task, relay, observer, mirror, kernel })
    }
}

/// Runs until `stop` is cancelled (success) or a part ends by itself (failure). Either way all
/// parts are taken down, the kernel's state last.
///
/// # Errors
/// See [`NodeError`].
pub async fn run(config: Config, stop: CancellationToken) -> Result<(), NodeError> {
    if !rustix::process::geteuid().is_root() {
        return Err(NodeError::NotRoot);
    }
    let data_dir = config.data_dir.clone();
    std::fs::create_dir_all(&data_dir)
        .map_err(|source| NodeError::DataDir { path: data_dir.clone(), source })?;
    let socket = attach::bind(&config.socket)?;
    let _file = SocketFile(config.socket.clone());
    let pins =
        config.pins.clone().map_or_else(|| Pins::UntilStop(data_dir.join("bpf")), Pins::Kept);
    let machine = Machine::start(config.hooks.clone(), Some(pins))?;
    let Some(identity) = enrol(&config, &stop).await? else { return Ok(()) };
    let (state, session) = watch::channel(SessionState::Connecting);
    let client = identity.http_client();
    let (own, owned) = watch::channel(Arc::<Own>::default());
    let relay_address = config.hub_relay.clone();
    let paths = HubPaths::new(client.clone(), relay_address, Handle::current(), owned);
    let mut relay_config = RelayConfig::new(identity.machine().clone());
    relay_config.halt_poll = config.halt_poll;
    limit(&mut relay_config, &config);
    let core = Core::build(relay_config, &data_dir, Arc::new(machine), Arc::new(paths), session)?;
    let parts = start(&config, core, socket, (identity, client, state, own), &stop).await?;
    supervise(parts, stop).await
}

/// As configured, and no more than descriptors suffice for.
fn limit(relay: &mut RelayConfig, config: &Config) {
    relay.flows_total = config.max_flows.unwrap_or(relay.flows_total);
    relay.flows_per_pod = config.max_flows_per_pod.unwrap_or(relay.flows_per_pod);
    relay.descriptors = descriptors::for_flows(relay.flows_total);
    let (flows, per_pod) = (relay.flows_total.min(relay.descriptors), relay.flows_per_pod);
    tracing::info!(flows, per_pod, "the most flows at a time");
}

/// Removes the socket's file at the end, so that runtimes see at once that nobody is there.
struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        if let Err(e) = std::fs::remove_file(&self.0) {
            tracing::debug!(error = %e, "socket file not removed");
        }
    }
}

struct Parts {
    set: JoinSet<&'static str>,
    /// Ends after all others.
    keeper: JoinSet<&'static str>,
    keeper_stop: CancellationToken,
}

/// Tries for as long as the server is not there yet; `None` when told to stop meanwhile.
async fn enrol(config: &Config, stop: &CancellationToken) -> Result<Option<Identity>, NodeError> {
    let machine = MachineConfig {
        dir: config.data_dir.join("identity"),
        server: config.server.clone(),
        role: MachineRole::Node,
        name: config.name.clone(),
    };
    loop {
        match Identity::open(&machine, config.token.as_ref()).await {
            Ok(identity) => return Ok(Some(identity)),
            Err(e) if e.is_transient() => {
                tracing::warn!(error = chain(&e), "cannot enrol yet, trying again");
            }
            Err(e) => return Err(e.into()),
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(None),
            () = tokio::time::sleep(ENROL_RETRY) => {}
        }
    }
}

async fn start(
    config: &Config,
    core: Core,
    socket: UnixListener,
    (identity, client, state, own): (
        Identity,
        Client,
        watch::Sender<SessionState>,
        watch::Sender<Arc<Own>>,
    ),
    stop: &CancellationToken,
) -> Result<Parts, NodeError> {
    let Core { keeper, task, relay, observer, mirror, kernel } = core;
    let me: NodeRef = keeper.me().clone();
    let mut set = JoinSet::new();
    if let Some(address) = config.metrics_address {
        let listener = TcpListener::bind(address)
            .await
            .map_err(|source| NodeError::Metrics { address, source })?;
        let app = metrics::router(Arc::clone(&observer));
        let done = stop.clone().cancelled_owned();
        part(&mut set, "metrics", async move {
            log_end(axum::serve(listener, app).with_graceful_shutdown(done).await);
        });
    }
    let (publish, open) = watch::channel(Arc::default());
    let (following, halt, telling) = (keeper.clone(), stop.clone(), relay.clone());
    part(&mut set, "the report of ports", async move {
        let tell = || telling.tell_listeners();
        halt.run_until_cancelled(report::follow(kernel, following, publish, tell)).await;
        // Without events of the kernel nothing is told; that is no reason to stop.
        halt.cancelled().await;
    });
    let direct = start_direct(config, &relay, &observer, own.subscribe(), (&mut set, stop))?;
    let dials = TaskTracker::new();
    let app = served::router(
        keeper.clone(),
        relay.clone(),
        Arc::clone(&observer),
        (mirror, open),
        (&config.hub_relay, direct),
        dials.clone(),
    );
    let renewing = identity.clone();
    let moved = Moved::default();
    let announcer = Announcer { setting: config.direct.clone(), publish: own };
    let following = roaming::follow(client.clone(), moved.clone(), relay.clone(), announcer);
    let halt = stop.clone();
    part(&mut set, "the watch of addresses", async move {
        halt.run_until_cancelled(following).await;
        // Without it changes are noticed later; that is no reason to stop.
        halt.cancelled().await;
    });
    let running = session::roaming(identity, app, state, moved, stop.clone());
    part(&mut set, "the session", running);
    let halt = stop.clone();
    part(&mut set, "certificate renewal", async move {
        halt.run_until_cancelled(renewing.keep_renewed()).await;
    });
    let certificates = Certificates { client, relay, keeper: keeper.clone() };
    part(&mut set, "Domain certificates", certificates.run(stop.clone()));
    let (halt, watching) = (stop.clone(), Arc::clone(&observer));
    part(&mut set, "the event stream", async move {
        halt.run_until_cancelled(pump::run(watching)).await;
    });
    let (halt, feed) = (stop.clone(), Arc::clone(&observer.feed));
    let app: Router = attach::router(keeper, observer);
    // Streams of events have no end of their own.
    let done = async move {
        halt.cancelled().await;
        feed.close();
    };
    part(&mut set, "the socket for runtimes", async move {
        log_end(axum::serve(socket, app).with_graceful_shutdown(done).await);
    });
    let (keeper_stop, mut keeper_set) = (CancellationToken::new(), JoinSet::new());
    part(&mut keeper_set, "the keeper", task.run(keeper_stop.clone()));
    tracing::info!(node = %me, socket = %config.socket.display(), "rlark-node is up");
    Ok(Parts { set, keeper: keeper_set, keeper_stop })
}

/// The port for direct carriers, if there is to be one, and what is told of it.
fn start_direct(
    config: &Config,
    relay: &Relay,
    observer: &Observer,
    own: watch::Receiver<Arc<Own>>,
    (set, stop): (&mut JoinSet<&'static str>, &CancellationToken),
) -> Result<Direct, NodeError> {
    let expected = config.direct.port.map(|_| Arc::<Expected>::default());
    if let (Some(port), Some(expected)) = (config.direct.port, &expected) {
        let socket =
            listener::bind(port).map_err(|source| NodeError::DirectPort { port, source })?;
        let listener = listener::Listener {
            expected: Arc::clone(expected),
            relay: relay.clone(),
            refusals: Arc::clone(&observer.refusals),
        };
        let halt = stop.clone();
        part(set, "the direct port", async move {
            halt.run_until_cancelled(listener.serve(socket)).await;
        });
        tracing::info!(port, "direct carriers are taken");
    }
    let peers = Arc::new(Peers::new(relay.clone(), expected.clone()));
    Ok(Direct { expected, peers, own })
}

fn part(
    set: &mut JoinSet<&'static str>,
    name: &'static str,
    work: impl Future<Output = ()> + Send + 'static,
) {
    set.spawn(async move {
        work.await;
        name
    });
}

fn log_end(result: io::Result<()>) {
    if let Err(e) = result {
        tracing::error!(error = %e, "server ended");
    }
}

async fn supervise(mut parts: Parts, stop: CancellationToken) -> Result<(), NodeError> {
    let first = tokio::select! {
        () = stop.cancelled() => None,
        ended = parts.set.join_next() => Some(ended),
        ended = parts.keeper.join_next() => Some(ended),
    };
    // A part that ends because of the signal may be seen before the signal itself.
    let failed = first.filter(|_| !stop.is_cancelled()).map(|ended| match ended {
        Some(Ok(part)) => part,
        Some(Err(e)) => {
            tracing::error!(error = %e, "a part of the node failed");
            "a part"
        }
        None => "everything",
    });
    tracing::info!(because = failed.unwrap_or("a signal"), "stopping");
    stop.cancel();
    let drain = async { while parts.set.join_next().await.is_some() {} };
    if tokio::time::timeout(DRAIN, drain).await.is_err() {
        tracing::warn!("some parts did not end in time");
        parts.set.shutdown().await;
    }
    parts.keeper_stop.cancel();
    while parts.keeper.join_next().await.is_some() {}
    failed.map_or(Ok(()), |part| Err(NodeError::Part { part }))
}
