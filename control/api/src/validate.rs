//! What an object means, beyond what its schema can say. Pure functions that name the field.
//!
//! Called by the controllers (which put the findings into a condition, so that objects accepted by
//! older API servers stay readable) and by tools before they submit.

use std::collections::BTreeSet;

use crate::{
    cidr::Subnets,
    ids::DomainName,
    ports::PortRange,
    v1alpha1::{AgentType, DomainSpec, JobSpec, JobTask, TaskSpec, WorkflowSpec, WorkloadKind},
};

/// Longest name of a DNS label, a label value and a host name.
pub const LABEL_MAX: usize = 63;

/// One fault of an object.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct FieldError {
    /// Such as `spec.tasks[1].name`.
    pub field: String,
    pub message: String,
}

impl FieldError {
    fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self { field: field.into(), message: message.into() }
    }
}

/// All faults on one line, for a condition.
#[must_use]
pub fn summary(errors: &[FieldError]) -> String {
    errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// RFC 1123 label: lower-case letters, digits and `-`, at most `max` long.
#[must_use]
pub fn is_label(name: &str, max: usize) -> bool {
    let edge = |c: Option<&u8>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    let b = name.as_bytes();
    b.len() <= max
        && edge(b.first())
        && edge(b.last())
        && b.iter().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || *c == b'-')
}

/// Faults of a Domain.
#[must_use]
pub fn domain(name: &str, spec: &DomainSpec) -> Vec<FieldError> {
    let mut errors = Vec::new();
    if let Err(e) = name.parse::<DomainName>() {
        errors.push(FieldError::new("metadata.name", e.to_string()));
    }
    if let Err(e) = spec.cidr.parse::<Subnets>() {
        errors.push(FieldError::new("spec.cidr", e.to_string()));
    }
    for (i, text) in spec.allowed_ports.iter().enumerate() {
        if let Err(e) = text.parse::<PortRange>() {
            errors.push(FieldError::new(format!("spec.allowedPorts[{i}]"), e.to_string()));
        }
    }
    errors
}

/// Longest name of the Task object, so that the names derived from it stay legal: pods are
/// `<task>-<ordinal>`, and a StatefulSet adds an eleven-character hash to a label value.
#[must_use]
pub fn task_name_max(spec: &TaskSpec) -> usize {
    match &spec.agent_type {
        Some(AgentType::Raw | AgentType::Docker) => LABEL_MAX - "-0".len(),
        _ => {
            let kind = spec
                .kubernetes
                .as_ref()
                .and_then(|k| k.workload.as_ref())
                .and_then(|w| w.kind.as_ref());
            if kind == Some(&WorkloadKind::StatefulSet) { 52 } else { LABEL_MAX }
        }
    }
}

/// Faults of a Job.
#[must_use]
pub fn job(name: &str, spec: &JobSpec) -> Vec<FieldError> {
    let mut errors = Vec::new();
    job_at(name, spec, "spec", &mut errors);
    errors
}

fn job_at(name: &str, spec: &JobSpec, at: &str, errors: &mut Vec<FieldError>) {
    if !spec.domain.is_empty()
        && let Err(e) = spec.domain.parse::<DomainName>()
    {
        errors.push(FieldError::new(format!("{at}.domain"), e.to_string()));
    }
    let mut seen = BTreeSet::new();
    let mut heads = 0_u32;
    for (i, task) in spec.tasks.iter().enumerate() {
        let at = format!("{at}.tasks[{i}]");
        heads += u32::from(task.head);
        if heads == 2 && task.head {
            errors.push(FieldError::new(format!("{at}.head"), "a Job has one head only"));
        }
        if !seen.insert(task.name.as_str()) {
            let message = format!("another task is named {:?}", task.name);
            errors.push(FieldError::new(format!("{at}.name"), message));
        }
        task_at(name, task, &at, errors);
    }
}

