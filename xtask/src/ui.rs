//! What a person sees while work goes on: bars on a terminal, plain lines elsewhere.

use std::{
    io::IsTerminal as _,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

/// A finished step of the demo or bench.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Step {
    pub(crate) name: String,
    pub(crate) seconds: f64,
}

/// Names steps, times them, and keeps the list for the report.
#[derive(Debug, Default)]
pub(crate) struct Steps {
    pub(crate) done: Vec<Step>,
}

impl Steps {
    /// Runs `work`; its progress handle may be told lengths and positions.
    pub(crate) fn step<T>(
        &mut self,
        name: &str,
        work: impl FnOnce(&Progress) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let start = Instant::now();
        let progress = Progress::new(name);
        let outcome = work(&progress);
        let took = start.elapsed();
        progress.finish(outcome.is_ok(), took);
        self.done.push(Step { name: name.to_owned(), seconds: took.as_secs_f64() });
        outcome
    }
}

/// One running step.
#[derive(Debug)]
pub(crate) struct Progress {
    name: String,
    bar: Option<ProgressBar>,
}

impl Progress {
    fn new(name: &str) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self { name: name.to_owned(), bar: None };
        }
        let bar = ProgressBar::new_spinner().with_message(name.to_owned());
        bar.enable_steady_tick(Duration::from_millis(120));
        Self { name: name.to_owned(), bar: Some(bar) }
    }

    /// For a part of a step whose progress nobody is shown.
    pub(crate) const fn silent() -> Self {
        Self { name: String::new(), bar: None }
    }

    /// Turns the spinner into a bar; `bytes` chooses the unit.
    pub(crate) fn length(&self, all: u64, unit: Unit) {
        let Some(bar) = &self.bar else { return };
        let template = match unit {
            Unit::Items => "{spinner} {prefix} [{bar:30}] {pos}/{len} {wide_msg}",
            Unit::Bytes => "{spinner} {prefix} [{bar:30}] {bytes}/{total_bytes} {wide_msg}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("━╸ "));
        }
        bar.set_prefix(self.name.clone());
        bar.set_message("");
        bar.set_length(all);
    }

    pub(crate) fn at(&self, position: u64, note: &str) {
        if let Some(bar) = &self.bar {
            bar.set_position(position);
            bar.set_message(note.to_owned());
        }
    }

    fn finish(&self, good: bool, took: Duration) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        let mark = if good { "✓" } else { "✗" };
        eprintln!("  {mark} {:<58} {:>7.2} s", self.name, took.as_secs_f64());
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Unit {
    Items,
    Bytes,
}
