//! The data path of one machine: configuration, signals and exit status. All else is the library.

use std::{io::IsTerminal as _, process::ExitCode};

use anyhow::Context as _;
use clap::Parser as _;
use rlark_node::{config::Args, node};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

fn main() -> ExitCode {
    let args = Args::parse();
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            tracing::error!("{e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> anyhow::Result<()> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let config = args.resolve(&host)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("starting the runtime")?;
    runtime.block_on(async {
        let stop = CancellationToken::new();
        let (mut term, mut int) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        let node = node::run(config, stop.clone());
        tokio::pin!(node);
        loop {
            tokio::select! {
                ended = &mut node => return Ok(ended?),
                _ = term.recv() => stop.cancel(),
                _ = int.recv() => stop.cancel(),
            }
        }
    })
}
