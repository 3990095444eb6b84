//! Where maps are found by name: a BPF file system that is mounted nowhere, or the operator's pin directory.

use std::{
    fs, io,
    os::fd::{AsRawFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::statfs,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MountFlags, UnmountFlags, fsconfig_create,
        fsmount, fsopen, mount, unmount,
    },
};

use crate::{LAYOUT, error::LoadError};

const BPF_FS_MAGIC: u64 = 0xcafe_4a11;

#[derive(Debug)]
pub(crate) enum MapDirectory {
    /// Gone with the descriptor: the kernel frees pins, maps and all.
    Private { mount: OwnedFd },
    /// `PINS/v<layout>`; stays.
    Pinned { path: PathBuf },
}

impl MapDirectory {
    /// A file system of our own. Linux 5.2.
    pub(crate) fn private() -> Result<Self, LoadError> {
        let mount = detached("bpf").map_err(LoadError::Directory)?;
        Ok(Self::Private { mount })
    }

    /// The directory of this layout below `pins`, which must be on a BPF file system.
    pub(crate) fn pinned(pins: &Path) -> Result<Self, LoadError> {
        let path = pins.join(format!("v{LAYOUT}"));
        fs::create_dir_all(&path)
            .map_err(|source| LoadError::PinDirectory { path: path.clone(), source })?;
        if is_bpffs(&path) {
            return Ok(Self::Pinned { path });
        }
        Err(LoadError::NotBpffs { path })
    }

    pub(crate) fn path(&self) -> PathBuf {
        match self {
            Self::Private { mount } => {
                PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd()))
            }
            Self::Pinned { path } => path.clone(),
        }
    }

    pub(crate) fn is_pinned(&self) -> bool {
        matches!(self, Self::Pinned { .. })
    }

    /// The guards that are pinned here.
    pub(crate) fn guards(&self) -> io::Result<Vec<GuardPin>> {
        if !self.is_pinned() {
            return Ok(Vec::new());
        }
        let mut guards = Vec::new();
        for entry in fs::read_dir(self.path())? {
            guards.extend(GuardPin::parse(&entry?.path()));
        }
        Ok(guards)
    }

    /// Where a guard is pinned, if at all.
    pub(crate) fn guard(&self, netns: u64, slot: u32) -> Option<GuardPin> {
        let path = self.path().join(format!("guard_{netns:x}_{slot}"));
        self.is_pinned().then_some(GuardPin { path, netns, slot })
    }

    /// Takes away the directories of other layouts, whose programs would go on beside ours.
    pub(crate) fn remove_other_layouts(&self) -> io::Result<()> {
        let Self::Pinned { path } = self else { return Ok(()) };
        let Some(pins) = path.parent() else { return Ok(()) };
        for entry in fs::read_dir(pins)? {
            let other = entry?.path();
            let name = other.file_name().and_then(|n| n.to_str()).unwrap_or_default();
            let layout = name.strip_prefix('v').and_then(|n| n.parse::<u32>().ok());
            if layout.is_some_and(|layout| layout != LAYOUT) {
                fs::remove_dir_all(&other)?;
            }
        }
        Ok(())
    }
}

/// Removes what is pinned of this layout in [`crate::Config::pins`], but for the guards: those go on refusing until their
/// namespaces are gone or another [`crate::Datapath`] takes them over.
///
/// # Errors
/// A pin cannot be removed; others may be gone.
pub fn discard_pins(pins: &Path) -> io::Result<()> {
    let directory = pins.join(format!("v{LAYOUT}"));
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if GuardPin::parse(&path).is_none() {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// A guard's pin. Its name says which landing slot the program behind it uses: that slot is no other guard's, even before the
/// guard is adopted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GuardPin {
    pub(crate) path: PathBuf,
    pub(crate) netns: u64,
    pub(crate) slot: u32,
}

impl GuardPin {
    fn parse(path: &Path) -> Option<Self> {
        let name = path.file_name()?.to_str()?.strip_prefix("guard_")?;
        let (netns, slot) = name.split_once('_')?;
        let netns = u64::from_str_radix(netns, 16).ok()?;
        Some(Self { path: path.to_owned(), netns, slot: slot.parse().ok()? })
    }
}

/// A file system of that kind that is mounted nowhere. Linux 5.2.
pub(crate) fn detached(kind: &str) -> io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    Ok(fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?)
}

/// Whether a path is on a BPF file system.
pub(crate) fn is_bpffs(path: &Path) -> bool {
    statfs(path).is_ok_and(|s| u64::from_ne_bytes(s.f_type.to_ne_bytes()) == BPF_FS_MAGIC)
}

/// A BPF file system at a path: unmounted on drop if [`mount_bpffs`] mounted it.
#[derive(Debug)]
pub struct BpffsMount {
    ours: Option<PathBuf>,
}

impl BpffsMount {
    /// The mount at `path` is the caller's, whoever made it: drop unmounts it.
    #[must_use]
    pub fn take_over(mut self, path: &Path) -> Self {
        self.ours = Some(path.to_owned());
        self
    }

    /// Leaves the mount in place, for pins that shall outlive the process.
    pub fn keep(mut self) {
        self.ours = None;
    }
}

impl Drop for BpffsMount {
    fn drop(&mut self) {
        if let Some(path) = &self.ours {
            // Busy means that somebody uses it by now: theirs to keep.
            let _busy = unmount(path, UnmountFlags::empty());
        }
    }
}

/// Makes sure that a BPF file system is mounted at `path` (an existing directory), for [`crate::Config::pins`].
///
/// # Errors
/// The path is missing or mounting is not permitted.
pub fn mount_bpffs(path: &Path) -> io::Result<BpffsMount> {
    if is_bpffs(path) {
        return Ok(BpffsMount { ours: None });
    }
    mount("bpf", path, "bpf", MountFlags::empty(), None)?;
    Ok(BpffsMount { ours: Some(path.to_owned()) })
}
