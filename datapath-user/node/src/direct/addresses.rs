//! Where this machine listens for direct carriers, and when that changes.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use axum::body::Bytes;
use control_api::{direct::tidy, session::NodeUpdate};
use datapath_net::netlink::{InterfaceAddress, Netlink, NetlinkError};
use futures::{Stream, StreamExt as _};
use tokio::sync::watch;

use crate::keeper::chain;

/// Interfaces of pods and virtual machines, by the beginnings of their names: their addresses repeat
/// from machine to machine. Whoever means one of them says `--direct-address`.
const INTERNAL: [&str; 9] =
    ["rlark", "docker", "br-", "virbr", "lxcbr", "cni", "podman", "flannel", "veth"];

/// What this machine says of itself, and its addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Own {
    /// For the hub; `None` when this machine does not listen.
    pub listens: Option<Listens>,
    /// All of the machine, peers' or not.
    pub ips: BTreeSet<IpAddr>,
}

/// See [`NodeUpdate::Direct`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listens {
    pub addresses: Vec<SocketAddr>,
    pub port: Option<u16>,
}

/// As configured: the port, and the addresses that the operator named, if he did.
#[derive(Clone, Debug)]
pub struct Setting {
    pub port: Option<u16>,
    pub named: Vec<SocketAddr>,
}

impl Setting {
    /// What is true now.
    ///
    /// # Errors
    /// The kernel does not tell the addresses.
    pub fn own(&self) -> Result<Own, NetlinkError> {
        let all = Netlink::current()?.addresses()?;
        let listens = self.port.map(|port| self.listens(port, &all));
        Ok(Own { listens, ips: all.into_iter().map(|a| a.address).collect() })
    }

    fn listens(&self, port: u16, all: &[InterfaceAddress]) -> Listens {
        if !self.named.is_empty() {
            return Listens { addresses: tidy(self.named.iter().copied()), port: None };
        }
        let internal = |name: &str| INTERNAL.iter().any(|begin| name.starts_with(begin));
        let outer = all.iter().filter(|a| !internal(&a.interface));
        let addresses = outer.map(|a| SocketAddr::new(a.address, port));
        // Behind a NAT of its own (a cloud's public address) the machine does not see that address.
        Listens { addresses: tidy(addresses), port: Some(port) }
    }
}

/// Publishes what is true of this machine.
#[derive(Debug)]
pub struct Announcer {
    pub setting: Setting,
    pub publish: watch::Sender<Arc<Own>>,
}

impl Announcer {
    /// Looks again; whether the machine has other addresses than before.
    pub fn refresh(&self) -> bool {
        let own = match self.setting.own() {
            Ok(own) => Arc::new(own),
            Err(e) => {
                tracing::warn!(error = chain(&e), "the machine's addresses are not known");
                return false;
            }
        };
        self.publish.send_if_modified(|old| {
            let news = **old != *own;
            *old = own;
            news
        })
    }
}

/// The lines of the report: what this machine says of itself, and again when it changes.
pub fn lines(own: watch::Receiver<Arc<Own>>) -> impl Stream<Item = Result<Bytes, Infallible>> {
    let states = futures::stream::unfold((own, None::<Listens>), |(mut own, told)| async move {
        loop {
            let now = own.borrow_and_update().listens.clone();
            if let Some(now) = now.filter(|now| told.as_ref() != Some(now)) {
                return Some((now.clone(), (own, Some(now))));
            }
            // Nothing more to say is no reason to end the report.
            if own.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    });
    states.map(|listens| {
        let update = NodeUpdate::Direct { addresses: listens.addresses, port: listens.port };
        // Addresses always have a text.
        let mut line = serde_json::to_vec(&update).unwrap_or_default();
        line.push(b'\n');
        Ok(line.into())
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(interface: &str, address: &str) -> InterfaceAddress {
        InterfaceAddress { interface: interface.to_owned(), address: address.parse().unwrap() }
    }

    #[test]
    fn a_machine_names_its_outer_addresses_unless_others_are_given() {
        let all = [
            at("lo", "127.0.0.1"),
            at("eth0", "192.168.1.10"),
            at("rlark0", "10.244.0.1"),
            at("docker0", "172.17.0.1"),
            at("eth0", "2001:db8::5"),
        ];
        let setting = Setting { port: Some(7400), named: vec![] };
        let listens = setting.listens(7400, &all);
        let wanted = ["192.168.1.10:7400", "[2001:db8::5]:7400"];
        assert_eq!(listens.addresses, wanted.map(|a| a.parse().unwrap()));
        assert_eq!(listens.port, Some(7400));
        let named = vec!["203.0.113.9:17400".parse().unwrap()];
        let setting = Setting { port: Some(7400), named: named.clone() };
        assert_eq!(setting.listens(7400, &all), Listens { addresses: named, port: None });
    }

    #[tokio::test]
    async fn the_report_says_where_we_listen_and_again_when_that_changes() {
        let listens = |a: &str| Own {
            listens: Some(Listens { addresses: vec![a.parse().unwrap()], port: None }),
            ips: BTreeSet::new(),
        };
        let (publish, own) = watch::channel(Arc::default());
        let mut lines = std::pin::pin!(lines(own));
        let quiet = tokio::time::timeout(Duration::from_millis(20), lines.next());
        assert!(quiet.await.is_err(), "who does not listen says nothing");
        for a in ["192.0.2.1:7400", "192.0.2.2:7400"] {
            publish.send(Arc::new(listens(a))).unwrap();
            publish.send(Arc::new(listens(a))).unwrap();
            let line = lines.next().await.unwrap().unwrap();
            let update: NodeUpdate = serde_json::from_slice(&line).unwrap();
            let wanted = NodeUpdate::Direct { addresses: vec![a.parse().unwrap()], port: None };
            assert_eq!(update, wanted);
        }
        let quiet = tokio::time::timeout(Duration::from_millis(20), lines.next());
        assert!(quiet.await.is_err(), "nothing new");
    }
}
