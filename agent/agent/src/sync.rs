//! Makes this machine's pods what its Tasks ask for. Level-triggered: each pass looks at the Task
//! and at the pod as they are now, whatever happened in between, and takes them one step on.

mod sweep;

use std::{net::IpAddr, sync::Arc, time::Duration};

use agent_workload::{
    lifecycle::Outcome,
    raw::{PodView, RawRuntime, error::PodError},
    spec::{HostNetwork, PodUid, UidError},
};
use control_api::{
    attach::AttachRequest,
    ids::NodeName,
    labels,
    v1alpha1::{Phase, Task},
};
use control_identity::client::ServerAddress;
use futures::{StreamExt as _, stream};
use kube::{
    Api, Client, ResourceExt as _,
    api::{Patch, PatchParams},
    runtime::{
        controller::{Action, Config, Controller, Error as ControllerError},
        watcher,
    },
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

pub(crate) use self::sweep::{remove_all, sweep};
use crate::{
    attach::{AttachError, NodeSocket},
    connect::{Trouble, with_causes},
    facts,
    plan::{self, notes},
    report,
};

/// How long one request waits for the control plane to give a pod its virtual address. Short,
/// because a Task's deletion waits behind it; it is asked again.
const ATTACH_WAIT: Duration = Duration::from_secs(10);
/// After a pass that somebody else's write overtook.
const SOON: Duration = Duration::from_millis(50);
/// After a failed pass.
const RETRY: Duration = Duration::from_secs(2);
/// Looks at everything again, in case something changed that nobody announced.
const RESYNC: Duration = Duration::from_secs(30);

/// What a pass needs. One per API client.
#[derive(Debug)]
pub(crate) struct Context {
    pub runtime: Arc<RawRuntime>,
    pub node: NodeName,
    pub socket: NodeSocket,
    /// Which of the machine's addresses are its own to the site is asked of the way there.
    pub server: ServerAddress,
    pub client: ApiClient,
}

/// A client that can be shown without showing its credentials.
#[derive(Clone)]
pub(crate) struct ApiClient(pub Client);

impl std::fmt::Debug for ApiClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ApiClient(..)")
    }
}

/// Why a pass ended early. It is made again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SyncError {
    #[error("cannot reach the control plane")]
    Api(#[from] kube::Error),
    #[error(transparent)]
    Pod(#[from] PodError),
    #[error(transparent)]
    Attach(#[from] AttachError),
    #[error("the Task cannot have a pod")]
    Uid(#[from] UidError),
    #[error(
        "spec.raw.hostNetwork: machine {machine} lets no task use its network, as its rlark-agent runs without --allow-host-network"
    )]
    HostNetworkForbidden { machine: NodeName },
}

/// Follows the Tasks of the site until `stop`.
pub(crate) async fn run(context: Arc<Context>, stop: CancellationToken) {
    let tasks: Api<Task> = Api::default_namespaced(context.client.0.clone());
    let changes = stream::unfold(context.runtime.changes(), async |mut changes| {
        changes.changed().await.ok()?;
        Some(((), changes))
    });
    let mut trouble = Trouble::default();
    let mut results = Box::pin(
        Controller::new(tasks, watcher::Config::default())
            .with_config(Config::default().concurrency(64))
            .reconcile_all_on(changes)
            .run(reconcile, |_, error, _| again(error), Arc::clone(&context)),
    );
    loop {
        let result = tokio::select! {
            () = stop.cancelled() => return,
            result = results.next() => result,
        };
        match result {
            None => return,
            Some(Ok(_)) => trouble.over("Tasks are followed"),
            // It was deleted between two passes.
            Some(Err(ControllerError::ObjectNotFound(_))) => {}
            // Somebody else wrote between our read and write; the next pass sees it.
            Some(Err(ControllerError::ReconcilerFailed(
                SyncError::Api(kube::Error::Api(e)),
                _,
            ))) if e.is_conflict() => {}
            Some(Err(ControllerError::ReconcilerFailed(error, object))) => {
                trouble.on(&format!("Task {} is not as it should be", object.name), &error);
            }
            Some(Err(error)) => trouble.on("cannot follow Tasks", &error),
        }
    }
}

fn again(error: &SyncError) -> Action {
    match error {
        SyncError::Api(kube::Error::Api(e)) if e.is_conflict() => Action::requeue(SOON),
        _ => Action::requeue(RETRY),
    }
}

async fn reconcile(task: Arc<Task>, context: Arc<Context>) -> Result<Action, SyncError> {
    if !plan::is_ours(&task, &context.node) {
        return Ok(Action::await_change());
    }
    let uid = plan::pod_uid(&task)?;
    if task.metadata.deletion_timestamp.is_some() {
        finish(&task, &uid, &context).await?;
        return Ok(Action::await_change());
    }
    if plan::is_over(&task) {
        return Ok(Action::await_change());
    }
    let Some(task) = with_finalizer(&task, &context.client.0).await? else {
        // Deleted before this agent had a part in it, perhaps for another of its name: nothing is to run for it.
        return Ok(Action::await_change());
    };
    match advance(&task, uid.clone(), &context).await {
        Ok(()) => Ok(Action::requeue(RESYNC)),
        Err(SyncError::Api(error)) => Err(error.into()),
        Err(error) => {
            let phase = if is_final(&error) { Phase::Failed } else { Phase::Pending };
            let before = task.status.clone().unwrap_or_default();
            let waits = matches!(before.phase, None | Some(Phase::Pending));
            let runs = || context.runtime.view(&uid).ok().flatten().is_some_and(|v| v.started);
            // What runs goes on running; only what did not start has anything to say here, or what ran under an agent before and
            // cannot any more.
            if waits || phase == Phase::Failed && !runs() {
                let now = jiff::Timestamp::now();
                let reason = match &error {
                    SyncError::HostNetworkForbidden { .. } => "HostNetworkForbidden",
                    _ if phase == Phase::Failed => "CannotRun",
                    _ => "Waiting",
                };
                let text = with_causes(&error);
                let mut after = report::with_phase(&before, phase.clone(), text, reason, now);
                after.observed_nodes = vec![context.node.to_string()];
                after.completion_time = (phase == Phase::Failed)
                    .then_some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now));
                report::task(&context.client.0, &task, after).await?;
            }
            if phase == Phase::Failed { Ok(Action::await_change()) } else { Err(error) }
        }
    }
}

