//! Workflow: starts Jobs in the order of their dependencies.

use std::{sync::Arc, time::Duration};

use control_api::{
    labels,
    v1alpha1::{Job, Workflow, WorkflowPhase},
};
use control_plan::workflow::{owns, plan};
use kube::{
    Api,
    api::{DeleteParams, ListParams, PostParams},
    runtime::controller::Action,
};

use crate::{
    context::{Context, now},
    status::{self, StatusError, is_overtaken},
};

/// Why a pass over a Workflow failed. It is tried again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkflowError {
    #[error("cannot {verb} Job {name}")]
    Job {
        verb: &'static str,
        name: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error(transparent)]
    Status(#[from] StatusError),
}

pub(crate) async fn reconcile(
    workflow: Arc<Workflow>,
    ctx: Arc<Context>,
) -> Result<Action, WorkflowError> {
    let next = plan(&workflow, &ctx.stores.jobs.state(), &now());
    let api: Api<Job> = Api::all(ctx.client.clone());
    let before = workflow.status.as_ref().and_then(|s| s.phase.as_ref());
    let cleaned = before == Some(&WorkflowPhase::Stopping)
        && next.status.phase == Some(WorkflowPhase::Stopped);
    if cleaned && any_left(&workflow, &api).await? {
        return Ok(Action::requeue(Duration::from_secs(1)));
    }
    for name in &next.delete {
        match api.delete(name, &DeleteParams::background()).await {
            Ok(_) => {}
            Err(error) if is_overtaken(&error) => {}
            Err(source) => return Err(failed("delete", name, source)),
        }
    }
    for job in &next.create {
        let name = job.metadata.name.as_deref().unwrap_or_default();
        if let Err(source) = api.create(&PostParams::default(), job).await {
            return Err(failed("create", name, source));
        }
    }
    let workflows: Api<Workflow> = Api::all(ctx.client.clone());
    if status::write(&workflows, &workflow, workflow.status.as_ref(), &next.status).await? {
        ctx.notes.publish(&*workflow, &next.notes).await;
    }
    Ok(Action::await_change())
}

/// Asks the API server itself, because the cache may lag behind our own creations.
async fn any_left(workflow: &Workflow, api: &Api<Job>) -> Result<bool, WorkflowError> {
    let name = workflow.metadata.name.clone().unwrap_or_default();
    let params = ListParams::default().labels(&format!("{}={name}", labels::WORKFLOW));
    let jobs = api.list(&params).await.map_err(|e| failed("list", &name, e))?;
    Ok(jobs.items.iter().any(|j| owns(workflow, j)))
}

fn failed(verb: &'static str, name: &str, source: kube::Error) -> WorkflowError {
    WorkflowError::Job { verb, name: name.to_owned(), source: Box::new(source) }
}
