use control_api::v1alpha1::{
    AgentType, JobSpec, JobTask, NodePhase, NodeSpec, NodeStatus, RawTask, TaskSpec, TaskStatus,
};
use proptest::prelude::*;

use super::*;

fn now() -> Time {
    Time(k8s_openapi::jiff::Timestamp::from_second(7).unwrap())
}

fn template(name: &str, site: &str) -> JobTask {
    JobTask {
        name: name.into(),
        head: false,
        spec: TaskSpec {
            agent_type: Some(AgentType::Raw),
            role: "Actor".into(),
            node_selector: BTreeMap::from([("site".into(), site.into())]),
            raw: Some(RawTask { entrypoint: vec!["true".into()], ..RawTask::default() }),
            ..TaskSpec::default()
        },
    }
}

fn node(namespace: &str, name: &str, site: &str) -> Arc<Node> {
    let mut n =
        Node::new(name, NodeSpec { agent_type: Some(AgentType::Raw), unschedulable: false });
    n.metadata.namespace = Some(namespace.into());
    n.metadata.labels = Some(BTreeMap::from([("site".into(), site.into())]));
    n.status = Some(NodeStatus { phase: Some(NodePhase::Online), ..NodeStatus::default() });
    Arc::new(n)
}

/// A world in which what is planned happens.
struct World {
    job: Job,
    tasks: Vec<Arc<Task>>,
    nodes: Vec<Arc<Node>>,
    domain_exists: bool,
    uid: u32,
    notes: Vec<Note>,
}

impl World {
    fn new(templates: Vec<JobTask>) -> Self {
        let mut job =
            Job::new("j", JobSpec { domain: "d".into(), tasks: templates, ..JobSpec::default() });
        job.metadata.uid = Some("job-uid".into());
        job.metadata.generation = Some(1);
        Self {
            job,
            tasks: Vec::new(),
            nodes: vec![node("rlark-a", "n1", "cloud"), node("rlark-b", "n2", "edge")],
            domain_exists: true,
            uid: 0,
            notes: Vec::new(),
        }
    }
    fn pass(&mut self) -> Plan {
        let p = plan(Observed {
            job: &self.job,
            tasks: &self.tasks,
            nodes: &self.nodes,
            domain_exists: self.domain_exists,
            now: &now(),
        });
        for mut t in p.create.clone() {
            self.uid += 1;
            t.metadata.uid = Some(format!("t{}", self.uid));
            self.tasks.push(Arc::new(t));
        }
        for new in p.update.clone() {
            for t in &mut self.tasks {
                if t.metadata.uid == new.metadata.uid {
                    *t = Arc::new(new.clone());
                }
            }
        }
        for gone in &p.delete {
            for t in &mut self.tasks {
                if t.metadata.uid.as_deref() == Some(&gone.uid) {
                    Arc::make_mut(t).metadata.deletion_timestamp = Some(now());
                }
            }
        }
        self.job.status = Some(p.status.clone());
        self.notes.extend(p.notes.clone());
        p
    }
    fn settle(&mut self) {
        for _ in 0..8 {
            self.pass();
        }
    }
    /// Agents have cleaned up.
    fn finish_deletions(&mut self) {
        self.tasks.retain(|t| t.metadata.deletion_timestamp.is_none());
    }
    fn phase(&self) -> JobPhase {
        self.job.status.as_ref().unwrap().phase.clone().unwrap()
    }
    fn report(&mut self, task: &str, phase: Phase) {
        for t in &mut self.tasks {
            if t.metadata.name.as_deref() == Some(task) {
                Arc::make_mut(t).status =
                    Some(TaskStatus { phase: Some(phase.clone()), ..TaskStatus::default() });
            }
        }
    }
    fn restart(&mut self, when: &str) {
        self.job
            .metadata
            .annotations
            .get_or_insert_default()
            .insert(labels::RESTARTED_AT.into(), when.into());
    }
    fn condition(&self) -> (String, String) {
        let s = self.job.status.as_ref().unwrap();
        let c = s.conditions.iter().find(|c| c.type_ == PLACED).unwrap();
        (c.reason.clone(), c.message.clone())
    }
    fn uids(&self) -> Vec<String> {
        self.tasks.iter().filter_map(|t| t.metadata.uid.clone()).collect()
    }
}

