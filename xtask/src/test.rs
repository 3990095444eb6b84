//! The tests by tier, with one total at the end.

use std::{
    io::{BufRead as _, BufReader},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;

use crate::{build, ui::Steps};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tier {
    /// Tiers 0 and 1: pure code, and components with real sockets on loopback.
    Unit,
    /// Tier 2: real eBPF in namespaces and cgroups of the test's own; needs root.
    Kernel,
    /// The demo's scenario, with the server killed and restarted in the middle; needs root.
    E2e,
}

/// Crates whose tests need root and change namespaces: one test at a time.
const KERNEL: [&str; 4] = ["test-kernel", "datapath-net", "agent-workload", "rlark-node"];

#[derive(Debug, Default)]
struct Totals {
    passed: u64,
    failed: u64,
    ignored: u64,
}

pub(crate) fn run(tier: Option<Tier>) -> Result<()> {
    let wants = |t| tier.is_none() || tier == Some(t);
    let root = nix::unistd::geteuid().is_root();
    if (wants(Tier::Kernel) || wants(Tier::E2e)) && !root {
        ensure!(tier.is_none() && std::env::var_os("CI").is_none(), "these tests need root");
        eprintln!("SKIPPED: the kernel and e2e tiers need root");
    }
    let mut totals = Totals::default();
    if wants(Tier::Unit) {
        let mut args = vec!["test", "--release", "--workspace", "--exclude", "test-e2e"];
        for c in KERNEL {
            args.extend(["--exclude", c]);
        }
        cargo_test("unit", &args, &mut totals)?;
    }
    if wants(Tier::Kernel) && root {
        let mut args = vec!["test", "--release"];
        for c in KERNEL {
            args.extend(["-p", c]);
        }
        args.extend(["--", "--test-threads", "1"]);
        cargo_test("kernel", &args, &mut totals)?;
    }
    if wants(Tier::E2e) && root {
        let mut steps = Steps::default();
        steps.step("build", |p| build::programs(p).map(drop))?;
        let args =
            ["test", "--release", "-p", "test-e2e", "--", "--test-threads", "1", "--nocapture"];
        cargo_test("e2e", &args, &mut totals)?;
    }
    println!("{} passed, {} failed, {} skipped", totals.passed, totals.failed, totals.ignored);
    ensure!(totals.failed == 0, "{} tests failed", totals.failed);
    ensure!(totals.passed > 0, "no test ran");
    Ok(())
}

/// Runs `cargo test` to its end, with its output shown, and adds up its closing lines.
fn cargo_test(tier: &str, args: &[&str], totals: &mut Totals) -> Result<()> {
    println!("── tier {tier}");
    let (first, rest) = args.split_first().context("cargo test without arguments")?;
    let mut c = Command::new("cargo");
    c.arg(first).arg("--no-fail-fast").args(rest).stdout(Stdio::piped());
    let mut child = c.spawn().context("cannot start cargo")?;
    let before = totals.failed;
    for line in BufReader::new(child.stdout.take().context("cargo's output")?).lines() {
        let line = line?;
        if let Some(counts) = line.strip_prefix("test result: ") {
            totals.passed += number(counts, "passed");
            totals.failed += number(counts, "failed");
            totals.ignored += number(counts, "ignored");
        }
        println!("{line}");
    }
    let status = child.wait()?;
    if !status.success() && totals.failed == before {
        bail!("cargo test ({tier}) ended with {status} before its tests did");
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
