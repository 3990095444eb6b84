//! The data path against raw TCP, and against what people would use instead, in one run on one machine.
//!
//! Each scenario is a module. A scenario takes its measurements in rounds, and in each round every path
//! gets its turn: what the machine does meanwhile falls on all of them alike.

mod brief;
mod bulk;
mod chart;
mod churn;
mod cut;
mod distance;
mod goals;
mod idle;
mod lab;
mod latency;
mod line;
mod objects;
mod peers;
mod rows;
mod series;
mod stalled;

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

use crate::{
    report::{Figure, Report},
    scenario, signals,
    ui::{Progress, Steps},
};
use lab::Lab;
use rows::Rows;

pub(crate) use brief::measure;
pub(crate) use rows::Row;

#[derive(Args, Debug)]
pub(crate) struct Bench {
    /// Write the result as JSON.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Draw the result as SVG files into this directory.
    #[arg(long, value_name = "DIR")]
    svg: Option<PathBuf>,
    /// Also measure what people would use instead, and install it where it is missing.
    #[arg(long)]
    peers: bool,
    /// Only these scenarios.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    only: Vec<String>,
    /// Measure the programs in this directory instead of building them, to compare two builds.
    #[arg(long, value_name = "DIR")]
    programs: Option<PathBuf>,
    /// Exit with 1 when a goal is missed.
    #[arg(long)]
    check: bool,
}

/// What has been found so far.
#[derive(Debug, Default)]
struct Found {
    figures: Vec<Figure>,
    rows: Rows,
    notes: Vec<String>,
    /// Scenarios that came to no end, and why.
    failed: Vec<String>,
}

/// A part of the bench: its name, what a person is told, and its work.
type Scenario = (&'static str, &'static str, fn(&mut Lab, &mut Found, &Progress) -> Result<()>);

/// In this order: the first ones need processes that have done nothing yet, the last ones leave something.
const SCENARIOS: [Scenario; 11] = [
    ("idle", "10 pods and 1,000 flows do nothing", idle::cores),
    ("memory", "10,000 idle flows", idle::memory),
    ("latency", "no delay: latencies", latency::run),
    ("bulk", "no delay: throughput and its cost", bulk::run),
    ("churn", "new flows", churn::run),
    ("stalled", "1,000 live flows beside a stalled reader", stalled::run),
    ("peers", "no delay: what people would use instead", peers::near),
    ("cut", "30 s without the hub, twice", cut::run),
    ("distance", "10 and 50 ms, 100 Mbit/s and 1 Gbit/s, loss", distance::run),
    ("far-peers", "50 ms: what people would use instead", peers::far),
    ("api", "kubectl get beside 10,000 objects", objects::run),
];

impl Bench {
    pub(crate) fn run(&self) -> Result<()> {
        signals::install()?;
        let known = |n: &String| SCENARIOS.iter().any(|s| s.0 == n);
        if let Some(other) = self.only.iter().find(|n| !known(n)) {
            let all: Vec<&str> = SCENARIOS.iter().map(|s| s.0).collect();
            bail!("--only {other}: the scenarios are {}", all.join(", "));
        }
        let mut steps = Steps::default();
        let programs = match &self.programs {
            Some(dir) => dir.canonicalize()?,
            None => scenario::built(&mut steps)?,
        };
        let mut lab = Lab::new(&programs, &mut steps)?;
        let mut found = Found::default();
        lab.open(&mut found.rows);
        if self.peers {
            steps.step("install what people would use instead", |_| {
                lab.peers = peers::install(&mut found.notes);
                Ok(())
            })?;
        }
        for (name, told, work) in SCENARIOS {
            let chosen = self.only.is_empty() || self.only.iter().any(|n| n == name);
            if !chosen || name.ends_with("peers") && lab.peers.is_empty() {
                continue;
            }
            if let Err(e) = steps.step(told, |bar| work(&mut lab, &mut found, bar)) {
                test_kit::lab::interrupted()?;
                found.failed.push(format!("{name}: {}", e.root_cause()));
                eprintln!("{name}: {:#}", lab.product.explain(e));
            }
        }
        drop(lab);
        self.report(found, steps)
    }

    fn report(&self, mut found: Found, steps: Steps) -> Result<()> {
        let mut report = Report::new("cargo xtask bench");
        let all = self.only.is_empty();
        report.results = goals::in_order(found.figures, if all { "all" } else { "measured" });
        found.notes.extend(found.failed.iter().map(|f| format!("not measured: {f}")));
        found.rows.print();
        report.print();
        for note in &found.notes {
            println!("{note}");
        }
        if let Some(dir) = &self.svg {
            chart::draw(dir, &found.rows)?;
        }
        report.measurements = found.rows.into_inner();
        report.notes = found.notes;
        report.steps = steps.done;
        if let Some(file) = &self.json {
            report.write(file)?;
        }
        if !found.failed.is_empty() {
            bail!("not everything could be measured: {}", found.failed.join("; "));
        }
        if self.check { report.check() } else { Ok(()) }
    }
}
