//! rtnetlink of one namespace: a request, its answer, done. Messages are built with `rtnetlink`'s builders; its
//! connection is a task on a runtime, and these calls are made a handful of times per pod, so the socket is used directly.

mod addresses;
mod rules;

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    os::fd::{AsRawFd as _, BorrowedFd},
};

use rtnetlink::{
    AddressMessageBuilder, LinkMessageBuilder, LinkUnspec, RouteMessageBuilder,
    packet_core::{
        NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST,
        NetlinkHeader, NetlinkMessage, NetlinkPayload,
    },
    packet_route::{
        RouteNetlinkMessage,
        address::{AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage},
        link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkInfo, LinkMessage},
        route::{RouteAttribute, RouteMessage, RouteProtocol, RouteScope, RouteType},
    },
    sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE},
};

pub use addresses::InterfaceAddress;
pub use rules::Rule;

use crate::netns::visit_netns;

/// A change of links, addresses or routes failed.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    #[error("cannot open a netlink socket")]
    Open(#[source] io::Error),
    #[error("cannot {operation} {object}")]
    Refused {
        operation: &'static str,
        object: String,
        #[source]
        source: io::Error,
    },
    #[error("no interface {0}")]
    NoInterface(String),
    #[error(
        "IPv6 is off on this machine (ipv6.disable=1, or a kernel without it), so a pod cannot have an IPv6 address"
    )]
    NoIpv6,
    #[error("cannot switch on IPv6 on {interface}")]
    Ipv6 {
        interface: String,
        #[source]
        source: io::Error,
    },
    #[error("{0} and {1} are of different address families")]
    Family(IpAddr, IpAddr),
}

impl NetlinkError {
    fn errno(&self) -> Option<i32> {
        match self {
            Self::Open(source) | Self::Refused { source, .. } => source.raw_os_error(),
            Self::NoInterface(_) | Self::Family(..) | Self::NoIpv6 | Self::Ipv6 { .. } => None,
        }
    }

    fn is_exists(&self) -> bool {
        self.errno() == Some(libc::EEXIST)
    }

    fn is_absent(&self) -> bool {
        matches!(
            self.errno(),
            Some(libc::ENODEV | libc::ESRCH | libc::EADDRNOTAVAIL | libc::ENOENT)
        )
    }

    /// Whether the kernel lacks the kind of link that was asked for.
    pub fn is_unsupported(&self) -> bool {
        matches!(self.errno(), Some(libc::EOPNOTSUPP | libc::ENODEV | libc::EINVAL))
    }
}

/// The kinds of links that are made here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkKind {
    Dummy,
    Bridge,
    Ifb,
}

impl LinkKind {
    fn info(self) -> InfoKind {
        match self {
            Self::Dummy => InfoKind::Dummy,
            Self::Bridge => InfoKind::Bridge,
            Self::Ifb => InfoKind::Ifb,
        }
    }
}

