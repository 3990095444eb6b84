use super::*;
use crate::v1alpha1::RawTask;

fn raw(name: &str) -> JobTask {
    JobTask {
        name: name.to_owned(),
        head: false,
        spec: TaskSpec {
            agent_type: Some(AgentType::Raw),
            role: "Actor".to_owned(),
            raw: Some(RawTask { entrypoint: vec!["true".to_owned()], ..RawTask::default() }),
            ..TaskSpec::default()
        },
    }
}

fn job_of(tasks: Vec<JobTask>) -> JobSpec {
    JobSpec { tasks, ..JobSpec::default() }
}

#[test]
fn a_good_job_has_no_faults() {
    assert_eq!(job("j", &job_of(vec![raw("a"), raw("b")])), []);
}

#[test]
fn duplicate_task_names_are_named_with_their_place() {
    let e = job("j", &job_of(vec![raw("a"), raw("a")]));
    assert_eq!(e.len(), 1);
    assert_eq!(e[0].field, "spec.tasks[1].name");
}

#[test]
fn a_task_name_must_leave_room_for_the_pod_number() {
    let e = job(&"j".repeat(40), &job_of(vec![raw(&"a".repeat(20))]));
    assert_eq!(e, [], "61 characters fit");
    let e = job(&"j".repeat(40), &job_of(vec![raw(&"a".repeat(21))]));
    assert_eq!(e[0].field, "spec.tasks[0].name");
}

#[test]
fn an_unknown_agent_type_is_reported_and_not_unreadable() {
    let mut t = raw("a");
    t.spec.agent_type = Some("Podman".into());
    let e = job("j", &job_of(vec![t]));
    assert_eq!(e[0].field, "spec.tasks[0].agentType");
    assert!(e[0].message.contains("Podman"));
}

#[test]
fn a_bad_domain_names_its_field() {
    let e = domain("d", &DomainSpec { cidr: "nonsense".to_owned(), ..DomainSpec::default() });
    assert_eq!(e[0].field, "spec.cidr");
    let allowed_ports = vec!["22".to_owned(), "80-70000".to_owned()];
    let e = domain(
        "d",
        &DomainSpec { cidr: "10.2.0.0/24".to_owned(), allowed_ports, ..DomainSpec::default() },
    );
    assert_eq!(e.len(), 1);
    assert_eq!(e[0].field, "spec.allowedPorts[1]");
    assert!(e[0].to_string().contains("80-70000"));
}
