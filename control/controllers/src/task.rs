//! Task: its phase from its Pods.
//!
//! An agent that reports the Task itself (it sets the condition `Ready`) is the only writer of that
//! status from then on. For agents that report Pods only, the Pods say how a Raw or Docker Task
//! fares. A new Task of any kind is marked Pending.

use std::sync::Arc;

use control_api::v1alpha1::{AgentType, Phase, Task, TaskStatus};
use control_plan::{job::Note, task::observe};
use kube::{Api, runtime::controller::Action};

use crate::{
    context::{Context, now},
    status::{self, StatusError},
    triggers::task_namespace,
};

/// Why a pass over a Task failed. It is tried again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TaskError {
    #[error(transparent)]
    Status(#[from] StatusError),
}

pub(crate) async fn reconcile(task: Arc<Task>, ctx: Arc<Context>) -> Result<Action, TaskError> {
    let reported = task.status.iter().flat_map(|s| &s.conditions).any(|c| c.type_ == "Ready");
    if reported || task.metadata.deletion_timestamp.is_some() {
        return Ok(Action::await_change());
    }
    let namespace = task.metadata.namespace.clone().unwrap_or_default();
    let from_pods = matches!(task.spec.agent_type, Some(AgentType::Raw | AgentType::Docker));
    let pods = if from_pods {
        ctx.stores.pods.state_filter(|p| {
            Some(&p.spec.task_name) == task.metadata.name.as_ref() && task_namespace(p) == namespace
        })
    } else {
        Vec::new()
    };
    let new = observe(&task, &pods, &now());
    let note = change(task.status.as_ref(), &new);
    let api: Api<Task> = Api::namespaced(ctx.client.clone(), &namespace);
    if status::write(&api, &task, task.status.as_ref(), &new).await? {
        ctx.notes.publish(&*task, note.as_slice()).await;
    }
    Ok(Action::await_change())
}

/// What to tell when the phase changes.
fn change(old: Option<&TaskStatus>, new: &TaskStatus) -> Option<Note> {
    let before = old.and_then(|s| s.phase.as_ref());
    let now = new.phase.as_ref()?;
    if before == Some(now) {
        return None;
    }
    let arrow = before.map_or_else(|| now.to_string(), |b| format!("{b} to {now}"));
    let message = if new.message.is_empty() { arrow } else { format!("{arrow}: {}", new.message) };
    Some(Note { warning: *now == Phase::Failed, reason: now.to_string(), message })
}
