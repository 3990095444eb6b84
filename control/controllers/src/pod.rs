//! Pod: deleted when its Task is gone, or when it is left over from an earlier Task of the name.

use std::sync::Arc;

use control_api::v1alpha1::{Pod, Task};
use control_plan::task::belongs;
use kube::{
    Api,
    api::{DeleteParams, Preconditions},
    runtime::{controller::Action, reflector::ObjectRef},
};

use crate::{context::Context, status::is_overtaken, triggers::task_namespace};

/// Why a pass over a Pod failed. It is tried again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PodError {
    #[error("cannot read Task {namespace}/{name} of a Pod")]
    Task {
        namespace: String,
        name: String,
        #[source]
        source: Box<kube::Error>,
    },
    #[error("cannot delete Pod {namespace}/{name}, whose Task is gone")]
    Delete {
        namespace: String,
        name: String,
        #[source]
        source: Box<kube::Error>,
    },
}

pub(crate) async fn reconcile(pod: Arc<Pod>, ctx: Arc<Context>) -> Result<Action, PodError> {
    if pod.spec.task_name.is_empty() || pod.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    let (task, at) = (&pod.spec.task_name, task_namespace(&pod));
    let cached = ctx.stores.tasks.get(&ObjectRef::new(task).within(at));
    if cached.is_some_and(|t| belongs(&pod, &t)) {
        return Ok(Action::await_change());
    }
    // The cache may lag; only the API server's own word is enough to delete.
    let tasks: Api<Task> = Api::namespaced(ctx.client.clone(), at);
    let found = tasks.get_opt(task).await.map_err(|source| PodError::Task {
        namespace: at.to_owned(),
        name: task.clone(),
        source: Box::new(source),
    })?;
    if found.is_some_and(|t| belongs(&pod, &t)) {
        return Ok(Action::await_change());
    }
    delete(&pod, &ctx).await?;
    Ok(Action::await_change())
}

async fn delete(pod: &Pod, ctx: &Context) -> Result<(), PodError> {
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let name = pod.metadata.name.clone().unwrap_or_default();
    let params = DeleteParams {
        preconditions: Some(Preconditions {
            uid: pod.metadata.uid.clone(),
            resource_version: None,
        }),
        ..DeleteParams::background()
    };
    let api: Api<Pod> = Api::namespaced(ctx.client.clone(), &namespace);
    match api.delete(&name, &params).await {
        Ok(_) => Ok(()),
        Err(error) if is_overtaken(&error) => Ok(()),
        Err(source) => Err(PodError::Delete { namespace, name, source: Box::new(source) }),
    }
}
