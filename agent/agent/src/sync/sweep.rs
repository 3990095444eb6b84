//! Finds what no Task stands for any more: pods whose Task went while this agent was away, and Pod
//! objects of pods that are no more.

use std::{collections::BTreeSet, time::Duration};

use agent_workload::raw::PodView;
use control_api::v1alpha1::{Pod, Task};
use kube::{Api, ResourceExt, api::ListParams};
use tokio_util::sync::CancellationToken;

use super::{Context, SyncError};
use crate::{
    connect::{Trouble, with_causes},
    plan::{self, notes},
    report,
};

const EVERY: Duration = Duration::from_secs(60);
/// For so long the namespace of a pod that has left its Domain stands after its object is gone: until its neighbours have heard
/// of it. Nobody confirms that. Meanwhile its kernel refuses them; afterwards nothing would answer, and a connect would hang.
const LINGER: Duration = Duration::from_millis(500);

/// Sweeps now and every minute until `stop`.
pub(crate) async fn sweep(context: &Context, stop: CancellationToken) {
    let mut trouble = Trouble::default();
    let mut clock = tokio::time::interval(EVERY);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = clock.tick() => {}
        }
        match once(context).await {
            Ok(()) => trouble.over("orphans are swept"),
            Err(error) => {
                trouble.on("cannot look for orphans", &error);
                clock.reset_after(Duration::from_secs(5));
            }
        }
    }
}

async fn once(context: &Context) -> Result<(), SyncError> {
    let client = &context.client.0;
    // In this order, what is made meanwhile can only be missing from the left-hand sides: objects
    // before pods, pods before Tasks.
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let objects = pods.list(&ListParams::default()).await?.items;
    let local = context.runtime.list()?;
    let tasks: Api<Task> = Api::default_namespaced(client.clone());
    let tasks = tasks.list(&ListParams::default()).await?.items;

    let wanted: BTreeSet<String> = tasks
        .iter()
        .filter(|t| plan::is_ours(t, &context.node))
        .filter_map(ResourceExt::uid)
        .collect();
    for view in &local {
        if view.spec.notes.get(notes::TASK_UID).is_none_or(|uid| !wanted.contains(uid)) {
            tracing::info!(pod = %view.spec.uid, name = view.spec.name, "its Task is gone; removing");
            remove(context, view).await?;
        }
    }
    let here: BTreeSet<&str> = local.iter().map(|v| v.spec.uid.as_str()).collect();
    for object in objects {
        let mine = object.status.as_ref().is_some_and(|s| s.node == context.node.as_str());
        if mine && !here.contains(object.name_any().as_str()) {
            tracing::info!(pod = object.name_any(), "it is not on this machine; forgetting it");
            report::delete_pod(client, &object.name_any()).await?;
        }
    }
    Ok(())
}

/// Stops a pod, takes it out of its Domain, deletes its object and removes it.
pub(super) async fn remove(context: &Context, view: &PodView) -> Result<(), SyncError> {
    let uid = &view.spec.uid;
    let in_domain = stop(context, view).await?;
    report::delete_pod(&context.client.0, uid.as_str()).await?;
    if in_domain {
        tokio::time::sleep(LINGER).await;
    }
    context.runtime.remove(uid).await?;
    Ok(())
}

/// Ends its processes and its part in its Domain; whether it had one.
async fn stop(context: &Context, view: &PodView) -> Result<bool, SyncError> {
    let uid = &view.spec.uid;
    context.runtime.stop(uid).await?;
    let in_domain = view.spec.notes.get(notes::DOMAIN).is_some_and(|d| !d.is_empty());
    if in_domain && let Err(error) = context.socket.detach(uid.as_str()).await {
        // The namespace is going; a node that comes back finds it gone.
        tracing::warn!(pod = %uid, error = with_causes(&error), "cannot detach");
    }
    Ok(in_domain)
}

/// Removes every pod of this machine, all at once: the agent is being shut down.
pub(crate) async fn remove_all(context: &Context) {
    let views = match context.runtime.list() {
        Ok(views) => views,
        Err(error) => {
            tracing::error!(error = with_causes(&error), "cannot list pods");
            return;
        }
    };
    let removals = views.iter().map(async |view| {
        let removed = async {
            stop(context, view).await?;
            Ok::<_, SyncError>(context.runtime.remove(&view.spec.uid).await?)
        };
        if let Err(error) = removed.await {
            tracing::error!(pod = %view.spec.uid, error = with_causes(&error), "cannot remove a pod");
        }
    });
    futures::future::join_all(removals).await;
}
