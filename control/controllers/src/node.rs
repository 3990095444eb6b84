//! Node: Offline when its agent has not been heard of, Online again when it has.

use std::sync::Arc;

use control_api::v1alpha1::Node;
use control_plan::{
    job::Note,
    liveness::{Verdict, judge},
};
use kube::{
    Api,
    runtime::{controller::Action, reflector::ObjectRef},
};

use crate::{
    context::Context,
    status::{self, StatusError},
};

/// Why a pass over a Node failed. It is tried again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeError {
    #[error(transparent)]
    Status(#[from] StatusError),
}

pub(crate) async fn reconcile(node: Arc<Node>, ctx: Arc<Context>) -> Result<Action, NodeError> {
    let namespace = node.metadata.namespace.clone().unwrap_or_default();
    let name = node.metadata.name.clone().unwrap_or_default();
    let lease = ctx.stores.leases.get(&ObjectRef::new(&name).within(&namespace));
    let age = ctx.heartbeat_age(&namespace, &name, lease.as_deref());
    match judge(&node, age, ctx.config.node_grace) {
        Verdict::Keep(Some(again)) => Ok(Action::requeue(again)),
        Verdict::Keep(None) => Ok(Action::await_change()),
        Verdict::Set(phase, reason) => {
            let mut new = node.status.clone().unwrap_or_default();
            let warning = !reason.is_empty();
            let message = if warning {
                format!("no heartbeat of its agent for {} s", ctx.config.node_grace.as_secs())
            } else {
                "its agent is heard of again".to_owned()
            };
            let note = Note { warning, reason: phase.to_string(), message };
            new.phase = Some(phase);
            reason.clone_into(&mut new.reason);
            let api: Api<Node> = Api::namespaced(ctx.client.clone(), &namespace);
            if status::write(&api, &node, node.status.as_ref(), &new).await? {
                ctx.notes.publish(&*node, &[note]).await;
            }
            Ok(Action::await_change())
        }
    }
}
