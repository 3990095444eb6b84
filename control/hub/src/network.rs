//! The virtual networks as the hub knows them, what each node may know of them, and the difference
//! between what it was told and what it should know. Pure, but for the one published value.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::IpAddr,
    sync::Arc,
};

use control_api::{
    ids::{ClusterId, DomainName, NodeRef},
    ports::PortRange,
    session::{DomainRoutes, Member, RouteUpdate},
    v1alpha1::{Domain, IpAllocation, Pod, PodPhase, PodStatus},
};
use tokio::sync::watch;

/// One Domain with all its members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkDomain {
    pub routes: DomainRoutes,
    /// The nodes that host a member.
    pub hosts: BTreeSet<NodeRef>,
}

/// All Domains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Network {
    domains: BTreeMap<DomainName, NetworkDomain>,
}

impl Network {
    /// Joins the address allocations of Domains with the live Pods. A Domain without a known
    /// authority (`cas`) is left out: its nodes could not speak to each other yet.
    #[must_use]
    pub fn build(
        domains: &[Arc<Domain>],
        pods: &[Arc<Pod>],
        cas: &BTreeMap<DomainName, String>,
    ) -> Self {
        let live = live_pods(pods);
        let mut all = BTreeMap::new();
        for domain in domains {
            let name = domain.metadata.name.as_deref().unwrap_or_default();
            let Ok(name) = name.parse::<DomainName>() else { continue };
            let Some(ca) = cas.get(&name) else { continue };
            let members = members(domain, &live);
            let hosts = members.iter().map(|m| m.node.clone()).collect();
            let routes = DomainRoutes {
                name: name.clone(),
                cidr: cidr_in_use(domain).to_owned(),
                ssh_ca: ca.clone(),
                encrypt_within_site: domain.spec.encrypt_within_site.unwrap_or(false),
                allowed_ports: allowed_ports(domain),
                members,
            };
            all.insert(name, NetworkDomain { routes, hosts });
        }
        Self { domains: all }
    }

    /// Whether `node` hosts a member of `domain`; what every right of a node rests on.
    #[must_use]
    pub fn hosts(&self, domain: &DomainName, node: &NodeRef) -> bool {
        self.domains.get(domain).is_some_and(|d| d.hosts.contains(node))
    }

    #[must_use]
    pub fn domain(&self, name: &DomainName) -> Option<&NetworkDomain> {
        self.domains.get(name)
    }

    /// What `node` may know: the Domains of which it hosts a member, whole.
    #[must_use]
    pub fn view(&self, node: &NodeRef) -> Vec<DomainRoutes> {
        let hosted = self.domains.values().filter(|d| d.hosts.contains(node));
        hosted.map(|d| d.routes.clone()).collect()
    }

    /// The member of `domain` with this pod name or uid.
    #[must_use]
    pub fn find(&self, domain: &DomainName, pod: &str) -> Option<&Member> {
        let members = &self.domains.get(domain)?.routes.members;
        members.iter().find(|m| m.uid == pod || m.pod == pod)
    }
}

/// Pods that are not over, by the text by which allocations name them. Of two with one name (a
/// pod that is being replaced) the younger counts.
fn live_pods(pods: &[Arc<Pod>]) -> HashMap<String, &Pod> {
    let mut live: HashMap<String, &Pod> = HashMap::new();
    for pod in pods {
        let phase = pod.status.as_ref().and_then(|s| s.phase.as_ref());
        let over = matches!(phase, Some(PodPhase::Succeeded | PodPhase::Failed));
        if over || pod.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let key = format!("{namespace}/{}/{}", pod.spec.pod_namespace, pod.spec.pod_name);
        let born = |p: &Pod| p.metadata.creation_timestamp.as_ref().map(|t| t.0);
        let younger = live.get(&key).is_none_or(|other| born(other) < born(pod));
        if younger {
            live.insert(key, pod.as_ref());
        }
    }
    live
}

/// The subnet that the allocations are of: an edit of the spec counts once its addresses are given.
fn cidr_in_use(domain: &Domain) -> &str {
    let given = domain.status.as_ref().map(|s| s.cidr.as_str()).unwrap_or_default();
    if given.is_empty() { &domain.spec.cidr } else { given }
}

/// `None`: all. A text that is no range allows nothing; the Domain's status says so.
fn allowed_ports(domain: &Domain) -> Option<Vec<PortRange>> {
    let texts = &domain.spec.allowed_ports;
    (!texts.is_empty()).then(|| texts.iter().filter_map(|t| t.parse().ok()).collect())
}

