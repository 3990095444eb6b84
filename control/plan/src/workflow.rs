//! Workflows: which Jobs may start, and what the whole has come to.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use control_api::{
    labels,
    v1alpha1::{
        Job, JobPhase, JobTemplate, Workflow, WorkflowJobStatus, WorkflowPhase, WorkflowStatus,
    },
    validate,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};

use crate::{
    conditions::{self, Finding},
    job::Note,
    names,
};

/// Condition: whether the templates form an order.
pub const VALID: &str = "Valid";

/// Why templates form no order.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OrderError {
    #[error("two job templates are named {name:?}")]
    Duplicate { name: String },
    #[error("job template {name:?} depends on {dependency:?}, which does not exist")]
    Unknown { name: String, dependency: String },
    #[error("job template {name:?} depends on itself")]
    Itself { name: String },
    #[error("job templates depend on each other in a circle: {}", .names.join(", "))]
    Circle { names: Vec<String> },
}

/// Template names in an order in which each comes after those it depends on. Templates may be
/// listed in any order; among those that are free the listed order holds.
///
/// # Errors
/// [`OrderError`].
pub fn order(templates: &[JobTemplate]) -> Result<Vec<&str>, OrderError> {
    let mut all = BTreeSet::new();
    for t in templates {
        if !all.insert(t.name.as_str()) {
            return Err(OrderError::Duplicate { name: t.name.clone() });
        }
    }
    for t in templates {
        for d in &t.dependencies {
            let name = t.name.clone();
            if *d == t.name {
                return Err(OrderError::Itself { name });
            }
            if !all.contains(d.as_str()) {
                return Err(OrderError::Unknown { name, dependency: d.clone() });
            }
        }
    }
    let mut done: Vec<&str> = Vec::new();
    let mut placed = BTreeSet::new();
    while done.len() < templates.len() {
        let free = templates.iter().find(|t| {
            !placed.contains(t.name.as_str())
                && t.dependencies.iter().all(|d| placed.contains(d.as_str()))
        });
        let Some(t) = free else {
            let left = templates.iter().map(|t| &t.name).filter(|n| !placed.contains(n.as_str()));
            return Err(OrderError::Circle { names: left.cloned().collect() });
        };
        placed.insert(t.name.as_str());
        done.push(&t.name);
    }
    Ok(done)
}

/// What to do with a Workflow.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    pub create: Vec<Job>,
    /// Names of Jobs.
    pub delete: Vec<String>,
    pub status: WorkflowStatus,
    pub notes: Vec<Note>,
}

/// Whether a Job is this Workflow's.
#[must_use]
pub fn owns(workflow: &Workflow, job: &Job) -> bool {
    job.metadata
        .owner_references
        .iter()
        .flatten()
        .any(|o| o.controller == Some(true) && Some(&o.uid) == workflow.metadata.uid.as_ref())
}

/// Decides. `jobs` are all Jobs, so that a name taken by another is seen.
#[must_use]
pub fn plan(workflow: &Workflow, jobs: &[Arc<Job>], now: &Time) -> Plan {
    let before = workflow.status.clone().unwrap_or_default();
    let mut out = Plan { status: before.clone(), ..Plan::default() };
    let name = workflow.metadata.name.as_deref().unwrap_or_default();
    let owned: BTreeMap<&str, &Job> = jobs
        .iter()
        .filter(|j| owns(workflow, j))
        .filter_map(|j| Some((j.metadata.name.as_deref()?, j.as_ref())))
        .collect();
    let fault = fault(name, workflow, jobs);
    let phase = step(before.phase.as_ref(), workflow, &owned, fault.is_some());
    if before.phase.as_ref() != Some(&phase) {
        enter(&mut out.status, &phase, now);
        out.notes.push(Note {
            warning: phase == WorkflowPhase::Failed,
            reason: phase.to_string(),
            message: format!("{phase}"),
        });
    }
    let finding = match &fault {
        Some((reason, message)) => Finding::no(VALID, reason, message.clone()),
        None => Finding::yes(VALID, "Valid", "the job templates form an order"),
    };
    conditions::set(&mut out.status.conditions, finding, workflow.metadata.generation, now);
    match phase {
        WorkflowPhase::Running if fault.is_none() => out.create = ready(name, workflow, &owned),
        WorkflowPhase::Stopping | WorkflowPhase::Stopped => {
            out.delete = owned
                .values()
                .filter(|j| j.metadata.deletion_timestamp.is_none())
                .filter_map(|j| j.metadata.name.clone())
                .collect();
        }
        _ => {}
    }
    let fresh = phase == WorkflowPhase::Pending;
    out.status.jobs = statuses(name, workflow, &owned, if fresh { &[] } else { &before.jobs });
    out.status.observed_generation = workflow.metadata.generation;
    out
}

