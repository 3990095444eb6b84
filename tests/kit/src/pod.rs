//! A pod of a raw task seen from the machine: where its process is, and how to run another beside it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result};
use serde_json::Value;

use crate::product::text;

/// A pod whose entrypoint runs.
#[derive(Debug, Clone)]
pub struct RunningPod {
    pub uid: String,
    pub pid: u32,
    /// Its address on the site's network; empty if it is on its machine's.
    pub real: String,
    /// Its first address in its Domain, empty without one.
    pub vip: String,
    /// All of them.
    pub vips: Vec<String>,
    pub netns: PathBuf,
    pub cgroup: PathBuf,
    /// What it sees as `/etc/hosts`.
    pub hosts: PathBuf,
}

impl RunningPod {
    /// In an agent's directory of pods, the one with this name.
    pub fn find(pods: &Path, name: &str) -> Result<Self> {
        for entry in fs::read_dir(pods)?.flatten() {
            let Ok(record) = fs::read_to_string(entry.path().join("pod.json")) else { continue };
            let record: Value = serde_json::from_str(&record)?;
            if text(&record, "/spec/name") != name {
                continue;
            }
            let cgroup = PathBuf::from(text(&record, "/cgroup")).join("pod");
            let procs = fs::read_to_string(cgroup.join("cgroup.procs"))?;
            let pids = procs.lines().filter_map(|l| l.parse::<u32>().ok());
            // The first process is ours; the entrypoint is its child.
            let pid =
                pids.filter(|p| !is_helper(*p)).min().context("its entrypoint does not run")?;
            let env = record.pointer("/spec/environment").and_then(Value::as_array);
            let vips = env.into_iter().flatten().find(|e| text(e, "/0") == "RLARK_VIPS");
            let vips = vips.map(|e| text(e, "/1").split(',').map(str::to_owned).collect());
            let vips: Vec<String> = vips.unwrap_or_default();
            return Ok(Self {
                uid: entry.file_name().to_string_lossy().into_owned(),
                pid,
                real: text(&record, "/address").to_owned(),
                vip: vips.first().cloned().unwrap_or_default(),
                vips,
                netns: text(&record, "/netns").into(),
                hosts: entry.path().join("hosts"),
                cgroup,
            });
        }
        anyhow::bail!("no pod {name} in {}", pods.display())
    }

    /// A program in the pod's cgroup and namespaces, with the rights that the pod has.
    #[must_use]
    pub fn command<'a>(&self, words: impl IntoIterator<Item = &'a str>) -> Command {
        // The capability sets are the pod's own, read where the kernel shows them.
        let script = "echo $$ >\"$0/cgroup.procs\" && exec \"$@\"";
        let mut c = Command::new("sh");
        c.args(["-c", script]).arg(&self.cgroup);
        c.args(["nsenter", "-t", &self.pid.to_string(), "--net", "--pid", "--mount", "--uts"]);
        c.args(["setpriv", "--pdeathsig", "KILL", "--bounding-set", &self.capabilities()]);
        c.args(["--"]).args(words).stdin(Stdio::null());
        c
    }

    /// What the pod may do, as `setpriv` wants it.
    fn capabilities(&self) -> String {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let mask = status.lines().find_map(|l| l.strip_prefix("CapBnd:"));
        let mask = mask.and_then(|m| u64::from_str_radix(m.trim(), 16).ok()).unwrap_or(0);
        let kept = (0..41).filter(|bit| mask >> bit & 1 == 1);
        kept.fold("-all".to_owned(), |all, bit| format!("{all},+cap_{bit}"))
    }
}

fn is_helper(pid: u32) -> bool {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    line.starts_with(b"rlark-agent")
}