#[test]
fn a_job_runs_from_pending_to_succeeded() {
    let mut w = World::new(vec![template("actor", "cloud"), template("rollout", "edge")]);
    let p = w.pass();
    assert_eq!(p.create.len(), 2);
    let actor = &p.create[0];
    assert_eq!(actor.metadata.name.as_deref(), Some("j-actor"));
    assert_eq!(actor.metadata.namespace.as_deref(), Some("rlark-a"));
    assert_eq!(actor.metadata.annotations.as_ref().unwrap()[labels::NODE], "n1");
    assert_eq!(actor.metadata.labels.as_ref().unwrap()[labels::JOB], "j");
    assert_eq!(actor.spec.domain, "d");
    assert_eq!(w.phase(), JobPhase::Pending);
    w.report("j-actor", Phase::Running);
    w.pass();
    assert_eq!(w.phase(), JobPhase::Running);
    w.report("j-actor", Phase::Succeeded);
    w.report("j-rollout", Phase::Succeeded);
    w.pass();
    assert_eq!(w.phase(), JobPhase::Succeeded);
    let s = w.job.status.clone().unwrap();
    assert!(s.end_time.is_some());
    assert!(s.conditions.iter().any(|c| c.type_ == COMPLETE && c.status == "True"));
    let quiet = w.pass();
    assert_eq!((quiet.status, quiet.notes.len()), (s, 0), "a further pass changes nothing");
}

#[test]
fn a_job_whose_tasks_fail_before_any_ran_has_failed() {
    let mut w = World::new(vec![template("a", "cloud")]);
    w.pass();
    w.report("j-a", Phase::Failed);
    w.pass();
    assert_eq!(w.phase(), JobPhase::Failed);
}

#[test]
fn stop_lasts_until_the_tasks_are_gone_and_start_is_a_fresh_run() {
    let mut w = World::new(vec![template("a", "cloud"), template("b", "edge")]);
    w.settle();
    w.report("j-a", Phase::Succeeded);
    w.report("j-b", Phase::Running);
    w.settle();
    let first = w.uids();
    w.job.spec.stopped = true;
    w.settle();
    assert_eq!(w.phase(), JobPhase::Stopping);
    w.finish_deletions();
    w.settle();
    assert_eq!(w.phase(), JobPhase::Stopped);
    let tasks = w.job.status.as_ref().unwrap().tasks.clone();
    assert_eq!(tasks[0].phase, Some(Phase::Succeeded), "results are kept");
    assert_eq!(tasks[1].phase, Some(Phase::Stopped));
    w.job.spec.stopped = false;
    w.settle();
    assert_eq!(w.phase(), JobPhase::Pending);
    assert_eq!(w.tasks.len(), 2);
    assert!(w.uids().iter().all(|u| !first.contains(u)));
    assert_eq!(w.job.status.as_ref().unwrap().tasks[0].phase, Some(Phase::Pending));
}

#[test]
fn a_terminal_job_can_be_restarted_and_a_restart_happens_once() {
    for end in [Phase::Succeeded, Phase::Failed] {
        let mut w = World::new(vec![template("a", "cloud")]);
        w.settle();
        w.report("j-a", end);
        w.settle();
        let first = w.uids();
        w.restart("2026-01-01T00:00:00Z");
        w.settle();
        assert_eq!(w.phase(), JobPhase::Stopping);
        w.finish_deletions();
        w.settle();
        assert_eq!(w.phase(), JobPhase::Pending);
        assert_ne!(w.uids(), first);
        w.report("j-a", Phase::Succeeded);
        w.settle();
        assert_eq!(w.phase(), JobPhase::Succeeded);
        let s = w.job.status.as_ref().unwrap();
        assert!(!s.conditions.iter().any(|c| c.type_ == FAILED));
    }
}

#[test]
fn a_job_that_names_no_existing_domain_waits_for_it() {
    let mut w = World::new(vec![template("a", "cloud")]);
    w.domain_exists = false;
    w.settle();
    assert_eq!((w.phase(), w.tasks.len()), (JobPhase::Pending, 0));
    assert_eq!(w.condition().0, "DomainNotFound");
    assert!(w.condition().1.contains("\"d\""));
    assert_eq!(w.notes.iter().filter(|n| n.reason == "DomainNotFound").count(), 1, "said once");
    w.domain_exists = true;
    w.settle();
    assert_eq!(w.tasks.len(), 1);
    w.domain_exists = false;
    w.settle();
    assert_eq!((w.condition().0.as_str(), w.tasks.len()), ("DomainNotFound", 1), "it goes on");
    w.domain_exists = true;
    w.settle();
    assert_eq!(w.condition().0, "Placed");
}

