//! Pod objects and Task statuses: written whole, and only when they differ from what is there.

use std::{collections::BTreeMap, net::IpAddr};

use agent_workload::{lifecycle::Outcome, raw::PodView};
use control_api::{
    labels,
    v1alpha1::{Phase, Pod, PodSpec, PodStatus, Task, TaskStatus},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::{
    Api, Client, Resource as _, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::json;

use crate::plan::{Fare, fare};

/// The Pod object of `view`, made or brought up to date. `real` are its addresses within the site; without any, what was said of them
/// stays.
pub(crate) async fn pod(
    client: &Client,
    node: &str,
    task: &Task,
    view: &PodView,
    real: &[IpAddr],
) -> kube::Result<()> {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let uid = view.spec.uid.as_str();
    let wanted = pod_object(task, view);
    let there = match pods.get_opt(uid).await? {
        Some(there) => there,
        None => pods.create(&PostParams::default(), &wanted).await?,
    };
    if there.spec != wanted.spec {
        let change = json!({ "spec": wanted.spec, "metadata": { "labels": wanted.labels() } });
        pods.patch(uid, &PatchParams::default(), &Patch::Merge(change)).await?;
    }
    let mut status = pod_status(node, view, real, &fare(view));
    if let Some(before) = there.status.as_ref().filter(|_| real.is_empty()) {
        status.ip.clone_from(&before.ip);
        status.ips.clone_from(&before.ips);
    }
    if there.status.as_ref() != Some(&status) {
        let change = json!({ "status": {
            "phase": status.phase,
            "message": status.message,
            "node": status.node,
            "ip": status.ip,
            "ips": status.ips,
            "restartCount": status.restart_count,
            "exitCode": status.exit_code,
        }});
        pods.patch_status(uid, &PatchParams::default(), &Patch::Merge(change)).await?;
    }
    Ok(())
}

/// Deletes a Pod object; one that is not there is fine.
pub(crate) async fn delete_pod(client: &Client, uid: &str) -> kube::Result<()> {
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    match pods.delete(uid, &DeleteParams::default()).await {
        Err(kube::Error::Api(e)) if e.is_not_found() => Ok(()),
        done => done.map(drop),
    }
}

fn pod_object(task: &Task, view: &PodView) -> Pod {
    let spec = PodSpec {
        domain: task.spec.domain.clone(),
        task_namespace: task.namespace().unwrap_or_default(),
        task_name: task.name_any(),
        pod_namespace: labels::SYSTEM_NAMESPACE.to_owned(),
        pod_name: view.spec.name.clone(),
    };
    let mut all = BTreeMap::from([
        (labels::TASK_NAME.to_owned(), label_value(&spec.task_name)),
        (labels::LOCAL_POD_NAME.to_owned(), label_value(&spec.pod_name)),
        (labels::LOCAL_POD_NAMESPACE.to_owned(), spec.pod_namespace.clone()),
    ]);
    if let Some(job) = task.labels().get(labels::JOB) {
        all.insert(labels::JOB.to_owned(), job.clone());
    }
    let mut pod = Pod::new(view.spec.uid.as_str(), spec);
    pod.metadata.labels = Some(all);
    // With the Task gone, whoever removed the finalizer, the object goes too.
    pod.metadata.owner_references = task.owner_ref(&()).map(|owner| vec![owner]);
    pod
}

/// A label value has at most 63 characters.
fn label_value(text: &str) -> String {
    let short: String = text.chars().take(63).collect();
    short.trim_end_matches(['-', '.', '_']).to_owned()
}

fn pod_status(node: &str, view: &PodView, real: &[IpAddr], fare: &Fare) -> PodStatus {
    let code = match view.outcome() {
        Some(Outcome::Succeeded) => Some(0),
        Some(Outcome::Failed { code, .. }) => *code,
        _ => view.status.last_exit,
    };
    PodStatus {
        phase: Some(fare.pod.clone()),
        message: fare.message.clone(),
        node: node.to_owned(),
        ip: real.first().map(ToString::to_string).unwrap_or_default(),
        ips: real.iter().map(ToString::to_string).collect(),
        restart_count: Some(restarts(view)),
        exit_code: code,
    }
}

fn restarts(view: &PodView) -> i32 {
    i32::try_from(view.status.attempt.saturating_sub(1)).unwrap_or(i32::MAX)
}

/// What a Task's status says of a pod.
#[must_use]
pub(crate) fn status_of(
    before: &TaskStatus,
    node: &str,
    view: &PodView,
    now: jiff::Timestamp,
) -> TaskStatus {
    let fare = fare(view);
    let over = matches!(fare.task, Phase::Succeeded | Phase::Failed);
    let started = view.status.first_started.map(Time).or_else(|| before.start_time.clone());
    TaskStatus {
        observed_nodes: vec![node.to_owned()],
        start_time: started,
        completion_time: view.status.ended.filter(|_| over).map(Time),
        retry_count: Some(restarts(view)),
        ..with_phase(before, fare.task, fare.message, fare.reason, now)
    }
}

/// A status with another phase and its condition; the rest as before.
#[must_use]
pub(crate) fn with_phase(
    before: &TaskStatus,
    phase: Phase,
    message: String,
    reason: &str,
    now: jiff::Timestamp,
) -> TaskStatus {
    let ready = if phase == Phase::Running { "True" } else { "False" };
    let old = before.conditions.iter().find(|c| c.type_ == "Ready");
    let since = old.filter(|c| c.status == ready).map(|c| c.last_transition_time.clone());
    let condition = Condition {
        type_: "Ready".to_owned(),
        status: ready.to_owned(),
        reason: reason.to_owned(),
        message: message.clone(),
        last_transition_time: since.unwrap_or(Time(now)),
        observed_generation: None,
    };
    let others = before.conditions.iter().filter(|c| c.type_ != "Ready").cloned();
    TaskStatus {
        phase: Some(phase),
        message,
        conditions: others.chain([condition]).collect(),
        ..before.clone()
    }
}

/// Writes a Task's status if it differs.
pub(crate) async fn task(client: &Client, task: &Task, after: TaskStatus) -> kube::Result<()> {
    if task.status.as_ref() == Some(&after) {
        return Ok(());
    }
    let tasks: Api<Task> = Api::default_namespaced(client.clone());
    let change = json!({ "status": {
        "phase": after.phase,
        "message": after.message,
        "observedNodes": after.observed_nodes,
        "conditions": after.conditions,
        "startTime": after.start_time,
        "completionTime": after.completion_time,
        "retryCount": after.retry_count,
    }});
    let name = task.name_any();
    match tasks.patch_status(&name, &PatchParams::default(), &Patch::Merge(change)).await {
        // Gone in the meantime: nothing left to report on.
        Err(kube::Error::Api(e)) if e.is_not_found() => Ok(()),
        done => done.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_condition_keeps_its_time_until_its_status_changes() {
        let at = |text: &str| text.parse::<jiff::Timestamp>().unwrap();
        let (t0, t1) = (at("2026-01-01T00:00:00Z"), at("2026-01-01T00:01:00Z"));
        let none = TaskStatus::default();
        let pending = with_phase(&none, Phase::Pending, "a".into(), "Starting", t0);
        let still = with_phase(&pending, Phase::Pending, "b".into(), "Starting", t1);
        let running = with_phase(&still, Phase::Running, String::new(), "PodRunning", t1);
        let time = |s: &TaskStatus| s.conditions.first().unwrap().last_transition_time.0;
        assert_eq!((time(&pending), time(&still), time(&running)), (t0, t0, t1));
        assert_eq!(running.conditions.len(), 1);
    }
}
