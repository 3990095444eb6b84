//! A program that runs in a pod: its output in a file, ended with its owner.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use test_kit::wait::eventually;

/// Killed when dropped, with what it has started unless that has left it; such a daemon ends with its pod.
#[derive(Debug)]
pub struct Program {
    name: String,
    child: Child,
    log: PathBuf,
    started: Instant,
}

impl Program {
    pub(crate) fn start(name: &str, mut command: Command, log: PathBuf) -> Result<Self> {
        let said = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
        command.stdout(said.try_clone()?).stderr(said);
        let started = Instant::now();
        let child = command.spawn().with_context(|| format!("cannot start {name}"))?;
        Ok(Self { name: name.to_owned(), child, log, started })
    }

    /// All that it has said so far.
    #[must_use]
    pub fn said(&self) -> String {
        fs::read(&self.log).map(|t| String::from_utf8_lossy(&t).into_owned()).unwrap_or_default()
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>> {
        Ok(self.child.try_wait()?)
    }

    /// An error with its last words if it has ended.
    pub fn running(&mut self) -> Result<()> {
        match self.ended()? {
            Some(status) => bail!("{} ended ({status}): {}", self.name, self.last_words()),
            None => Ok(()),
        }
    }

    /// Waits until it has said `text`.
    pub fn says(&mut self, text: &str, limit: Duration) -> Result<()> {
        let what = format!("{} to say {text:?}", self.name);
        let wait = eventually(&what, limit, || {
            if self.said().contains(text) {
                return Ok(Some(()));
            }
            self.running().map(|()| None)
        });
        wait.with_context(|| self.last_words())
    }

    /// Waits for its end, which must be a success; gives what it said.
    pub fn finish(&mut self, limit: Duration) -> Result<String> {
        let what = format!("{} to end", self.name);
        let ended = eventually(&what, limit, || self.ended());
        let status = ended.with_context(|| self.last_words())?;
        ensure!(status.success(), "{} ended ({status}): {}", self.name, self.last_words());
        Ok(self.said())
    }

    /// Since it was started.
    #[must_use]
    pub fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    fn last_words(&self) -> String {
        last_lines(&self.log, 60)
    }
}

/// The end of a log, or nothing.
pub(crate) fn last_lines(log: &Path, lines: usize) -> String {
    let said = fs::read(log).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    let all: Vec<&str> = said.lines().collect();
    all.iter().skip(all.len().saturating_sub(lines)).copied().collect::<Vec<_>>().join("\n")
}

impl Drop for Program {
    fn drop(&mut self) {
        // An error means that it has ended.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
