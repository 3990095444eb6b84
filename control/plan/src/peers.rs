//! A Domain's claims and its sites' DomainPeers, from its Pods.

use std::{collections::BTreeMap, sync::Arc};

use control_api::{
    cidr::{Cidr, Subnets},
    labels,
    v1alpha1::{Domain, DomainPeerSpec, Job, PeerPod, Pod, PodPhase, Task},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::{
    addresses::{Allocated, Claim},
    names,
};

/// Whether a pod takes part in its Domain: it is not over and not being deleted.
#[must_use]
pub fn is_live(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|s| s.phase.as_ref());
    pod.metadata.deletion_timestamp.is_none()
        && !matches!(phase, Some(PodPhase::Succeeded | PodPhase::Failed))
}

/// Whether a pod may have an address in the Domain it names. Agents write Pods, so what a Pod says
/// is held against its Task in the same namespace, which they cannot make, and that one's Job, which
/// they cannot touch.
#[must_use]
pub fn is_entitled(pod: &Pod, task: Option<&Task>, job: Option<&Job>) -> bool {
    let Some(task) = task else { return false };
    let own = pod.spec.task_namespace.is_empty() || pod.spec.task_namespace == namespace(pod);
    own && task.spec.domain == pod.spec.domain
        && job.is_none_or(|j| j.spec.domain.is_empty() || j.spec.domain == pod.spec.domain)
}

fn namespace(pod: &Pod) -> &str {
    pod.metadata.namespace.as_deref().unwrap_or_default()
}

/// How allocations name this pod.
#[must_use]
pub fn key(pod: &Pod) -> String {
    names::pod_key(namespace(pod), &pod.spec.pod_namespace, &pod.spec.pod_name)
}

/// One claim per live pod. `job_of` finds the Job of a Task by the Task's namespace and name.
pub fn claims(pods: &[Arc<Pod>], job_of: impl Fn(&str, &str) -> Option<String>) -> Vec<Claim> {
    let mut claims: Vec<Claim> = pods
        .iter()
        .filter(|p| is_live(p))
        .map(|p| {
            let task_namespace = if p.spec.task_namespace.is_empty() {
                namespace(p)
            } else {
                &p.spec.task_namespace
            };
            Claim {
                key: key(p),
                job: job_of(task_namespace, &p.spec.task_name).unwrap_or_default(),
                task: p.spec.task_name.clone(),
            }
        })
        .collect();
    claims.sort_by(|a, b| a.key.cmp(&b.key));
    claims
}

/// The Job that a Task names.
#[must_use]
pub fn job_of_task(task: &Task) -> Option<String> {
    task.metadata.labels.as_ref()?.get(labels::JOB).cloned()
}

/// The DomainPeer of every site that has live pods with an address: its own pods, sorted by uid.
#[must_use]
pub fn peers(
    subnets: &Subnets,
    pods: &[Arc<Pod>],
    allocated: &Allocated,
    certificate: &str,
) -> BTreeMap<String, DomainPeerSpec> {
    let addresses = allocated.by_key();
    let mut sites: BTreeMap<String, DomainPeerSpec> = BTreeMap::new();
    for pod in pods.iter().filter(|p| is_live(p)) {
        let Some(ips) = addresses.get(key(pod).as_str()) else { continue };
        let status = pod.status.clone().unwrap_or_default();
        sites.entry(namespace(pod).to_owned()).or_default().pods.push(PeerPod {
            global_namespace: namespace(pod).to_owned(),
            namespace: pod.spec.pod_namespace.clone(),
            name: pod.spec.pod_name.clone(),
            uid: pod.metadata.name.clone().unwrap_or_default(),
            node: status.node,
            ip: ips.first().copied().unwrap_or_default().to_owned(),
            ips: ips.iter().map(|ip| (*ip).to_owned()).collect(),
            local_ip: status.ip,
        });
    }
    for peer in sites.values_mut() {
        peer.prefix_len = subnets.iter().next().map(|first| i32::from(first.prefix_len()));
        peer.cidr = subnets.to_string();
        certificate.clone_into(&mut peer.cert);
        peer.pods.sort_by(|a, b| a.uid.cmp(&b.uid));
    }
    sites
}

/// The older Domain that has a subnet that overlaps one of these, if any, and which. Of two Domains the younger gives way
/// (by name when of one age), so that a new mistake does not disturb what runs.
#[must_use]
pub fn overlapped_by(
    domain: &Domain,
    subnets: &Subnets,
    all: &[Arc<Domain>],
) -> Option<(String, Cidr)> {
    let age = |d: &Domain| -> (Option<Time>, String) {
        (d.metadata.creation_timestamp.clone(), names::of_domain(d).to_owned())
    };
    let mine = age(domain);
    all.iter()
        .filter(|other| names::of_domain(other) != names::of_domain(domain) && age(other) < mine)
        .find_map(|other| {
            let its = other.spec.cidr.parse().ok()?;
            Some((names::of_domain(other).to_owned(), subnets.overlapping(&its)?))
        })
}

