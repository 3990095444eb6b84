//! Getting programs from the ordinary registries: Debian's packages, crates.io, Go modules.

use std::path::PathBuf;

use anyhow::{Context as _, Result, ensure};
use test_kit::command::{cmd, on_path, output};

use super::{ALL, Peer};

/// For the build of one crate.
const PATIENCE: &str = "20m";

/// Where they are kept.
fn tools() -> PathBuf {
    crate::root().join("target/tools/peers")
}

/// A program that was installed here.
pub(super) fn program(name: &str) -> String {
    tools().join("bin").join(name).display().to_string()
}

fn there(name: &str) -> bool {
    tools().join("bin").join(name).is_file()
}

/// Installs what is missing and gives what can be run. What cannot be had is noted with the reason.
pub(in super::super) fn install(notes: &mut Vec<String>) -> Vec<Peer> {
    let mut all = Vec::new();
    for peer in ALL {
        match (peer.install)() {
            Ok(()) => all.push(peer),
            Err(e) => {
                let all = format!("{e:#}");
                // A compiler says first what is wrong.
                let why =
                    all.lines().find(|l| l.starts_with("error")).or_else(|| all.lines().next());
                let why = why.unwrap_or_default();
                notes.push(format!("{}: not installed: {why}", peer.name));
            }
        }
    }
    all
}

/// A Debian package, for one of its programs or, with its whole path, files.
pub(super) fn debian(program: &str, package: &str) -> Result<()> {
    if on_path(program) || std::path::Path::new("/usr/sbin").join(program).is_file() {
        return Ok(());
    }
    output(&mut cmd("apt-get", ["update", "-qq"]))?;
    let mut c = cmd("apt-get", ["install", "-y", "-qq", "--no-install-recommends", package]);
    // Whatever it brings must not be started on this machine.
    c.env("DEBIAN_FRONTEND", "noninteractive").env("RUNLEVEL", "1");
    output(&mut c).map(drop)
}

/// A crate's program.
pub(super) fn cargo(program: &str, words: &[&str]) -> Result<()> {
    if there(program) {
        return Ok(());
    }
    let mut c = cmd("timeout", [PATIENCE, "cargo", "install", "--quiet", "--root"]);
    let out = c.arg(tools()).args(words).output().context("cannot start cargo")?;
    // What `timeout` ends has said nothing.
    ensure!(out.status.code() != Some(124), "its build took longer than {PATIENCE}");
    ensure!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr).trim());
    Ok(())
}

/// Programs of a Go module that is described here, since it replaces modules of its own.
pub(super) fn go(module: &str, packages: &[(&str, &str)], source: &str) -> Result<()> {
    if packages.iter().all(|(name, _)| there(name)) {
        return Ok(());
    }
    ensure!(on_path("go"), "no go here");
    let dir = tools().join("src").join(source);
    std::fs::create_dir_all(&dir)?;
    std::fs::create_dir_all(tools().join("bin"))?;
    std::fs::write(dir.join("go.mod"), module)?;
    for (name, package) in packages {
        let mut c = cmd("go", ["build", "-mod=mod", "-o"]);
        c.arg(program(name)).arg(package).current_dir(&dir);
        output(&mut c)?;
    }
    Ok(())
}
