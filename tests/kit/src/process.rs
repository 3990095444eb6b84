//! A started program: in a namespace, with its output in a file, ended with its owner.

use std::{
    fs::File,
    os::unix::process::CommandExt as _,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

use crate::{net::Netns, wait::until};

/// Ended by SIGTERM and, after ten seconds, SIGKILL when dropped; by the kernel when the owner dies.
#[derive(Debug)]
pub struct Process {
    pub name: String,
    child: Child,
    log: PathBuf,
}

/// What [`Process::start`] runs and where.
#[derive(Debug)]
pub struct Start<'a> {
    pub name: &'a str,
    pub program: &'a Path,
    pub args: Vec<String>,
    pub env: Vec<(&'a str, String)>,
    pub netns: Option<&'a Netns>,
    /// A cgroup v2 directory to run in.
    pub cgroup: Option<&'a Path>,
    /// The only CPU that it and what it starts may use; `None` for all.
    pub cpu: Option<usize>,
    pub log: PathBuf,
}

impl Process {
    pub fn start(s: Start<'_>) -> Result<Self> {
        let log = File::options().create(true).append(true).open(&s.log);
        let log = log.with_context(|| format!("cannot write {}", s.log.display()))?;
        let mut c = pinned(s.netns, s.cgroup, s.cpu, s.program);
        c.args(&s.args).envs(s.env).stdin(Stdio::null());
        c.stdout(log.try_clone()?).stderr(log);
        // A Ctrl-C at the terminal is for the owner, who ends its programs in order.
        c.process_group(0);
        let child = c.spawn().with_context(|| format!("cannot start {}", s.program.display()))?;
        Ok(Self { name: s.name.to_owned(), child, log: s.log })
    }

    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// An error with the end of its log if it has ended.
    pub fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended ({status}):\n{}", self.name, self.tail(15));
        }
        Ok(())
    }

    /// The last lines of its output.
    #[must_use]
    pub fn tail(&self, lines: usize) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let all: Vec<&str> = text.lines().collect();
        all.iter().skip(all.len().saturating_sub(lines)).copied().collect::<Vec<_>>().join("\n")
    }

    /// SIGKILL, at once: a crash.
    pub fn kill(&mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// SIGTERM, then waits for the end; SIGKILL after `limit` is an error.
    pub fn stop(&mut self, limit: Duration) -> Result<()> {
        if self.child.try_wait()?.is_some() {
            return Ok(());
        }
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.context("the pid of a child")?, Signal::TERM)?;
        let child = &mut self.child;
        let ended = until(&format!("{} to end", self.name), limit, || Ok(child.try_wait()?));
        if let Err(e) = ended {
            self.kill()?;
            return Err(e);
        }
        Ok(())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The interrupt that ends the owner must not cut its clean-up short.
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let (Some(pid), Ok(None)) = (pid, self.child.try_wait()) {
            if let Err(e) = kill_process(pid, Signal::TERM) {
                crate::lab::complain(&format!("{}: {e}", self.name));
            }
            let end = std::time::Instant::now() + Duration::from_secs(10);
            while matches!(self.child.try_wait(), Ok(None)) {
                if std::time::Instant::now() > end {
                    crate::lab::complain(&format!("{} ignored SIGTERM and was killed", self.name));
                    drop(self.child.kill());
                }
                crate::wait::pause(Duration::from_millis(5));
            }
        }
    }
}

/// `program` with the namespace and cgroup entered first. Each step execs the next, so the child's
/// pid is the program's; `setpriv` makes the kernel kill it when this process dies.
#[must_use]
pub fn wrapped(netns: Option<&Netns>, cgroup: Option<&Path>, program: &Path) -> Command {
    let mut words: Vec<std::ffi::OsString> = Vec::new();
    if let Some(cg) = cgroup {
        let script = "echo $$ >\"$0/cgroup.procs\" && exec \"$@\"";
        words.extend(["sh".into(), "-c".into(), script.into(), cg.into()]);
    }
    if let Some(ns) = netns {
        words.push("nsenter".into());
        words.push(format!("--net={}", ns.path().display()).into());
    }
    words.extend(["setpriv", "--pdeathsig", "KILL", "--"].map(Into::into));
    words.push(program.into());
    let mut words = words.into_iter();
    let mut c = Command::new(words.next().unwrap_or_default());
    c.args(words);
    c
}

/// As [`wrapped`], on one CPU if there is one.
#[must_use]
pub fn pinned(
    netns: Option<&Netns>,
    cgroup: Option<&Path>,
    cpu: Option<usize>,
    program: &Path,
) -> Command {
    let Some(cpu) = cpu else { return wrapped(netns, cgroup, program) };
    let mut c = wrapped(netns, cgroup, Path::new("taskset"));
    c.args(["--cpu-list", &cpu.to_string()]).arg(program);
    c
}
