//! What other machines say of their pods' ports, so that a connect to a port where nobody listens is refused here and at once.

use std::{collections::BTreeSet, time::Duration};

use datapath_abi as abi;

use crate::{datapath::Datapath, error::MapError, routes::monotonic_ns, table::Table};

/// Cookies of namespaces never have it: the kernel counts them up from one.
pub(crate) const MIRROR_BIT: u64 = 1 << 63;

/// Stands for a pod of another machine where a pod of this one has its namespace's cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MirrorId(u64);

impl MirrorId {
    /// From any number that is the pod's alone; the highest bit does not count.
    #[must_use]
    pub const fn new(number: u64) -> Self {
        Self(number | MIRROR_BIT)
    }

    pub(crate) const fn key(self) -> u64 {
        self.0
    }
}

/// What is open at a pod of another machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Open<'a> {
    /// TCP ports with a listener.
    pub tcp: &'a [u16],
    /// UDP ports with sockets that are bound to the VIP alone.
    pub udp_on_vip: &'a [u16],
}

impl Datapath {
    /// Makes `open` all that is known of the pod, `old` being what was known before; `None`: nothing is known. Ports that open
    /// come before the word that they are all, so that no moment refuses what listens.
    ///
    /// # Errors
    /// A map is full or the kernel refuses; the pod's ports then count as unknown.
    pub fn mirror(
        &self,
        id: MirrorId,
        old: Option<Open<'_>>,
        open: Option<Open<'_>>,
    ) -> Result<(), MapError> {
        let tables = self.tables();
        let known = key(id, 0);
        if open.is_none() {
            tables.listen.delete(&known)?;
        }
        let (before, after) = (old.unwrap_or_default(), open.unwrap_or_default());
        let done = change(&tables.listen, id, before.tcp, after.tcp)
            .and_then(|()| change(&tables.udp_vip, id, before.udp_on_vip, after.udp_on_vip));
        match (done, open) {
            (Ok(()), Some(_)) => tables.listen.set(known, 1),
            (Ok(()), None) => Ok(()),
            (Err(e), _) => {
                tables.listen.delete(&known)?;
                Err(e)
            }
        }
    }

    /// What is known of other machines' ports counts for this long from now; zero: no longer.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn mirror_is_fresh(&self, within: Duration) -> Result<(), MapError> {
        let ns = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
        let until = if ns == 0 { 0 } else { monotonic_ns().saturating_add(ns) };
        self.mirror_words().set_fresh(until)
    }

    /// Forgets everything of pods but these, for a caller that adopts pinned maps.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn sweep_mirror(&self, keep: &BTreeSet<MirrorId>) -> Result<(), MapError> {
        for table in [&self.tables().listen, &self.tables().udp_vip] {
            for (entry, _) in table.entries()? {
                if entry.netns & MIRROR_BIT != 0 && !keep.contains(&MirrorId(entry.netns)) {
                    table.delete(&entry)?;
                }
            }
        }
        Ok(())
    }
}

fn change(
    table: &Table<abi::Listener, u64>,
    id: MirrorId,
    before: &[u16],
    after: &[u16],
) -> Result<(), MapError> {
    for port in after.iter().filter(|p| **p != 0 && !before.contains(p)) {
        table.set(key(id, *port), 1)?;
    }
    for port in before.iter().filter(|p| **p != 0 && !after.contains(p)) {
        table.delete(&key(id, *port))?;
    }
    Ok(())
}

const fn key(id: MirrorId, port: u16) -> abi::Listener {
    abi::Listener { netns: id.key(), ip: [0; 4], port: port as u32, origin: abi::ORIGIN_USER }
}
