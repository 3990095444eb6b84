//! How many files this process may have open: each relayed flow is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// For what is no flow: carriers, sockets made ahead, listeners, files, and flows that move between lanes and have two.
const SPARE: u64 = 2048;

/// Raises the process's limit to what so many flows need, as far as the machine lets it, and says how many descriptors flows
/// may have. Services commonly begin with 1024.
#[must_use]
pub(crate) fn for_flows(flows: usize) -> usize {
    let wanted = u64::try_from(flows).unwrap_or(u64::MAX).saturating_add(SPARE);
    let had = getrlimit(Resource::Nofile);
    if had.current.is_some_and(|now| now < wanted) {
        raise(wanted, had);
    }
    match getrlimit(Resource::Nofile).current {
        None => flows,
        Some(limit) => flows.min(usize::try_from(usable(limit)).unwrap_or(usize::MAX)),
    }
}

/// Above the hard limit only with CAP_SYS_RESOURCE; up to it always.
fn raise(wanted: u64, had: Rlimit) {
    let hard = had.maximum.map(|most| most.max(wanted));
    if setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: hard }).is_ok() {
        return;
    }
    let current = had.maximum.map_or(wanted, |most| most.min(wanted));
    let limit = Rlimit { current: Some(current), maximum: had.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "the limit of open files cannot be raised");
    }
    tracing::warn!(
        wanted,
        limit = current,
        "flows may need more files than this process may have open; the flows beyond are refused"
    );
}

/// A process with a very low limit keeps half of it for what is no flow.
fn usable(limit: u64) -> u64 {
    limit.saturating_sub(SPARE).max(limit / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_never_get_all_descriptors() {
        assert_eq!([100, 1024, 4096, 20_000].map(usable), [50, 512, 2048, 17_952]);
    }

    #[test]
    fn the_limit_is_raised_for_the_flows_that_are_wanted_and_never_lowered() {
        let before = getrlimit(Resource::Nofile);
        assert_eq!(for_flows(1), 1);
        assert_eq!(getrlimit(Resource::Nofile), before);
        let most = for_flows(usize::MAX);
        let after = getrlimit(Resource::Nofile);
        assert!(after.current >= before.current, "{before:?} {after:?}");
        assert!(after.current.is_none_or(|limit| most as u64 <= usable(limit)));
    }
}