fn fault(name: &str, workflow: &Workflow, jobs: &[Arc<Job>]) -> Option<(&'static str, String)> {
    if let Err(e) = order(&workflow.spec.job_templates) {
        return Some(("InvalidOrder", e.to_string()));
    }
    let errors = validate::workflow(name, &workflow.spec);
    if !errors.is_empty() {
        return Some(("InvalidSpec", validate::summary(&errors)));
    }
    workflow.spec.job_templates.iter().find_map(|t| {
        let job_name = names::job(name, &t.name);
        let taken = jobs
            .iter()
            .any(|j| j.metadata.name.as_deref() == Some(job_name.as_str()) && !owns(workflow, j));
        taken.then(|| ("NameConflict", format!("Job {job_name} exists and is not this Workflow's")))
    })
}

fn step(
    phase: Option<&WorkflowPhase>,
    workflow: &Workflow,
    owned: &BTreeMap<&str, &Job>,
    faulty: bool,
) -> WorkflowPhase {
    use WorkflowPhase::{Failed, Pending, Running, Stopped, Stopping, Succeeded};
    let stop = workflow.spec.stopped || workflow.metadata.deletion_timestamp.is_some();
    match phase {
        None | Some(WorkflowPhase::Other(_)) => Pending,
        Some(Stopping) if owned.is_empty() => Stopped,
        Some(Stopping) => Stopping,
        Some(Stopped) if stop || !owned.is_empty() => Stopped,
        Some(Stopped) => Pending,
        Some(_) if stop => Stopping,
        Some(Pending) if faulty => Pending,
        Some(Pending) => Running,
        Some(Running) => outcome(workflow, owned),
        Some(Succeeded) => Succeeded,
        Some(Failed) => Failed,
    }
}

fn outcome(workflow: &Workflow, owned: &BTreeMap<&str, &Job>) -> WorkflowPhase {
    let name = workflow.metadata.name.as_deref().unwrap_or_default();
    let phases: Vec<Option<JobPhase>> = workflow
        .spec
        .job_templates
        .iter()
        .map(|t| owned.get(names::job(name, &t.name).as_str()).and_then(|j| job_phase(j)))
        .collect();
    if phases.contains(&Some(JobPhase::Failed)) {
        WorkflowPhase::Failed
    } else if phases.iter().all(|p| *p == Some(JobPhase::Succeeded)) {
        WorkflowPhase::Succeeded
    } else {
        WorkflowPhase::Running
    }
}

fn job_phase(job: &Job) -> Option<JobPhase> {
    job.status.as_ref().and_then(|s| s.phase.clone())
}

fn enter(status: &mut WorkflowStatus, phase: &WorkflowPhase, now: &Time) {
    match phase {
        WorkflowPhase::Pending => {
            status.start_time = None;
            status.end_time = None;
        }
        WorkflowPhase::Running => status.start_time = Some(now.clone()),
        WorkflowPhase::Succeeded | WorkflowPhase::Failed => status.end_time = Some(now.clone()),
        _ => {}
    }
    status.phase = Some(phase.clone());
}

/// Jobs that are not there yet and whose dependencies have all succeeded.
fn ready(name: &str, workflow: &Workflow, owned: &BTreeMap<&str, &Job>) -> Vec<Job> {
    let job_of = |template: &str| owned.get(names::job(name, template).as_str()).copied();
    workflow
        .spec
        .job_templates
        .iter()
        .filter(|t| job_of(&t.name).is_none())
        .filter(|t| {
            t.dependencies
                .iter()
                .all(|d| job_of(d).and_then(job_phase) == Some(JobPhase::Succeeded))
        })
        .map(|t| child(name, workflow, t))
        .collect()
}

fn child(name: &str, workflow: &Workflow, template: &JobTemplate) -> Job {
    let mut job = Job::new(&names::job(name, &template.name), template.spec.clone());
    job.metadata = ObjectMeta {
        labels: Some(BTreeMap::from([(labels::WORKFLOW.to_owned(), name.to_owned())])),
        owner_references: Some(vec![OwnerReference {
            api_version: labels::API_VERSION.to_owned(),
            kind: "Workflow".to_owned(),
            name: name.to_owned(),
            uid: workflow.metadata.uid.clone().unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }]),
        ..job.metadata
    };
    job
}

fn statuses(
    name: &str,
    workflow: &Workflow,
    owned: &BTreeMap<&str, &Job>,
    before: &[WorkflowJobStatus],
) -> Vec<WorkflowJobStatus> {
    workflow
        .spec
        .job_templates
        .iter()
        .map(|t| {
            let job = owned.get(names::job(name, &t.name).as_str());
            let old = before.iter().find(|b| b.name == t.name);
            match job {
                Some(job) => WorkflowJobStatus {
                    name: t.name.clone(),
                    phase: job_phase(job).or(Some(JobPhase::Pending)),
                    message: problem(job),
                },
                None => old.cloned().unwrap_or_else(|| WorkflowJobStatus {
                    name: t.name.clone(),
                    ..WorkflowJobStatus::default()
                }),
            }
        })
        .collect()
}

/// What holds a Job up.
fn problem(job: &Job) -> String {
    job.status
        .iter()
        .flat_map(|s| &s.conditions)
        .find(|c| c.type_ == crate::job::PLACED && c.status == "False")
        .map(|c| c.message.clone())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests;
