//! What this machine can do, found out by doing it.

use std::{
    fmt, fs, io,
    os::fd::{AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use aya::util::KernelVersion;
use datapath_abi::{FEATURE_INGRESS, FEATURE_RETVAL};

use crate::{
    directory::{MapDirectory, detached},
    hooks::{Hook, load},
    object,
};

/// Something the data path needs or likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feature {
    /// A cgroup v2 hierarchy to attach to, mounted or not.
    Cgroup2,
    /// A BPF file system, to share maps through.
    Bpffs,
    /// The maps, and type information for them.
    Maps,
    /// The verifier takes this hook's program.
    Hook(Hook),
    /// A refusal has its own errno (5.18), else all are EPERM.
    Errno,
    /// The guard sees which interface a packet came in by (5.17), else it goes by the source address.
    Ingress,
}

impl Feature {
    /// What is lost without it.
    pub const fn need(self) -> Need {
        match self {
            Self::Bpffs | Self::Maps | Self::Hook(Hook::SkLookup) => Need::All,
            Self::Cgroup2 | Self::Hook(_) => Need::Hooks,
            Self::Errno | Self::Ingress => Need::Precision,
        }
    }
}

/// How much depends on a [`Feature`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// Nothing works without it.
    All,
    /// Without it there are no hooks: guards alone land and refuse ([`crate::Config::cgroup`]).
    Hooks,
    /// Something is told less precisely.
    Precision,
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cgroup2 => f.write_str("cgroup v2"),
            Self::Bpffs => f.write_str("BPF file system"),
            Self::Maps => f.write_str("BPF maps"),
            Self::Hook(hook) => write!(f, "hook {hook}"),
            Self::Errno => f.write_str("errno of refusals (bpf_set_retval, Linux 5.18)"),
            Self::Ingress => f.write_str("ingress interface in sk_lookup (Linux 5.17)"),
        }
    }
}

/// One feature and what was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub feature: Feature,
    /// Where or how it is there; or why it is not, causes included.
    pub result: Result<String, String>,
}

/// All that [`probe`] found.
#[derive(Debug)]
pub struct Probe {
    /// The running kernel, like `6.18.44`.
    pub kernel: String,
    /// The root of the cgroup v2 hierarchy.
    pub cgroup: Option<CgroupRoot>,
    pub findings: Vec<Finding>,
}

impl Probe {
    /// The first missing feature on which that much depends.
    pub fn missing(&self, need: Need) -> Option<&Finding> {
        self.findings.iter().find(|f| f.feature.need() == need && f.result.is_err())
    }
}

/// Where the hooks go by default: every process is below it.
#[derive(Debug)]
pub enum CgroupRoot {
    Mounted(PathBuf),
    /// A machine that mounts cgroup v1 alone (`systemd.unified_cgroup_hierarchy=0`) still has the other hierarchy. This mount is
    /// nowhere in the file system and goes with the value.
    Detached(OwnedFd),
}

impl CgroupRoot {
    fn find() -> io::Result<Self> {
        match cgroup2_mount() {
            Some(path) => Ok(Self::Mounted(path)),
            None => Ok(Self::Detached(detached("cgroup2")?)),
        }
    }

    /// Leads there as long as the value lives, in this process.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        match self {
            Self::Mounted(path) => path.clone(),
            Self::Detached(fd) => PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd())),
        }
    }
}

impl fmt::Display for CgroupRoot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mounted(path) => path.display().fmt(f),
            Self::Detached(_) => f.write_str("a mount of our own (none is visible)"),
        }
    }
}

/// Loads every program without attaching it and looks for what else is needed. Leaves nothing behind.
pub fn probe() -> Probe {
    let cgroup = CgroupRoot::find();
    let result = match &cgroup {
        Ok(root) => Ok(root.to_string()),
        Err(e) => Err(format!("none is mounted, and none can be: {e}")),
    };
    let mut findings = vec![Finding { feature: Feature::Cgroup2, result }];
    findings.extend(programs());
    let features = object::features();
    for (feature, bit) in [(Feature::Errno, FEATURE_RETVAL), (Feature::Ingress, FEATURE_INGRESS)] {
        let result = if features & bit == 0 {
            Err("this kernel is older".to_owned())
        } else {
            Ok("present".to_owned())
        };
        findings.push(Finding { feature, result });
    }
    Probe { kernel: kernel(), cgroup: cgroup.ok(), findings }
}

