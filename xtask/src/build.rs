//! The product's programs, built with a bar instead of a scroll of lines.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    path::PathBuf,
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use crate::ui::{Progress, Unit};

/// Builds all programs in release and gives their directory. The whole workspace: another choice of
/// packages would give dependencies other features and compile them once more for the tests.
pub(crate) fn programs(progress: &Progress) -> Result<PathBuf> {
    let mut c = Command::new("cargo");
    c.args(["build", "--release", "--workspace", "--bins"]);
    c.args(["--message-format", "json-render-diagnostics"]);
    c.stdout(Stdio::piped()).stderr(Stdio::piped());
    progress.length(units()?, Unit::Items);
    let mut child = c.spawn().context("cannot start cargo")?;
    let mut stderr = child.stderr.take().context("cargo's errors")?;
    let errors = std::thread::spawn(move || {
        let mut text = String::new();
        drop(stderr.read_to_string(&mut text));
        text
    });
    let out = BufReader::new(child.stdout.take().context("cargo's output")?);
    let mut built = 0;
    for line in out.lines() {
        let message: serde_json::Value = serde_json::from_str(&line?)?;
        if message["reason"] == "compiler-artifact" {
            built += 1;
            progress.at(built, message["target"]["name"].as_str().unwrap_or_default());
        }
    }
    let errors = errors.join().unwrap_or_default();
    if !child.wait()?.success() {
        bail!("the build failed:\n{errors}");
    }
    Ok(target_dir()?.join("release"))
}

/// Roughly how many artifacts the build makes: a package has one, and a third has a build script.
fn units() -> Result<u64> {
    let mut c = Command::new("cargo");
    c.args(["tree", "--workspace", "--prefix", "none", "--edges", "normal,build"]);
    c.args(["--format", "{p}"]);
    let text = test_kit::command::stdout(&mut c)?;
    let mut packages: Vec<&str> = text.lines().map(|l| l.trim_end_matches(" (*)")).collect();
    packages.sort_unstable();
    packages.dedup();
    Ok(packages.len() as u64 * 4 / 3)
}

pub(crate) fn target_dir() -> Result<PathBuf> {
    let mut c = Command::new("cargo");
    c.args(["metadata", "--no-deps", "--format-version", "1"]);
    let meta: serde_json::Value = serde_json::from_str(&test_kit::command::stdout(&mut c)?)?;
    let dir = meta["target_directory"].as_str().context("no target directory in the metadata")?;
    Ok(dir.into())
}
