use std::collections::BTreeMap;

use control_api::v1alpha1::{JobSpec, JobStatus, PodSpec, TaskSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::runtime::{reflector, watcher};

use super::*;

fn store<K: Kind>(objects: Vec<K>) -> Store<K> {
    let (store, mut writer) = reflector::store();
    writer.apply_watcher_event(&watcher::Event::Init);
    for o in objects {
        writer.apply_watcher_event(&watcher::Event::InitApply(o));
    }
    writer.apply_watcher_event(&watcher::Event::InitDone);
    store
}

#[test]
fn a_task_wakes_its_owner_and_the_job_whose_name_it_holds() {
    let mut t = Task::new("j-a", TaskSpec::default());
    t.metadata.labels = Some(BTreeMap::from([(labels::JOB.to_owned(), "j".to_owned())]));
    assert_eq!(job_of_task(&t), [ObjectRef::new("j")]);
    t.metadata.owner_references = Some(vec![OwnerReference {
        kind: "Job".into(),
        name: "j".into(),
        controller: Some(true),
        ..OwnerReference::default()
    }]);
    assert_eq!(job_of_task(&t), [ObjectRef::new("j")], "once");
}

#[test]
fn a_pod_wakes_its_task_in_the_tasks_namespace() {
    let mut p = Pod::new("uid", PodSpec { task_name: "t".into(), ..PodSpec::default() });
    p.metadata.namespace = Some("rlark-a".into());
    assert_eq!(task_of_pod(&p), [ObjectRef::new("t").within("rlark-a")]);
    p.spec.task_namespace = "rlark-b".into();
    assert_eq!(task_of_pod(&p), [ObjectRef::new("t").within("rlark-b")]);
    p.spec.task_name.clear();
    assert_eq!(task_of_pod(&p), []);
}

#[test]
fn a_node_wakes_only_jobs_without_a_place() {
    let job = |name: &str, phase: Option<JobPhase>| {
        let mut j = Job::new(name, JobSpec { domain: "d".into(), ..JobSpec::default() });
        j.status = Some(JobStatus { phase, ..JobStatus::default() });
        j
    };
    let mut placed = job("placed", Some(JobPhase::Pending));
    control_plan::conditions::set(
        &mut placed.status.as_mut().unwrap().conditions,
        control_plan::conditions::Finding::yes(control_plan::job::PLACED, "Placed", ""),
        None,
        &crate::context::now(),
    );
    let jobs = store(vec![
        job("waiting", Some(JobPhase::Pending)),
        job("over", Some(JobPhase::Failed)),
        placed,
    ]);
    let woken = waiting_jobs(jobs.clone())(&Node::default());
    assert_eq!(woken, [ObjectRef::new("waiting")]);
    let domain = Domain::new("d", Default::default());
    let there = jobs_of_domain(jobs.clone(), store(vec![domain.clone()]));
    assert_eq!(there(&domain), woken);
    let mut missed = jobs_of_domain(jobs, store(vec![]))(&domain);
    missed.sort_by(|a, b| a.name.cmp(&b.name));
    assert_eq!(missed, [ObjectRef::new("placed"), ObjectRef::new("waiting")], "it is gone");
}

#[test]
fn a_lease_wakes_the_nodes_of_its_site() {
    let mut lease = Lease::default();
    lease.metadata.name = Some("n".into());
    lease.metadata.namespace = Some("rlark-a".into());
    assert_eq!(node_of_lease(&lease), [ObjectRef::new("n").within("rlark-a")]);
}