fn members(domain: &Domain, live: &HashMap<String, &Pod>) -> Vec<Member> {
    // A pod has one for each subnet, in their order.
    let mut by_pod: BTreeMap<&str, Vec<&IpAllocation>> = BTreeMap::new();
    for a in domain.status.iter().flat_map(|s| &s.ip_allocations) {
        by_pod.entry(&a.pod).or_default().push(a);
    }
    let mut members: Vec<Member> = by_pod
        .into_iter()
        .filter_map(|(key, addresses)| {
            let (pod, a) = (live.get(key)?, addresses.first()?);
            let name = domain.metadata.name.as_deref()?;
            if pod.spec.domain != name {
                return None;
            }
            let vips: Vec<IpAddr> = addresses.iter().filter_map(|a| a.ip.parse().ok()).collect();
            if vips.is_empty() {
                return None;
            }
            let status = pod.status.as_ref()?;
            let cluster = ClusterId::from_namespace(pod.metadata.namespace.as_deref()?)?;
            Some(Member {
                uid: pod.metadata.name.clone()?,
                vips,
                pod: pod.spec.pod_name.clone(),
                pod_namespace: pod.spec.pod_namespace.clone(),
                node: NodeRef { cluster, node: status.node.parse().ok()? },
                local_ips: real_addresses(status),
                task: a.task.clone(),
                job: a.job.clone(),
            })
        })
        .collect();
    members.sort_by(|a, b| a.uid.cmp(&b.uid));
    members
}

/// An older agent says the first one only.
fn real_addresses(status: &PodStatus) -> Vec<IpAddr> {
    let all = status.ips.iter().filter_map(|ip| ip.parse().ok());
    let mut all: Vec<IpAddr> = all.collect();
    if all.is_empty() {
        all.extend(status.ip.parse::<IpAddr>());
    }
    all
}

/// The updates that lead from `old` to `new`; both are sorted by name, members by uid. Members
/// that go come before members that arrive, so that a moved address never has two owners.
#[must_use]
pub fn diff(old: &[DomainRoutes], new: &[DomainRoutes]) -> Vec<RouteUpdate> {
    let before: BTreeMap<_, _> = old.iter().map(|d| (&d.name, d)).collect();
    let after: BTreeMap<_, _> = new.iter().map(|d| (&d.name, d)).collect();
    let gone = before
        .keys()
        .filter(|n| !after.contains_key(*n))
        .map(|n| RouteUpdate::DomainGone { name: (*n).clone() });
    let mut updates: Vec<RouteUpdate> = gone.collect();
    for (name, domain) in &after {
        match before.get(name) {
            Some(b) if same_frame(b, domain) => members_diff(b, domain, &mut updates),
            _ => updates.push(RouteUpdate::Domain { domain: (*domain).clone() }),
        }
    }
    updates
}

/// Equal but for the members.
fn same_frame(a: &DomainRoutes, b: &DomainRoutes) -> bool {
    a.cidr == b.cidr
        && a.ssh_ca == b.ssh_ca
        && a.encrypt_within_site == b.encrypt_within_site
        && a.allowed_ports == b.allowed_ports
}

fn members_diff(old: &DomainRoutes, new: &DomainRoutes, updates: &mut Vec<RouteUpdate>) {
    let before: BTreeMap<_, _> = old.members.iter().map(|m| (m.uid.as_str(), m)).collect();
    let after: BTreeMap<_, _> = new.members.iter().map(|m| (m.uid.as_str(), m)).collect();
    let domain = &new.name;
    for uid in before.keys().filter(|uid| !after.contains_key(*uid)) {
        updates.push(RouteUpdate::MemberGone { domain: domain.clone(), uid: (*uid).to_owned() });
    }
    for (uid, member) in &after {
        if before.get(uid) != Some(member) {
            let member = (*member).clone();
            updates.push(RouteUpdate::Member { domain: domain.clone(), member });
        }
    }
}

/// The newest [`Network`]; one writer (the watch), many readers. `None` until the first complete
/// view: nodes keep what they have rather than be told that nothing exists.
pub(crate) struct Published(watch::Sender<Option<Arc<Network>>>);

impl Default for Published {
    fn default() -> Self {
        Self(watch::channel(None).0)
    }
}

impl Published {
    /// Wakes the readers only when something differs.
    pub(crate) fn publish(&self, network: Network) {
        self.0.send_if_modified(|current| {
            if current.as_deref() == Some(&network) {
                return false;
            }
            *current = Some(Arc::new(network));
            true
        });
    }

