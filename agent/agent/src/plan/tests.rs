use agent_workload::raw::Status;
use control_api::v1alpha1::{EnvVar, TaskSpec};

use super::*;

fn task(domain: &str) -> Task {
    let raw = RawTask {
        entrypoint: vec!["x".into()],
        environment: vec![EnvVar { name: "POD_NAME".into(), value: "mine".into() }],
        ..RawTask::default()
    };
    let spec = TaskSpec {
        agent_type: Some(AgentType::Raw),
        domain: domain.to_owned(),
        raw: Some(raw),
        ..TaskSpec::default()
    };
    let mut task = Task::new("job-actor", spec);
    task.metadata.uid = Some("1c9c8f2a-0000-4000-8000-000000000000".into());
    task.labels_mut().insert(labels::JOB.into(), "job".into());
    task.annotations_mut().insert(labels::NODE.into(), "n1".into());
    task.annotations_mut().insert("rlinf.io/ray-node-rank-start".into(), "2".into());
    task.annotations_mut().insert("rlark.io/ray-head-task-name".into(), "job-head".into());
    task
}

fn variable<'a>(spec: &'a PodSpec, name: &str) -> Option<&'a str> {
    spec.environment.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
}

#[test]
fn a_task_is_ours_only_by_its_annotation_and_type() {
    let mut t = task("");
    assert!(is_ours(&t, &"n1".parse().unwrap()));
    assert!(!is_ours(&t, &"n2".parse().unwrap()));
    t.spec.agent_type = Some(AgentType::Docker);
    assert!(!is_ours(&t, &"n1".parse().unwrap()));
}

#[test]
fn the_users_variables_win_and_the_domain_brings_its_interface() {
    let t = task("d");
    let spec = pod_spec(&t, pod_uid(&t).unwrap(), &"n1".parse().unwrap(), None);
    assert_eq!(spec.name, "job-actor-0");
    for (name, value) in [
        ("POD_NAME", "mine"),
        ("RLARK_JOB_NAME", "job"),
        ("RLARK_DOMAIN", "d"),
        ("GLOO_SOCKET_IFNAME", "rl0"),
        ("RLINF_NODE_RANK", "2"),
        ("RLARK_HEAD_ADDRESS", "job-head-0.rlark-domain"),
    ] {
        assert_eq!(variable(&spec, name), Some(value), "{name}");
    }
    let t = task("");
    let spec = pod_spec(&t, pod_uid(&t).unwrap(), &"n1".parse().unwrap(), None);
    assert_eq!(variable(&spec, "GLOO_SOCKET_IFNAME"), None);
}

#[test]
fn a_task_on_the_machines_network_is_told_of_no_interface() {
    let mut t = task("d");
    assert!(!on_host_network(&t));
    if let Some(raw) = &mut t.spec.raw {
        raw.host_network = true;
    }
    assert!(on_host_network(&t));
    let host = HostNetwork { name: "robot".into(), addresses: vec![[192, 168, 1, 10].into()] };
    let spec = pod_spec(&t, pod_uid(&t).unwrap(), &"n1".parse().unwrap(), Some(host.clone()));
    assert_eq!(spec.host_network, Some(host));
    for name in ["GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "RLINF_COMM_NET_DEVICES"] {
        assert_eq!(variable(&spec, name), None, "{name}");
    }
    assert_eq!(variable(&spec, "RLARK_DOMAIN"), Some("d"));
}

#[test]
fn only_a_task_that_shall_always_run_is_never_given_up() {
    let mut t = task("");
    let limit =
        |t: &Task| pod_spec(t, pod_uid(t).unwrap(), &"n1".parse().unwrap(), None).backoff_limit;
    assert_eq!(limit(&t), Some(3));
    if let Some(raw) = &mut t.spec.raw {
        raw.restart_policy = Some(ApiRestart::Always);
    }
    assert_eq!(limit(&t), None);
}

#[test]
fn long_task_names_become_distinct_host_names() {
    let (a, b) = (
        raw_pod_name(&format!("{}a", "x".repeat(80))),
        raw_pod_name(&format!("{}b", "x".repeat(80))),
    );
    assert!(a.len() <= 63 && a != b && a.ends_with("-0"), "{a}");
    assert_eq!(raw_pod_name(&"x".repeat(61)).len(), 63);
}

#[test]
fn every_stage_has_its_phases() {
    let t = task("");
    let mut view = PodView {
        spec: pod_spec(&t, pod_uid(&t).unwrap(), &"n1".parse().unwrap(), None),
        addresses: vec![[10, 0, 0, 2].into()],
        netns: "/run/x".into(),
        cgroup: "/c/pod".into(),
        hosts: "/run/h".into(),
        started: false,
        status: Status::new(),
    };
    assert_eq!(fare(&view).task, Phase::Pending);
    view.status.stage = Stage::Running;
    assert_eq!(fare(&view).task, Phase::Running);
    view.status.stage = Stage::BackOff;
    view.status.last_exit = Some(3);
    view.status.failures = 2;
    let f = fare(&view);
    assert_eq!(f.task, Phase::Running);
    assert_eq!(f.message, "exited with code 3; waiting to restart, 2 so far");
    view.status.outcome = Some(Outcome::Failed { code: Some(3), message: "m".into() });
    assert_eq!((fare(&view).pod, fare(&view).message.as_str()), (PodPhase::Failed, "m"));
}
