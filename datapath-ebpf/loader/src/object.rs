//! The committed BPF object.

use std::path::Path;

use aya::{Ebpf, EbpfLoader, include_bytes_aligned, util::KernelVersion};
use datapath_abi::{FEATURE_INGRESS, FEATURE_RETVAL, FEATURE_SETSOCKOPT, GuardPod};

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
    if kernel >= KernelVersion::new(5, 12, 0) {
        features |= FEATURE_SETSOCKOPT;
    }
    features
}
