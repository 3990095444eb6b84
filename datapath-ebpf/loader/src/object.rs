//! The committed BPF object, and the one system call aya has no function for.
#![expect(unsafe_code, reason = "BPF_LINK_UPDATE by hand")]

use std::{
    ffi::{CString, c_void},
    io,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
        unix::ffi::OsStrExt as _,
    },
    path::Path,
};

use aya::{Ebpf, EbpfLoader, include_bytes_aligned, util::KernelVersion};
use datapath_abi::{FEATURE_INGRESS, FEATURE_RETVAL, GuardPod};

use crate::error::LoadError;

static OBJECT: &[u8] = include_bytes_aligned!("../object/datapath.o");

/// Creates (or finds by name in `maps`) every map and relocates the programs; loads none.
pub(crate) fn open(maps: &Path, guard: Option<&GuardPod>) -> Result<Ebpf, LoadError> {
    let features = features();
    let mut loader = EbpfLoader::new();
    loader
        .default_map_pin_directory(maps)
        // Socket storage is defined in BTF, which has no mark for "pinned by name".
        .map_pin_path("ASKED", maps.join("ASKED"))
        .map_pin_path("BOUND", maps.join("BOUND"))
        .override_global("FEATURES", &features, true);
    if let Some(guard) = guard {
        loader.override_global("GUARD", guard, true);
    }
    loader.load(OBJECT).map_err(|source| LoadError::Object(Box::new(source)))
}

/// What the programs may use here; the verifier prunes the rest.
pub(crate) fn features() -> u32 {
    let mut features = 0;
    let Ok(kernel) = KernelVersion::current() else { return features };
    if kernel >= KernelVersion::new(5, 18, 0) {
        features |= FEATURE_RETVAL;
    }
    if kernel >= KernelVersion::new(5, 17, 0) {
        features |= FEATURE_INGRESS;
    }
    features
}

/// Replaces the program behind a pinned link (Linux 5.7).
pub(crate) fn link_update(pin: &Path, program: RawFd) -> io::Result<()> {
    const OBJ_GET: libc::c_long = 7;
    const LINK_UPDATE: libc::c_long = 29;
    let path = CString::new(pin.as_os_str().as_bytes())?;
    let get = [path.as_ptr().expose_provenance() as u64, 0, 0];
    // SAFETY: OBJ_GET reads the path and returns a new descriptor or an error.
    let link = unsafe { bpf(OBJ_GET, get.as_ptr().cast(), size_of_val(&get)) }?;
    // SAFETY: just made, owned by nobody else.
    let link = unsafe { OwnedFd::from_raw_fd(link) };
    let update = [link.as_raw_fd(), program, 0, 0];
    // SAFETY: LINK_UPDATE reads four words.
    unsafe { bpf(LINK_UPDATE, update.as_ptr().cast(), size_of_val(&update)) }.map(drop)
}

/// bpf(2).
///
/// # Safety
/// `attributes` must be what `command` reads and writes, `size` bytes of it.
unsafe fn bpf(command: libc::c_long, attributes: *const c_void, size: usize) -> io::Result<RawFd> {
    // SAFETY: by contract.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, attributes, size) };
    match RawFd::try_from(result) {
        Ok(result) if result >= 0 => Ok(result),
        _ => Err(io::Error::last_os_error()),
    }
}
