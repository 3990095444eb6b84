//! What other machines say of their pods' ports, so that a connect to a port where nobody listens is refused here and at once.

use std::{collections::BTreeSet, time::Duration};

use datapath_abi as abi;

use crate::{datapath::Datapath, error::MapError, routes::monotonic_ns};

/// Stands for a pod of another machine where a pod of this one has its namespace's cookie; any number that is the pod's alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MirrorId(pub u64);

/// What is open at a pod of another machine. Port zero does not count.
#[derive(Clone, Copy, Debug, Default)]
pub struct Open<'a> {
    /// TCP ports with a listener.
    pub tcp: &'a [u16],
    /// UDP ports with sockets that are bound to the VIP alone.
    pub udp_on_vip: &'a [u16],
}

impl Open<'_> {
    fn keys(self, id: MirrorId) -> BTreeSet<abi::Mirrored> {
        let tcp = self.tcp.iter().map(|port| key(id, *port, libc::IPPROTO_TCP));
        let udp = self.udp_on_vip.iter().map(|port| key(id, *port, libc::IPPROTO_UDP));
        tcp.chain(udp).filter(|k| k.port != 0).collect()
    }
}

impl Datapath {
    /// Makes `open` all that is known of the pod, `old` being what was known before; `None`: nothing is known. Ports that open
    /// come before the word that they are all, so that no moment refuses what listens.
    ///
    /// # Errors
    /// The map is full (131,072 ports) or the kernel refuses; the pod's ports then count as unknown.
    pub fn mirror(
        &self,
        id: MirrorId,
        old: Option<Open<'_>>,
        open: Option<Open<'_>>,
    ) -> Result<(), MapError> {
        let table = &self.tables().mirrored;
        let known = key(id, 0, libc::IPPROTO_TCP);
        if open.is_none() {
            table.delete(&known)?;
        }
        let before = old.unwrap_or_default().keys(id);
        let after = open.unwrap_or_default().keys(id);
        let change = || {
            after.difference(&before).try_for_each(|port| table.set(*port, 1))?;
            before.difference(&after).try_for_each(|port| table.delete(port).map(drop))
        };
        match change() {
            Ok(()) if open.is_some() => table.set(known, 1),
            Ok(()) => Ok(()),
            Err(e) => {
                table.delete(&known)?;
                Err(e)
            }
        }
    }

    /// What is known of other machines' ports refuses connections for this long from now, and then no longer; zero: not now.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn trust_mirror(&self, within: Duration) -> Result<(), MapError> {
        let ns = u64::try_from(within.as_nanos()).unwrap_or(u64::MAX);
        let until = if ns == 0 { 0 } else { monotonic_ns().saturating_add(ns) };
        self.mirror_words().set_fresh(until)
    }

    /// Forgets what an earlier process knew, for one that adopts its maps; nobody is refused by it meanwhile.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn forget_mirror(&self) -> Result<(), MapError> {
        self.trust_mirror(Duration::ZERO)?;
        let table = &self.tables().mirrored;
        table.entries()?.iter().try_for_each(|(entry, _)| table.delete(entry).map(drop))
    }
}

fn key(id: MirrorId, port: u16, protocol: i32) -> abi::Mirrored {
    abi::Mirrored { pod: id.0, port: port.into(), protocol: protocol.cast_unsigned() }
}
