//! Which machines are behind the nodes of a route stream, as one node has been told: so that it cuts
//! off a peer whose machine an administrator removed. What goes through the hub ends at the hub.

use std::collections::{BTreeMap, BTreeSet};

use control_api::{
    direct::PeerMachine,
    ids::NodeRef,
    session::{DomainRoutes, MachineRole, RouteUpdate},
};

use crate::Hub;

/// `None`: nothing was told yet.
#[derive(Debug, Default)]
pub(crate) struct ToldPeers(Option<BTreeMap<NodeRef, String>>);

impl ToldPeers {
    /// The lines that lead from what was told to what is.
    pub(crate) fn news(
        &mut self,
        hub: &Hub,
        me: &NodeRef,
        view: &[DomainRoutes],
    ) -> Vec<RouteUpdate> {
        let hosts: BTreeSet<&NodeRef> =
            view.iter().flat_map(|d| &d.members).map(|m| &m.node).filter(|n| *n != me).collect();
        let standing = hub.inner.standing.keys_of(MachineRole::Node, hosts);
        // Before the first list nobody is known to stand, and nobody to have been removed.
        standing.map(|now| self.update(now)).unwrap_or_default()
    }

    fn update(&mut self, now: BTreeMap<NodeRef, String>) -> Vec<RouteUpdate> {
        let Some(told) = self.0.replace(now) else {
            let all = self.0.iter().flatten();
            let all = all.map(|(n, m)| PeerMachine { node: n.clone(), machine: m.clone() });
            return vec![RouteUpdate::Peers { peers: all.collect() }];
        };
        let now = self.0.iter().flatten();
        let new = now.filter(|(node, machine)| told.get(*node) != Some(*machine));
        let new = new.map(|(node, machine)| (node.clone(), Some(machine.clone())));
        let is_gone = |node: &&NodeRef| !self.0.iter().any(|now| now.contains_key(*node));
        let gone = told.keys().filter(is_gone).map(|node| (node.clone(), None));
        new.chain(gone).map(|(node, machine)| RouteUpdate::Peer { node, machine }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peers(all: &[(&str, &str)]) -> BTreeMap<NodeRef, String> {
        all.iter().map(|(n, m)| (n.parse().unwrap(), (*m).to_owned())).collect()
    }

    #[test]
    fn all_are_told_at_first_and_then_who_changed() {
        let mut told = ToldPeers::default();
        let first = told.update(peers(&[("a/n", "1"), ("b/n", "2")]));
        assert!(matches!(&first[..], [RouteUpdate::Peers { peers }] if peers.len() == 2));
        assert_eq!(told.update(peers(&[("a/n", "1"), ("b/n", "2")])), []);
        let peer = |node: &str, machine: Option<&str>| RouteUpdate::Peer {
            node: node.parse().unwrap(),
            machine: machine.map(ToOwned::to_owned),
        };
        let news = told.update(peers(&[("a/n", "9"), ("c/n", "3")]));
        assert_eq!(news, [peer("a/n", Some("9")), peer("c/n", Some("3")), peer("b/n", None)]);
        assert_eq!(told.update(peers(&[])), [peer("a/n", None), peer("c/n", None)]);
    }
}
