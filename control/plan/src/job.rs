//! What to do with a Job: its next phase, the Tasks to make, change and delete, and what to tell.
//!
//! One transition per pass; writing it brings the next pass. Terminal Jobs keep reacting to a stop
//! or a restart, and every start is a fresh run with fresh Tasks.

mod state;
mod tasks;

use std::{collections::BTreeMap, sync::Arc};

use control_api::{
    labels,
    v1alpha1::{Job, JobPhase, JobStatus, JobTaskStatus, Node, Phase, Task},
    validate,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

pub use self::state::{Facts, Signal, Tally, next};
use crate::{
    conditions::{self, Finding},
    names,
    placement::{Load, Place},
};

/// Condition: whether every task has a place.
pub const PLACED: &str = "Placed";
/// Condition: the run succeeded.
pub const COMPLETE: &str = "Complete";
/// Condition: the run failed.
pub const FAILED: &str = "Failed";

/// What is observed.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    pub job: &'a Job,
    /// All Tasks of all Jobs: for name clashes and for the load of Nodes.
    pub tasks: &'a [Arc<Task>],
    pub nodes: &'a [Arc<Node>],
    /// Whether the Domain that the spec names exists. True when it names none.
    pub domain_exists: bool,
    pub now: &'a Time,
}

/// Something people should read about a Job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub warning: bool,
    pub reason: String,
    pub message: String,
}

/// A Task by namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaskRef {
    pub namespace: String,
    pub name: String,
    pub uid: String,
}

/// What to do. Act on the Tasks first, then write the status, then publish the notes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub create: Vec<Task>,
    /// Whole objects with the resource version they were read at.
    pub update: Vec<Task>,
    pub delete: Vec<TaskRef>,
    pub status: JobStatus,
    pub notes: Vec<Note>,
}

/// Whether a Task is this Job's: by owner, or by label where nobody owns it.
#[must_use]
pub fn owns(job: &Job, task: &Task) -> bool {
    let controller =
        task.metadata.owner_references.iter().flatten().find(|o| o.controller == Some(true));
    match controller {
        Some(owner) => Some(&owner.uid) == job.metadata.uid.as_ref() && owner.kind == "Job",
        None => crate::peers::job_of_task(task) == job.metadata.name,
    }
}

/// Decides. Pure and deterministic in what is observed.
#[must_use]
pub fn plan(seen: Observed<'_>) -> Plan {
    let job = seen.job;
    let before = job.status.clone().unwrap_or_default();
    let owned: Vec<&Task> = seen.tasks.iter().map(Arc::as_ref).filter(|t| owns(job, t)).collect();
    let restart = restart_asked(job);
    let facts = Facts {
        stop: job.spec.stopped || job.metadata.deletion_timestamp.is_some(),
        restart: !restart.is_empty()
            && restart != before.observed_restart
            && before.observed_generation.is_some(),
        any_task_left: !owned.is_empty(),
        tally: tally(job, &owned),
    };
    let mut out = Plan { status: before.clone(), ..Plan::default() };
    let step = next(before.phase.as_ref(), &facts);
    if let Some((signal, phase)) = &step {
        enter(&mut out, job, phase, seen.now);
        out.notes.push(told(*signal, before.phase.as_ref(), phase, job, &owned));
    }
    match out.status.phase.clone() {
        Some(JobPhase::Pending | JobPhase::Running) => run(&mut out, seen, &owned),
        Some(JobPhase::Stopping | JobPhase::Stopped) => {
            out.delete = owned.iter().filter(|t| !is_going(t)).map(|t| reference(t)).collect();
        }
        _ => {}
    }
    out.status.tasks = task_statuses(job, &owned, &before, out.status.phase.as_ref());
    out.status.observed_generation = job.metadata.generation.or(Some(0));
    if before.observed_generation.is_none() {
        restart.clone_into(&mut out.status.observed_restart);
    }
    out
}

/// The restart request in force, empty when there is none.
fn restart_asked(job: &Job) -> &str {
    job.metadata
        .annotations
        .as_ref()
        .and_then(|a| a.get(labels::RESTARTED_AT))
        .map(String::as_str)
        .unwrap_or_default()
}

fn is_going(task: &Task) -> bool {
    task.metadata.deletion_timestamp.is_some()
}

fn reference(task: &Task) -> TaskRef {
    TaskRef {
        namespace: task.metadata.namespace.clone().unwrap_or_default(),
        name: task.metadata.name.clone().unwrap_or_default(),
        uid: task.metadata.uid.clone().unwrap_or_default(),
    }
}