#[test]
fn a_selector_that_matches_nothing_is_named_and_nothing_is_made() {
    let mut w = World::new(vec![template("a", "cloud"), template("b", "moon")]);
    w.settle();
    assert_eq!((w.phase(), w.tasks.len()), (JobPhase::Pending, 0));
    let (reason, message) = w.condition();
    assert_eq!(reason, "Unschedulable");
    assert!(message.contains("site=moon") && message.contains("\"b\""), "{message}");
    w.nodes.push(node("rlark-c", "n3", "moon"));
    w.settle();
    assert_eq!(w.tasks.len(), 2);
}

#[test]
fn a_removed_template_loses_its_task_and_an_added_one_gets_an_entry() {
    let mut w = World::new(vec![template("a", "cloud"), template("b", "edge")]);
    w.settle();
    w.report("j-a", Phase::Running);
    w.settle();
    w.job.spec.tasks.remove(1);
    w.job.spec.tasks.push(template("c", "edge"));
    w.settle();
    w.finish_deletions();
    w.settle();
    let names: Vec<_> = w.tasks.iter().filter_map(|t| t.metadata.name.clone()).collect();
    assert_eq!(names, ["j-a", "j-c"]);
    let entries: Vec<_> =
        w.job.status.as_ref().unwrap().tasks.iter().map(|t| t.name.clone()).collect();
    assert_eq!(entries, ["a", "c"]);
}

#[test]
fn a_placed_task_stays_where_it_is_and_follows_its_template() {
    let mut w = World::new(vec![template("a", "cloud")]);
    w.settle();
    w.nodes.clear();
    w.job.spec.tasks[0].spec.node_selector.insert("site".into(), "moon".into());
    w.job.spec.tasks[0].spec.role = "Env".into();
    w.settle();
    assert_eq!(w.tasks.len(), 1);
    assert_eq!(w.tasks[0].metadata.namespace.as_deref(), Some("rlark-a"));
    assert_eq!(w.tasks[0].spec.role, "Env");
    assert_eq!(w.tasks[0].metadata.annotations.as_ref().unwrap()[labels::NODE], "n1");
}

#[test]
fn an_invalid_job_makes_nothing_and_says_where() {
    let mut w = World::new(vec![template("a", "cloud"), template("a", "cloud")]);
    w.settle();
    assert!(w.tasks.is_empty());
    let (reason, message) = w.condition();
    assert_eq!(reason, "InvalidSpec");
    assert!(message.starts_with("spec.tasks[1].name"), "{message}");
}

#[test]
fn a_foreign_task_of_the_same_name_is_not_taken_over() {
    let mut w = World::new(vec![template("a", "cloud")]);
    let mut foreign = Task::new("j-a", TaskSpec::default());
    foreign.metadata.namespace = Some("rlark-a".into());
    w.tasks.push(Arc::new(foreign.clone()));
    w.settle();
    assert_eq!(w.condition().0, "NameConflict");
    assert_eq!(*w.tasks[0], foreign);
}

#[test]
fn ranks_and_the_head_are_written_for_ray() {
    let mut head = template("head", "cloud");
    head.head = true;
    let mut w = World::new(vec![head, template("w", "edge")]);
    w.settle();
    let a = w.tasks[1].metadata.annotations.as_ref().unwrap();
    let get = |name| labels::ray::get(a, name).unwrap();
    assert_eq!(get(labels::ray::ROLE), "worker");
    assert_eq!(get(labels::ray::HEAD_TASK_NAME), "j-head");
    assert_eq!((get(labels::ray::TOTAL_NODES), get(labels::ray::NODE_RANK_START)), ("2", "1"));
}

#[test]
fn the_ssh_key_overrides_only_when_set() {
    let mut t = template("a", "cloud");
    t.spec.ssh_public_key = "own".into();
    let mut w = World::new(vec![t]);
    w.settle();
    assert_eq!(w.tasks[0].spec.ssh_public_key, "own");
    w.job.spec.ssh_public_key = "job".into();
    w.settle();
    assert_eq!(w.tasks[0].spec.ssh_public_key, "job");
}