fn task_at(job: &str, task: &JobTask, at: &str, errors: &mut Vec<FieldError>) {
    let full = format!("{job}-{}", task.name);
    let max = task_name_max(&task.spec);
    if task.name.is_empty() {
        errors.push(FieldError::new(format!("{at}.name"), "a task needs a name"));
    } else if full.len() > max {
        let message =
            format!("the Task's name {full:?} is {} characters long, {max} fit", full.len());
        errors.push(FieldError::new(format!("{at}.name"), message));
    } else if !is_label(&full, max) {
        let message = format!(
            "the Task's name {full:?} must consist of lower-case letters, digits and '-', and start and end with a letter or digit"
        );
        errors.push(FieldError::new(format!("{at}.name"), message));
    }
    for key in task.spec.node_selector.keys().filter(|k| k.is_empty()) {
        errors.push(FieldError::new(format!("{at}.nodeSelector"), format!("empty key {key:?}")));
    }
    if !task.spec.domain.is_empty()
        && let Err(e) = task.spec.domain.parse::<DomainName>()
    {
        errors.push(FieldError::new(format!("{at}.domain"), e.to_string()));
    }
    runtime_at(&task.spec, at, errors);
}

fn runtime_at(spec: &TaskSpec, at: &str, errors: &mut Vec<FieldError>) {
    let missing = |field: &str| FieldError::new(format!("{at}.{field}"), "is missing");
    match &spec.agent_type {
        None => errors.push(FieldError::new(
            format!("{at}.agentType"),
            "is missing; one of Kubernetes, Docker, Raw",
        )),
        Some(AgentType::Other(text)) => errors.push(FieldError::new(
            format!("{at}.agentType"),
            format!("{text:?} is not one of Kubernetes, Docker, Raw"),
        )),
        Some(AgentType::Raw) => match &spec.raw {
            None => errors.push(missing("raw")),
            Some(raw) if raw.artifact.is_empty() && raw.entrypoint.is_empty() => {
                errors.push(FieldError::new(
                    format!("{at}.raw"),
                    "needs an artifact or an entrypoint",
                ));
            }
            Some(raw) => {
                if raw.backoff_limit.is_some_and(|n| n < 0) {
                    errors.push(FieldError::new(format!("{at}.raw.backoffLimit"), "is negative"));
                }
            }
        },
        Some(AgentType::Docker) => {
            if spec.docker.as_ref().is_none_or(|d| d.containers.is_empty()) {
                errors.push(missing("docker.containers"));
            }
        }
        Some(AgentType::Kubernetes) => kubernetes_at(spec, at, errors),
    }
}

fn kubernetes_at(spec: &TaskSpec, at: &str, errors: &mut Vec<FieldError>) {
    let at = format!("{at}.kubernetes.workload");
    let Some(workload) = spec.kubernetes.as_ref().and_then(|k| k.workload.as_ref()) else {
        errors.push(FieldError::new(at, "is missing"));
        return;
    };
    match &workload.kind {
        None => errors.push(FieldError::new(format!("{at}.kind"), "is missing")),
        Some(WorkloadKind::Other(text)) => errors.push(FieldError::new(
            format!("{at}.kind"),
            format!("{text:?} is not one of {}", WorkloadKind::KNOWN.join(", ")),
        )),
        Some(_) => {}
    }
    if workload.replicas.is_some_and(|n| n < 0) {
        errors.push(FieldError::new(format!("{at}.replicas"), "is negative"));
    }
    if workload.template.is_none() {
        errors.push(FieldError::new(format!("{at}.template"), "is missing"));
    }
}

/// Faults of a Workflow, apart from its order (see the planner).
#[must_use]
pub fn workflow(name: &str, spec: &WorkflowSpec) -> Vec<FieldError> {
    let mut errors = Vec::new();
    for (i, template) in spec.job_templates.iter().enumerate() {
        let at = format!("spec.jobTemplates[{i}]");
        if template.name.is_empty() {
            errors.push(FieldError::new(format!("{at}.name"), "a job template needs a name"));
        }
        let job = format!("{name}-{}", template.name);
        if job.len() > LABEL_MAX {
            let message =
                format!("the Job's name {job:?} is {} characters long, {LABEL_MAX} fit", job.len());
            errors.push(FieldError::new(format!("{at}.name"), message));
        }
        job_at(&job, &template.spec, &format!("{at}.spec"), &mut errors);
    }
    errors
}

#[cfg(test)]
mod tests;