/// Tasks of one template, by its name.
fn task_of<'a>(job: &Job, template: &str, owned: &[&'a Task]) -> Option<&'a Task> {
    let name = names::task(job.metadata.name.as_deref().unwrap_or_default(), template);
    owned.iter().find(|t| t.metadata.name.as_deref() == Some(name.as_str())).copied()
}

fn phase_of(task: &Task) -> Phase {
    task.status.as_ref().and_then(|s| s.phase.clone()).unwrap_or(Phase::Pending)
}

fn tally(job: &Job, owned: &[&Task]) -> Tally {
    let mut tally = Tally { wanted: job.spec.tasks.len(), ..Tally::default() };
    for task in job.spec.tasks.iter().filter_map(|t| task_of(job, &t.name, owned)) {
        match phase_of(task) {
            Phase::Running => tally.running += 1,
            Phase::Succeeded => tally.succeeded += 1,
            Phase::Failed => tally.failed += 1,
            _ => {}
        }
    }
    tally
}

/// What entering a phase does to the status.
fn enter(out: &mut Plan, job: &Job, phase: &JobPhase, now: &Time) {
    let status = &mut out.status;
    let generation = job.metadata.generation;
    match phase {
        JobPhase::Pending => {
            status.start_time = Some(now.clone());
            status.end_time = None;
            restart_asked(job).clone_into(&mut status.observed_restart);
            conditions::remove(&mut status.conditions, COMPLETE);
            conditions::remove(&mut status.conditions, FAILED);
        }
        JobPhase::Succeeded => {
            status.end_time = Some(now.clone());
            let finding = Finding::yes(COMPLETE, "TasksSucceeded", "every task succeeded");
            conditions::set(&mut status.conditions, finding, generation, now);
        }
        JobPhase::Failed => {
            status.end_time = Some(now.clone());
            let finding = Finding::yes(FAILED, "TaskFailed", "a task failed");
            conditions::set(&mut status.conditions, finding, generation, now);
        }
        JobPhase::Stopping => conditions::remove(&mut status.conditions, PLACED),
        _ => {}
    }
    status.phase = Some(phase.clone());
}

fn told(
    signal: Signal,
    from: Option<&JobPhase>,
    to: &JobPhase,
    job: &Job,
    owned: &[&Task],
) -> Note {
    let failed: Vec<String> = job
        .spec
        .tasks
        .iter()
        .filter_map(|t| Some((t, task_of(job, &t.name, owned)?)))
        .filter(|(_, task)| phase_of(task) == Phase::Failed)
        .map(|(t, task)| {
            let why = task.status.as_ref().map(|s| s.message.as_str()).unwrap_or_default();
            if why.is_empty() { t.name.clone() } else { format!("{} ({why})", t.name) }
        })
        .collect();
    let from = from.map_or("", JobPhase::as_str);
    let arrow = if from.is_empty() { to.to_string() } else { format!("{from} to {to}") };
    let message = match signal {
        Signal::TaskFailed => format!("{arrow}: failed: {}", failed.join(", ")),
        other => format!("{arrow}: {other}"),
    };
    Note { warning: *to == JobPhase::Failed, reason: to.to_string(), message }
}

/// Makes the Tasks agree with the templates.
fn run(out: &mut Plan, seen: Observed<'_>, owned: &[&Task]) {
    let job = seen.job;
    let mut problem = None;
    let errors = validate::job(job.metadata.name.as_deref().unwrap_or_default(), &job.spec);
    if !errors.is_empty() {
        problem = Some(("InvalidSpec", validate::summary(&errors)));
    }
    let (missing, present) = split(job, owned);
    if problem.is_none() {
        for (template, task) in &present {
            let wanted = tasks::desired(job, template, &crate::placement::place_of(task));
            out.update.extend(tasks::changed(task, &wanted).filter(|_| !is_going(task)));
        }
        out.delete = owned
            .iter()
            .filter(|t| !present.iter().any(|(_, p)| std::ptr::eq(*p, **t)) && !is_going(t))
            .map(|t| reference(t))
            .collect();
        match create(&missing, seen) {
            Ok(made) => out.create = made,
            Err(why) => problem = Some(why),
        }
    }
    let finding = match problem {
        Some((reason, message)) => Finding::no(PLACED, reason, message),
        None => Finding::yes(PLACED, "Placed", "every task has a place"),
    };
    let before = out.status.conditions.iter().find(|c| c.type_ == PLACED);
    let news = before.is_none_or(|c| c.reason != finding.reason || c.message != finding.message);
    if !finding.status && news {
        let (reason, message) = (finding.reason.to_owned(), finding.message.clone());
        out.notes.push(Note { warning: true, reason, message });
    }
    conditions::set(&mut out.status.conditions, finding, job.metadata.generation, seen.now);
}

