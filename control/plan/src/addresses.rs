//! Virtual addresses of a Domain's pods.
//!
//! The list in `Domain.status.ipAllocations` is the whole memory. Its order carries meaning: first
//! the entries of pods that are gone (stale), the one longest gone at the front, then those of live
//! pods. A pod that returns under its old key gets its old address. Stale entries give way when
//! they are too many, and one by one when no other address is left.
//!
//! Of a Domain with two subnets each has such a list; they stand one after the other. Nothing here takes longer in a larger
//! subnet: an IPv6 one is never gone through.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    net::IpAddr,
};

use control_api::{
    cidr::{Cidr, Subnets},
    v1alpha1::IpAllocation,
};

/// How many entries of pods that are gone are kept.
pub const STALE_MAX: usize = 128;

/// A live pod of the Domain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claim {
    /// See [`crate::names::pod_key`].
    pub key: String,
    pub job: String,
    pub task: String,
}

/// What [`allocate`] found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocated {
    /// For the Domain's status.
    pub allocations: Vec<IpAllocation>,
    /// Keys of live pods for which a subnet has no address left, sorted.
    pub unserved: Vec<String>,
}

impl Allocated {
    /// Addresses by pod key, in the order of the subnets.
    #[must_use]
    pub fn by_key(&self) -> HashMap<&str, Vec<&str>> {
        let mut all: HashMap<&str, Vec<&str>> = HashMap::new();
        for a in &self.allocations {
            all.entry(a.pod.as_str()).or_default().push(a.ip.as_str());
        }
        all
    }
}

/// Gives every live pod an address of each subnet. One without room leaves the other's addresses as they are.
#[must_use]
pub fn allocate(subnets: &Subnets, live: &[Claim], previous: &[IpAllocation]) -> Allocated {
    let mut all = Allocated::default();
    for cidr in subnets.iter() {
        let of_this = allocate_in(cidr, live, previous);
        all.allocations.extend(of_this.allocations);
        all.unserved.extend(of_this.unserved);
    }
    all.unserved.sort_unstable();
    all.unserved.dedup();
    all
}

/// Gives every live pod an address of one subnet.
///
/// Claims of one key are one pod. Entries whose address is not usable in `cidr` (it changed, or they are of the other subnet) are
/// given a new one when live and dropped when stale. Deterministic in its arguments.
fn allocate_in(cidr: &Cidr, live: &[Claim], previous: &[IpAllocation]) -> Allocated {
    let claims: BTreeMap<&str, &Claim> = live.iter().rev().map(|c| (c.key.as_str(), c)).collect();
    let mut used = HashSet::new();
    let mut seen = HashSet::new();
    let mut stale: std::collections::VecDeque<(IpAddr, &IpAllocation)> = [].into();
    let mut kept = Vec::new();

    // Live pods first: of two entries with one address the live one keeps it.
    let parsed: Vec<(IpAddr, &IpAllocation)> = previous
        .iter()
        .filter_map(|a| Some((a.ip.parse().ok()?, a)))
        .filter(|(ip, a)| usable(cidr, *ip) && seen.insert(a.pod.as_str()))
        .collect();
    for (ip, entry) in &parsed {
        if let Some(claim) = claims.get(entry.pod.as_str())
            && used.insert(*ip)
        {
            kept.push(filled(*ip, claim, Some(entry)));
        }
    }
    for (ip, entry) in &parsed {
        if !claims.contains_key(entry.pod.as_str()) && used.insert(*ip) {
            stale.push_back((*ip, *entry));
        }
    }
    while stale.len() > STALE_MAX {
        if let Some((ip, _)) = stale.pop_front() {
            used.remove(&ip);
        }
    }

    let served: HashSet<String> = kept.iter().map(|a| a.pod.clone()).collect();
    let mut unserved = Vec::new();
    let mut next = Hosts::of(cidr);
    for (key, claim) in &claims {
        if served.contains(*key) {
            continue;
        }
        let free = next.find(|ip| !used.contains(ip)).or_else(|| stale.pop_front().map(|s| s.0));
        match free {
            Some(ip) => {
                used.insert(ip);
                kept.push(filled(ip, claim, None));
            }
            None => unserved.push((*key).to_owned()),
        }
    }
    let allocations = stale.into_iter().map(|(_, a)| a.clone()).chain(kept).collect();
    Allocated { allocations, unserved }
}

/// An entry for a live pod; what is not known of its Job now is kept from before.
fn filled(ip: IpAddr, claim: &Claim, before: Option<&IpAllocation>) -> IpAllocation {
    let or_before = |now: &str, before: Option<&String>| {
        if now.is_empty() { before.cloned().unwrap_or_default() } else { now.to_owned() }
    };
    IpAllocation {
        ip: ip.to_string(),
        pod: claim.key.clone(),
        job: or_before(&claim.job, before.map(|b| &b.job)),
        task: or_before(&claim.task, before.map(|b| &b.task)),
    }
}

/// First and last address that a pod may have: IPv4 keeps network and broadcast free unless the
/// prefix is 31 or 32, IPv6 the first (the anycast address of routers) unless it is 127 or 128.
fn bounds(cidr: &Cidr) -> (u128, u128) {
    let base = number(cidr.network());
    let host_bits = u32::from(cidr.width().saturating_sub(cidr.prefix_len()));
    let last = base | 1_u128.checked_shl(host_bits).map_or(u128::MAX, |size| size.wrapping_sub(1));
    match (cidr.network().is_ipv4(), host_bits) {
        (_, 0 | 1) => (base, last),
        (true, _) => (base.saturating_add(1), last.saturating_sub(1)),
        (false, _) => (base.saturating_add(1), last),
    }
}

/// Whether a pod may have this address.
#[must_use]
pub fn usable(cidr: &Cidr, ip: IpAddr) -> bool {
    let (first, last) = bounds(cidr);
    cidr.contains(ip) && (first..=last).contains(&number(ip))
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u128::from(u32::from(ip)),
        IpAddr::V6(ip) => u128::from(ip),
    }
}

/// The addresses pods may have, in order.
struct Hosts {
    v4: bool,
    next: u128,
    last: u128,
}

impl Hosts {
    fn of(cidr: &Cidr) -> Self {
        let (next, last) = bounds(cidr);
        Self { v4: cidr.network().is_ipv4(), next, last }
    }
}

impl Iterator for Hosts {
    type Item = IpAddr;
    fn next(&mut self) -> Option<IpAddr> {
        if self.next > self.last {
            return None;
        }
        let ip = if self.v4 {
            IpAddr::V4(u32::try_from(self.next).ok()?.into())
        } else {
            IpAddr::V6(self.next.into())
        };
        self.next = self.next.checked_add(1)?;
        Some(ip)
    }
}

#[cfg(test)]
mod tests;
