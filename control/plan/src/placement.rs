//! Where a Task goes: which site, and for machines without a scheduler of their own which Node.

use std::{collections::BTreeMap, sync::Arc};

use control_api::{
    labels,
    v1alpha1::{AgentType, Node, NodePhase, Task, TaskSpec},
};

/// A place for a Task.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The site's namespace.
    pub namespace: String,
    /// The chosen Node; absent where the site's own scheduler chooses (Kubernetes).
    pub node: Option<String>,
}

/// No Node will do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no {agent_type} node matches nodeSelector {selector}: {detail}")]
pub struct Unschedulable {
    pub agent_type: String,
    pub selector: String,
    pub detail: String,
}

/// How many unfinished Tasks each Node (and, without a node, each site) has.
#[derive(Clone, Debug, Default)]
pub struct Load(BTreeMap<Place, usize>);

impl Load {
    /// Counts the Tasks that still use their place.
    #[must_use]
    pub fn of<'a>(tasks: impl IntoIterator<Item = &'a Task>) -> Self {
        let mut load = Self::default();
        for task in tasks {
            let done = task.status.as_ref().and_then(|s| s.phase.as_ref());
            if !done.is_some_and(crate::task::is_over) {
                load.add(&place_of(task));
            }
        }
        load
    }
    pub fn add(&mut self, place: &Place) {
        *self.0.entry(place.clone()).or_default() += 1;
    }
    fn at(&self, place: &Place) -> usize {
        self.0.get(place).copied().unwrap_or(0)
    }
}

/// The place a Task already has.
#[must_use]
pub fn place_of(task: &Task) -> Place {
    Place {
        namespace: task.metadata.namespace.clone().unwrap_or_default(),
        node: task.metadata.annotations.as_ref().and_then(|a| a.get(labels::NODE)).cloned(),
    }
}

/// Whether labels satisfy a selector: every key, and of a comma list any one value.
#[must_use]
pub fn matches(selector: &BTreeMap<String, String>, labels: &BTreeMap<String, String>) -> bool {
    selector.iter().all(|(key, wanted)| {
        labels.get(key).is_some_and(|has| wanted.split(',').any(|one| one.trim() == has))
    })
}

/// The type of the agent behind a Node.
fn agent_type(node: &Node) -> Option<AgentType> {
    node.spec.agent_type.clone().or_else(|| {
        let labels = node.metadata.labels.as_ref()?;
        labels.get(labels::AGENT_TYPE).map(|t| t.as_str().into())
    })
}

/// Chooses a place: the one with the fewest Tasks, by name among equals. A Kubernetes Task goes to
/// the site where most Nodes match.
///
/// # Errors
/// [`Unschedulable`], which says how many Nodes were looked at and why each was not taken.
pub fn place(spec: &TaskSpec, nodes: &[Arc<Node>], load: &Load) -> Result<Place, Unschedulable> {
    let wanted = spec.agent_type.clone().unwrap_or_else(|| AgentType::Other(String::new()));
    let no_labels = BTreeMap::new();
    let mut why = Rejected::default();
    let mut fits: Vec<&Node> = Vec::new();
    for node in nodes {
        let labels = node.metadata.labels.as_ref().unwrap_or(&no_labels);
        let phase = node.status.as_ref().and_then(|s| s.phase.as_ref());
        if node.metadata.deletion_timestamp.is_some() || agent_type(node).as_ref() != Some(&wanted)
        {
            why.agent_type += 1;
        } else if !matches(&spec.node_selector, labels) {
            why.labels += 1;
        } else if phase != Some(&NodePhase::Online) {
            why.offline += 1;
        } else if node.spec.unschedulable {
            why.cordoned += 1;
        } else {
            fits.push(node);
        }
    }
    prefer_open_networks(spec, &mut fits);
    let chosen = if wanted == AgentType::Kubernetes {
        best_site(&fits, load)
    } else {
        best_node(&fits, load)
    };
    chosen.ok_or_else(|| Unschedulable {
        agent_type: wanted.to_string(),
        selector: shown(&spec.node_selector),
        detail: why.to_string(),
    })
}

/// A Task for the machine's network goes where it is allowed. Where it is nowhere, a machine's agent refuses it, with the reason and at
/// once: a Job that waited for an operator would not.
fn prefer_open_networks(spec: &TaskSpec, fits: &mut Vec<&Node>) {
    let is_open = |node: &Node| {
        let labels = node.metadata.labels.as_ref();
        labels.and_then(|l| l.get(labels::HOST_NETWORK)).is_some_and(|v| v == "true")
    };
    let asked = spec.raw.as_ref().is_some_and(|raw| raw.host_network);
    if asked && fits.iter().any(|node| is_open(node)) {
        fits.retain(|node| is_open(node));
    }
}

fn best_node(fits: &[&Node], load: &Load) -> Option<Place> {
    fits.iter()
        .filter_map(|n| {
            let namespace = n.metadata.namespace.clone()?;
            Some(Place { namespace, node: Some(n.metadata.name.clone()?) })
        })
        .min_by_key(|p| (load.at(p), p.clone()))
}

fn best_site(fits: &[&Node], load: &Load) -> Option<Place> {
    let mut sites: BTreeMap<&str, usize> = BTreeMap::new();
    for namespace in fits.iter().filter_map(|n| n.metadata.namespace.as_deref()) {
        *sites.entry(namespace).or_default() += 1;
    }
    sites
        .into_iter()
        .map(|(namespace, n)| (n, Place { namespace: namespace.to_owned(), node: None }))
        .min_by_key(|(n, p)| (std::cmp::Reverse(*n), load.at(p), p.clone()))
        .map(|(_, p)| p)
}

/// `key=value,key=value`; a comma list stands in brackets.
fn shown(selector: &BTreeMap<String, String>) -> String {
    if selector.is_empty() {
        return "(any)".to_owned();
    }
    let one = |(k, v): (&String, &String)| {
        if v.contains(',') { format!("{k} in ({v})") } else { format!("{k}={v}") }
    };
    selector.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[derive(Default)]
struct Rejected {
    agent_type: usize,
    labels: usize,
    offline: usize,
    cordoned: usize,
}

impl std::fmt::Display for Rejected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let total = self.agent_type + self.labels + self.offline + self.cordoned;
        write!(f, "of {total} nodes")?;
        let mut sep = " ";
        for (n, what) in [
            (self.agent_type, "of another agent type"),
            (self.labels, "without these labels"),
            (self.offline, "not online"),
            (self.cordoned, "unschedulable"),
        ] {
            if n > 0 {
                write!(f, "{sep}{n} {what}")?;
                sep = ", ";
            }
        }
        if total == 0 { f.write_str(" none is registered") } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests;
