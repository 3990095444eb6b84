//! Builds all parts from a configuration and runs them until they are to stop.

use std::{
    fs,
    future::Future,
    net::SocketAddr,
    os::unix::fs::{DirBuilderExt as _, PermissionsExt as _},
    path::Path,
    sync::Arc,
    time::Duration,
};

use axum::{Router, extract::Request};
use control_apiserver::{ApiServer, Options};
use control_hub::Hub;
use control_identity::{ca::Authority, principal::Principal, rbac::Rbac, tls};
use control_store::{Database, Scope, Workspace};
use kube::Client;
use tokio::{
    net::{TcpListener, TcpSocket},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::{
    args::Config,
    edge::Edge,
    exit::ServerError,
    install, kubeconfig,
    logs::PodLogs,
    metrics::{self, Metrics},
    rbac,
};

/// Where the Kubernetes API is mounted a second time, for clients of the older gateway.
const KUBERNETES_PREFIX: &str = "/api/kubernetes";
/// The state everybody sees; forks will stand beside it.
const WORKSPACE: &str = "main";

type PartError = Box<dyn std::error::Error + Send + Sync>;

/// A server that listens and has all its parts, but does not serve yet.
pub struct Server {
    config: Config,
    address: SocketAddr,
    relay_address: SocketAddr,
    edge: Edge,
    listener: TcpListener,
    relay: TcpListener,
    metrics: Option<TcpListener>,
    client: Client,
    rbac: Arc<Rbac>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").field("config", &self.config).finish_non_exhaustive()
    }
}

/// Starts and runs a server.
pub async fn run(config: Config, stop: CancellationToken) -> Result<(), ServerError> {
    Box::pin(Server::start(config)).await?.serve(stop).await
}

impl Server {
    /// Takes the data directory and the ports, and builds the parts. Nothing that can be refused
    /// is left for later.
    pub async fn start(config: Config) -> Result<Self, ServerError> {
        tracing::info!(
            version = env!("CARGO_PKG_VERSION"),
            "rlark-server starts with {}",
            effective(&config)
        );
        prepare(&config.data_dir)?;
        let database = Database::open(&config.data_dir)?;
        let authority = Arc::new(Authority::open_or_create(&config.data_dir)?);
        let api_port = Port::take(config.listen, "API", "--listen")?;
        let relay_port = Port::take(config.relay_listen, "relay", "--relay-listen")?;
        let metrics_port = match config.metrics_address {
            Some(address) => Some(Port::take(address, "metrics", "--metrics-address")?),
            None => None,
        };
        let workspace = Workspace::open(&database, WORKSPACE, &store_options())?;
        let rbac = Arc::new(Rbac::default());
        let pod_logs = Arc::new(PodLogs::default());
        let options = Options::default().subresource(
            "rlinf.io",
            "pods",
            "log",
            Arc::<PodLogs>::clone(&pod_logs),
        );
        let api = ApiServer::new(workspace, Arc::<Rbac>::clone(&rbac), options).await?;
        let admin = Principal::Admin { name: "rlark-server".to_owned() };
        let client = Client::new(api.in_process(admin), "default");
        Box::pin(install::definitions(&client)).await?;
        let hub = Hub::new(Arc::clone(&authority), client.clone());
        // Set once, here.
        let _first = pod_logs.hub.set(hub.downgrade());
        let (address, relay_address) = (api_port.local(), relay_port.local());
        let path = config.kubeconfig();
        let server = format!("https://{}", authority_of(&config.advertise_address, address.port()));
        if kubeconfig::ensure(&path, &server, &authority)? {
            tracing::info!("admin kubeconfig written: export KUBECONFIG={}", path.display());
        }
        let tls = Arc::new(tls::server_config(authority, config.names())?);
        let edge = Edge { tls, app: app(&hub, &api), hub, metrics: Metrics::new() };
        let (listener, relay) = (api_port.listen()?, relay_port.listen()?);
        let metrics = metrics_port.map(Port::listen).transpose()?;
        Ok(Self { config, address, relay_address, edge, listener, relay, metrics, client, rbac })
    }

    /// The bound address of the API (the port may have been 0).
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The bound address of the relay.
    #[must_use]
    pub fn relay_address(&self) -> SocketAddr {
        self.relay_address
    }

