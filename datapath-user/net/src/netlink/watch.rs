//! Word from the kernel that the machine's addresses or its way to the rest of the world changed.

use std::{io, net::IpAddr, os::fd::AsFd as _};

use rtnetlink::{
    packet_core::{NetlinkMessage, NetlinkPayload},
    packet_route::{
        RouteNetlinkMessage,
        address::{AddressAttribute, AddressMessage, AddressScope},
        link::LinkAttribute,
    },
    sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE},
};

use super::{Netlink, NetlinkError};
use crate::ready::Ready;

/// Groups of rtnetlink(7): addresses and routes of both families.
const GROUPS: u32 = 0x10 | 0x100 | 0x40 | 0x400;

/// An address of the calling thread's namespace and the interface that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InterfaceAddress {
    pub interface: String,
    pub address: IpAddr,
}

/// Tells of changes in one namespace.
#[derive(Debug)]
pub struct AddressWatch {
    socket: Socket,
    ready: Ready,
}

impl AddressWatch {
    /// In the calling thread's namespace. Must be called inside the runtime that waits.
    ///
    /// # Errors
    /// No socket is free, or it cannot be polled.
    pub fn new() -> Result<Self, NetlinkError> {
        let open = || {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind(&SocketAddr::new(0, GROUPS))?;
            socket.set_non_blocking(true)?;
            let ready = Ready::new(socket.as_fd().try_clone_to_owned()?)?;
            Ok(Self { socket, ready })
        };
        open().map_err(NetlinkError::Open)
    }

    /// Waits until an address of more than link scope came or went, or a default route. One call
    /// may stand for many changes. Cancel safe.
    ///
    /// # Errors
    /// The runtime shuts down.
    pub async fn changed(&mut self) -> io::Result<()> {
        let socket = &mut self.socket;
        self.ready.until(|| drain(socket).then_some(())).await
    }
}

/// Takes all that is there; whether something of it counts. What was lost because the socket was
/// full may have counted.
fn drain(socket: &mut Socket) -> bool {
    let mut news = false;
    loop {
        match socket.recv_from_full() {
            Ok((bytes, _)) => news |= messages(&bytes).iter().any(counts),
            Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => news = true,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return news,
        }
    }
}

fn messages(mut rest: &[u8]) -> Vec<RouteNetlinkMessage> {
    let mut all = Vec::new();
    while !rest.is_empty() {
        let Ok(packet) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest) else { break };
        let length = usize::try_from(packet.header.length).unwrap_or(0).next_multiple_of(4);
        rest = rest.get(length.max(16)..).unwrap_or_default();
        if let NetlinkPayload::InnerMessage(message) = packet.payload {
            all.push(message);
        }
    }
    all
}

fn counts(message: &RouteNetlinkMessage) -> bool {
    match message {
        // Every pod's veth gets and loses addresses of its link.
        RouteNetlinkMessage::NewAddress(a) | RouteNetlinkMessage::DelAddress(a) => {
            a.header.scope == AddressScope::Universe
        }
        RouteNetlinkMessage::NewRoute(r) | RouteNetlinkMessage::DelRoute(r) => {
            r.header.destination_prefix_length == 0
        }
        _ => false,
    }
}

fn address_of(message: &AddressMessage) -> Option<IpAddr> {
    // On a link with two ends IFA_ADDRESS is the other one's.
    let find = |local: bool| {
        message.attributes.iter().find_map(|a| match a {
            AddressAttribute::Local(ip) if local => Some(*ip),
            AddressAttribute::Address(ip) if !local => Some(*ip),
            _ => None,
        })
    };
    find(true).or_else(|| find(false))
}

impl Netlink {
    /// The addresses of more than link scope.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn addresses(&mut self) -> Result<Vec<InterfaceAddress>, NetlinkError> {
        let links = self.dump("links", RouteNetlinkMessage::GetLink(Default::default()))?;
        let name_of = |index: u32| {
            links.iter().find_map(|message| match message {
                RouteNetlinkMessage::NewLink(link) if link.header.index == index => {
                    link.attributes.iter().find_map(|a| match a {
                        LinkAttribute::IfName(name) => Some(name.clone()),
                        _ => None,
                    })
                }
                _ => None,
            })
        };
        let all = self.dump("addresses", RouteNetlinkMessage::GetAddress(Default::default()))?;
        let found = all.iter().filter_map(|message| match message {
            RouteNetlinkMessage::NewAddress(a) if a.header.scope == AddressScope::Universe => {
                let interface = name_of(a.header.index).unwrap_or_default();
                Some(InterfaceAddress { interface, address: address_of(a)? })
            }
            _ => None,
        });
        Ok(found.collect())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{netlink::LinkKind, netns::Netns};

    /// Needs root.
    #[test]
    fn an_address_and_a_default_route_are_told_and_a_link_alone_is_not() {
        Netns::anonymous()
            .unwrap()
            .run(|| {
                let runtime =
                    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                runtime.block_on(async {
                    let mut watch = AddressWatch::new().unwrap();
                    let mut netlink = Netlink::current().unwrap();
                    netlink.add_link("d0", LinkKind::Bridge).unwrap();
                    netlink.set_up("d0").unwrap();
                    let quiet = tokio::time::timeout(Duration::from_millis(200), watch.changed());
                    assert!(quiet.await.is_err(), "a link without addresses is no news");
                    let address = "192.0.2.7".parse().unwrap();
                    netlink.add_address("d0", address, 24).unwrap();
                    let soon = Duration::from_secs(5);
                    tokio::time::timeout(soon, watch.changed()).await.unwrap().unwrap();
                    let found = netlink.addresses().unwrap();
                    let wanted = InterfaceAddress { interface: "d0".to_owned(), address };
                    assert!(found.contains(&wanted), "{found:?}");
                    netlink.set_default_route("192.0.2.1".parse().unwrap()).unwrap();
                    tokio::time::timeout(soon, watch.changed()).await.unwrap().unwrap();
                    assert!(netlink.delete_address("d0", address, 24).unwrap());
                    tokio::time::timeout(soon, watch.changed()).await.unwrap().unwrap();
                    assert!(!netlink.addresses().unwrap().contains(&wanted));
                });
            })
            .unwrap();
    }
}
