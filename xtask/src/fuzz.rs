//! Fuzzing of the crates that read what strangers send: every target of a crate's `fuzz` directory in turn.
//!
//! A target starts from the seeds that are committed (`fuzz/corpus`) and from what earlier runs on this machine found
//! (`target/fuzz`, where new finds go, so that a run leaves the tree as it was).

use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Instant,
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use serde_json::Value;
use test_kit::command::{cmd, output, stdout};

use crate::{
    build,
    ui::{Progress, Steps, Unit},
};

const CARGO_FUZZ: &str = "0.13.2";
const HOW_TO_GET_NIGHTLY: &str = "rustup toolchain install nightly --profile minimal";
/// An input that takes longer is a find: nothing here may take long on what a stranger sends.
const SLOW_S: u64 = 20;
/// Longer inputs show nothing that shorter ones do not, and are slow.
const LONGEST: usize = 4096;
/// What is shown of a target that failed.
const TAIL: usize = 20;

#[derive(Args, Debug)]
pub(crate) struct Fuzz {
    /// The crate, such as `datapath-wire`.
    package: String,
    /// For how long each target runs.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Only this target.
    #[arg(long)]
    target: Option<String>,
}

/// What a target's run came to.
#[derive(Debug, Default, PartialEq, Eq)]
struct Outcome {
    runs: u64,
    seconds: u64,
    /// Edges of the program that were reached, and that there are.
    reached: u64,
    edges: u64,
    /// Inputs that reach something of their own, such as `45/1915b`.
    corpus: String,
    reproducer: Option<PathBuf>,
}

impl Outcome {
    /// Takes what one line of libFuzzer's log says.
    fn read(&mut self, line: &str) {
        let after = |word: &str| {
            let (_, rest) = line.split_once(word)?;
            rest.split_whitespace().next()
        };
        let number = |word: &str| after(word)?.trim_matches(['(', ',']).parse::<u64>().ok();
        if let Some(cov) = number(" cov: ") {
            self.reached = cov;
        }
        if let Some(corpus) = after(" corp: ") {
            corpus.clone_into(&mut self.corpus);
        }
        if line.contains("inline 8-bit counters") {
            self.edges = number(" modules ").unwrap_or(self.edges);
        }
        if let Some(runs) = number("stat::number_of_executed_units:") {
            self.runs = runs;
        }
        if let Some(path) = after("Test unit written to ") {
            self.reproducer = Some(path.into());
        }
    }

    fn row(&self, name: &str) -> String {
        let rate = self.runs / self.seconds.max(1);
        format!(
            "{name:<12} {:>12} {rate:>10} {:>6} of {:<6} {:>14}",
            self.runs, self.reached, self.edges, self.corpus
        )
    }
}

impl Fuzz {
    pub(crate) fn run(&self) -> Result<()> {
        let dir = self.directory()?;
        let mut steps = Steps::default();
        steps.step("nightly Rust and cargo-fuzz", |_| ensure_tools())?;
        let all = stdout(nightly(&dir, &["fuzz", "list"]).stdin(Stdio::null()))?;
        let wanted = |t: &&str| self.target.as_deref().is_none_or(|only| only == *t);
        let targets: Vec<&str> = all.lines().filter(wanted).collect();
        ensure!(
            !targets.is_empty(),
            "no such target; there are: {}",
            all.trim().replace('\n', ", ")
        );
        steps.step("building the targets", |_| output(&mut fuzz(&dir, "build")))?;

        let mut outcomes = Vec::new();
        for target in targets {
            let name = format!("{target}, {} s", self.seconds);
            outcomes.push((target, steps.step(&name, |p| self.one(&dir, target, p))?));
        }
        let (edges, corpus) = ("edges reached", "corpus");
        println!("{:<12} {:>12} {:>10} {edges:>16} {corpus:>14}", "target", "executions", "per s");
        for (target, outcome) in &outcomes {
            println!("{}", outcome.row(target));
        }
        println!("{:<12} {:>12}", "total", outcomes.iter().map(|(_, o)| o.runs).sum::<u64>());
        verdict(&dir, &outcomes)
    }

    /// The crate's directory, which has a `fuzz`.
    fn directory(&self) -> Result<PathBuf> {
        let mut c = cmd("cargo", ["metadata", "--no-deps", "--format-version", "1"]);
        let meta: Value = serde_json::from_str(&stdout(&mut c)?)?;
        let packages = meta["packages"].as_array().context("no packages in the metadata")?;
        let manifest = packages.iter().find(|p| p["name"] == self.package.as_str());
        let manifest = manifest.and_then(|p| p["manifest_path"].as_str());
        let manifest = manifest.with_context(|| format!("there is no crate {}", self.package))?;
        let dir = Path::new(manifest).parent().context("a manifest without a directory")?;
        ensure!(dir.join("fuzz/Cargo.toml").is_file(), "{} has no fuzz targets", self.package);
        Ok(dir.to_owned())
    }

