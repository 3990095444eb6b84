//! Control groups, version 2, wherever the hierarchy is mounted. A pod has two under
//! `BASE/rlark/<uid>`: `sup` for its supervisor and `pod` for its processes, so that the latter can
//! be killed as a whole while the former lives to write down how it ended.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use super::{error::SetupError, mountinfo};
use crate::inotify::Watch;

/// The directory under which pods' groups are made.
pub(crate) fn base(configured: Option<&Path>) -> Result<PathBuf, SetupError> {
    let text = fs::read_to_string("/proc/self/mountinfo").map_err(|source| SetupError::Io {
        what: "read",
        path: "/proc/self/mountinfo".into(),
        source,
    })?;
    let mounts: Vec<PathBuf> =
        mountinfo::parse(&text).filter(|m| m.fs == "cgroup2").map(|m| m.point).collect();
    match configured {
        None => mounts.into_iter().next().ok_or(SetupError::NoCgroup2),
        Some(_) if mounts.is_empty() => Err(SetupError::NoCgroup2),
        Some(path) if mounts.iter().any(|m| path.starts_with(m)) => Ok(path.to_owned()),
        Some(path) => Err(SetupError::NotCgroup2 { path: path.to_owned() }),
    }
}

/// A pod's group.
#[derive(Clone, Debug)]
pub(crate) struct PodCgroup(PathBuf);

impl PodCgroup {
    #[must_use]
    pub(crate) fn at(path: &Path) -> Self {
        Self(path.to_owned())
    }

    pub(crate) fn create(&self) -> io::Result<()> {
        fs::create_dir_all(self.supervisor())?;
        fs::create_dir_all(self.processes())
    }

    fn supervisor(&self) -> PathBuf {
        self.0.join("sup")
    }

    /// Where the pod's processes are, and nothing else.
    pub(crate) fn processes(&self) -> PathBuf {
        self.0.join("pod")
    }

    /// Moves the calling process in. "0" means oneself in every pid namespace.
    pub(crate) fn join_as_supervisor(&self) -> io::Result<()> {
        fs::write(self.supervisor().join("cgroup.procs"), "0")
    }

    pub(crate) fn join_as_pod(&self) -> io::Result<()> {
        fs::write(self.processes().join("cgroup.procs"), "0")
    }

    /// SIGKILL to the pod's processes.
    pub(crate) fn kill_processes(&self) -> io::Result<()> {
        kill(&self.processes())
    }

    /// SIGKILL to everything, the supervisor too.
    pub(crate) fn kill_all(&self) -> io::Result<()> {
        kill(&self.0)
    }

    /// Waits until no process is left; false when `limit` passed first.
    pub(crate) async fn emptied(&self, limit: Duration) -> io::Result<bool> {
        let events = self.0.join("cgroup.events");
        let mut watch = match Watch::new(&events) {
            Ok(watch) => watch,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(true),
            Err(e) => return Err(e),
        };
        let waiting = async {
            loop {
                match fs::read_to_string(&events) {
                    Ok(text) if !text.lines().any(|l| l == "populated 1") => return Ok(()),
                    Ok(_) => watch.changed().await?,
                    Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
                    Err(e) => return Err(e),
                }
            }
        };
        match tokio::time::timeout(limit, waiting).await {
            Ok(done) => done.map(|()| true),
            Err(_elapsed) => Ok(false),
        }
    }

    /// Removes the (empty) groups, also ones that the pod made below its own.
    pub(crate) fn remove(&self) -> io::Result<()> {
        remove_tree(&self.0)
    }
}

/// `cgroup.kill` needs Linux 5.14; before, each process is signalled until none is left.
fn kill(group: &Path) -> io::Result<()> {
    match fs::write(group.join("cgroup.kill"), "1") {
        Err(e) if e.kind() == io::ErrorKind::NotFound && group.exists() => kill_each(group),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn kill_each(group: &Path) -> io::Result<()> {
    for entry in fs::read_dir(group)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            kill_each(&entry.path())?;
        }
    }
    for pid in fs::read_to_string(group.join("cgroup.procs"))?.lines() {
        if let Ok(pid) = pid.parse::<i32>().map(nix::unistd::Pid::from_raw) {
            match nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL) {
                Ok(()) | Err(nix::errno::Errno::ESRCH) => {}
                Err(e) => return Err(e.into()),
            }
        }
    }
    Ok(())
}

fn remove_tree(group: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(group) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?,
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_tree(&entry.path())?;
        }
    }
    match fs::remove_dir(group) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}
