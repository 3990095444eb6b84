//! Which objects a change concerns.

use control_api::{
    labels,
    v1alpha1::{Domain, DomainPeer, Job, JobPhase, Node, Pod, Task, Workflow},
};
use k8s_openapi::{api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::runtime::reflector::{ObjectRef, Store};

use crate::cache::Kind;

/// The object itself.
pub(crate) fn itself<K: Kind>(object: &K) -> Vec<ObjectRef<K>> {
    vec![ObjectRef::from_obj(object)]
}

fn text(of: Option<&String>) -> &str {
    of.map(String::as_str).unwrap_or_default()
}

fn owner(meta: &ObjectMeta, kind: &str) -> Option<String> {
    let mine = |o: &&_| {
        let o: &k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference = o;
        o.kind == kind && o.controller == Some(true)
    };
    meta.owner_references.iter().flatten().find(mine).map(|o| o.name.clone())
}

fn label(meta: &ObjectMeta, key: &str) -> Option<String> {
    meta.labels.as_ref()?.get(key).cloned()
}

/// By owner and by label: a Task left by an earlier Job of the name stands in the new one's way.
pub(crate) fn job_of_task(task: &Task) -> Vec<ObjectRef<Job>> {
    let mut names: Vec<String> = [owner(&task.metadata, "Job"), label(&task.metadata, labels::JOB)]
        .into_iter()
        .flatten()
        .collect();
    names.dedup();
    names.iter().map(|n| ObjectRef::new(n)).collect()
}

pub(crate) fn workflow_of_job(job: &Job) -> Vec<ObjectRef<Workflow>> {
    let mut names: Vec<String> =
        [owner(&job.metadata, "Workflow"), label(&job.metadata, labels::WORKFLOW)]
            .into_iter()
            .flatten()
            .collect();
    names.dedup();
    names.iter().map(|n| ObjectRef::new(n)).collect()
}

fn is_active(job: &Job) -> bool {
    let phase = job.status.as_ref().and_then(|s| s.phase.as_ref());
    matches!(phase, None | Some(JobPhase::Pending | JobPhase::Running))
}

/// Whether a Job has tasks that have no place.
fn waits(job: &Job) -> bool {
    let conditions = job.status.iter().flat_map(|s| &s.conditions);
    let placed = conditions.into_iter().find(|c| c.type_ == control_plan::job::PLACED);
    is_active(job) && placed.is_none_or(|c| c.status != "True")
}

/// A Node that appears or changes may be the place that Jobs wait for.
pub(crate) fn waiting_jobs(jobs: Store<Job>) -> impl Fn(&Node) -> Vec<ObjectRef<Job>> {
    move |_| jobs.state().iter().filter(|j| waits(j)).map(|j| ObjectRef::from_obj(&**j)).collect()
}

/// A Domain that appears may be the one that Jobs wait for; one that has gone is missed by all.
pub(crate) fn jobs_of_domain(
    jobs: Store<Job>,
    domains: Store<Domain>,
) -> impl Fn(&Domain) -> Vec<ObjectRef<Job>> {
    move |domain| {
        let name = text(domain.metadata.name.as_ref());
        let gone = domains.get(&ObjectRef::from_obj(domain)).is_none();
        jobs.state()
            .iter()
            .filter(|j| j.spec.domain == name && (waits(j) || gone && is_active(j)))
            .map(|j| ObjectRef::from_obj(&**j))
            .collect()
    }
}

/// Every other Domain: subnets may overlap, or no longer overlap.
pub(crate) fn other_domains(domains: Store<Domain>) -> impl Fn(&Domain) -> Vec<ObjectRef<Domain>> {
    move |changed| {
        domains
            .state()
            .iter()
            .filter(|d| d.metadata.name != changed.metadata.name)
            .map(|d| ObjectRef::from_obj(&**d))
            .collect()
    }
}

pub(crate) fn domain_of_pod(pod: &Pod) -> Vec<ObjectRef<Domain>> {
    named(&pod.spec.domain)
}

/// A Task says which Job an address is for.
pub(crate) fn domain_of_task(task: &Task) -> Vec<ObjectRef<Domain>> {
    named(&task.spec.domain)
}

pub(crate) fn domain_of_peer(peer: &DomainPeer) -> Vec<ObjectRef<Domain>> {
    named(text(peer.metadata.name.as_ref()))
}

fn named<K: Kind>(name: &str) -> Vec<ObjectRef<K>> {
    if name.is_empty() { Vec::new() } else { vec![ObjectRef::new(name)] }
}

/// Namespace of the Task that a Pod names.
pub(crate) fn task_namespace(pod: &Pod) -> &str {
    if pod.spec.task_namespace.is_empty() {
        text(pod.metadata.namespace.as_ref())
    } else {
        &pod.spec.task_namespace
    }
}

pub(crate) fn task_of_pod(pod: &Pod) -> Vec<ObjectRef<Task>> {
    if pod.spec.task_name.is_empty() {
        return Vec::new();
    }
    vec![ObjectRef::new(&pod.spec.task_name).within(task_namespace(pod))]
}

pub(crate) fn pods_of_task(pods: Store<Pod>) -> impl Fn(&Task) -> Vec<ObjectRef<Pod>> {
    move |task| {
        let name = text(task.metadata.name.as_ref());
        let namespace = text(task.metadata.namespace.as_ref());
        pods.state()
            .iter()
            .filter(|p| p.spec.task_name == name && task_namespace(p) == namespace)
            .map(|p| ObjectRef::from_obj(&**p))
            .collect()
    }
}

/// The Node whose agent renewed its Lease.
pub(crate) fn node_of_lease(lease: &Lease) -> Vec<ObjectRef<Node>> {
    let name = text(lease.metadata.name.as_ref());
    vec![ObjectRef::new(name).within(text(lease.metadata.namespace.as_ref()))]
}

#[cfg(test)]
mod tests;
