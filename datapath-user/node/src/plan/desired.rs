//! From routes and attachments to the state the kernel should hold.
//!
//! | destination, seen from a pod of this node | verdict |
//! |---|---|
//! | the pod's own VIP, anything outside its Domain | pass (the hook knows both from [`Pod`]) |
//! | a peer of the same site with a real address that can be reached ([`Reach`]; of IPv6 from where this machine's pods are) and is none of the Domain's network, encryption not demanded, on a machine with hooks | direct |
//! | any other peer | relay |
//! | a peer of this machine that is not attached, yet or any more | deny: nothing in it could answer |
//! | a VIP nobody holds | deny: absent from the map, so nothing can be forgotten open |
//! | anything of its Domain, while the pod has lost its address or its Domain | deny: it is in [`NOWHERE`] |

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{DefaultHasher, Hash as _, Hasher as _},
    net::IpAddr,
};

use control_api::{
    cidr::Cidr,
    ids::{DomainName, NodeRef},
    ports::PortRange,
    session::Member,
};
use datapath_loader::{CgroupId, NetnsCookie};
use serde::{Deserialize, Serialize};

use super::{
    reach::Reach,
    table::{Domain, RouteTable},
};
use crate::hosts;

/// What the kernel calls a Domain: small, local to this node, the same across restarts. Two Domains
/// may use the same addresses, so every key in the kernel begins with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DomainId(pub u32);

/// The Domain of pods that lost theirs, or their address in it: nobody is in it. A pod that was in no map
/// at all would have its connections passed, and its guard would drop them without an answer.
pub const NOWHERE: DomainId = DomainId(0);

/// Hands out [`DomainId`]s and never gives one to another Domain while pinned maps may use it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DomainIds(BTreeMap<DomainName, DomainId>);

impl DomainIds {
    /// The Domain's number, a new one if it has none yet. Zero is never used.
    pub fn assign(&mut self, name: &DomainName) -> DomainId {
        if let Some(id) = self.get(name) {
            return id;
        }
        let next = self.0.values().map(|id| id.0).max().unwrap_or(0).saturating_add(1);
        self.0.insert(name.clone(), DomainId(next));
        DomainId(next)
    }

    #[must_use]
    pub fn get(&self, name: &DomainName) -> Option<DomainId> {
        self.0.get(name).copied()
    }

    #[must_use]
    pub fn name(&self, id: DomainId) -> Option<&DomainName> {
        self.0.iter().find(|(_, i)| **i == id).map(|(n, _)| n)
    }
}

/// A pod of this machine that a runtime has handed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Local {
    pub uid: String,
    pub domain: DomainName,
    pub netns_cookie: u64,
    /// As it was set up, with the last address it had.
    pub stands: Pod,
}

/// Whether the kernel knows a pod with this key by its cgroup, in the machine's own namespace.
#[must_use]
pub const fn is_host(cookie: u64) -> bool {
    CgroupId::of_key(NetnsCookie(cookie)).is_some()
}

/// A pod as the kernel knows it, keyed by its network namespace's cookie (or its cgroup, [`is_host`]).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    pub domain: DomainId,
    /// One or two, of different address families.
    pub faces: Vec<Face>,
    /// Whether its Domain allows some ports only ([`Desired::ports`]).
    pub restricted: bool,
}

/// A pod's place in one subnet of its Domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Face {
    pub cidr: Cidr,
    pub vip: IpAddr,
    /// The pod's address of the same family on its site's network.
    pub real: Option<IpAddr>,
}

/// The places of a member.
#[must_use]
pub fn faces(domain: &Domain, member: &Member) -> Vec<Face> {
    let face = |vip: &IpAddr| {
        Some(Face { cidr: *domain.cidr.of(*vip)?, vip: *vip, real: member.real_for(*vip) })
    };
    member.vips.iter().filter_map(face).collect()
}

/// Whose list of listeners says whether anyone listens at a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listeners {
    /// The hooks': the peer's namespace is on this machine.
    Here(u64),
    /// Its machine's, which [`crate::mirror`] keeps under this number.
    There(u64),
    /// Nobody's: the peer is on this machine, which has no hooks.
    Unknown,
}

/// What the connect hook does with a known VIP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Rewrite to the real address.
    Direct { real: IpAddr, listeners: Listeners },
    /// Leave the destination alone; the guard lands it on the relay.
    Relay { listeners: Listeners },
}

/// The number under which the kernel knows the listeners of a pod of another machine, of those that its address of one family leads
/// to: the same as long as the process lives.
#[must_use]
pub fn mirror_number(domain: &DomainName, uid: &str, is_v4: bool) -> u64 {
    let mut hasher = DefaultHasher::new();
    (domain, uid, is_v4).hash(&mut hasher);
    hasher.finish()
}

/// The whole state of the kernel's maps, and the names in the pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    pub pods: BTreeMap<u64, Pod>,
    pub vips: BTreeMap<(DomainId, IpAddr), Way>,
    /// From a real address to the VIP that the far end of a direct flow is shown.
    pub reals: BTreeMap<(DomainId, IpAddr), IpAddr>,
    /// The ports that a Domain allows, where it does not allow all.
    pub ports: BTreeMap<DomainId, Vec<PortRange>>,
    /// By uid: the lines between the markers of the pod's hosts file.
    pub hosts: BTreeMap<String, String>,
}

