//! Where programs, maps and guards are found by name, and what becomes of them when a start fails.

use std::{
    fs,
    path::{Path, PathBuf},
};

use datapath_loader::{BpffsMount, Config, Datapath, LoadError, discard_pins, mount_bpffs};

use super::StartError;

const BPFFS: &str = "/sys/fs/bpf";

/// Where programs and maps are found by name, so that they outlive the process.
#[derive(Clone, Debug)]
pub enum Pins {
    /// In the operator's directory; they stay when the node stops.
    Kept(PathBuf),
    /// On a BPF file system of the node's own, mounted here; they stay only if the node is killed. Without them its guards
    /// would go with it, and what a pod sends to its peers would reach its own listeners.
    UntilStop(PathBuf),
}

impl Pins {
    pub(super) const fn stay(&self) -> bool {
        matches!(self, Self::Kept(_))
    }

    const fn path(&self) -> &PathBuf {
        match self {
            Self::Kept(path) | Self::UntilStop(path) => path,
        }
    }

    /// Makes sure that they are on a BPF file system. Dropping the result takes away what this call mounted, and nothing that
    /// was there.
    pub(super) fn mount(&self) -> Result<Option<BpffsMount>, StartError> {
        let mount = |path: &Path| {
            mount_bpffs(path).map_err(|source| StartError::Bpffs { path: path.to_owned(), source })
        };
        match self {
            Self::Kept(path) if path.starts_with(BPFFS) => {
                mount(Path::new(BPFFS))?.keep();
                Ok(None)
            }
            // Wherever else the operator wants them, the operator has mounted it.
            Self::Kept(_) => Ok(None),
            Self::UntilStop(path) => {
                fs::create_dir_all(path)
                    .map_err(|source| StartError::Bpffs { path: path.clone(), source })?;
                mount(path).map(Some)
            }
        }
    }

    /// From now on the mount is this process's to take away, also one that a killed process has left.
    pub(super) fn take_over(&self, mount: BpffsMount) -> Option<BpffsMount> {
        match self {
            Self::Kept(_) => None,
            Self::UntilStop(path) => Some(mount.take_over(path)),
        }
    }
}

/// Adopts what is pinned. What cannot be adopted must not keep the node from starting, unless it is the operator's; guards stay
/// in every case, for their pods' routes do.
pub(super) fn load(cgroup: Option<&Path>, pins: Option<&Pins>) -> Result<Datapath, LoadError> {
    let config = Config { cgroup: cgroup.map(Path::to_owned), pins: pins.map(Pins::path).cloned() };
    match (Datapath::load(config.clone()), pins) {
        (Err(error), Some(Pins::UntilStop(path))) if error.is_about_pins() => {
            tracing::warn!(error = crate::keeper::chain(&error), "cannot adopt, starting anew");
            discard_pins(path).map_err(LoadError::Directory)?;
            Datapath::load(config)
        }
        (done, _) => done,
    }
}

#[cfg(test)]
mod tests {
    use datapath_loader::LAYOUT;
    use datapath_net::netns::NamedNetns;

    use super::*;
    use crate::{
        kernel::{
            Join, Kernel as _,
            real::{Hooks, Machine},
        },
        plan::desired::{DomainId, Face, Pod},
    };

    fn guards(pins: &Path) -> usize {
        let all = fs::read_dir(pins.join(format!("v{LAYOUT}"))).into_iter().flatten().flatten();
        all.filter(|e| e.file_name().to_string_lossy().starts_with("guard_")).count()
    }

    #[tokio::test]
    async fn a_guard_outlives_its_process_and_a_start_that_fails() {
        let netns = NamedNetns::create(&format!("rlnode-pins-{}", std::process::id())).unwrap();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bpf");
        let pins = || Some(Pins::UntilStop(path.clone()));
        let machine = Machine::start(Hooks::Everywhere, pins()).unwrap();
        let vip = "10.215.0.1".parse().unwrap();
        let faces = vec![Face { cidr: "10.215.0.0/24".parse().unwrap(), vip, real: None }];
        let join = Join {
            uid: "a".into(),
            netns: netns.path().to_owned(),
            cgroup: None,
            cookie: machine.identify(netns.path(), None).unwrap(),
            pod: Pod { domain: DomainId(7), faces, restricted: false },
        };
        machine.join(join.clone()).await.unwrap();
        // Its pod has not left: as after a crash, but for the hooks.
        drop(machine);
        assert_eq!(guards(&path), 1);
        let failed = Machine::start(Hooks::Below("/proc".into()), pins());
        assert!(matches!(failed, Err(StartError::Load(LoadError::NotCgroup2 { .. }))));
        assert_eq!(guards(&path), 1);
        let successor = Machine::start(Hooks::Everywhere, pins()).unwrap();
        successor.join(join.clone()).await.unwrap();
        assert_eq!(guards(&path), 1, "the same one");
        successor.shut_down(vec![join]).await;
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0, "unmounted");
    }
}