    pub(crate) fn current(&self) -> Arc<Network> {
        self.0.borrow().clone().unwrap_or_default()
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<Option<Arc<Network>>> {
        self.0.subscribe()
    }
}

#[cfg(test)]
mod tests {
    use control_api::v1alpha1::{DomainSpec, DomainStatus, PodSpec};

    use super::*;

    fn pod(cluster: &str, uid: &str, name: &str, phase: PodPhase) -> Arc<Pod> {
        let mut pod = Pod::new(
            uid,
            PodSpec {
                domain: "d".to_owned(),
                pod_namespace: "rlark-system".to_owned(),
                pod_name: name.to_owned(),
                ..PodSpec::default()
            },
        );
        pod.metadata.namespace = Some(format!("rlark-{cluster}"));
        pod.status = Some(PodStatus {
            phase: Some(phase),
            node: "n1".to_owned(),
            ip: "10.9.0.2".to_owned(),
            ..PodStatus::default()
        });
        Arc::new(pod)
    }

    fn domain(allocations: &[(&str, &str)]) -> Arc<Domain> {
        let mut domain = Domain::new(
            "d",
            DomainSpec { cidr: "10.0.1.0/24".to_owned(), ..DomainSpec::default() },
        );
        let ip_allocations = allocations
            .iter()
            .map(|(ip, pod)| IpAllocation {
                ip: (*ip).to_owned(),
                pod: (*pod).to_owned(),
                ..IpAllocation::default()
            })
            .collect();
        domain.status = Some(DomainStatus { ip_allocations, ..DomainStatus::default() });
        Arc::new(domain)
    }

    fn cas() -> BTreeMap<DomainName, String> {
        BTreeMap::from([("d".parse().unwrap(), "ssh-ed25519 AAAA".to_owned())])
    }

    fn two() -> Network {
        Network::build(
            &[domain(&[
                ("10.0.1.2", "rlark-a/rlark-system/actor-0"),
                ("10.0.1.3", "rlark-b/rlark-system/rollout-0"),
            ])],
            &[
                pod("a", "u1", "actor-0", PodPhase::Running),
                pod("b", "u2", "rollout-0", PodPhase::Pending),
                pod("c", "u3", "other-0", PodPhase::Running),
            ],
            &cas(),
        )
    }

    #[test]
    fn only_nodes_that_host_a_member_know_the_domain() {
        let network = two();
        assert_eq!(network.view(&"a/n1".parse().unwrap())[0].members.len(), 2);
        assert_eq!(network.view(&"b/n1".parse().unwrap()).len(), 1);
        assert!(network.view(&"c/n1".parse().unwrap()).is_empty());
        assert!(network.view(&"a/n2".parse().unwrap()).is_empty());
        assert_eq!(network.find(&"d".parse().unwrap(), "actor-0").unwrap().uid, "u1");
    }

    #[test]
    fn a_pod_that_is_over_or_replaced_is_no_member() {
        let allocations = domain(&[("10.0.1.2", "rlark-a/rlark-system/actor-0")]);
        let over = pod("a", "u1", "actor-0", PodPhase::Failed);
        let network = Network::build(&[Arc::clone(&allocations)], &[Arc::clone(&over)], &cas());
        assert!(!network.hosts(&"d".parse().unwrap(), &"a/n1".parse().unwrap()));
        let next = pod("a", "u2", "actor-0", PodPhase::Pending);
        let network = Network::build(&[allocations], &[over, next], &cas());
        assert_eq!(network.find(&"d".parse().unwrap(), "actor-0").unwrap().uid, "u2");
    }

    #[test]
    fn a_member_has_an_address_of_each_subnet_in_their_order() {
        let key = "rlark-a/rlark-system/actor-0";
        let both = domain(&[("fd00::2", key), ("10.0.1.2", key)]);
        let mut one = pod("a", "u1", "actor-0", PodPhase::Running);
        let told = |pod: &Arc<Pod>| {
            let network = Network::build(&[Arc::clone(&both)], &[Arc::clone(pod)], &cas());
            let members = network.view(&"a/n1".parse().unwrap())[0].members.clone();
            assert_eq!(members.len(), 1);
            (format!("{:?}", members[0].vips), format!("{:?}", members[0].local_ips))
        };
        assert_eq!(told(&one), ("[fd00::2, 10.0.1.2]".into(), "[10.9.0.2]".into()));
        Arc::make_mut(&mut one).status.as_mut().unwrap().ips =
            vec!["10.9.0.2".into(), "fd09::2".into()];
        assert_eq!(told(&one).1, "[10.9.0.2, fd09::2]");
    }

