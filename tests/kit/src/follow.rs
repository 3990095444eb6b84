//! A command that goes on saying things, such as `kubectl get --watch`: asking again and again would
//! cost more than what is waited for.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context as _, Result};

/// Started again whenever it ends, since its server may be restarted; ended with its owner.
#[derive(Debug)]
pub struct Follow {
    command: Command,
    file: PathBuf,
    child: Child,
}

impl Follow {
    /// Keeps what it says in `file`.
    pub fn start(mut command: Command, file: PathBuf) -> Result<Self> {
        // What it complains of while its server is away is no news.
        command.stderr(Stdio::null());
        let child = run(&mut command, &file)?;
        Ok(Self { command, file, child })
    }

    /// Everything since its last start.
    pub fn said(&mut self) -> Result<String> {
        let ended = self.child.try_wait()?.is_some();
        let said = std::fs::read_to_string(&self.file)?;
        if ended {
            self.child = run(&mut self.command, &self.file)?;
        }
        Ok(said)
    }
}

fn run(c: &mut Command, file: &Path) -> Result<Child> {
    let out = File::create(file).with_context(|| format!("cannot write {}", file.display()))?;
    c.stdout(out);
    c.spawn().with_context(|| format!("cannot start {}", c.get_program().to_string_lossy()))
}

impl Drop for Follow {
    fn drop(&mut self) {
        let _ended_already = self.child.kill();
        let _reaped = self.child.wait();
    }
}