/// Whether trying again would give the same.
fn is_final(error: &SyncError) -> bool {
    match error {
        SyncError::Pod(e) => !e.is_transient(),
        SyncError::Uid(_) | SyncError::HostNetworkForbidden { .. } => true,
        SyncError::Api(_) | SyncError::Attach(_) => false,
    }
}

/// One step on: make the pod, announce it, attach it, start it; and report how it fares.
async fn advance(task: &Task, uid: PodUid, context: &Context) -> Result<(), SyncError> {
    let runtime = &context.runtime;
    let view = match runtime.view(&uid)? {
        // Stopped without the Task being deleted: by hand, or by an agent that was shut down.
        Some(view) if view.outcome() == Some(&Outcome::Stopped) => {
            runtime.remove(&uid).await?;
            None
        }
        other => other,
    };
    let view = match view {
        Some(view) => view,
        None => create(task, uid.clone(), context).await?,
    };
    let node = context.node.as_str();
    let real = real_addresses(&view, context).await;
    report::pod(&context.client.0, node, task, &view, &real).await?;
    if !view.started {
        let vips = attach(&view, context).await?;
        runtime.add_environment(&uid, plan::address_environment(&real, &vips))?;
        runtime.start(&uid).await?;
    } else if view.outcome().is_none() {
        reattach(&view, context).await;
    }
    let view = runtime.view(&uid)?.ok_or(PodError::Unknown { uid })?;
    report::pod(&context.client.0, node, task, &view, &real).await?;
    let before = task.status.clone().unwrap_or_default();
    let after = report::status_of(&before, node, &view, jiff::Timestamp::now());
    report::task(&context.client.0, task, after).await?;
    Ok(())
}

async fn create(task: &Task, uid: PodUid, context: &Context) -> Result<PodView, SyncError> {
    let machine = &context.node;
    let host = if plan::on_host_network(task) {
        let addresses = facts::own_addresses(&context.server).await;
        Some(HostNetwork { name: machine.to_string(), addresses })
    } else {
        None
    };
    match context.runtime.create(plan::pod_spec(task, uid, machine, host)).await {
        Err(PodError::HostNetwork { .. }) => {
            Err(SyncError::HostNetworkForbidden { machine: machine.clone() })
        }
        done => Ok(done?),
    }
}

