//! Tells when this machine's addresses or its default routes change: a laptop between two networks, another uplink, a new
//! lease. TCP does not: a connection whose own address is gone stays open until its peer's silence is noticed.
#![expect(unsafe_code, reason = "registering a descriptor that is owned")]

use std::{
    io,
    net::{IpAddr, UdpSocket},
};

use rtnetlink::{
    packet_core::{NetlinkMessage, NetlinkPayload},
    packet_route::RouteNetlinkMessage,
    sys::{Socket, protocols::NETLINK_ROUTE},
};
use tokio::io::unix::AsyncFd;

/// `RTNLGRP_*` of `linux/rtnetlink.h`.
const GROUPS: [u32; 4] = [
    libc::RTNLGRP_IPV4_IFADDR,
    libc::RTNLGRP_IPV6_IFADDR,
    libc::RTNLGRP_IPV4_ROUTE,
    libc::RTNLGRP_IPV6_ROUTE,
];

/// What happened to the way to others; the worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Change {
    /// An address was taken away, or so much happened that the kernel could not tell it all.
    AddressGone,
    /// An address is new, or was confirmed.
    AddressNew,
    /// A default route was made or taken away.
    DefaultRoute,
}

/// Listens to the kernel, in the namespace in which it was made.
#[derive(Debug)]
pub struct AddressWatch {
    socket: AsyncFd<Socket>,
    buffer: Vec<u8>,
}

impl AddressWatch {
    /// In the calling thread's namespace. Must be called inside a runtime.
    ///
    /// # Errors
    /// No socket is free.
    pub fn new() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        for group in GROUPS {
            socket.add_membership(group)?;
        }
        socket.set_non_blocking(true)?;
        // SAFETY: the socket owns its descriptor, gives always that one, and is dropped with its registration.
        let socket = unsafe { AsyncFd::register(socket) }?;
        Ok(Self { socket, buffer: Vec::with_capacity(64 << 10) })
    }

    /// Waits for the next changes; of those that come together the worst is told. Cancel safe.
    ///
    /// # Errors
    /// The socket broke.
    pub async fn changed(&mut self) -> io::Result<Change> {
        loop {
            let mut ready = self.socket.readable().await?;
            self.buffer.clear();
            let buffer = &mut self.buffer;
            match ready.try_io(|s| s.get_ref().recv(buffer, libc::MSG_DONTWAIT)) {
                Ok(Ok(_)) => {
                    if let Some(change) = worst(&self.buffer) {
                        return Ok(change);
                    }
                }
                // More than the socket's buffer holds.
                Ok(Err(e)) if e.raw_os_error() == Some(libc::ENOBUFS) => {
                    return Ok(Change::AddressGone);
                }
                Ok(Err(e)) if e.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(e)) => return Err(e),
                Err(_would_block) => {}
            }
        }
    }
}

fn worst(mut bytes: &[u8]) -> Option<Change> {
    let mut worst = None;
    while let Ok(packet) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(bytes) {
        let length = usize::try_from(packet.header.length).unwrap_or(0).next_multiple_of(4);
        bytes = bytes.get(length.max(16)..).unwrap_or_default();
        let found = match packet.payload {
            NetlinkPayload::InnerMessage(message) => change(&message),
            NetlinkPayload::Overrun(_) => Some(Change::AddressGone),
            _ => None,
        };
        worst = worst.into_iter().chain(found).min();
    }
    worst
}

fn change(message: &RouteNetlinkMessage) -> Option<Change> {
    match message {
        RouteNetlinkMessage::DelAddress(_) => Some(Change::AddressGone),
        RouteNetlinkMessage::NewAddress(_) => Some(Change::AddressNew),
        RouteNetlinkMessage::NewRoute(route) | RouteNetlinkMessage::DelRoute(route) => {
            (route.header.destination_prefix_length == 0).then_some(Change::DefaultRoute)
        }
        _ => None,
    }
}

/// Whether this machine still has an address; also when that cannot be told.
#[must_use]
pub fn is_here(address: IpAddr) -> bool {
    let bound = UdpSocket::bind((address, 0));
    !bound.is_err_and(|e| e.kind() == io::ErrorKind::AddrNotAvailable)
}

#[cfg(test)]
mod tests {
    use std::{os::fd::AsFd as _, time::Duration};

    use tokio::time::timeout;

    use super::*;
    use crate::{
        netlink::{LinkKind, Netlink},
        netns::{Netns, visit_netns},
    };

    type Tested = Result<(), Box<dyn std::error::Error>>;

    #[tokio::test]
    async fn addresses_and_default_routes_are_told_and_other_routes_are_not() -> Tested {
        let netns = Netns::anonymous()?;
        let mut watch = visit_netns(netns.as_fd(), AddressWatch::new)??;
        let mut link = Netlink::in_netns(netns.as_fd())?;
        link.add_link("d0", LinkKind::Bridge)?;
        link.set_up("d0")?;
        let (address, long) = (IpAddr::from([192, 0, 2, 1]), Duration::from_secs(5));
        let mut next = async |wanted| {
            // Of IPv6 the kernel says something by itself.
            let told = async {
                while watch.changed().await? != wanted {}
                io::Result::Ok(())
            };
            timeout(long, told).await?
        };
        link.add_address("d0", address, 24)?;
        next(Change::AddressNew).await?;
        assert!(visit_netns(netns.as_fd(), || is_here(address))?);
        link.set_local_route([198, 51, 100, 0].into(), 24, address, 255)?;
        link.set_default_route([192, 0, 2, 2].into())?;
        next(Change::DefaultRoute).await?;
        link.delete_address("d0", address, 24)?;
        next(Change::AddressGone).await?;
        assert!(!visit_netns(netns.as_fd(), || is_here(address))?);
        Ok(())
    }

    #[test]
    fn only_what_leads_away_counts() {
        use rtnetlink::RouteMessageBuilder;
        let route = |prefix| {
            let to = [10, 0, 0, 0].into();
            let built = RouteMessageBuilder::<std::net::Ipv4Addr>::new();
            RouteNetlinkMessage::NewRoute(built.destination_prefix(to, prefix).build())
        };
        assert_eq!(change(&route(8)), None);
        assert_eq!(change(&route(0)), Some(Change::DefaultRoute));
    }
}