/// A netlink socket in one namespace.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    /// In the calling thread's namespace.
    ///
    /// # Errors
    /// No socket is free.
    pub fn current() -> Result<Self, NetlinkError> {
        let open = || {
            let mut socket = Socket::new(NETLINK_ROUTE)?;
            socket.bind_auto()?;
            socket.connect(&SocketAddr::new(0, 0))?;
            Ok(socket)
        };
        Ok(Self { socket: open().map_err(NetlinkError::Open)?, sequence: 0 })
    }

    /// In another namespace; the calling thread stays where it is.
    ///
    /// # Errors
    /// Not permitted.
    pub fn in_netns(netns: BorrowedFd<'_>) -> Result<Self, NetlinkError> {
        visit_netns(netns, Self::current).map_err(NetlinkError::Open)?
    }

    /// The index of an interface; `None`: there is none of that name.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn index(&mut self, name: &str) -> Result<Option<u32>, NetlinkError> {
        let link = LinkMessageBuilder::<LinkUnspec>::new().name(name).build();
        match self.request(("find", name), RouteNetlinkMessage::GetLink(link), NLM_F_ACK) {
            Ok(links) => Ok(links.iter().find_map(|message| match message {
                RouteNetlinkMessage::NewLink(link) => Some(link.header.index),
                _ => None,
            })),
            Err(e) if e.is_absent() => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn existing(&mut self, name: &str) -> Result<u32, NetlinkError> {
        self.index(name)?.ok_or_else(|| NetlinkError::NoInterface(name.to_owned()))
    }

    /// Makes an interface; one of that name that is there already is left as it is.
    ///
    /// # Errors
    /// The kernel lacks the kind ([`NetlinkError::is_unsupported`]) or refuses.
    pub fn add_link(&mut self, name: &str, kind: LinkKind) -> Result<(), NetlinkError> {
        let link =
            LinkMessageBuilder::<LinkUnspec>::new_with_info_kind(kind.info()).name(name).build();
        self.create(name, link)
    }

    /// Makes a veth pair: `name` here, `peer` in the namespace `netns`.
    ///
    /// # Errors
    /// A name is taken, or the kernel refuses.
    pub fn add_veth(
        &mut self,
        name: &str,
        peer: &str,
        netns: BorrowedFd<'_>,
    ) -> Result<(), NetlinkError> {
        let peer = LinkMessageBuilder::<LinkUnspec>::new()
            .name(peer)
            .setns_by_fd(netns.as_raw_fd())
            .build();
        let mut link = LinkMessage::default();
        link.attributes.push(LinkAttribute::IfName(name.to_owned()));
        link.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]));
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        self.request(("create", name), RouteNetlinkMessage::NewLink(link), flags).map(drop)
    }

    fn create(&mut self, name: &str, link: LinkMessage) -> Result<(), NetlinkError> {
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        match self.request(("create", name), RouteNetlinkMessage::NewLink(link), flags) {
            Err(e) if !e.is_exists() => Err(e),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Sets an interface up.
    ///
    /// # Errors
    /// There is none of that name, or the kernel refuses.
    pub fn set_up(&mut self, name: &str) -> Result<(), NetlinkError> {
        let index = self.existing(name)?;
        let link = LinkMessageBuilder::<LinkUnspec>::new().index(index).up().build();
        self.request(("set up", name), RouteNetlinkMessage::SetLink(link), NLM_F_ACK).map(drop)
    }

    /// Puts an interface under a bridge.
    ///
    /// # Errors
    /// One of them is missing, or the kernel refuses.
    pub fn set_master(&mut self, name: &str, bridge: &str) -> Result<(), NetlinkError> {
        let (index, master) = (self.existing(name)?, self.existing(bridge)?);
        let link = LinkMessageBuilder::<LinkUnspec>::new().index(index).controller(master).build();
        self.request(("attach", name), RouteNetlinkMessage::SetLink(link), NLM_F_ACK).map(drop)
    }

    /// Deletes an interface; whether there was one.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn delete_link(&mut self, name: &str) -> Result<bool, NetlinkError> {
        let Some(index) = self.index(name)? else { return Ok(false) };
        let link = LinkMessageBuilder::<LinkUnspec>::new().index(index).build();
        match self.request(("delete", name), RouteNetlinkMessage::DelLink(link), NLM_F_ACK) {
            Ok(_) => Ok(true),
            Err(e) if e.is_absent() => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Gives an interface an address (IPv6: without duplicate detection, usable at once).
    ///
    /// # Errors
    /// There is no such interface, or the kernel refuses.
    pub fn add_address(
        &mut self,
        name: &str,
        address: IpAddr,
        prefix_length: u8,
    ) -> Result<(), NetlinkError> {
        let index = self.existing(name)?;
        let message = address_message(index, address, prefix_length);
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
        let object = format!("{address}/{prefix_length} to {name}");
        self.request(("add", &object), RouteNetlinkMessage::NewAddress(message), flags).map(drop)
    }

    /// Takes an address from an interface; whether it had it.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn delete_address(
        &mut self,
        name: &str,
        address: IpAddr,
        prefix_length: u8,
    ) -> Result<bool, NetlinkError> {
        let Some(index) = self.index(name)? else { return Ok(false) };
        let message = address_message(index, address, prefix_length);
        let object = format!("{address}/{prefix_length} from {name}");
        match self.request(("delete", &object), RouteNetlinkMessage::DelAddress(message), NLM_F_ACK)
        {
            Ok(_) => Ok(true),
            Err(e) if e.is_absent() => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Routes everything else through `gateway`.
    ///
    /// # Errors
    /// The gateway is unreachable, or the kernel refuses.
    pub fn set_default_route(&mut self, gateway: IpAddr) -> Result<(), NetlinkError> {
        let message = match gateway {
            IpAddr::V4(v4) => RouteMessageBuilder::<Ipv4Addr>::new().gateway(v4).build(),
            IpAddr::V6(v6) => RouteMessageBuilder::<Ipv6Addr>::new().gateway(v6).build(),
        };
        self.set_route(&format!("default via {gateway}"), message)
    }

    /// Declares a whole network local (`ip route replace local NETWORK dev lo src SOURCE`): any address of it can be bound,
    /// and packets to it stay in the namespace. In a table, 255 being the kernel's own.
    ///
    /// # Errors
    /// Families differ, or the kernel refuses.
    pub fn set_local_route(
        &mut self,
        network: IpAddr,
        prefix_length: u8,
        source: IpAddr,
        table: u32,
    ) -> Result<(), NetlinkError> {
        if network.is_ipv4() != source.is_ipv4() {
            return Err(NetlinkError::Family(network, source));
        }
        let mut message = self.local_route("lo", network, prefix_length, table)?;
        message.attributes.push(RouteAttribute::PrefSource(source.into()));
        self.set_route(&format!("local {network}/{prefix_length}"), message)
    }

    /// Takes a local route of interface `name` away, whoever made it; whether there was one.
    ///
    /// # Errors
    /// There is no such interface, or the kernel refuses.
    pub fn delete_local_route(
        &mut self,
        name: &str,
        network: IpAddr,
        prefix_length: u8,
        table: u32,
    ) -> Result<bool, NetlinkError> {
        let mut message = self.local_route(name, network, prefix_length, table)?;
        message.header.protocol = RouteProtocol::Unspec;
        let object = format!("local {network}/{prefix_length}");
        match self.request(("delete", &object), RouteNetlinkMessage::DelRoute(message), NLM_F_ACK) {
            Ok(_) => Ok(true),
            Err(e) if e.is_absent() => Ok(false),
            Err(e) => Err(e),
        }
    }

    fn local_route(
        &mut self,
        name: &str,
        network: IpAddr,
        prefix_length: u8,
        table: u32,
    ) -> Result<RouteMessage, NetlinkError> {
        let index = self.existing(name)?;
        Ok(match network {
            IpAddr::V4(network) => RouteMessageBuilder::<Ipv4Addr>::new()
                .destination_prefix(network, prefix_length)
                .output_interface(index)
                .kind(RouteType::Local)
                .scope(RouteScope::Host)
                .table_id(table)
                .build(),
            IpAddr::V6(network) => RouteMessageBuilder::<Ipv6Addr>::new()
                .destination_prefix(network, prefix_length)
                .output_interface(index)
                .kind(RouteType::Local)
                .table_id(table)
                .build(),
        })
    }

    fn set_route(&mut self, object: &str, message: RouteMessage) -> Result<(), NetlinkError> {
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
        self.request(("add route", object), RouteNetlinkMessage::NewRoute(message), flags).map(drop)
    }

    /// All objects of a kind.
    fn dump(
        &mut self,
        what: &str,
        message: RouteNetlinkMessage,
    ) -> Result<Vec<RouteNetlinkMessage>, NetlinkError> {
        self.request(("list", what), message, NLM_F_DUMP)
    }

    /// Sends one request and reads to its acknowledgement.
    fn request(
        &mut self,
        (operation, object): (&'static str, &str),
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<Vec<RouteNetlinkMessage>, NetlinkError> {
        self.exchange(message, flags).map_err(|source| NetlinkError::Refused {
            operation,
            object: object.to_owned(),
            source,
        })
    }

    fn exchange(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> io::Result<Vec<RouteNetlinkMessage>> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut packet = NetlinkMessage::new(header, NetlinkPayload::from(message));
        packet.finalize();
        let mut bytes = vec![0; packet.buffer_len()];
        packet.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let mut answers = Vec::new();
        loop {
            let (bytes, _) = self.socket.recv_from_full()?;
            let mut rest = bytes.as_slice();
            while !rest.is_empty() {
                let packet = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                    .map_err(io::Error::other)?;
                let length = usize::try_from(packet.header.length).unwrap_or(0).next_multiple_of(4);
                rest = rest.get(length.max(16)..).unwrap_or_default();
                if packet.header.sequence_number != self.sequence {
                    continue;
                }
                match packet.payload {
                    NetlinkPayload::Error(e) => {
                        return e.code.map_or(Ok(answers), |_| Err(e.to_io()));
                    }
                    NetlinkPayload::Done(_) => return Ok(answers),
                    NetlinkPayload::InnerMessage(message) => answers.push(message),
                    _ => {}
                }
            }
        }
    }
}

fn address_message(index: u32, address: IpAddr, prefix_length: u8) -> AddressMessage {
    match address {
        IpAddr::V4(v4) => {
            AddressMessageBuilder::<Ipv4Addr>::new().index(index).address(v4, prefix_length).build()
        }
        IpAddr::V6(v6) => {
            let mut message = AddressMessageBuilder::<Ipv6Addr>::new()
                .index(index)
                .address(v6, prefix_length)
                .build();
            message.header.flags |= AddressHeaderFlags::Nodad;
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
            message
        }
    }
}
