//! The product's main job on one machine: two sites that cannot reach each other, one Job.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Args;
use test_kit::{command::stdout, product::Product, wait};

use crate::{
    bench,
    report::{Figure, Goal, Report},
    scenario::{self, Outcome, number},
    signals,
    ui::Steps,
};

#[derive(Args, Debug)]
pub(crate) struct Demo {
    /// Also measure what the bench measures, and write the result as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Leave everything running afterwards, until Ctrl-C, and print how to look around.
    #[arg(long)]
    keep: bool,
    /// Exit with 1 when a goal is missed.
    #[arg(long)]
    check: bool,
}

impl Demo {
    pub(crate) fn run(&self) -> Result<()> {
        signals::install()?;
        let mut steps = Steps::default();
        let mut product = scenario::prepare(&mut steps)?;
        let outcome = scenario::two_sites(&mut product, &mut steps);
        let outcome = outcome.map_err(|e| product.explain(e))?;
        summary(&outcome);
        let mut report = Report::new("cargo xtask demo");
        report.results = figures(&outcome);
        if self.json.is_some() {
            let measured = bench::measure(&mut product, &mut steps);
            let measured = measured.map_err(|e| product.explain(e))?;
            let ours = |f: &Figure| measured.iter().all(|m| m.name != f.name);
            report.results.retain(ours);
            report.results.extend(measured);
        }
        report.print();
        println!("\nJob {}", outcome.phase);
        if self.keep {
            keep(&product)?;
        }
        steps.step("end everything and leave nothing behind", |_| {
            drop(product);
            Ok(())
        })?;
        report.job_phase = Some(outcome.phase);
        report.steps = steps.done;
        if let Some(file) = &self.json {
            report.write(file)?;
        }
        if self.check { report.check() } else { Ok(()) }
    }
}

fn summary(o: &Outcome) {
    println!("\n{}", o.objects.trim_end());
    println!("\n{}", o.flows.trim_end());
    for w in &o.workers {
        println!(
            "\n{}: sees the actor at {}, is seen as {}; {} MiB up at {:.2} Gbit/s, \
             {} MiB down at {:.2} Gbit/s, checksums {}",
            w.name,
            w.actor,
            w.seen_as,
            w.trajectory_mib,
            w.up_gbps,
            w.policy_mib,
            w.down_gbps,
            w.checksums
        );
    }
}

fn figures(o: &Outcome) -> Vec<Figure> {
    let raw = &o.raw;
    let mut all = vec![];
    if let Some(best) = o.workers.iter().min_by(|a, b| a.first_p50_us.total_cmp(&b.first_p50_us)) {
        all.push(
            Figure::new(
                "relay.first_byte.p50_us",
                best.first_p50_us,
                "us",
                Goal::AtMost(500.0),
                best.samples,
            )
            .beside("raw", number(raw, "/first_byte/p50_us")),
        );
    }
    let sum: f64 = o.workers.iter().map(|w| w.up_gbps).sum();
    let raw_up = number(raw, "/up_gbps");
    let least = 3.0f64.min(0.2 * raw_up);
    all.push(
        Figure::new("demo.upload.gbps", sum, "Gbit/s", Goal::AtLeast(least), o.workers.len())
            .beside("raw", raw_up),
    );
    let bytes: u64 = o.workers.iter().map(|w| w.trajectory_mib).sum();
    #[expect(clippy::cast_precision_loss, reason = "MiB counts are small")]
    all.push(Figure::new(
        "demo.trajectory_mib",
        bytes as f64,
        "MiB",
        Goal::AtLeast(256.0),
        o.workers.len(),
    ));
    all
}

/// Waits for Ctrl-C with everything running.
fn keep(product: &Product) -> Result<()> {
    product.apply(&std::fs::read_to_string("deploy/examples/standing.yaml")?)?;
    let config = product.kubeconfig();
    println!("\nrunning until Ctrl-C. In another terminal:\n");
    println!("  export KUBECONFIG={}", config.display());
    for line in ["kubectl get rljob,rlnode,task,rlpod -A", "kubectl describe rljob two-sites"] {
        println!("  {line}");
    }
    let rlark = product.program("rlark");
    for line in [
        "logs job/two-sites",
        "flows",
        "doctor --from standing-client-0 --to standing-server-0 --port 7000",
    ] {
        println!("  {} {line}", rlark.display());
    }
    while test_kit::lab::interrupted().is_ok() {
        wait::pause(std::time::Duration::from_millis(200));
    }
    Ok(())
}

/// The table that `kubectl` and `rlark` show people.
pub(crate) fn shown(product: &Product, kubectl: &[&str]) -> Result<String> {
    stdout(&mut product.kubectl(kubectl.iter().copied())).context("kubectl")
}