/// Where the pod is within its site: at addresses of its own, or at those that its machine has now.
async fn real_addresses(view: &PodView, context: &Context) -> Vec<IpAddr> {
    match view.spec.host_network {
        Some(_) => facts::own_addresses(&context.server).await,
        None => view.addresses.clone(),
    }
}

/// Into the Domain, if the pod has one. Its virtual addresses.
async fn attach(view: &PodView, context: &Context) -> Result<Vec<IpAddr>, AttachError> {
    let Some(request) = attach_request(view)? else { return Ok(Vec::new()) };
    let attached = context.socket.attach(view.spec.uid.as_str(), &request).await?;
    Ok(attached.addresses.iter().map(|a| a.vip).collect())
}

fn attach_request(view: &PodView) -> Result<Option<AttachRequest>, AttachError> {
    let domain = view.spec.notes.get(notes::DOMAIN).map_or("", String::as_str);
    if domain.is_empty() {
        return Ok(None);
    }
    Ok(Some(AttachRequest {
        domain: domain
            .parse()
            .map_err(|e: control_api::ids::NameError| AttachError::Answer(e.into()))?,
        netns: view.netns.clone(),
        cgroup: view.spec.host_network.as_ref().map(|_| view.cgroup.clone()),
        hosts: Some(view.hosts.clone()),
        timeout_ms: u64::try_from(ATTACH_WAIT.as_millis()).unwrap_or(u64::MAX),
    }))
}

/// A node that lost its memory is told again; one that is away finds its pods when it is back.
async fn reattach(view: &PodView, context: &Context) {
    let Ok(Some(_)) = attach_request(view) else { return };
    let Ok(known) = context.socket.list().await else { return };
    if known.iter().any(|a| a.uid == view.spec.uid.as_str()) {
        return;
    }
    if let Err(error) = attach(view, context).await {
        tracing::warn!(pod = %view.spec.uid, error = with_causes(&error), "cannot attach again");
    }
}

/// The Task is being deleted: end its pod, remove all traces, and let the Task go last.
async fn finish(task: &Task, uid: &PodUid, context: &Context) -> Result<(), SyncError> {
    if !task.finalizers().iter().any(|f| f == labels::AGENT_CLEANUP) {
        return Ok(());
    }
    if let Some(view) = context.runtime.view(uid)? {
        if view.started && view.outcome().is_none() && !plan::is_over(task) {
            let before = task.status.clone().unwrap_or_default();
            let now = jiff::Timestamp::now();
            let text = "stopping".to_owned();
            let after = report::with_phase(&before, Phase::Stopping, text, "Stopping", now);
            report::task(&context.client.0, task, after).await?;
        }
        sweep::remove(context, &view).await?;
    } else {
        report::delete_pod(&context.client.0, uid.as_str()).await?;
    }
    let kept: Vec<&String> =
        task.finalizers().iter().filter(|f| *f != labels::AGENT_CLEANUP).collect();
    set_finalizers(task, &json!(kept), &context.client.0).await.map(drop)
}

/// `None`: the Task is gone.
async fn with_finalizer(task: &Arc<Task>, client: &Client) -> Result<Option<Arc<Task>>, SyncError> {
    if task.finalizers().iter().any(|f| f == labels::AGENT_CLEANUP) {
        return Ok(Some(Arc::clone(task)));
    }
    let mut all = task.finalizers().to_vec();
    all.push(labels::AGENT_CLEANUP.to_owned());
    Ok(set_finalizers(task, &json!(all), client).await?.map(Arc::new))
}

/// With the version that was read, so that nobody else's finalizer is lost. `None`: the Task is gone.
async fn set_finalizers(
    task: &Task,
    all: &serde_json::Value,
    client: &Client,
) -> Result<Option<Task>, SyncError> {
    let tasks: Api<Task> = Api::default_namespaced(client.clone());
    let change = json!({ "metadata": {
        "finalizers": all,
        "resourceVersion": task.resource_version(),
    }});
    let params = PatchParams::default();
    match tasks.patch(&task.name_any(), &params, &Patch::Merge(change)).await {
        Err(kube::Error::Api(e)) if e.is_not_found() => Ok(None),
        done => Ok(Some(done?)),
    }
}

#[cfg(test)]
mod tests;