    #[test]
    fn another_subnet_counts_together_with_its_addresses() {
        let mut edited = domain(&[("10.0.1.2", "rlark-a/rlark-system/actor-0")]);
        let pods = [pod("a", "u1", "actor-0", PodPhase::Running)];
        let seen = |d: &Arc<Domain>| {
            let network = Network::build(&[Arc::clone(d)], &pods, &cas());
            network.view(&"a/n1".parse().unwrap())[0].cidr.clone()
        };
        assert_eq!(seen(&edited), "10.0.1.0/24", "of a status that names none");
        let domain = Arc::make_mut(&mut edited);
        domain.spec.cidr = "10.0.2.0/24".to_owned();
        domain.status.as_mut().unwrap().cidr = "10.0.1.0/24".to_owned();
        assert_eq!(seen(&edited), "10.0.1.0/24");
    }

    #[test]
    fn ports_are_all_or_those_of_the_list_that_can_be_read() {
        let pods = [pod("a", "u1", "actor-0", PodPhase::Running)];
        let mut edited = domain(&[("10.0.1.2", "rlark-a/rlark-system/actor-0")]);
        let mut ports = |list: &[&str]| {
            Arc::make_mut(&mut edited).spec.allowed_ports =
                list.iter().map(|s| (*s).to_owned()).collect();
            let network = Network::build(&[Arc::clone(&edited)], &pods, &cas());
            network.view(&"a/n1".parse().unwrap())[0].allowed_ports.clone()
        };
        assert_eq!(ports(&[]), None);
        assert_eq!(ports(&["22", "80-70000"]), Some(vec!["22".parse().unwrap()]));
        assert_eq!(ports(&["http"]), Some(vec![]), "a slip allows nothing");
    }

    #[test]
    fn a_domain_without_an_authority_is_not_told_to_nodes() {
        let allocations = domain(&[("10.0.1.2", "rlark-a/rlark-system/actor-0")]);
        let pods = [pod("a", "u1", "actor-0", PodPhase::Running)];
        let network = Network::build(&[allocations], &pods, &BTreeMap::new());
        assert!(network.view(&"a/n1".parse().unwrap()).is_empty());
    }

    /// What a node does with the updates.
    fn apply(mut state: Vec<DomainRoutes>, updates: &[RouteUpdate]) -> Vec<DomainRoutes> {
        for update in updates {
            match update.clone() {
                RouteUpdate::Snapshot { domains } => state = domains,
                RouteUpdate::Domain { domain } => {
                    state.retain(|d| d.name != domain.name);
                    state.push(domain);
                }
                RouteUpdate::DomainGone { name } => state.retain(|d| d.name != name),
                RouteUpdate::Member { domain, member } => {
                    let d = state.iter_mut().find(|d| d.name == domain).unwrap();
                    d.members.retain(|m| m.uid != member.uid);
                    d.members.push(member);
                    d.members.sort_by(|a, b| a.uid.cmp(&b.uid));
                }
                RouteUpdate::MemberGone { domain, uid } => {
                    let d = state.iter_mut().find(|d| d.name == domain).unwrap();
                    d.members.retain(|m| m.uid != uid);
                }
                _ => {}
            }
        }
        state.sort_by(|a, b| a.name.cmp(&b.name));
        state
    }

    #[test]
    fn updates_lead_from_any_view_to_any_other() {
        let base = two().view(&"a/n1".parse().unwrap());
        let mut fewer = base.clone();
        fewer[0].members.pop();
        let mut moved = base.clone();
        moved[0].members[0].vips = vec!["10.0.1.9".parse().unwrap()];
        let mut other_cidr = base.clone();
        other_cidr[0].cidr = "10.0.2.0/24".to_owned();
        let mut policed = base.clone();
        policed[0].allowed_ports = Some(vec!["22".parse().unwrap()]);
        let mut more = base.clone();
        more.push(DomainRoutes { name: "e".parse().unwrap(), ..base[0].clone() });
        let views = [vec![], base, fewer, moved, other_cidr, policed, more];
        for from in &views {
            for to in &views {
                let updates = diff(from, to);
                assert_eq!(&apply(from.clone(), &updates), to);
                assert_eq!(updates.is_empty(), from == to);
            }
        }
    }

    #[test]
    fn one_new_member_is_one_update() {
        let full = two().view(&"a/n1".parse().unwrap());
        let mut one = full.clone();
        one[0].members.pop();
        assert!(matches!(diff(&one, &full).as_slice(), [RouteUpdate::Member { .. }]));
        assert!(matches!(diff(&full, &one).as_slice(), [RouteUpdate::MemberGone { .. }]));
    }
}
