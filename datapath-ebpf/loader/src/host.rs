//! Pods on the host network: known by their cgroup, in the machine's own namespace.

use std::net::SocketAddr;

use datapath_abi as abi;

use crate::{
    address::{address, words},
    datapath::Datapath,
    error::MapError,
    pods::{NetnsCookie, PodEntry},
};

/// A cgroup's id: the inode number of its cgroup v2 directory. Never used again while the machine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CgroupId(pub u64);

impl CgroupId {
    /// Levels below the root at which the hooks look for a pod's cgroup.
    pub const DEEPEST: usize = abi::HOST_DEPTH as usize;

    /// What stands for such a pod where others have their namespace's cookie: in [`crate::Listeners::Here`], [`crate::Listening`],
    /// [`crate::DirectFlow`].
    #[must_use]
    pub const fn key(self) -> NetnsCookie {
        NetnsCookie(self.0 | abi::HOST_KEY)
    }

    /// The other way round; `None` for a namespace's cookie.
    #[must_use]
    pub const fn of_key(key: NetnsCookie) -> Option<Self> {
        if key.0 & abi::HOST_KEY == 0 { None } else { Some(Self(key.0 & !abi::HOST_KEY)) }
    }
}

impl Datapath {
    /// Makes a cgroup of the namespace `machine` a pod, with all cgroups below it: as [`Datapath::set_pod`]. Its relayed connections
    /// go to `landing`, a port of the loopback address with a listener that has the mark [`crate::RELAY_MARK`].
    ///
    /// # Errors
    /// The map is full (1024 pods) or the kernel refuses.
    pub fn set_host_pod(
        &self,
        machine: NetnsCookie,
        cgroup: CgroupId,
        pod: &PodEntry,
        landing: u16,
    ) -> Result<(), MapError> {
        let of = pod.to_abi();
        let flags = of.flags | abi::POD_HOST;
        let value = abi::Pod { flags, landing: landing.into(), cgroup: cgroup.0, ..of };
        self.tables().host_pods.set(cgroup.0, value)?;
        let none = abi::Pod {
            domain: 0,
            flags: abi::POD_MACHINE,
            device: 0,
            landing: 0,
            cgroup: 0,
            v4: abi::Face::ABSENT,
            v6: abi::Face::ABSENT,
        };
        self.tables().pods.set(machine.0, none)
    }

    /// Forgets such a pod as [`Datapath::remove_pod`] does. After the last one nobody in the namespace is looked at any more.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn remove_host_pod(&self, machine: NetnsCookie, cgroup: CgroupId) -> Result<(), MapError> {
        let tables = self.tables();
        tables.host_pods.delete(&cgroup.0)?;
        if tables.host_pods.entries()?.is_empty() {
            tables.pods.delete(&machine.0)?;
        }
        self.forget_sockets(cgroup.key())
    }

    /// All of them, for a caller that adopts pinned maps.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn host_pods(&self) -> Result<Vec<(CgroupId, PodEntry)>, MapError> {
        let pods = self.tables().host_pods.entries()?.into_iter();
        Ok(pods.map(|(id, pod)| (CgroupId(id), PodEntry::from_abi(&pod))).collect())
    }

    /// What a connection from `from` to the landing port `landing` had asked for, and which pod it is; told once. `None`: it is no
    /// pod's.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn crossed(
        &self,
        from: SocketAddr,
        landing: u16,
    ) -> Result<Option<(CgroupId, SocketAddr)>, MapError> {
        let key = crossing(from, landing, abi::CROSSING_OUT);
        let Some(end) = self.tables().crossings.get(&key)? else { return Ok(None) };
        self.tables().crossings.delete(&key)?;
        let [low, high] = end.cgroup.map(u64::from);
        let port = u16::try_from(end.port).unwrap_or_default();
        Ok(Some((CgroupId(low | high << 32), SocketAddr::new(address(&end.ip), port))))
    }

    /// The next connection from `from` to the port `to` of such a pod is seen to come from `peer`, if its socket has the mark
    /// [`crate::RELAY_MARK`]. Call [`Datapath::forget_peer`] if
    /// it did not come about.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn announce_peer(
        &self,
        cgroup: CgroupId,
        from: SocketAddr,
        to: u16,
        peer: SocketAddr,
    ) -> Result<(), MapError> {
        let [a, b, c, d, e, f, g, h] = cgroup.0.to_le_bytes();
        let halves = [u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h])];
        let end = abi::End { ip: words(peer.ip()), port: peer.port().into(), cgroup: halves };
        self.tables().crossings.set(crossing(from, to, abi::CROSSING_IN), end)
    }

    /// Takes back what [`Datapath::announce_peer`] said, unless it was accepted.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn forget_peer(&self, from: SocketAddr, to: u16) -> Result<(), MapError> {
        self.tables().crossings.delete(&crossing(from, to, abi::CROSSING_IN)).map(drop)
    }
}

fn crossing(from: SocketAddr, to: u16, way: u32) -> abi::Crossing {
    abi::Crossing { ip: words(from.ip()), port: from.port().into(), to: to.into(), way }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cgroup_and_a_namespace_of_the_same_number_are_two() {
        let cgroup = CgroupId(77);
        assert_ne!(cgroup.key(), NetnsCookie(77));
        assert_eq!(CgroupId::of_key(cgroup.key()), Some(cgroup));
        assert_eq!(CgroupId::of_key(NetnsCookie(77)), None);
    }
}
