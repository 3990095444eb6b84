//! Nodes without hooks: a direct connection to one of their pods would be shown real addresses and miss listeners on the VIP, so
//! nobody else is told where their pods are.

use std::collections::BTreeSet;

use control_api::{ids::NodeRef, session::DomainRoutes};
use tokio::sync::watch;

/// By what the nodes said last of themselves. It outlives their sessions: who is away for a moment has no hooks when it is back.
pub(crate) struct Relayed(watch::Sender<BTreeSet<NodeRef>>);

impl Default for Relayed {
    fn default() -> Self {
        Self(watch::channel(BTreeSet::new()).0)
    }
}

impl Relayed {
    /// Wakes the readers only when it is news.
    pub(crate) fn say(&self, node: &NodeRef, relayed_only: bool) {
        self.0.send_if_modified(|all| {
            if relayed_only { all.insert(node.clone()) } else { all.remove(node) }
        });
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<BTreeSet<NodeRef>> {
        self.0.subscribe()
    }
}

/// Takes out of what `reader` is told where the pods of such nodes are; of its own it knows that anyway.
pub(crate) fn hide(relayed: &BTreeSet<NodeRef>, reader: &NodeRef, view: &mut [DomainRoutes]) {
    let members = view.iter_mut().flat_map(|domain| &mut domain.members);
    for member in members.filter(|m| m.node != *reader && relayed.contains(&m.node)) {
        member.local_ips.clear();
    }
}

#[cfg(test)]
mod tests {
    use control_api::session::Member;

    use super::*;

    fn at(node: &str) -> Member {
        Member {
            uid: format!("u-{node}"),
            vips: vec!["10.0.1.2".parse().unwrap()],
            pod: "p".into(),
            pod_namespace: "n".into(),
            node: node.parse().unwrap(),
            local_ips: vec!["10.9.0.2".parse().unwrap()],
            task: String::new(),
            job: String::new(),
        }
    }

    #[test]
    fn only_others_are_not_told_and_only_of_nodes_that_say_so() {
        let all = Relayed::default();
        let mut changes = all.subscribe();
        let (without, with) = ("a/n1".parse().unwrap(), "a/n2".parse().unwrap());
        all.say(&without, true);
        all.say(&with, false);
        assert!(changes.has_changed().unwrap());
        let relayed = changes.borrow_and_update().clone();
        let told = |reader: &NodeRef| {
            let mut view = vec![DomainRoutes {
                name: "d".parse().unwrap(),
                cidr: "10.0.1.0/24".into(),
                ssh_ca: String::new(),
                encrypt_within_site: false,
                allowed_ports: None,
                members: vec![at("a/n1"), at("a/n2")],
            }];
            hide(&relayed, reader, &mut view);
            view[0].members.iter().map(|m| m.local_ips.len()).collect::<Vec<_>>()
        };
        assert_eq!(told(&with), [0, 1]);
        assert_eq!(told(&without), [1, 1]);
        all.say(&without, true);
        assert!(!changes.has_changed().unwrap(), "no news");
        all.say(&without, false);
        assert!(changes.borrow_and_update().is_empty());
    }
}
