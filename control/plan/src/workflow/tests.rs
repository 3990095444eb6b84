use control_api::v1alpha1::{JobSpec, JobStatus, WorkflowSpec};

use super::*;

fn t(name: &str, dependencies: &[&str]) -> JobTemplate {
    JobTemplate {
        name: name.into(),
        dependencies: dependencies.iter().map(|d| (*d).to_owned()).collect(),
        spec: JobSpec::default(),
    }
}
fn now() -> Time {
    Time(k8s_openapi::jiff::Timestamp::from_second(7).unwrap())
}

#[test]
fn templates_may_be_listed_in_any_order() {
    let templates = [t("c", &["b"]), t("b", &["a"]), t("a", &[])];
    assert_eq!(order(&templates).unwrap(), ["a", "b", "c"]);
}

#[test]
fn circles_self_loops_unknown_and_duplicate_names_are_refused() {
    assert_eq!(
        order(&[t("a", &["b"]), t("b", &["a"]), t("c", &[])]).unwrap_err(),
        OrderError::Circle { names: vec!["a".into(), "b".into()] }
    );
    assert!(matches!(order(&[t("a", &["a"])]).unwrap_err(), OrderError::Itself { .. }));
    assert!(matches!(order(&[t("a", &["x"])]).unwrap_err(), OrderError::Unknown { .. }));
    assert!(matches!(
        order(&[t("a", &[]), t("a", &[])]).unwrap_err(),
        OrderError::Duplicate { .. }
    ));
}

/// Runs passes until nothing changes.
fn settle(w: &mut Workflow, jobs: &mut Vec<Arc<Job>>) {
    for _ in 0..10 {
        let p = plan(w, jobs, &now());
        for mut job in p.create {
            job.status = Some(JobStatus::default());
            jobs.push(Arc::new(job));
        }
        jobs.retain(|j| !p.delete.contains(j.metadata.name.as_ref().unwrap()));
        w.status = Some(p.status);
    }
}

fn set(jobs: &mut [Arc<Job>], name: &str, phase: JobPhase) {
    let job = jobs.iter_mut().find(|j| j.metadata.name.as_deref() == Some(name)).unwrap();
    Arc::make_mut(job).status.as_mut().unwrap().phase = Some(phase);
}

#[test]
fn layers_start_when_those_before_have_succeeded_and_resume_starts_again() {
    let spec = WorkflowSpec { job_templates: vec![t("b", &["a"]), t("a", &[])], stopped: false };
    let mut w = Workflow::new("w", spec);
    w.metadata.uid = Some("wu".into());
    let mut jobs = Vec::new();
    settle(&mut w, &mut jobs);
    assert_eq!(jobs.len(), 1);
    set(&mut jobs, "w-a", JobPhase::Succeeded);
    settle(&mut w, &mut jobs);
    assert_eq!(jobs.len(), 2);
    set(&mut jobs, "w-b", JobPhase::Succeeded);
    settle(&mut w, &mut jobs);
    assert_eq!(w.status.as_ref().unwrap().phase, Some(WorkflowPhase::Succeeded));

    w.spec.stopped = true;
    settle(&mut w, &mut jobs);
    assert_eq!(w.status.as_ref().unwrap().phase, Some(WorkflowPhase::Stopped));
    assert!(jobs.is_empty(), "finished jobs are deleted too");
    w.spec.stopped = false;
    settle(&mut w, &mut jobs);
    assert_eq!(w.status.as_ref().unwrap().phase, Some(WorkflowPhase::Running));
    assert_eq!(jobs.len(), 1, "from the start again");
}

#[test]
fn a_job_of_the_same_name_is_not_adopted() {
    let spec = WorkflowSpec { job_templates: vec![t("a", &[])], stopped: false };
    let mut w = Workflow::new("w", spec);
    w.metadata.uid = Some("wu".into());
    let mut jobs = vec![Arc::new(Job::new("w-a", JobSpec::default()))];
    settle(&mut w, &mut jobs);
    let status = w.status.unwrap();
    assert_eq!(status.phase, Some(WorkflowPhase::Pending));
    assert_eq!(status.conditions[0].reason, "NameConflict");
}
