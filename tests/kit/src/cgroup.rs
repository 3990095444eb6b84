//! A cgroup v2 directory that goes away with its owner, processes and children included.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result};

use crate::wait::until;

/// Mount point of the v2 hierarchy: the only one, or `unified` beside v1.
pub fn v2_mount() -> Result<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    mounts
        .lines()
        .filter_map(|l| {
            let mut w = l.split(' ');
            let (_, at, kind) = (w.next()?, w.next()?, w.next()?);
            (kind == "cgroup2").then(|| PathBuf::from(at))
        })
        .next()
        .context(
            "no cgroup v2 hierarchy is mounted (mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified)",
        )
}

/// Owns one directory below the v2 mount.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
}

impl Cgroup {
    pub fn new(name: &str) -> Result<Self> {
        let path = v2_mount()?.join(name);
        fs::create_dir_all(&path)
            .with_context(|| format!("cannot make cgroup {}", path.display()))?;
        Ok(Self { path })
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        if let Err(e) = remove(&self.path) {
            crate::lab::complain(&format!("cgroup {} stays: {e:#}", self.path.display()));
        }
    }
}

/// Kills what is inside and removes the directory with all below.
pub fn remove(path: &Path) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    // Absent before Linux 5.14; then the processes are ended by their own guards.
    drop(fs::write(path.join("cgroup.kill"), "1"));
    until("the cgroup's processes to end", Duration::from_secs(10), || {
        let children = fs::read_dir(path)?.flatten().filter(|e| e.path().is_dir());
        for child in children {
            remove(&child.path())?;
        }
        match fs::remove_dir(path) {
            Ok(()) => Ok(Some(())),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Some(())),
            Err(e) if e.kind() == std::io::ErrorKind::ResourceBusy => Ok(None),
            Err(e) => Err(e.into()),
        }
    })
}
