//! The control plane as one process: API server, controllers, hub and their listeners.
//!
//! ```text
//!   8443 ─ TLS ─┬─ ALPN h2, http/1.1 ─▶ hub's routes, Kubernetes API (also /api/kubernetes/*)
//!               └─ ALPN rlark-session/1 ─▶ hub's session registry
//!   7443 ─ relay ─▶ hub
//!   9090 ─ metrics, health (optional, loopback)
//!   in process: controllers and hub ─▶ kube client ─▶ API server ─▶ workspace of the data directory
//! ```
//!
//! Every part is a task of one `JoinSet`: when one ends, all are asked to end, and the process says
//! why and exits non-zero.

mod args;
mod edge;
pub mod exit;
mod install;
mod kubeconfig;
mod logs;
mod metrics;
mod rbac;
mod start;

pub use args::{Args, Config, ConfigError};
pub use exit::ServerError;
pub use start::{Server, run};

use tokio_util::sync::CancellationToken;

/// What `main` does: reads the configuration, says what it is, and runs until a signal.
pub fn main(args: Args) -> Result<(), ServerError> {
    let config = Config::load(args)?;
    tracing_subscriber::fmt()
        .compact()
        .with_env_filter(config.log_filter())
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_writer(std::io::stderr)
        .init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("rlark-server")
        .build()
        .map_err(ServerError::Runtime)?;
    runtime.block_on(async {
        let stop = CancellationToken::new();
        let signals = signals(stop.clone())?;
        tokio::select! {
            end = run(config, stop.clone()) => end,
            never = signals => never,
        }
    })
}

/// Ends the server on SIGTERM or SIGINT; a second signal ends the process at once.
fn signals(
    stop: CancellationToken,
) -> Result<impl Future<Output = Result<(), ServerError>>, ServerError> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut term = signal(SignalKind::terminate()).map_err(ServerError::Runtime)?;
    let mut int = signal(SignalKind::interrupt()).map_err(ServerError::Runtime)?;
    Ok(async move {
        for first in [true, false] {
            tokio::select! {
                _ = term.recv() => {}
                _ = int.recv() => {}
            }
            if first {
                tracing::info!("signal received, draining; a second one ends at once");
                stop.cancel();
            }
        }
        Err(ServerError::Killed)
    })
}