#[test]
fn an_old_restart_annotation_does_not_restart_a_job_met_for_the_first_time() {
    let mut w = World::new(vec![template("a", "cloud")]);
    w.restart("2025");
    w.job.status = Some(JobStatus { phase: Some(JobPhase::Succeeded), ..JobStatus::default() });
    w.settle();
    assert_eq!(w.phase(), JobPhase::Succeeded);
}

#[derive(Clone, Debug)]
enum Act {
    Stop(bool),
    Restart(u8),
    Report(u8, u8),
    Cleanup,
    DropTemplate,
    AddTemplate(u8),
    Domain(bool),
    LoseTask(u8),
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        any::<bool>().prop_map(Act::Stop),
        (0_u8..4).prop_map(Act::Restart),
        (0_u8..4, 0_u8..4).prop_map(|(t, p)| Act::Report(t, p)),
        Just(Act::Cleanup),
        Just(Act::DropTemplate),
        (0_u8..4).prop_map(Act::AddTemplate),
        any::<bool>().prop_map(Act::Domain),
        (0_u8..4).prop_map(Act::LoseTask),
    ]
}

fn perform(w: &mut World, act: &Act) {
    let phases = [Phase::Pending, Phase::Running, Phase::Succeeded, Phase::Failed];
    match act {
        Act::Stop(stop) => w.job.spec.stopped = *stop,
        Act::Restart(n) => w.restart(&n.to_string()),
        Act::Report(t, p) => w.report(&format!("j-t{t}"), phases[usize::from(*p)].clone()),
        Act::Cleanup => w.finish_deletions(),
        Act::DropTemplate => {
            w.job.spec.tasks.pop();
        }
        Act::AddTemplate(n) => {
            let t = template(&format!("t{n}"), "cloud");
            if w.job.spec.tasks.iter().all(|o| o.name != t.name) {
                w.job.spec.tasks.push(t);
            }
        }
        Act::Domain(there) => w.domain_exists = *there,
        Act::LoseTask(n) => {
            w.tasks.retain(|t| t.metadata.name.as_deref() != Some(&format!("j-t{n}")));
        }
    }
}

proptest! {
    #[test]
    fn whatever_happens_the_job_obeys_its_rules(acts in prop::collection::vec(act(), 0..60)) {
        let mut w = World::new(vec![template("t0", "cloud"), template("t1", "edge")]);
        let mut before: Option<JobPhase> = None;
        for a in &acts {
            perform(&mut w, a);
            let had_tasks = !w.tasks.is_empty();
            w.pass();
            let now = w.phase();
            let legal = match (&before, &now) {
                (None, JobPhase::Pending) => true,
                (Some(a), b) if a == b => true,
                (Some(JobPhase::Pending), JobPhase::Running) => true,
                (Some(JobPhase::Pending | JobPhase::Running), JobPhase::Succeeded | JobPhase::Failed) => true,
                (Some(JobPhase::Stopping), JobPhase::Stopped) => !had_tasks,
                (Some(JobPhase::Stopped), JobPhase::Pending) => !w.job.spec.stopped,
                (Some(_), JobPhase::Stopping) => true,
                _ => false,
            };
            prop_assert!(legal, "{before:?} to {now:?} after {a:?}");
            let names: Vec<_> =
                w.job.status.as_ref().unwrap().tasks.iter().map(|t| t.name.clone()).collect();
            let wanted: Vec<_> = w.job.spec.tasks.iter().map(|t| t.name.clone()).collect();
            prop_assert_eq!(names, wanted, "one entry per template");
            if matches!(now, JobPhase::Stopped | JobPhase::Stopping) {
                prop_assert!(w.tasks.iter().all(|t| t.metadata.deletion_timestamp.is_some()));
            }
            before = Some(now);
        }
        // Left alone, with agents that clean up, it obeys its spec.
        w.domain_exists = true;
        for _ in 0..4 {
            w.settle();
            w.finish_deletions();
        }
        w.settle();
        prop_assert_eq!(w.job.spec.stopped, w.phase() == JobPhase::Stopped);
        let s = w.job.status.clone();
        let quiet = w.pass();
        prop_assert_eq!(Some(quiet.status), s, "a settled Job stays");
        prop_assert!(quiet.create.is_empty() && quiet.update.is_empty() && quiet.notes.is_empty());
    }
}
