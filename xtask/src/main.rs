//! The project's commands, run as `cargo xtask COMMAND`: one module each.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a command speaks to a person")]
#![expect(clippy::indexing_slicing, reason = "only JSON is indexed, and it answers null")]

mod bench;
mod build;
mod check;
mod ci;
mod demo;
mod ebpf;
mod fuzz;
mod report;
mod scenario;
mod setup;
mod signals;
mod test;
mod ui;
mod vm;

use std::path::PathBuf;

use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Build, show, test and measure RLark")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Install what is missing (as root on Debian), or print the command that does.
    Setup,
    /// Two sites behind NATs, one Job, and tasks that talk over virtual addresses.
    Demo(demo::Demo),
    /// Run the tests: all tiers, or one of `unit`, `kernel`, `e2e`, `fault`, `apps`.
    Test {
        tier: Option<test::Tier>,
        /// In a virtual machine with this kernel: a Debian package such as linux-image-amd64, or the
        /// directory of one that was unpacked.
        #[arg(long, value_name = "PACKAGE", requires = "tier")]
        under: Option<String>,
    },
    /// Measure against raw TCP in the same run.
    Bench(bench::Bench),
    /// Fuzz one crate's targets (nightly Rust; cargo-fuzz is installed when missing).
    Fuzz(fuzz::Fuzz),
    /// Rebuild the BPF object.
    Ebpf {
        /// Compare with the committed object instead of replacing it.
        #[arg(long)]
        check: bool,
    },
    /// Check what no compiler checks: the direction of dependencies, generated files, sizes.
    Check { what: Option<check::What> },
    /// All that a change must pass.
    Ci,
}

fn main() -> std::process::ExitCode {
    let outcome = std::env::set_current_dir(root()).map_err(Into::into).and_then(|()| run());
    match outcome {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run() -> anyhow::Result<()> {
    match Args::parse().command {
        Command::Setup => setup::run(),
        Command::Demo(d) => d.run(),
        Command::Test { tier: Some(tier), under: Some(kernel) } => test::run_under(tier, &kernel),
        Command::Test { tier, .. } => test::run(tier),
        Command::Bench(b) => b.run(),
        Command::Fuzz(f) => f.run(),
        Command::Ebpf { check: true } => ebpf::check(),
        Command::Ebpf { check: false } => ebpf::rebuild(),
        Command::Check { what } => check::run(what),
        Command::Ci => ci::run(),
    }
}

/// The repository.
fn root() -> PathBuf {
    let here = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    here.parent().map(Into::into).unwrap_or(here)
}
