//! `rlark`: what `kubectl` cannot do for RLark: join tokens, logs across sites, live flows, and
//! finding out why two pods do not talk.

mod doctor;
mod events;
mod flows;
mod logs;
mod node;
mod server;
mod token;
mod units;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

/// Command line of RLark, a control plane and virtual network for embodied AI.
///
/// Objects (Jobs, Domains, Nodes, …) are handled with kubectl and the same kubeconfig.
#[derive(Debug, Parser)]
#[command(name = "rlark", version)]
struct Cli {
    /// Kubeconfig of the server [default: $KUBECONFIG, /var/lib/rlark/server/admin.kubeconfig,
    /// ~/.kube/config]
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig [default: its current context]
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make tokens with which machines join.
    #[command(subcommand)]
    Token(token::Command),
    /// Show what a Job, a Task or a Pod has written, wherever it runs.
    Logs(logs::Args),
    /// Show the connections of the virtual networks as they are now.
    Flows(flows::Args),
    /// Show what happens on this machine's node, as it happens: flows, refusals, carriers.
    Events(events::Args),
    /// Check server, sessions and this machine; with --from and --to, prove a path hop by hop.
    Doctor(doctor::Args),
}

#[tokio::main]
#[expect(clippy::print_stderr, reason = "the last words of a program go to its user")]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("rlark: {}", server::one_line(&error));
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let server = || server::Server::connect(cli.kubeconfig.as_deref(), cli.context.clone());
    match cli.command {
        Command::Token(command) => token::run(&server().await?, command).await,
        Command::Logs(args) => logs::run(&server().await?, args).await,
        Command::Flows(args) => flows::run(&server().await?, args).await,
        Command::Events(args) => events::run(args).await,
        Command::Doctor(args) => doctor::run(server().await, args).await,
    }
}
