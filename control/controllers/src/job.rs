//! Job: makes, changes and deletes Tasks, and says how the whole fares.

use std::{sync::Arc, time::Duration};

use control_api::{
    labels,
    v1alpha1::{Job, JobPhase, Task},
};
use control_plan::{
    conditions::{self, Finding},
    job::{Observed, PLACED, Plan, TaskRef, plan},
};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams, Preconditions},
    runtime::{controller::Action, reflector::ObjectRef},
};

use crate::{
    context::{Context, now},
    status::{self, StatusError, is_overtaken},
};

/// Why a pass over a Job failed. It is tried again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JobError {
    #[error("cannot {verb} Task {namespace}/{name}")]
    Task {
        verb: &'static str,
        namespace: String,
        name: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("cannot list the Tasks of Job {job}")]
    List {
        job: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("Task {namespace}/{name} is there but not yet seen")]
    NotYetSeen { namespace: String, name: String },
    #[error(transparent)]
    Status(#[from] StatusError),
}

/// How soon a refused Task is offered again.
const REFUSED: Duration = Duration::from_secs(15);

pub(crate) async fn reconcile(job: Arc<Job>, ctx: Arc<Context>) -> Result<Action, JobError> {
    let domain_exists = job.spec.domain.is_empty()
        || ctx.stores.domains.get(&ObjectRef::new(&job.spec.domain)).is_some();
    let mut next = plan(Observed {
        job: &job,
        tasks: &ctx.stores.tasks.state(),
        nodes: &ctx.stores.nodes.state(),
        domain_exists,
        now: &now(),
    });
    let before = job.status.as_ref().and_then(|s| s.phase.as_ref());
    let cleaned =
        before == Some(&JobPhase::Stopping) && next.status.phase == Some(JobPhase::Stopped);
    if cleaned && any_left(&job, &ctx).await? {
        // A Task made a moment ago; its arrival in the cache wakes us.
        return Ok(Action::requeue(Duration::from_secs(1)));
    }
    delete(&next.delete, &ctx).await?;
    update(&next.update, &ctx).await?;
    let refused = create(&mut next, &job, &ctx).await?;
    let api: Api<Job> = Api::all(ctx.client.clone());
    if status::write(&api, &job, job.status.as_ref(), &next.status).await? {
        ctx.notes.publish(&*job, &next.notes).await;
    }
    Ok(if refused { Action::requeue(REFUSED) } else { Action::await_change() })
}

/// Asks the API server itself, because the cache may lag behind our own creations.
async fn any_left(job: &Job, ctx: &Context) -> Result<bool, JobError> {
    let name = job.metadata.name.clone().unwrap_or_default();
    let api: Api<Task> = Api::all(ctx.client.clone());
    let params = ListParams::default().labels(&format!("{}={name}", labels::JOB));
    let tasks = api
        .list(&params)
        .await
        .map_err(|source| JobError::List { job: name, source: Box::new(source) })?;
    Ok(tasks.items.iter().any(|t| control_plan::job::owns(job, t)))
}

async fn delete(tasks: &[TaskRef], ctx: &Context) -> Result<(), JobError> {
    for task in tasks {
        let api: Api<Task> = Api::namespaced(ctx.client.clone(), &task.namespace);
        let params = DeleteParams {
            preconditions: Some(Preconditions {
                uid: Some(task.uid.clone()).filter(|u| !u.is_empty()),
                resource_version: None,
            }),
            ..DeleteParams::background()
        };
        match api.delete(&task.name, &params).await {
            Ok(_) => {}
            Err(error) if is_overtaken(&error) => {}
            Err(source) => return Err(failed("delete", &task.namespace, &task.name, source)),
        }
    }
    Ok(())
}

async fn update(tasks: &[Task], ctx: &Context) -> Result<(), JobError> {
    for task in tasks {
        let (namespace, name) = id(task);
        let api: Api<Task> = Api::namespaced(ctx.client.clone(), namespace);
        if let Err(source) = api.replace(name, &PostParams::default(), task).await {
            return Err(failed("update", namespace, name, source));
        }
    }
    Ok(())
}

/// Returns whether the API server refused one; the plan's status then says so.
async fn create(next: &mut Plan, job: &Job, ctx: &Context) -> Result<bool, JobError> {
    for task in &next.create {
        let (namespace, name) = id(task);
        let api: Api<Task> = Api::namespaced(ctx.client.clone(), namespace);
        match api.create(&PostParams::default(), task).await {
            Ok(_) => {}
            Err(kube::Error::Api(s)) if s.code == 409 => {
                let (namespace, name) = (namespace.to_owned(), name.to_owned());
                return Err(JobError::NotYetSeen { namespace, name });
            }
            Err(kube::Error::Api(s)) if matches!(s.code, 400 | 403 | 404 | 422) => {
                let (reason, message) = if s.code == 404 {
                    (
                        "NamespaceNotFound",
                        format!("namespace {namespace} of the site does not exist"),
                    )
                } else {
                    ("TaskRefused", format!("Task {namespace}/{name}: {}", s.message))
                };
                let finding = Finding::no(PLACED, reason, message);
                let conditions = &mut next.status.conditions;
                conditions::set(conditions, finding, job.metadata.generation, &now());
                return Ok(true);
            }
            Err(source) => return Err(failed("create", namespace, name, source)),
        }
    }
    Ok(false)
}

fn id(task: &Task) -> (&str, &str) {
    (
        task.metadata.namespace.as_deref().unwrap_or_default(),
        task.metadata.name.as_deref().unwrap_or_default(),
    )
}

fn failed(verb: &'static str, namespace: &str, name: &str, source: kube::Error) -> JobError {
    JobError::Task {
        verb,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        source: Box::new(source),
    }
}
