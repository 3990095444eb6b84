//! A Task's status from the Pods that run it.

use std::sync::Arc;

use control_api::v1alpha1::{Phase, Pod, PodPhase, Task, TaskStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Whether a Task in this phase will not run any more.
#[must_use]
pub const fn is_over(phase: &Phase) -> bool {
    matches!(phase, Phase::Succeeded | Phase::Failed | Phase::Stopped)
}

/// Whether a Pod belongs to this life of a Task: Pods made before the Task are left over from an
/// earlier one of the same name.
#[must_use]
pub fn belongs(pod: &Pod, task: &Task) -> bool {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let task_namespace =
        if pod.spec.task_namespace.is_empty() { namespace } else { &pod.spec.task_namespace };
    let owner = pod.metadata.owner_references.iter().flatten().find(|o| o.kind == "Task");
    let same_life = match (owner, &task.metadata.uid) {
        (Some(owner), Some(uid)) => &owner.uid == uid,
        _ => match (&pod.metadata.creation_timestamp, &task.metadata.creation_timestamp) {
            (Some(pod), Some(task)) => pod >= task,
            _ => true,
        },
    };
    same_life
        && Some(task_namespace) == task.metadata.namespace.as_deref()
        && Some(pod.spec.task_name.as_str()) == task.metadata.name.as_deref()
}

/// What a Task's Pods say of it.
///
/// | pods | phase |
/// |---|---|
/// | none, or all being made | Pending |
/// | any failed | Failed |
/// | all succeeded | Succeeded |
/// | else | Running once all that are left run or have succeeded, Pending before |
///
/// A Task that ran is not Pending again while a pod of it is made anew; one that is over stays so.
#[must_use]
pub fn observe(task: &Task, pods: &[Arc<Pod>], now: &Time) -> TaskStatus {
    let mut status = task.status.clone().unwrap_or_default();
    let mut pods: Vec<&Pod> = pods.iter().map(Arc::as_ref).filter(|p| belongs(p, task)).collect();
    pods.sort_by(|a, b| {
        (&a.spec.pod_name, &a.metadata.name).cmp(&(&b.spec.pod_name, &b.metadata.name))
    });
    if status.phase.as_ref().is_some_and(is_over) {
        return status;
    }
    if pods.is_empty() {
        status.phase.get_or_insert(Phase::Pending);
        return status;
    }
    let phase_of = |p: &Pod| p.status.as_ref().and_then(|s| s.phase.clone());
    let count =
        |phase: PodPhase| pods.iter().filter(|p| phase_of(p).as_ref() == Some(&phase)).count();
    let (running, succeeded, failed) =
        (count(PodPhase::Running), count(PodPhase::Succeeded), count(PodPhase::Failed));
    let ran = status.phase == Some(Phase::Running);
    let phase = if failed > 0 {
        Phase::Failed
    } else if succeeded == pods.len() {
        Phase::Succeeded
    } else if ran || running + succeeded == pods.len() {
        Phase::Running
    } else {
        Phase::Pending
    };
    status.message = message(&pods, &phase);
    status.observed_nodes = pods
        .iter()
        .filter_map(|p| p.status.as_ref().map(|s| s.node.clone()))
        .filter(|n| !n.is_empty())
        .collect();
    let restarts = pods.iter().filter_map(|p| p.status.as_ref()?.restart_count).sum::<i32>();
    status.retry_count = (restarts > 0).then_some(restarts).or(status.retry_count);
    if phase != Phase::Pending {
        status.start_time.get_or_insert_with(|| now.clone());
    }
    if is_over(&phase) {
        status.completion_time.get_or_insert_with(|| now.clone());
    }
    status.phase = Some(phase);
    status
}

/// Why: of a failed pod first, else of one that is not yet running.
fn message(pods: &[&Pod], phase: &Phase) -> String {
    let explains = |p: &&&Pod| {
        let pod = p.status.as_ref().and_then(|s| s.phase.as_ref());
        match phase {
            Phase::Failed => pod == Some(&PodPhase::Failed),
            Phase::Succeeded => false,
            _ => pod != Some(&PodPhase::Succeeded),
        }
    };
    pods.iter()
        .filter(explains)
        .filter_map(|p| p.status.as_ref())
        .map(|s| s.message.as_str())
        .find(|m| !m.is_empty())
        .unwrap_or_default()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use control_api::v1alpha1::{PodSpec, PodStatus, TaskSpec};

    use super::*;

    fn now() -> Time {
        Time(k8s_openapi::jiff::Timestamp::from_second(100).unwrap())
    }
    fn task() -> Task {
        let mut t = Task::new("t", TaskSpec::default());
        t.metadata.namespace = Some("rlark-a".into());
        t.metadata.creation_timestamp =
            Some(Time(k8s_openapi::jiff::Timestamp::from_second(10).unwrap()));
        t
    }
    fn pod(name: &str, phase: PodPhase, message: &str) -> Arc<Pod> {
        let mut p = Pod::new(
            name,
            PodSpec {
                task_namespace: "rlark-a".into(),
                task_name: "t".into(),
                pod_name: name.into(),
                ..PodSpec::default()
            },
        );
        p.metadata.namespace = Some("rlark-a".into());
        p.metadata.creation_timestamp =
            Some(Time(k8s_openapi::jiff::Timestamp::from_second(20).unwrap()));
        p.status = Some(PodStatus {
            phase: Some(phase),
            message: message.into(),
            node: "n1".into(),
            ..PodStatus::default()
        });
        Arc::new(p)
    }

    #[test]
    fn exit_codes_reach_the_task() {
        let s = observe(&task(), &[], &now());
        assert_eq!(s.phase, Some(Phase::Pending));
        let s = observe(&task(), &[pod("a", PodPhase::Running, "")], &now());
        assert_eq!(
            (s.phase, s.start_time, s.completion_time),
            (Some(Phase::Running), Some(now()), None)
        );
        let s = observe(&task(), &[pod("a", PodPhase::Succeeded, "")], &now());
        assert_eq!((s.phase, s.completion_time), (Some(Phase::Succeeded), Some(now())));
        let s = observe(
            &task(),
            &[pod("a", PodPhase::Running, "x"), pod("b", PodPhase::Failed, "exit code 3")],
            &now(),
        );
        assert_eq!((s.phase, s.message.as_str()), (Some(Phase::Failed), "exit code 3"));
        assert_eq!(s.observed_nodes, ["n1", "n1"]);
    }

    #[test]
    fn a_starting_pod_is_pending_and_not_failed() {
        let s = observe(&task(), &[pod("a", PodPhase::Pending, "waiting for its address")], &now());
        assert_eq!(
            (s.phase, s.message.as_str()),
            (Some(Phase::Pending), "waiting for its address")
        );
    }

    #[test]
    fn a_task_that_is_over_stays_over() {
        let mut t = task();
        t.status = Some(observe(&t, &[pod("a", PodPhase::Failed, "boom")], &now()));
        let s = observe(&t, &[pod("a", PodPhase::Running, "")], &now());
        assert_eq!(s.phase, Some(Phase::Failed));
    }

    #[test]
    fn pods_of_an_earlier_task_of_the_same_name_do_not_count() {
        let mut old = Arc::unwrap_or_clone(pod("a", PodPhase::Failed, "old"));
        old.metadata.creation_timestamp =
            Some(Time(k8s_openapi::jiff::Timestamp::from_second(5).unwrap()));
        let s = observe(&task(), &[Arc::new(old)], &now());
        assert_eq!(s.phase, Some(Phase::Pending));
    }
}
