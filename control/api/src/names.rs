//! Names that follow from other names, where two parts must come to the same one.

/// The name of a raw Task's one pod: `<task>-0`, shortened where that would not be a host name. The
/// agent gives it, the API server takes no other.
#[must_use]
pub fn raw_pod_name(task: &str) -> String {
    const LONGEST: usize = 63 - "-0".len();
    if task.len() <= LONGEST {
        return format!("{task}-0");
    }
    // FNV-1a.
    let hash =
        task.bytes().fold(0x811c_9dc5_u32, |h, b| (h ^ u32::from(b)).wrapping_mul(0x0100_0193));
    let kept: String = task.chars().take(LONGEST - 9).collect();
    format!("{}-{hash:08x}-0", kept.trim_end_matches(['-', '.']))
}
