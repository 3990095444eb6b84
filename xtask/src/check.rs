//! What no compiler checks.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use serde_json::Value;
use test_kit::command::{cmd, output, stdout};

use crate::build;

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum What {
    /// Arrows between crates point to lower layers; layer 0 has no I/O.
    Layers,
    /// Generated files equal what is generated now.
    Drift,
    /// No source file grows past 600 lines.
    Size,
}

/// Edges inside a layer that are meant; each needs a reason.
const SIDEWAYS: &[(&str, &str, &str)] = &[
    ("control-plan", "control-api", "decisions over the objects; both pure"),
    ("control-schema", "control-api", "built-in kinds beside our own; both pure"),
    ("datapath-loader", "datapath-net", "guards attach to namespaces that net opens"),
    ("agent-workload", "datapath-net", "links and namespaces are made in one place"),
    ("control-hub", "control-apiserver", "the hub serves pods/log through the API's own hook"),
];
/// What a pure crate may not even reach through one of its own dependencies.
const IMPURE: [&str; 5] = ["tokio", "hyper", "russh", "kube-client", "kube-runtime"];

const MAX_LINES: usize = 600;

pub(crate) fn run(what: Option<What>) -> Result<()> {
    let all = what.is_none();
    let mut wrong = Vec::new();
    if all || matches!(what, Some(What::Layers)) {
        wrong.extend(layers()?);
    }
    if all || matches!(what, Some(What::Size)) {
        wrong.extend(sizes()?);
    }
    if all || matches!(what, Some(What::Drift)) {
        drift()?;
    }
    if wrong.is_empty() { Ok(()) } else { bail!("{}", wrong.join("\n")) }
}

fn layers() -> Result<Vec<String>> {
    let text = stdout(&mut cmd("cargo", ["metadata", "--no-deps", "--format-version", "1"]))?;
    let meta: Value = serde_json::from_str(&text)?;
    let packages = meta["packages"].as_array().context("no packages in the metadata")?;
    let mut layer = BTreeMap::new();
    for p in packages {
        let name = p["name"].as_str().unwrap_or_default();
        let l = p["metadata"]["layer"].as_u64();
        layer.insert(name, l.with_context(|| format!("{name}: [package.metadata] has no layer"))?);
    }
    let mut wrong = Vec::new();
    for p in packages {
        let from = p["name"].as_str().unwrap_or_default();
        let own = layer.get(from).copied().unwrap_or_default();
        for d in p["dependencies"].as_array().into_iter().flatten() {
            let (to, dev) = (d["name"].as_str().unwrap_or_default(), d["kind"] == "dev");
            if own == 0 && IMPURE.contains(&to) && !dev {
                wrong.push(format!("{from} (layer 0, pure) depends on {to}"));
            }
            let Some(&theirs) = layer.get(to) else { continue };
            let meant = SIDEWAYS.iter().any(|(a, b, _)| (*a, *b) == (from, to));
            // Binaries may be used by tests and tools (layer 3 too), never by the layers below.
            let sideways = theirs == own && own < 3 && !meant;
            if !dev && (theirs > own || sideways) {
                wrong.push(format!("{from} (layer {own}) depends on {to} (layer {theirs})"));
            }
        }
    }
    Ok(wrong)
}

fn drift() -> Result<()> {
    // Of the whole workspace, as all builds: see `build::programs`.
    output(&mut cmd(
        "cargo",
        ["build", "--quiet", "--release", "--workspace", "--example", "crds"],
    ))?;
    let generator = build::target_dir()?.join("release/examples/crds");
    let mut c = std::process::Command::new(generator);
    output(c.args(["--check", "deploy/crds"])).context("deploy/crds differs from the types; run `cargo run -p control-api --example crds -- deploy/crds`").map(drop)
}

fn sizes() -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    let files = stdout(&mut cmd(
        "git",
        ["ls-files", "--cached", "--others", "--exclude-standard", "*.rs"],
    ))?;
    for file in files.lines().map(PathBuf::from).filter(|f| f.is_file()) {
        let lines = code_lines(&file)?;
        if lines > MAX_LINES {
            wrong.push(format!("{}: {lines} lines of code, at most {MAX_LINES}", file.display()));
        }
    }
    Ok(wrong)
}

/// Lines before the tests at the foot of the file.
fn code_lines(file: &Path) -> Result<usize> {
    let text = fs::read_to_string(file)?;
    Ok(text.lines().take_while(|l| *l != "#[cfg(test)]").count())
}
