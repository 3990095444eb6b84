//! The machine's Node object: made when it is missing, its labels and status kept true. What people
//! set on it (cordon, categories, annotations) is never touched.

use std::{collections::BTreeMap, path::Path, time::Duration};

use control_api::{
    labels,
    v1alpha1::{AgentType, Node, NodePhase, NodeSpec, NodeStatus},
};
use control_identity::machine::Identity;
use kube::{
    Api, Client, ResourceExt as _,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::{config::Settings, connect::Trouble, facts, heartbeat};

/// Renews the Lease and looks after the Node until `stop`.
pub(crate) async fn run(
    client: Client,
    identity: Identity,
    settings: &Settings,
    stop: CancellationToken,
) {
    let mut trouble = Trouble::default();
    let mut clock = tokio::time::interval(heartbeat::EVERY);
    clock.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = clock.tick() => {}
        }
        let work = async {
            push(&client, &identity, settings).await?;
            let machine = identity.machine();
            heartbeat::beat(&client, machine.node.as_str(), &machine.to_string()).await
        };
        // A hanging request must not cost the next beat.
        match tokio::time::timeout(heartbeat::EVERY, work).await {
            Ok(Ok(())) => trouble.over("the Node is reported"),
            Ok(Err(error)) => {
                trouble.on("cannot report this Node", &error);
                clock.reset_after(Duration::from_secs(2));
            }
            Err(elapsed) => trouble.on("reporting this Node takes too long", &elapsed),
        }
    }
}

async fn push(client: &Client, identity: &Identity, settings: &Settings) -> kube::Result<()> {
    let nodes: Api<Node> = Api::default_namespaced(client.clone());
    let name = settings.name.as_str();
    let wanted = wanted_labels(identity, settings);
    let node = match nodes.get_opt(name).await? {
        Some(node) => node,
        None => {
            let spec = NodeSpec { agent_type: Some(AgentType::Raw), unschedulable: false };
            let mut node = Node::new(name, spec);
            node.metadata.labels = Some(wanted.clone());
            nodes.create(&PostParams::default(), &node).await?
        }
    };
    let labelled = wanted.iter().all(|(k, v)| node.labels().get(k) == Some(v));
    if !labelled || node.spec.agent_type != Some(AgentType::Raw) {
        let change = json!({
            "metadata": { "labels": wanted },
            "spec": { "agentType": AgentType::Raw },
        });
        nodes.patch(name, &PatchParams::default(), &Patch::Merge(change)).await?;
    }
    let before = node.status.unwrap_or_default();
    let after = observe(before.clone(), identity, &settings.data_dir).await;
    if after != before {
        let change = json!({ "status": {
            "phase": after.phase,
            "reason": after.reason,
            "nodeInfo": after.node_info,
            "addresses": after.addresses,
            "capacity": after.capacity,
            "allocatable": after.allocatable,
            "disk": after.disk,
            "diskPressure": after.disk_pressure,
        }});
        nodes.patch_status(name, &PatchParams::default(), &Patch::Merge(change)).await?;
    }
    Ok(())
}

fn wanted_labels(identity: &Identity, settings: &Settings) -> BTreeMap<String, String> {
    let mut wanted = settings.labels.clone();
    wanted.insert(labels::CLUSTER_ID.to_owned(), identity.machine().cluster.namespace());
    wanted.insert(labels::AGENT_TYPE.to_owned(), AgentType::Raw.to_string());
    wanted.insert(labels::HOST_NETWORK.to_owned(), settings.allow_host_network.to_string());
    wanted
}

/// The status with this agent's part of it as it is now.
async fn observe(before: NodeStatus, identity: &Identity, data: &Path) -> NodeStatus {
    let capacity = facts::capacity();
    let (disk, pressure) = facts::disk(data).unzip();
    NodeStatus {
        phase: Some(NodePhase::Online),
        reason: String::new(),
        node_info: Some(facts::node_info()),
        addresses: facts::addresses(identity.server()).await,
        allocatable: capacity.clone(),
        capacity,
        disk,
        disk_pressure: pressure,
        ..before
    }
}