#[cfg(test)]
mod tests {
    use control_api::v1alpha1::{DomainSpec, PodSpec, PodStatus};

    use super::*;
    use crate::addresses::allocate;

    fn pod(namespace: &str, uid: &str, phase: PodPhase) -> Arc<Pod> {
        let mut pod = Pod::new(
            uid,
            PodSpec {
                domain: "d".into(),
                task_namespace: namespace.into(),
                task_name: "t".into(),
                pod_namespace: "rlark-system".into(),
                pod_name: format!("{uid}-0"),
            },
        );
        pod.metadata.namespace = Some(namespace.to_owned());
        pod.status = Some(PodStatus {
            phase: Some(phase),
            node: "n".into(),
            ip: "192.0.2.1".into(),
            ..PodStatus::default()
        });
        Arc::new(pod)
    }

    #[test]
    fn a_peer_holds_its_own_sites_live_pods_sorted_and_no_key() {
        let pods = [
            pod("rlark-b", "u3", PodPhase::Running),
            pod("rlark-a", "u2", PodPhase::Running),
            pod("rlark-a", "u1", PodPhase::Pending),
            pod("rlark-a", "u0", PodPhase::Failed),
        ];
        let subnets: Subnets = "10.0.1.0/24,fd00::/64".parse().unwrap();
        let claims = claims(&pods, |ns, t| Some(format!("{ns}/{t}")));
        assert_eq!(claims[0].job, "rlark-a/t");
        let allocated = allocate(&subnets, &claims, &[]);
        let peers = peers(&subnets, &pods, &allocated, "ssh-ed25519 AAAA");
        assert_eq!(peers.keys().collect::<Vec<_>>(), ["rlark-a", "rlark-b"]);
        let a = &peers["rlark-a"];
        assert_eq!(a.pods.iter().map(|p| p.uid.as_str()).collect::<Vec<_>>(), ["u1", "u2"]);
        assert_eq!(
            (a.prefix_len, a.cert.as_str(), a.key.as_str()),
            (Some(24), "ssh-ed25519 AAAA", "")
        );
        assert_eq!(a.pods[0].local_ip, "192.0.2.1");
        assert_eq!(a.cidr, "10.0.1.0/24,fd00::/64");
        assert_eq!((a.pods[0].ip.as_str(), a.pods[0].ips.len()), ("10.0.1.1", 2));
    }

    #[test]
    fn of_two_overlapping_domains_the_younger_is_told() {
        let domain = |name: &str, second: i64, cidr: &str| {
            let mut d =
                Domain::new(name, DomainSpec { cidr: cidr.into(), ..DomainSpec::default() });
            d.metadata.creation_timestamp =
                Some(Time(k8s_openapi::jiff::Timestamp::from_second(second).unwrap()));
            Arc::new(d)
        };
        let all = [
            domain("b", 1, "10.0.0.0/8"),
            domain("a", 2, "10.0.1.0/24"),
            domain("c", 3, "fd00::/64"),
            domain("e", 4, "10.99.0.0/24,fd00::1:0/112"),
        ];
        let cidr = |d: &Domain| d.spec.cidr.parse::<Subnets>().unwrap();
        assert_eq!(overlapped_by(&all[1], &cidr(&all[1]), &all).unwrap().0, "b");
        assert_eq!(overlapped_by(&all[0], &cidr(&all[0]), &all), None);
        assert_eq!(overlapped_by(&all[2], &cidr(&all[2]), &all), None);
        assert_eq!(overlapped_by(&all[3], &cidr(&all[3]), &all[2..]).unwrap().0, "c");
    }

    #[test]
    fn a_pod_is_entitled_to_its_tasks_domain_only() {
        let pod = |task: &str, domain: &str| {
            let spec = PodSpec {
                domain: domain.into(),
                task_namespace: "rlark-a".into(),
                task_name: task.into(),
                ..PodSpec::default()
            };
            let mut pod = Pod::new("u", spec);
            pod.metadata.namespace = Some("rlark-a".into());
            pod
        };
        let mut task = Task::new("t", Default::default());
        task.spec.domain = "d".into();
        let mut job = Job::new("j", Default::default());
        job.spec.domain = "d".into();
        assert!(is_entitled(&pod("t", "d"), Some(&task), Some(&job)));
        assert!(is_entitled(&pod("t", "d"), Some(&task), None));
        assert!(!is_entitled(&pod("t", "d"), None, None), "no such Task");
        assert!(!is_entitled(&pod("t", "e"), Some(&task), Some(&job)), "not the Task's Domain");
        job.spec.domain = "e".into();
        assert!(!is_entitled(&pod("t", "d"), Some(&task), Some(&job)), "not the Job's Domain");
        let mut elsewhere = pod("t", "d");
        elsewhere.metadata.namespace = Some("rlark-b".into());
        assert!(!is_entitled(&elsewhere, Some(&task), None), "another site's Task");
    }
}
