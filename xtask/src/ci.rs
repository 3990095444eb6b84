//! All that a change must pass, in the order in which it fails soonest. `.ci/run` calls this and
//! nothing else of substance.

use std::time::Instant;

use anyhow::{Context as _, Result};
use test_kit::command::{on_path, output};

use crate::{check, ebpf, setup, test};

pub(crate) fn run() -> Result<()> {
    timed("setup", || setup::ensure_tests().map(drop))?;
    timed("format", || cargo(&["fmt", "--all", "--check"]))?;
    timed("layers, sizes, drift", || check::run(None))?;
    timed("deny: bans, licences, sources", deny)?;
    timed("lint", || {
        // In release, so that proc macros and build scripts are compiled once for this and the tests.
        cargo(&[
            "clippy",
            "--release",
            "--workspace",
            "--all-targets",
            "--quiet",
            "--",
            "-D",
            "warnings",
        ])
    })?;
    timed("BPF object equals a rebuild", ebpf::check)?;
    timed("tests", || test::run(None))
}

fn timed(name: &str, work: impl FnOnce() -> Result<()>) -> Result<()> {
    println!("── {name}");
    let start = Instant::now();
    work().with_context(|| name.to_owned())?;
    println!("── {name}: {:.0} s", start.elapsed().as_secs_f64());
    Ok(())
}

fn cargo(args: &[&str]) -> Result<()> {
    output(&mut test_kit::command::cmd("cargo", args)).map(drop)
}

fn deny() -> Result<()> {
    if !on_path("cargo-deny") {
        cargo(&["install", "cargo-deny", "--version", "0.20.2", "--locked", "--quiet"])?;
    }
    cargo(&[
        "deny",
        "--config",
        ".deny.toml",
        "--log-level",
        "error",
        "check",
        "bans",
        "licenses",
        "sources",
    ])
}