fn programs() -> Vec<Finding> {
    let found = |feature, result| Finding { feature, result };
    let directory = match MapDirectory::private() {
        Ok(directory) => directory,
        Err(e) => return vec![found(Feature::Bpffs, Err(chain(&e)))],
    };
    let mut findings = vec![found(Feature::Bpffs, Ok("mountable".to_owned()))];
    let mut ebpf = match object::open(&directory.path(), None) {
        Ok(ebpf) => ebpf,
        Err(e) => {
            findings.push(found(Feature::Maps, Err(chain(&e))));
            return findings;
        }
    };
    findings.push(found(Feature::Maps, Ok("created".to_owned())));
    for hook in Hook::CGROUP.into_iter().chain([Hook::SkLookup]) {
        let result = load(&mut ebpf, hook).map(|_| "loads".to_owned()).map_err(|e| chain(&e));
        findings.push(found(Feature::Hook(hook), result));
    }
    findings
}

/// An error with its causes. A verifier's log, which can be long, stays behind its first line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        let line = source.to_string();
        text = format!("{text}: {}", line.lines().next().unwrap_or_default());
        cause = source.source();
    }
    text
}

fn kernel() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease").map_or_else(
        |_| KernelVersion::current().map_or_else(|_| "unknown".to_owned(), |v| format!("{v:?}")),
        |text| text.trim().to_owned(),
    )
}

/// The mount point of the cgroup v2 hierarchy, wherever it is (`/sys/fs/cgroup`, `/sys/fs/cgroup/unified`, …); the
/// one whose root is the hierarchy's root, if several are visible.
pub fn cgroup2_mount() -> Option<PathBuf> {
    cgroup2_in(&fs::read_to_string("/proc/self/mountinfo").ok()?)
}

fn cgroup2_in(mountinfo: &str) -> Option<PathBuf> {
    let mounts = mountinfo.lines().filter_map(|line| {
        let (mount, kind) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        kind.starts_with("cgroup2 ").then(|| (root != "/", unescape(point)))
    });
    // The sort is stable: of equals the first mounted.
    let mut mounts: Vec<_> = mounts.collect();
    mounts.sort_by_key(|(inner, _)| *inner);
    mounts.into_iter().next().map(|(_, point)| Path::new(&point).to_owned())
}

/// mountinfo writes space, tab, newline and backslash as octal.
fn unescape(field: &str) -> String {
    field.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_v2_mount_is_found_in_a_hybrid_hierarchy() {
        let text = "\
24 20 0:21 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
25 24 0:22 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
26 24 0:23 /kubepods /mnt/part rw - cgroup2 cgroup2 rw
27 24 0:23 / /sys/fs/cgroup/un\\040ified rw,relatime shared:9 - cgroup2 cgroup2 rw
";
        assert_eq!(cgroup2_in(text), Some(PathBuf::from("/sys/fs/cgroup/un ified")));
        assert_eq!(cgroup2_in(""), None);
    }

    #[test]
    fn a_missing_hook_costs_the_hooks_and_a_missing_guard_everything() {
        let missing = |feature| Probe {
            kernel: String::new(),
            cgroup: None,
            findings: vec![Finding { feature, result: Err("no".to_owned()) }],
        };
        for (feature, need) in [
            (Feature::Cgroup2, Need::Hooks),
            (Feature::Hook(Hook::Connect4), Need::Hooks),
            (Feature::Hook(Hook::SkLookup), Need::All),
            (Feature::Maps, Need::All),
            (Feature::Errno, Need::Precision),
        ] {
            let probe = missing(feature);
            for asked in [Need::All, Need::Hooks, Need::Precision] {
                assert_eq!(probe.missing(asked).is_some(), asked == need, "{feature}");
            }
        }
    }
}