/// Computes the state for `locals`; one without a route on `me` is [`NOWHERE`].
#[must_use]
pub fn desired<'a>(
    me: &NodeRef,
    table: &RouteTable,
    locals: impl IntoIterator<Item = &'a Local>,
    ids: &DomainIds,
    reach: &Reach,
) -> Desired {
    let mut out = Desired::default();
    let mut cookies: BTreeMap<&DomainName, BTreeMap<&str, u64>> = BTreeMap::new();
    for local in locals {
        let routes = table.domain(&local.domain).zip(ids.get(&local.domain));
        let here = routes.and_then(|(domain, id)| {
            let member = domain.member(&local.uid).filter(|m| m.node == *me)?;
            Some((domain, id, member))
        });
        let Some((domain, id, member)) = here else {
            let pod = Pod { domain: NOWHERE, ..local.stands.clone() };
            out.pods.insert(local.netns_cookie, pod);
            out.hosts.insert(local.uid.clone(), String::new());
            continue;
        };
        let restricted = domain.allowed_ports.is_some();
        let pod = Pod { domain: id, faces: faces(domain, member), restricted };
        out.pods.insert(local.netns_cookie, pod);
        if let Some(allowed) = &domain.allowed_ports {
            out.ports.insert(id, allowed.clone());
        }
        out.hosts.insert(local.uid.clone(), hosts::section(domain, member));
        cookies.entry(&domain.name).or_default().insert(&local.uid, local.netns_cookie);
    }
    for (name, local) in cookies {
        if let (Some(domain), Some(id)) = (table.domain(name), ids.get(name)) {
            peers(&See { me, reach, cookies: &local }, domain, id, &mut out);
        }
    }
    out
}

/// From where a Domain is looked at.
struct See<'a> {
    me: &'a NodeRef,
    reach: &'a Reach,
    cookies: &'a BTreeMap<&'a str, u64>,
}

/// The VIPs of one Domain. Real addresses count within the own site only: pod ranges overlap.
fn peers(see: &See<'_>, domain: &Domain, id: DomainId, out: &mut Desired) {
    let mut shared = BTreeSet::new();
    // The addresses of pods on the host network are the machine's own: the neighbours are behind the same interface.
    let behind =
        |m: &&Member| !see.cookies.get(m.uid.as_str()).is_some_and(|cookie| is_host(*cookie));
    let here = domain.members().filter(|m| m.node == *see.me).filter(behind);
    let here = here.flat_map(|m| m.local_ips.clone());
    let own = see.reach.of_pods(here);
    let routed = routes_ipv6(see, domain);
    let host_pods = see.cookies.values().any(|cookie| is_host(*cookie));
    let near = |member: &Member, real: IpAddr| {
        let at_site = member.node.cluster == see.me.cluster && !domain.encrypt_within_site;
        let here = member.node == *see.me;
        let by_route = real.is_ipv4() || routed;
        // Within the Domain's own network a pod would take a real address for a VIP.
        at_site
            && see.reach.is_steered()
            && domain.cidr.of(real).is_none()
            && if here {
                by_route || !host_pods
            } else {
                by_route && see.reach.leads_to(real, &own)
            }
    };
    let all = domain.members().flat_map(|member| member.vips.iter().map(move |vip| (member, *vip)));
    for (member, vip) in all.filter(|(m, vip)| domain.holder(*vip).is_some_and(|h| h.uid == m.uid))
    {
        let listeners = match see.cookies.get(member.uid.as_str()) {
            Some(cookie) if see.reach.is_steered() => Listeners::Here(*cookie),
            Some(_) => Listeners::Unknown,
            None if member.node == *see.me => continue,
            None => Listeners::There(mirror_number(&domain.name, &member.uid, vip.is_ipv4())),
        };
        let Some(real) = member.real_for(vip).filter(|real| near(member, *real)) else {
            out.vips.insert((id, vip), Way::Relay { listeners });
            continue;
        };
        out.vips.insert((id, vip), Way::Direct { real, listeners });
        if out.reals.insert((id, real), vip).is_some() {
            shared.insert((id, real));
        }
    }
    // Pods on the host network share an address: which of them it was cannot be told.
    out.reals.retain(|key, _| !shared.contains(key));
}

/// Whether this machine's own namespace and the namespaces of its pods reach each other by IPv6. A bridge that was made for IPv4 carries
/// it between its pods and no further, while any interface of the machine leads to its neighbours.
fn routes_ipv6(see: &See<'_>, domain: &Domain) -> bool {
    let apart = see.cookies.iter().filter(|(_, cookie)| !is_host(**cookie));
    let members = apart.filter_map(|(uid, _)| domain.member(uid));
    let mut reals = members.flat_map(|m| m.local_ips.iter().copied()).filter(IpAddr::is_ipv6);
    reals.all(|real| see.reach.has_route(real))
}

#[cfg(test)]
#[path = "desired_tests.rs"]
mod tests;
