//! Result files: one shape for the demo and every bench, so that a script can hold them against
//! goals.

use std::{fs, path::Path};

use anyhow::{Context as _, Result, bail};
use serde::Serialize;
use test_kit::command::{cmd, stdout};

use crate::{bench::Row, ui::Step};

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Machine {
    cpu: String,
    cores: usize,
    memory_gib: f64,
    kernel: String,
    hypervisor: bool,
    congestion_control: String,
    /// How busy the machine was with other things when the report began, in cores.
    load: f64,
}

impl Machine {
    fn here() -> Self {
        let read = |f: &str| fs::read_to_string(f).unwrap_or_default().trim().to_owned();
        let (cpuinfo, meminfo) = (read("/proc/cpuinfo"), read("/proc/meminfo"));
        let model = cpuinfo.lines().find_map(|l| l.strip_prefix("model name")?.split_once(": "));
        let kib = meminfo.lines().find_map(|l| l.strip_prefix("MemTotal:"));
        let kib = kib.and_then(|l| l.trim().trim_end_matches(" kB").parse::<f64>().ok());
        let load = read("/proc/loadavg");
        Self {
            cpu: model.map_or("unknown", |(_, m)| m).to_owned(),
            cores: std::thread::available_parallelism().map_or(0, Into::into),
            memory_gib: (kib.unwrap_or(f64::NAN) / 104_857.6).round() / 10.0,
            kernel: read("/proc/sys/kernel/osrelease"),
            hypervisor: cpuinfo.contains(" hypervisor"),
            congestion_control: read("/proc/sys/net/ipv4/tcp_congestion_control"),
            load: load.split(' ').next().and_then(|w| w.parse().ok()).unwrap_or(f64::NAN),
        }
    }
}

/// What was measured beside it in the same run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Baseline {
    pub(crate) name: String,
    pub(crate) value: f64,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    pub(crate) name: String,
    pub(crate) value: f64,
    pub(crate) unit: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(crate) goal: String,
    pub(crate) pass: bool,
    pub(crate) samples: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) baseline: Option<Baseline>,
}

/// A bound that a figure is held against.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Goal {
    AtLeast(f64),
    AtMost(f64),
    None,
}

impl Figure {
    pub(crate) fn new(name: &str, value: f64, unit: &str, goal: Goal, samples: usize) -> Self {
        let short = |g: f64| (g * 1e3).round() / 1e3;
        let (goal, pass) = match goal {
            Goal::AtLeast(g) => (format!(">= {}", short(g)), value >= g),
            Goal::AtMost(g) => (format!("<= {}", short(g)), value <= g),
            Goal::None => (String::new(), true),
        };
        let unit = unit.to_owned();
        Self { name: name.to_owned(), value, unit, goal, pass, samples, baseline: None }
    }

    pub(crate) fn beside(mut self, name: &str, value: f64) -> Self {
        self.baseline = Some(Baseline { name: name.to_owned(), value });
        self
    }
}

#[derive(Debug, Serialize)]
pub(crate) struct Report {
    command: String,
    commit: String,
    machine: Machine,
    pub(crate) results: Vec<Figure>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) measurements: Vec<Row>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) notes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) job_phase: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) steps: Vec<Step>,
}

impl Report {
    pub(crate) fn new(command: &str) -> Self {
        let line = |r: Result<String>| r.map(|s| s.trim().to_owned()).unwrap_or_default();
        let commit = line(stdout(&mut cmd("git", ["rev-parse", "--short=12", "HEAD"])));
        Self {
            command: command.to_owned(),
            commit,
            machine: Machine::here(),
            results: Vec::new(),
            measurements: Vec::new(),
            notes: Vec::new(),
            job_phase: None,
            steps: Vec::new(),
        }
    }

    /// The table that people read.
    pub(crate) fn print(&self) {
        let m = &self.machine;
        println!("\n{} cores, {}, Linux {}", m.cores, m.cpu, m.kernel);
        println!("{:<34} {:>12} {:<7} {:<12} {:<5} beside", "figure", "value", "", "goal", "");
        for f in &self.results {
            let pass = if f.goal.is_empty() {
                ""
            } else if f.pass {
                "met"
            } else {
                "MISS"
            };
            let beside = f.baseline.as_ref();
            let beside = beside.map_or(String::new(), |b| format!("{} {:.3}", b.name, b.value));
            println!(
                "{:<34} {:>12.3} {:<7} {:<12} {:<5} {beside}",
                f.name, f.value, f.unit, f.goal, pass
            );
        }
    }

    pub(crate) fn write(&self, to: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self)?;
        fs::write(to, text + "\n").with_context(|| format!("cannot write {}", to.display()))
    }

    /// An error that names every missed goal.
    pub(crate) fn check(&self) -> Result<()> {
        let missed: Vec<&str> =
            self.results.iter().filter(|f| !f.pass).map(|f| f.name.as_str()).collect();
        if missed.is_empty() { Ok(()) } else { bail!("goals missed: {}", missed.join(", ")) }
    }
}
