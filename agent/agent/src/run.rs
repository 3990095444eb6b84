//! The life of the agent's process: start, work, and an end that leaves nothing behind.

use std::{io::IsTerminal as _, sync::Arc, time::Duration};

use agent_workload::raw::{RawConfig, RawRuntime};
use anyhow::Context as _;
use clap::Parser as _;
use control_identity::{
    machine::Identity,
    session::{self, SessionState},
};
use tokio::{
    signal::unix::{SignalKind, signal},
    sync::watch,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::{
    attach::NodeSocket,
    config::{Options, Settings},
    connect, logs, node,
    sync::{self, ApiClient, Context},
};

/// How long the parts may take to end.
const FAREWELL: Duration = Duration::from_secs(5);

/// Runs until SIGTERM or SIGINT.
pub(crate) fn main() -> anyhow::Result<()> {
    let settings = Options::parse().resolve()?;
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_unset| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        // A log file or journal is no place for colours.
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    // Fails only when one is installed already.
    drop(rustls::crypto::aws_lc_rs::default_provider().install_default());
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the runtime")?
        .block_on(live(Arc::new(settings)))
}

async fn live(settings: Arc<Settings>) -> anyhow::Result<()> {
    let stop = CancellationToken::new();
    let mut signals = JoinSet::new();
    signals.spawn(until_signal(stop.clone())?);
    // Pods first: those that run are looked after, whether or not the server is there.
    let runtime = Arc::new(RawRuntime::open(raw_config(&settings)).await?);
    let identity = tokio::select! {
        () = stop.cancelled() => return end(&settings, &runtime, None).await,
        identity = connect::identity(&settings) => identity,
    };
    let identity = match identity {
        Ok(identity) => identity,
        Err(error) => {
            end(&settings, &runtime, None).await?;
            return Err(error).context("this machine has no identity");
        }
    };
    tracing::info!(machine = %identity.machine(), server = %identity.server(), "agent runs");

    let mut parts = JoinSet::new();
    let renewing = identity.clone();
    parts.spawn(async move { renewing.keep_renewed().await });
    let (state, _) = watch::channel(SessionState::Connecting);
    let app = logs::router(Arc::clone(&runtime));
    parts.spawn(session::run(identity.clone(), app, state, stop.clone()));
    let done = work(&settings, &runtime, &identity, &stop).await;
    stop.cancel();
    let last = connect::client(&identity).ok();
    end(&settings, &runtime, last).await?;
    parts.shutdown().await;
    done
}

/// Everything that speaks to the API server, anew with each certificate.
async fn work(
    settings: &Arc<Settings>,
    runtime: &Arc<RawRuntime>,
    identity: &Identity,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let mut renewed = identity.changed();
    while !stop.is_cancelled() {
        renewed.mark_unchanged();
        let client = connect::client(identity)?;
        let context = Arc::new(context(settings, runtime, client.clone()));
        let round = stop.child_token();
        let mut parts = JoinSet::new();
        parts.spawn(sync::run(Arc::clone(&context), round.clone()));
        parts.spawn({
            let (context, round) = (Arc::clone(&context), round.clone());
            async move { sync::sweep(&context, round).await }
        });
        parts.spawn({
            let (settings, identity, round) =
                (Arc::clone(settings), identity.clone(), round.clone());
            async move { node::run(client, identity, &settings, round).await }
        });
        tokio::select! {
            () = stop.cancelled() => {}
            _ = renewed.changed() => {}
            ended = parts.join_next() => {
                if let Some(Err(error)) = ended {
                    tracing::error!(%error, "a part of the agent failed; starting it again");
                }
            }
        }
        round.cancel();
        let all = async { while parts.join_next().await.is_some() {} };
        if tokio::time::timeout(FAREWELL, all).await.is_err() {
            parts.shutdown().await;
        }
    }
    Ok(())
}

fn context(settings: &Settings, runtime: &Arc<RawRuntime>, client: kube::Client) -> Context {
    Context {
        runtime: Arc::clone(runtime),
        node: settings.name.clone(),
        socket: NodeSocket(settings.node_socket.clone()),
        server: settings.server.clone(),
        client: ApiClient(client),
    }
}

/// Unless pods are to be kept: stops and removes them, and gives the machine its network back.
async fn end(
    settings: &Arc<Settings>,
    runtime: &Arc<RawRuntime>,
    client: Option<kube::Client>,
) -> anyhow::Result<()> {
    if settings.keep {
        return Ok(());
    }
    match client {
        Some(client) => sync::remove_all(&context(settings, runtime, client)).await,
        // Never enrolled in this life: what a predecessor left running is for the next one.
        None => tracing::debug!("pods of an earlier agent stay"),
    }
    runtime.close().await.context("cannot give the network back")
}

fn raw_config(settings: &Settings) -> RawConfig {
    RawConfig {
        // The running program itself, also when its file was replaced by a newer one.
        helper: "/proc/self/exe".into(),
        data_dir: settings.data_dir.clone(),
        run_dir: settings.run_dir.clone(),
        cgroup: settings.cgroup.clone(),
        bridge: settings.bridge.clone(),
        pod_cidr: settings.pod_cidr,
        pod_cidr6: settings.pod_cidr6,
        site_cidr: settings.site_cidr,
        hide: settings.hide.clone(),
        allow_host_network: settings.allow_host_network,
    }
}

fn until_signal(stop: CancellationToken) -> anyhow::Result<impl Future<Output = ()>> {
    let mut term = signal(SignalKind::terminate()).context("cannot take SIGTERM")?;
    let mut int = signal(SignalKind::interrupt()).context("cannot take SIGINT")?;
    Ok(async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        tracing::info!("stopping");
        stop.cancel();
    })
}