    /// Runs one target for its time. A crash is an outcome; an error is that it did not run.
    fn one(&self, dir: &Path, target: &str, progress: &Progress) -> Result<Outcome> {
        let found = build::target_dir()?.join("fuzz").join(&self.package).join(target);
        std::fs::create_dir_all(&found)?;
        let mut c = fuzz(dir, "run");
        c.arg(target).arg(&found);
        let seeds = dir.join("fuzz/corpus").join(target);
        if seeds.is_dir() {
            c.arg(seeds);
        }
        c.args(["--", "-print_final_stats=1"]);
        c.arg(format!("-max_total_time={}", self.seconds));
        c.arg(format!("-timeout={SLOW_S}")).arg(format!("-max_len={LONGEST}"));
        c.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());

        progress.length(self.seconds, Unit::Items);
        let start = Instant::now();
        let mut child = c.spawn().context("cannot start cargo")?;
        let (mut outcome, mut tail) = (Outcome::default(), Vec::new());
        let log = child.stderr.take().context("the fuzzer's log")?;
        for line in BufReader::new(log).split(b'\n') {
            let line = String::from_utf8_lossy(&line?).into_owned();
            outcome.read(&line);
            let elapsed = start.elapsed().as_secs();
            progress.at(elapsed.min(self.seconds), &outcome.corpus);
            outcome.seconds = elapsed;
            if !line.trim_start().starts_with('#') {
                tail.push(line);
            }
        }
        if !child.wait()?.success() {
            let from = tail.iter().position(|l| l.contains("panicked at") || l.contains("ERROR:"));
            let shown: Vec<String> = tail.into_iter().skip(from.unwrap_or(0)).take(TAIL).collect();
            eprintln!("{}", shown.join("\n"));
            if outcome.reproducer.is_none() {
                bail!("{target} ended before its time without an input that explains it");
            }
        }
        Ok(outcome)
    }
}

fn verdict(dir: &Path, outcomes: &[(&str, Outcome)]) -> Result<()> {
    let mut crashes = Vec::new();
    for (target, outcome) in outcomes {
        if let Some(path) = &outcome.reproducer {
            let (dir, path) = (dir.display(), path.display());
            let again = format!("cd {dir} && cargo +nightly fuzz run {target} {path}");
            crashes.push(format!("{target}: {path}\n  again: {again}"));
        }
    }
    ensure!(crashes.is_empty(), "found:\n{}", crashes.join("\n"));
    Ok(())
}

/// Cargo of the nightly toolchain, whatever `rust-toolchain.toml` says.
fn nightly(dir: &Path, args: &[&str]) -> Command {
    let mut c = Command::new("rustup");
    c.args(["run", "nightly", "cargo"]).args(args).current_dir(dir);
    c.env_remove("RUSTUP_TOOLCHAIN").env_remove("CARGO").env_remove("RUSTC");
    c
}

/// The crates are safe Rust: what is looked for panics, and a sanitizer would but make it four times slower.
fn fuzz(dir: &Path, what: &str) -> Command {
    nightly(dir, &["fuzz", what, "--sanitizer", "none"])
}

fn ensure_tools() -> Result<()> {
    output(&mut nightly(Path::new("."), &["--version"])).with_context(|| {
        format!("fuzzing needs the compiler's nightly version:\n  {HOW_TO_GET_NIGHTLY}")
    })?;
    if output(&mut cmd("cargo", ["fuzz", "--version"])).is_err() {
        let mut c = cmd("cargo", ["install", "cargo-fuzz", "--version", CARGO_FUZZ, "--locked"]);
        output(c.arg("--quiet")).context("cannot install cargo-fuzz")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_of_a_run_is_understood() {
        let mut o = Outcome::default();
        for line in [
            "INFO: Loaded 1 modules   (739 inline 8-bit counters): 739 [0x555a, 0x555b), ",
            "#2\tINITED cov: 23 ft: 23 corp: 1/1b exec/s: 0 rss: 33Mb",
            "#4904497\tDONE   cov: 169 ft: 198 corp: 45/1915b lim: 2000 exec/s: 119621 rss: 481Mb",
            "stat::number_of_executed_units: 4904497",
            "artifact_prefix='/a/'; Test unit written to /a/crash-b5e5",
        ] {
            o.read(line);
        }
        let want = Outcome {
            runs: 4_904_497,
            seconds: 0,
            reached: 169,
            edges: 739,
            corpus: "45/1915b".to_owned(),
            reproducer: Some("/a/crash-b5e5".into()),
        };
        assert_eq!(o, want);
    }
}
