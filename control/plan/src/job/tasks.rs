//! The Task that a template asks for.

use std::collections::BTreeMap;

use control_api::{
    labels::{self, ray},
    v1alpha1::{AgentType, Job, JobTask, Task},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::{names, placement::Place};

/// How many pods a template asks for.
fn replicas(template: &JobTask) -> i32 {
    if template.spec.agent_type != Some(AgentType::Kubernetes) {
        return 1;
    }
    let workload = template.spec.kubernetes.as_ref().and_then(|k| k.workload.as_ref());
    workload.and_then(|w| w.replicas).unwrap_or(1).max(0)
}

/// The Task of `template` at `place`.
pub(super) fn desired(job: &Job, template: &JobTask, place: &Place) -> Task {
    let job_name = job.metadata.name.clone().unwrap_or_default();
    let mut spec = template.spec.clone();
    if !job.spec.domain.is_empty() {
        spec.domain.clone_from(&job.spec.domain);
    }
    if !job.spec.ssh_public_key.is_empty() {
        spec.ssh_public_key.clone_from(&job.spec.ssh_public_key);
    }
    let mut annotations = ray_annotations(job, &job_name, template);
    if let Some(node) = &place.node {
        annotations.insert(labels::NODE.to_owned(), node.clone());
    }
    let labels = BTreeMap::from([
        (labels::JOB.to_owned(), job_name.clone()),
        (labels::TASK_TEMPLATE.to_owned(), template.name.clone()),
    ]);
    let mut task = Task::new(&names::task(&job_name, &template.name), spec);
    task.metadata = ObjectMeta {
        namespace: Some(place.namespace.clone()),
        labels: Some(labels),
        annotations: Some(annotations),
        owner_references: Some(vec![owner(job)]),
        ..task.metadata
    };
    task
}

fn owner(job: &Job) -> OwnerReference {
    OwnerReference {
        api_version: labels::API_VERSION.to_owned(),
        kind: "Job".to_owned(),
        name: job.metadata.name.clone().unwrap_or_default(),
        uid: job.metadata.uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

fn ray_annotations(job: &Job, job_name: &str, template: &JobTask) -> BTreeMap<String, String> {
    let total: i32 = job.spec.tasks.iter().map(replicas).sum();
    let first: i32 =
        job.spec.tasks.iter().take_while(|t| t.name != template.name).map(replicas).sum();
    let role = if template.head { "head" } else { "worker" };
    let mut out = BTreeMap::from([
        (ray::key(ray::ROLE), role.to_owned()),
        (ray::key(ray::TOTAL_NODES), total.to_string()),
        (ray::key(ray::NODE_RANK_START), first.to_string()),
    ]);
    if let Some(head) = job.spec.tasks.iter().find(|t| t.head) {
        out.insert(ray::key(ray::HEAD_TASK_NAME), names::task(job_name, &head.name));
    }
    out
}

/// `task` brought to what is wanted; none when it is already. Labels and annotations of others, the
/// finalizers and the status are left alone.
pub(super) fn changed(task: &Task, wanted: &Task) -> Option<Task> {
    let mut new = task.clone();
    new.spec = wanted.spec.clone();
    merge(&mut new.metadata.labels, wanted.metadata.labels.as_ref());
    merge(&mut new.metadata.annotations, wanted.metadata.annotations.as_ref());
    let owned = new.metadata.owner_references.iter().flatten().any(|o| o.controller == Some(true));
    if !owned {
        let mine = wanted.metadata.owner_references.clone().unwrap_or_default();
        new.metadata.owner_references.get_or_insert_default().extend(mine);
    }
    (new != *task).then_some(new)
}

fn merge(into: &mut Option<BTreeMap<String, String>>, from: Option<&BTreeMap<String, String>>) {
    if let Some(from) = from {
        into.get_or_insert_default().extend(from.clone());
    }
}
