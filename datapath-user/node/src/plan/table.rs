//! The node's copy of the hub's routes: a snapshot plus deltas, checked as they enter.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use control_api::{
    cidr::Subnets,
    ids::{DomainName, NodeRef},
    ports::PortRange,
    session::{DomainRoutes, Member, RouteUpdate},
};

/// Why an update was not taken over. What is not named in the error was applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UpdateError {
    #[error("Domain {domain}: {cidr:?} are not subnets in CIDR form")]
    Cidr { domain: DomainName, cidr: String },
    #[error(
        "Domain {domain}: the address {vip} of pod {pod} is outside {cidr}, or its second of a family"
    )]
    VipOutside { domain: DomainName, pod: String, vip: IpAddr, cidr: Subnets },
    /// The stream and this table have come apart; only a new snapshot helps.
    #[error("an update for Domain {domain}, which no snapshot has named")]
    UnknownDomain { domain: DomainName },
}

/// One Domain as this node knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    pub name: DomainName,
    pub cidr: Subnets,
    /// The Domain's SSH certificate authority, OpenSSH public key text.
    pub ssh_ca: String,
    pub encrypt_within_site: bool,
    /// The ports on which members may be reached; `None`: all.
    pub allowed_ports: Option<Vec<PortRange>>,
    members: BTreeMap<String, Member>,
    /// While a VIP changes hands two members may claim it for a moment; the lowest uid holds it,
    /// so that the order of the updates does not matter.
    by_vip: BTreeMap<IpAddr, BTreeSet<String>>,
}

impl Domain {
    fn new(routes: DomainRoutes, errors: &mut Vec<UpdateError>) -> Option<Self> {
        let Ok(cidr) = routes.cidr.parse::<Subnets>() else {
            errors.push(UpdateError::Cidr { domain: routes.name, cidr: routes.cidr });
            return None;
        };
        let mut domain = Self {
            name: routes.name,
            cidr,
            ssh_ca: routes.ssh_ca,
            encrypt_within_site: routes.encrypt_within_site,
            allowed_ports: routes.allowed_ports,
            members: BTreeMap::new(),
            by_vip: BTreeMap::new(),
        };
        for member in routes.members {
            domain.put(member, errors);
        }
        Some(domain)
    }

    fn put(&mut self, mut member: Member, errors: &mut Vec<UpdateError>) {
        self.remove(&member.uid);
        for ip in member.vips.iter_mut().chain(&mut member.local_ips) {
            *ip = ip.to_canonical();
        }
        let mut families = BTreeSet::new();
        member.vips.retain(|vip| {
            let good = self.cidr.of(*vip).is_some() && families.insert(vip.is_ipv4());
            if !good {
                errors.push(UpdateError::VipOutside {
                    domain: self.name.clone(),
                    pod: member.pod.clone(),
                    vip: *vip,
                    cidr: self.cidr,
                });
            }
            good
        });
        // Without an address it is in no network.
        if member.vips.is_empty() {
            return;
        }
        for vip in &member.vips {
            self.by_vip.entry(*vip).or_default().insert(member.uid.clone());
        }
        self.members.insert(member.uid.clone(), member);
    }

    fn remove(&mut self, uid: &str) {
        let Some(old) = self.members.remove(uid) else { return };
        for vip in &old.vips {
            let Some(uids) = self.by_vip.get_mut(vip) else { continue };
            uids.remove(uid);
            if uids.is_empty() {
                self.by_vip.remove(vip);
            }
        }
    }

    /// In the order of their uids.
    pub fn members(&self) -> impl Iterator<Item = &Member> {
        self.members.values()
    }

    #[must_use]
    pub fn member(&self, uid: &str) -> Option<&Member> {
        self.members.get(uid)
    }

    /// Whether members may be reached on this port.
    #[must_use]
    pub fn allows(&self, port: u16) -> bool {
        self.allowed_ports.as_ref().is_none_or(|all| all.iter().any(|r| r.contains(port)))
    }

    /// Who holds this virtual address.
    #[must_use]
    pub fn holder(&self, vip: IpAddr) -> Option<&Member> {
        self.members.get(self.by_vip.get(&vip.to_canonical())?.first()?)
    }

    /// By uid, else by pod name; `near` breaks a tie between sites.
    #[must_use]
    pub fn find(&self, name_or_uid: &str, near: &NodeRef) -> Option<&Member> {
        let named = || self.members().filter(|m| m.pod == name_or_uid);
        self.member(name_or_uid)
            .or_else(|| named().find(|m| m.node.cluster == near.cluster))
            .or_else(|| named().next())
    }

    fn routes(&self) -> DomainRoutes {
        DomainRoutes {
            name: self.name.clone(),
            cidr: self.cidr.to_string(),
            ssh_ca: self.ssh_ca.clone(),
            encrypt_within_site: self.encrypt_within_site,
            allowed_ports: self.allowed_ports.clone(),
            members: self.members.values().cloned().collect(),
        }
    }
}

/// All Domains with pods on this node. Cheap to clone: readers hold a version, the keeper edits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteTable {
    domains: BTreeMap<DomainName, Arc<Domain>>,
}

impl RouteTable {
    /// Applies one line of the route stream; whatever of it is sound is taken over.
    ///
    /// # Errors
    /// Everything that was refused. [`UpdateError::UnknownDomain`] asks for a new snapshot.
    pub fn apply(&mut self, update: RouteUpdate) -> Result<(), Vec<UpdateError>> {
        let mut errors = Vec::new();
        match update {
            // Not of the routes: the session keeps them from here.
            RouteUpdate::Ports { .. }
            | RouteUpdate::Peers { .. }
            | RouteUpdate::Peer { .. }
            | RouteUpdate::KeepAlive => {}
            RouteUpdate::Snapshot { domains } => {
                self.domains = domains
                    .into_iter()
                    .filter_map(|d| Domain::new(d, &mut errors))
                    .map(|d| (d.name.clone(), Arc::new(d)))
                    .collect();
            }
            RouteUpdate::Domain { domain } => {
                let name = domain.name.clone();
                match Domain::new(domain, &mut errors) {
                    Some(d) => drop(self.domains.insert(name, Arc::new(d))),
                    None => drop(self.domains.remove(&name)),
                }
            }
            RouteUpdate::DomainGone { name } => drop(self.domains.remove(&name)),
            RouteUpdate::Member { domain, member } => match self.domains.get_mut(&domain) {
                Some(d) => Arc::make_mut(d).put(member, &mut errors),
                None => errors.push(UpdateError::UnknownDomain { domain }),
            },
            RouteUpdate::MemberGone { domain, uid } => match self.domains.get_mut(&domain) {
                Some(d) => Arc::make_mut(d).remove(&uid),
                None => errors.push(UpdateError::UnknownDomain { domain }),
            },
        }
        if errors.is_empty() { Ok(()) } else { Err(errors) }
    }

    #[must_use]
    pub fn domain(&self, name: &DomainName) -> Option<&Arc<Domain>> {
        self.domains.get(name)
    }

    pub fn domains(&self) -> impl Iterator<Item = &Arc<Domain>> {
        self.domains.values()
    }

    /// The whole table as the update that recreates it; what a node keeps on disk.
    #[must_use]
    pub fn snapshot(&self) -> RouteUpdate {
        RouteUpdate::Snapshot { domains: self.domains.values().map(|d| d.routes()).collect() }
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
pub(crate) mod tests;
