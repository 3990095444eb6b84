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
        let mount = detached_bpffs().map_err(|e| LoadError::Directory(e.into()))?;
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
}

fn detached_bpffs() -> rustix::io::Result<OwnedFd> {
    let context = fsopen("bpf", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&context)?;
    fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
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
