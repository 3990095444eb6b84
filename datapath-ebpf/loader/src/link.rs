//! Pinned links by hand: aya has no function that replaces a program behind one or says what it is attached to.
#![expect(unsafe_code, reason = "bpf(2) with commands that aya does not offer")]

use std::{
    ffi::CString,
    io,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

const OBJ_GET: libc::c_long = 7;
const OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const LINK_UPDATE: libc::c_long = 29;

/// What a link is attached to: the id of a cgroup (its inode number) or the inode number of a network namespace. `None` when
/// that is gone; the link then does nothing and cannot be updated. Linux 5.8.
pub(crate) fn attached_to(pin: &Path) -> io::Result<Option<u64>> {
    /// `struct bpf_link_info` up to what is the same for cgroup (64 bits) and namespace (32 bits, then the attach type).
    #[repr(C)]
    #[derive(Default)]
    struct Info {
        kind: u32,
        id: u32,
        program: u32,
        pad: u32,
        target: u64,
        rest: [u64; 8],
    }
    #[repr(C)]
    struct Ask {
        fd: RawFd,
        length: u32,
        info: u64,
    }
    const NETNS: u32 = 5;
    let link = open(pin)?;
    let mut info = Info::default();
    let length = u32::try_from(size_of::<Info>()).map_err(io::Error::other)?;
    let ask =
        Ask { fd: link.as_raw_fd(), length, info: (&raw mut info).expose_provenance() as u64 };
    // SAFETY: the kernel writes at most `length` bytes to `info`.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, &ask) }?;
    let target = if info.kind == NETNS { info.target & u64::from(u32::MAX) } else { info.target };
    Ok((target != 0).then_some(target))
}

/// Replaces the program behind a pinned link (Linux 5.7).
pub(crate) fn update(pin: &Path, program: RawFd) -> io::Result<()> {
    let link = open(pin)?;
    // SAFETY: LINK_UPDATE reads two descriptors and two words of flags.
    unsafe { bpf(LINK_UPDATE, &[link.as_raw_fd(), program, 0, 0]) }.map(drop)
}

fn open(pin: &Path) -> io::Result<OwnedFd> {
    let path = CString::new(pin.as_os_str().as_bytes())?;
    // SAFETY: OBJ_GET reads the path and returns a new descriptor or an error.
    let link = unsafe { bpf(OBJ_GET, &[path.as_ptr().expose_provenance() as u64, 0]) }?;
    // SAFETY: just made, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(link) })
}

/// bpf(2).
///
/// # Safety
/// `attributes` must be what `command` reads, and what they point at what it writes.
unsafe fn bpf<T>(command: libc::c_long, attributes: &T) -> io::Result<RawFd> {
    let attributes: *const T = attributes;
    // SAFETY: by contract.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size_of::<T>()) };
    match RawFd::try_from(result) {
        Ok(result) if result >= 0 => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}
