//! `rlark token create`.

use std::{io::Write as _, process::ExitCode, time::Duration};

use anyhow::Result;
use clap::{Args as ClapArgs, Subcommand};
use control_api::{
    ids::ClusterId,
    session::{TokenRequest, TokenResponse, hub},
};

use crate::server::Server;

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a join token and print it. It is a secret and is shown only now.
    Create(Create),
}

#[derive(Debug, ClapArgs)]
pub(crate) struct Create {
    /// The site that machines join with it.
    #[arg(long, value_name = "NAME")]
    cluster: ClusterId,
    /// How long it may be used: 30m, 1h, 7d, …
    #[arg(long, value_name = "DURATION", default_value = "1h", value_parser = humantime::parse_duration)]
    ttl: Duration,
    /// How many machines may enrol with it (an agent and a node are two).
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    uses: u32,
    /// Print the token alone.
    #[arg(short, long)]
    quiet: bool,
}

pub(crate) async fn run(server: &Server, command: Command) -> Result<ExitCode> {
    let Command::Create(args) = command;
    let request = TokenRequest {
        cluster: args.cluster.clone(),
        ttl_seconds: args.ttl.as_secs(),
        uses: args.uses,
    };
    let answer: TokenResponse = server.post(hub::TOKENS, &request).await?;
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", answer.token)?;
    if !args.quiet {
        let enrolments = if args.uses == 1 { "enrolment" } else { "enrolments" };
        let mut err = std::io::stderr().lock();
        writeln!(
            err,
            "\nGood for {} {enrolments} into site {} until {}. On the machine, put it into a file and run:\n  \
             rlark-agent --server {} --name NAME --token-file FILE",
            args.uses, args.cluster, answer.expires, server.url
        )?;
    }
    Ok(ExitCode::SUCCESS)
}