type Template = control_api::v1alpha1::JobTask;

fn split<'a>(
    job: &'a Job,
    owned: &[&'a Task],
) -> (Vec<&'a Template>, Vec<(&'a Template, &'a Task)>) {
    let (mut missing, mut present) = (Vec::new(), Vec::new());
    for template in &job.spec.tasks {
        match task_of(job, &template.name, owned) {
            Some(task) => present.push((template, task)),
            None => missing.push(template),
        }
    }
    (missing, present)
}

/// Places all missing Tasks or none, so that a Job does not hold machines while it waits for others.
fn create(missing: &[&Template], seen: Observed<'_>) -> Result<Vec<Task>, (&'static str, String)> {
    // Also of a Job that runs: its tasks have lost their network, which no Task can say.
    if !seen.domain_exists {
        return Err((
            "DomainNotFound",
            format!("Domain {:?} does not exist", seen.job.spec.domain),
        ));
    }
    if missing.is_empty() {
        return Ok(Vec::new());
    }
    let mut load = Load::of(seen.tasks.iter().map(Arc::as_ref));
    let mut made = Vec::new();
    for template in missing {
        let place: Place = crate::placement::place(&template.spec, seen.nodes, &load)
            .map_err(|e| ("Unschedulable", format!("task {:?}: {e}", template.name)))?;
        load.add(&place);
        let task = tasks::desired(seen.job, template, &place);
        let clash = seen.tasks.iter().find(|t| {
            t.metadata.name == task.metadata.name && t.metadata.namespace == task.metadata.namespace
        });
        if clash.is_some() {
            let name = task.metadata.name.unwrap_or_default();
            let message = format!("Task {}/{name} exists and is not this Job's", place.namespace);
            return Err(("NameConflict", message));
        }
        made.push(task);
    }
    Ok(made)
}

/// One entry per template. Results of finished tasks outlive their Tasks until the next run.
fn task_statuses(
    job: &Job,
    owned: &[&Task],
    before: &JobStatus,
    phase: Option<&JobPhase>,
) -> Vec<JobTaskStatus> {
    let known: BTreeMap<&str, &JobTaskStatus> =
        before.tasks.iter().map(|t| (t.name.as_str(), t)).collect();
    let winding_down = match phase {
        Some(JobPhase::Stopping) => Some(Phase::Stopping),
        Some(JobPhase::Stopped) => Some(Phase::Stopped),
        _ => None,
    };
    let over = matches!(phase, Some(JobPhase::Succeeded | JobPhase::Failed));
    let mut out = Vec::new();
    for template in &job.spec.tasks {
        let name = template.name.clone();
        let old = known.get(template.name.as_str());
        let done = old.filter(|o| o.phase.as_ref().is_some_and(crate::task::is_over));
        let entry = match (task_of(job, &template.name, owned), &winding_down) {
            (_, Some(_)) if done.is_some() => done.map(|d| (**d).clone()),
            (Some(task), Some(down)) => {
                let now = phase_of(task);
                let phase = if crate::task::is_over(&now) { now } else { down.clone() };
                Some(status_of(&name, phase, task))
            }
            (None, Some(down)) => Some(JobTaskStatus {
                name: name.clone(),
                phase: Some(down.clone()),
                message: String::new(),
            }),
            (Some(task), None) => Some(status_of(&name, phase_of(task), task)),
            (None, None) if over => old.map(|o| (**o).clone()),
            (None, None) => None,
        };
        out.push(entry.unwrap_or(JobTaskStatus {
            name,
            phase: Some(Phase::Pending),
            message: String::new(),
        }));
    }
    out
}

fn status_of(name: &str, phase: Phase, task: &Task) -> JobTaskStatus {
    let message = task.status.as_ref().map(|s| s.message.clone()).unwrap_or_default();
    JobTaskStatus { name: name.to_owned(), phase: Some(phase), message }
}

#[cfg(test)]
mod tests;