    /// A client of the API that may do everything, in process.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Serves until `stop`; an error when a part ended by itself.
    pub async fn serve(self, stop: CancellationToken) -> Result<(), ServerError> {
        tracing::info!(api = %self.address, relay = %self.relay_address, "serving");
        let mut parts = JoinSet::new();
        let hub = self.edge.hub.clone();
        if let Some(listener) = self.metrics {
            let serve =
                metrics::serve(listener, self.edge.metrics.clone(), hub.clone(), stop.clone());
            parts.spawn(part("the metrics listener", async { Ok(serve.await?) }));
        }
        parts.spawn(part("the API listener", {
            let serve = self.edge.serve(self.listener, stop.clone());
            async {
                serve.await;
                Ok(())
            }
        }));
        let (relay_hub, relay_stop) = (hub.clone(), stop.clone());
        let halt_poll = Duration::from_micros(self.config.halt_poll_us.into());
        parts.spawn(part("the relay", async move {
            Ok(relay_hub.serve_relay(self.relay, halt_poll, relay_stop).await?)
        }));
        let hub_stop = stop.clone();
        parts.spawn(part("the hub", async move { Ok(hub.run(hub_stop).await?) }));
        let (client, controllers_stop) = (self.client.clone(), stop.clone());
        parts.spawn(part("the controllers", async move {
            let config = control_controllers::Config::default();
            Ok(control_controllers::run(client, config, controllers_stop).await?)
        }));
        let (client, rbac, rbac_stop) = (self.client, self.rbac, stop.clone());
        parts.spawn(part("the authoriser", async move {
            rbac_stop.run_until_cancelled(rbac::follow(client, rbac)).await;
            Ok(())
        }));
        drain(parts, &stop).await
    }
}

/// Names a part's end.
async fn part(
    name: &'static str,
    work: impl Future<Output = Result<(), PartError>>,
) -> (&'static str, Result<(), PartError>) {
    (name, work.await)
}

type Part = (&'static str, Result<(), PartError>);

/// Waits for all parts; the first that ends unasked stops the others and is the error.
async fn drain(mut parts: JoinSet<Part>, stop: &CancellationToken) -> Result<(), ServerError> {
    let mut first = None;
    while let Some(ended) = parts.join_next().await {
        let (name, end) = match ended {
            Ok(part) => part,
            Err(panic) => ("a part", Err(panic.into())),
        };
        let unasked = !stop.is_cancelled();
        if first.is_none() && (unasked || end.is_err()) {
            let source = end.err();
            let words = source.as_ref().map(|e| crate::exit::line(e.as_ref()));
            tracing::error!(part = name, cause = words, "ended, stopping everything");
            first = Some(ServerError::Ended { part: name, source });
        }
        stop.cancel();
    }
    tracing::info!("stopped");
    first.map_or(Ok(()), Err)
}

/// The hub's routes, then the Kubernetes API, which is there a second time below a prefix.
fn app(hub: &Hub, api: &ApiServer) -> Router {
    let kubernetes = api.router();
    // The API server reads the path itself, so the prefix is cut off before it sees it.
    let prefixed = kubernetes.clone().map_request(|mut request: Request| {
        if let Some(uri) = without_prefix(request.uri()) {
            *request.uri_mut() = uri;
        }
        request
    });
    hub.router()
        .route_service(&format!("{KUBERNETES_PREFIX}/{{*path}}"), prefixed)
        .fallback_service(kubernetes)
}

fn without_prefix(uri: &http::Uri) -> Option<http::Uri> {
    let rest = uri.path_and_query()?.as_str().strip_prefix(KUBERNETES_PREFIX)?;
    rest.parse().ok()
}

/// A directory that only its owner can enter.
fn prepare(dir: &Path) -> Result<(), ServerError> {
    let failed = |source| ServerError::DataDir { path: dir.to_owned(), source };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
    let mode = fs::metadata(dir).map_err(failed)?.permissions().mode() & 0o777;
    if mode & 0o077 != 0 {
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700)).map_err(failed)?;
    }
    // Said here in one line rather than by whoever writes first.
    rustix::fs::access(dir, rustix::fs::Access::WRITE_OK).map_err(|e| failed(e.into()))
}

/// Leases change all the time and nobody wants their past.
fn store_options() -> control_store::Options {
    control_store::Options {
        volatile: vec![Scope::resource("coordination.k8s.io", "leases", None)],
        ..control_store::Options::default()
    }
}

/// A port that is taken but does not listen yet: until the server can serve, who dials is told at once to come again
/// instead of waiting in the backlog.
struct Port {
    socket: TcpSocket,
    address: SocketAddr,
    what: &'static str,
    flag: &'static str,
}

const BACKLOG: u32 = 1024;

impl Port {
    fn take(
        address: SocketAddr,
        what: &'static str,
        flag: &'static str,
    ) -> Result<Self, ServerError> {
        let socket = match address {
            SocketAddr::V4(_) => TcpSocket::new_v4(),
            SocketAddr::V6(_) => TcpSocket::new_v6(),
        };
        let bound = socket.and_then(|socket| {
            socket.set_reuseaddr(true)?;
            socket.bind(address)?;
            Ok(socket)
        });
        let failed = |source| ServerError::Listen { what, flag, address, source };
        Ok(Self { socket: bound.map_err(failed)?, address, what, flag })
    }

    fn local(&self) -> SocketAddr {
        self.socket.local_addr().unwrap_or(self.address)
    }

    fn listen(self) -> Result<TcpListener, ServerError> {
        let Self { socket, address, what, flag } = self;
        let failed = |source| ServerError::Listen { what, flag, address, source };
        socket.listen(BACKLOG).map_err(failed)
    }
}

fn authority_of(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

fn effective(config: &Config) -> String {
    serde_json::to_string(config).unwrap_or_else(|_| "its configuration".to_owned())
}
