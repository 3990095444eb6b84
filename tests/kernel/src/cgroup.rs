//! The hooked cgroup: the test process is in it while it lives.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

/// A cgroup v2 directory with this process in it. On drop the process goes back to where it was.
#[derive(Debug)]
pub struct Cgroup {
    path: PathBuf,
    before: PathBuf,
}

impl Cgroup {
    /// Makes the directory and moves in.
    pub fn join() -> Result<Self> {
        let mount =
            datapath_loader::cgroup2_mount().context("no cgroup v2 hierarchy is mounted")?;
        let own = fs::read_to_string("/proc/self/cgroup")?;
        let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
        let path = mount.join(format!("rl-kernel-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let cgroup = Self { path, before: mount.join(own) };
        enter(&cgroup.path).context("cannot move the test process")?;
        Ok(cgroup)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Moves the process out until the next [`Self::enter`]: new sockets are unhooked.
    pub fn leave(&self) -> io::Result<()> {
        enter(&self.before)
    }

    /// Moves the process in again.
    pub fn enter(&self) -> io::Result<()> {
        enter(&self.path)
    }
}

fn enter(cgroup: &Path) -> io::Result<()> {
    fs::write(cgroup.join("cgroup.procs"), "0")
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // A test that failed may have left children inside; the next run has another name.
        let _back = self.leave();
        let _busy = fs::remove_dir(&self.path);
    }
}
