//! The tests by tier, with one total at the end.

use std::{
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;
use serde_json::Value;

use crate::{build, ui::Steps, vm::Kernel};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tier {
    /// Tiers 0 and 1: pure code, and components with real sockets on loopback.
    Unit,
    /// Tier 2: real eBPF in namespaces and cgroups of the test's own; needs root.
    Kernel,
    /// The demo's scenario, with the server killed and restarted in the middle; needs root.
    E2e,
    /// Outages under load: what is killed or cut, and what must not be lost; needs root.
    Fault,
    /// Real programs (PyTorch, Ray, PostgreSQL, …) over virtual addresses; needs root, and fetches their packages.
    /// Not part of all tiers.
    Apps,
}

impl Tier {
    /// What runs when nothing is chosen.
    const ALL: [Self; 4] = [Self::Unit, Self::Kernel, Self::E2e, Self::Fault];

    const fn needs_programs(self) -> bool {
        matches!(self, Self::E2e | Self::Fault | Self::Apps)
    }
}

/// Crates whose tests need root and change namespaces: one test at a time.
const KERNEL: [&str; 5] =
    ["test-kernel", "datapath-net", "agent-workload", "rlark-node", "rlark-bench"];

#[derive(Debug, Default)]
struct Totals {
    passed: u64,
    failed: u64,
    ignored: u64,
}

impl Totals {
    /// Adds a program's closing line.
    fn count(&mut self, line: &str) {
        if let Some(counts) = line.strip_prefix("test result: ") {
            self.passed += number(counts, "passed");
            self.failed += number(counts, "failed");
            self.ignored += number(counts, "ignored");
        }
    }
}

/// A built test program.
#[derive(Debug)]
struct Program {
    package: String,
    /// Where cargo would run it.
    dir: PathBuf,
    file: PathBuf,
}

impl Program {
    fn stem(&self) -> String {
        self.file.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    fn tier(&self) -> Tier {
        match self.package.as_str() {
            "test-e2e" if self.stem().starts_with("fault") => Tier::Fault,
            "test-e2e" => Tier::E2e,
            "test-apps" => Tier::Apps,
            p if KERNEL.contains(&p) => Tier::Kernel,
            _ => Tier::Unit,
        }
    }
}

pub(crate) fn run(tier: Option<Tier>) -> Result<()> {
    let chosen: Vec<Tier> = tier.map_or_else(|| Tier::ALL.to_vec(), |t| vec![t]);
    let root = nix::unistd::geteuid().is_root();
    if chosen.iter().any(|t| *t != Tier::Unit) && !root {
        ensure!(tier.is_none() && std::env::var_os("CI").is_none(), "these tests need root");
        eprintln!("SKIPPED: all tiers but the first need root");
    }
    let mut steps = Steps::default();
    if root && chosen.iter().any(|t| t.needs_programs()) {
        steps.step("build the programs", |p| build::programs(p).map(drop))?;
    }
    let all = steps.step("build the tests", |_| programs())?;
    let mut totals = Totals::default();
    for t in chosen {
        if t != Tier::Unit && !root {
            continue;
        }
        println!("── tier {t:?}");
        for program in all.iter().filter(|p| p.tier() == t) {
            execute(program, t, &mut totals)?;
        }
    }
    println!("{} passed, {} failed, {} skipped", totals.passed, totals.failed, totals.ignored);
    ensure!(totals.failed == 0, "{} tests failed", totals.failed);
    ensure!(totals.passed > 0, "no test ran");
    Ok(())
}

/// The programs of a tier in a virtual machine with another kernel. What its tests start must be built for the release
/// profile, as always.
pub(crate) fn run_under(tier: Tier, kernel: &str) -> Result<()> {
    let mut steps = Steps::default();
    if tier.needs_programs() {
        steps.step("build the programs", |p| build::programs(p).map(drop))?;
    }
    let all = steps.step("build the tests", |_| programs())?;
    let kernel = steps.step("a kernel", |_| Kernel::find(kernel))?;
    println!("── tier {tier:?} under Linux {}", kernel.version);
    let mut job = "ip link set lo up\nulimit -n 1048576\nulimit -l unlimited\n".to_owned();
    let chosen: Vec<&Program> = all.iter().filter(|p| p.tier() == tier).collect();
    for program in &chosen {
        let (dir, file) = (program.dir.display(), program.file.display());
        job += &format!("echo '   {} ({})'\n", program.package, program.stem());
        job += &format!("cd {dir}\nCARGO_MANIFEST_DIR={dir} {file} --test-threads 1 2>&1\n");
        job += &format!("echo '{ENDED}'$?\n");
    }
    let (mut totals, mut crashed) = (Totals::default(), 0);
    kernel.run(&job, |line| {
        totals.count(line);
        match line.strip_prefix(ENDED) {
            Some("0" | "101") => {}
            Some(_) => crashed += 1,
            None if line.is_empty() || line == "running 0 tests" => {}
            None => println!("{line}"),
        }
    })?;
    println!("{} passed, {} failed, {} skipped", totals.passed, totals.failed, totals.ignored);
    ensure!(totals.failed + crashed == 0, "{} tests failed, {crashed} programs", totals.failed);
    ensure!(totals.passed > 0, "no test ran");
    Ok(())
}

/// Before a program's status in a virtual machine.
const ENDED: &str = "-- ended with ";

/// Builds every test of the workspace at once: a build of some packages alone would give their
/// dependencies other features, and compile those once more.
fn programs() -> Result<Vec<Program>> {
    let mut c = Command::new("cargo");
    c.args(["test", "--release", "--workspace", "--no-run", "--quiet"]);
    c.args(["--message-format", "json-render-diagnostics"]).stderr(Stdio::inherit());
    let out = c.output().context("cannot start cargo")?;
    ensure!(out.status.success(), "the tests do not build");
    let mut all = Vec::new();
    for line in String::from_utf8_lossy(&out.stdout).lines() {
        let m: Value = serde_json::from_str(line)?;
        let (Some(file), true) = (m["executable"].as_str(), m["profile"]["test"] == true) else {
            continue;
        };
        let manifest = PathBuf::from(m["manifest_path"].as_str().unwrap_or_default());
        let dir = manifest.parent().context("a manifest without a directory")?.to_owned();
        all.push(Program { package: package(&manifest)?, dir, file: file.into() });
    }
    all.sort_by(|a, b| (&a.package, &a.file).cmp(&(&b.package, &b.file)));
    Ok(all)
}

/// The package's name, from the `name = "…"` line of its manifest.
fn package(manifest: &Path) -> Result<String> {
    let text = std::fs::read_to_string(manifest)?;
    let name = text.lines().find_map(|l| l.strip_prefix("name = \"")?.strip_suffix('"'));
    name.map(str::to_owned).with_context(|| format!("no name in {}", manifest.display()))
}

/// Runs one test program to its end, with its output shown, and adds up its closing line.
fn execute(program: &Program, tier: Tier, totals: &mut Totals) -> Result<()> {
    let name = program.stem();
    println!("   {} ({name})", program.package);
    let mut c = Command::new(&program.file);
    c.current_dir(&program.dir).env("CARGO_MANIFEST_DIR", &program.dir).stdout(Stdio::piped());
    if tier != Tier::Unit {
        c.args(["--test-threads", "1"]);
    }
    let mut child = c.spawn().with_context(|| format!("cannot start {name}"))?;
    let before = totals.failed;
    for line in BufReader::new(child.stdout.take().context("the test's output")?).lines() {
        let line = line?;
        totals.count(&line);
        if !line.is_empty() && line != "running 0 tests" {
            println!("{line}");
        }
    }
    let status = child.wait()?;
    if !status.success() && totals.failed == before {
        bail!("{name} ({tier:?}) ended with {status} before its tests did");
    }
    Ok(())
}

/// The number before `word` in `ok. 3 passed; 0 failed; …`.
fn number(counts: &str, word: &str) -> u64 {
    let words: Vec<&str> = counts.split([' ', ';']).filter(|w| !w.is_empty()).collect();
    let at = words.iter().position(|w| *w == word).and_then(|i| i.checked_sub(1));
    at.and_then(|i| words.get(i)?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_of_a_test_program_is_counted() {
        let line = "FAILED. 12 passed; 3 failed; 1 ignored; 0 measured; 0 filtered out";
        assert_eq!(
            (number(line, "passed"), number(line, "failed"), number(line, "ignored")),
            (12, 3, 1)
        );
    }
}
