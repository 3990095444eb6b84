//! From one state to another, in an order in which no moment shows a half-made one.

use std::{collections::BTreeMap, net::IpAddr};

use control_api::ports::PortRange;

use super::desired::{Desired, DomainId, Pod, Way};

/// One change of a kernel map or of a pod's names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    PutReal(DomainId, IpAddr, IpAddr),
    PutVip(DomainId, IpAddr, Way),
    PutPorts(DomainId, Vec<PortRange>),
    PutPod(u64, Pod),
    WriteHosts { uid: String, section: String },
    DeletePod(u64),
    DeleteVip(DomainId, IpAddr),
    DeleteReal(DomainId, IpAddr),
    DeletePorts(DomainId),
}

/// The changes that lead from `old` to `new`.
///
/// A pod enters the maps after the peers it may reach, so its first connect already gets the right
/// verdict; it leaves them first, so that no verdict points at what is gone. Names come between: after the
/// verdicts they lead to, before a new pod is declared ready.
#[must_use]
pub fn diff(old: &Desired, new: &Desired) -> Vec<Op> {
    let mut ops = Vec::new();
    ops.extend(gone(&old.pods, &new.pods).map(|c| Op::DeletePod(*c)));
    ops.extend(put(&old.reals, &new.reals).map(|((d, real), vip)| Op::PutReal(*d, *real, *vip)));
    ops.extend(put(&old.vips, &new.vips).map(|((d, vip), way)| Op::PutVip(*d, *vip, *way)));
    ops.extend(put(&old.ports, &new.ports).map(|(d, ports)| Op::PutPorts(*d, ports.clone())));
    ops.extend(
        put(&old.hosts, &new.hosts)
            .map(|(uid, s)| Op::WriteHosts { uid: uid.clone(), section: s.clone() }),
    );
    ops.extend(put(&old.pods, &new.pods).map(|(c, pod)| Op::PutPod(*c, pod.clone())));
    ops.extend(gone(&old.vips, &new.vips).map(|(d, vip)| Op::DeleteVip(*d, *vip)));
    ops.extend(gone(&old.reals, &new.reals).map(|(d, real)| Op::DeleteReal(*d, *real)));
    ops.extend(gone(&old.ports, &new.ports).map(|d| Op::DeletePorts(*d)));
    ops
}

fn put<'a, K: Ord, V: PartialEq>(
    old: &'a BTreeMap<K, V>,
    new: &'a BTreeMap<K, V>,
) -> impl Iterator<Item = (&'a K, &'a V)> {
    new.iter().filter(|(k, v)| old.get(k) != Some(v))
}

fn gone<'a, K: Ord, V>(
    old: &'a BTreeMap<K, V>,
    new: &'a BTreeMap<K, V>,
) -> impl Iterator<Item = &'a K> {
    old.keys().filter(|k| !new.contains_key(k))
}

impl Desired {
    /// What one operation makes of this state; the keeper's memory of what stands.
    pub fn note(&mut self, op: &Op) {
        match op {
            Op::PutReal(d, real, vip) => drop(self.reals.insert((*d, *real), *vip)),
            Op::PutVip(d, vip, way) => drop(self.vips.insert((*d, *vip), *way)),
            Op::PutPod(c, pod) => drop(self.pods.insert(*c, pod.clone())),
            Op::WriteHosts { uid, section } => {
                drop(self.hosts.insert(uid.clone(), section.clone()));
            }
            Op::DeletePod(c) => drop(self.pods.remove(c)),
            Op::DeleteVip(d, vip) => drop(self.vips.remove(&(*d, *vip))),
            Op::DeleteReal(d, real) => drop(self.reals.remove(&(*d, *real))),
            Op::PutPorts(d, ports) => drop(self.ports.insert(*d, ports.clone())),
            Op::DeletePorts(d) => drop(self.ports.remove(d)),
        }
    }
}
