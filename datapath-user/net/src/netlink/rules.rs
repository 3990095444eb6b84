//! Policy routing (`ip rule`), and the properties of a link that take packets in: what [`crate::vip`] needs to catch datagrams.

use std::net::IpAddr;

use rtnetlink::{
    LinkMessageBuilder, LinkUnspec, RouteMessageBuilder,
    packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL},
    packet_route::{
        AddressFamily, IpProtocol, RouteNetlinkMessage,
        link::LinkFlags,
        route::RouteAttribute,
        rule::{RuleAction, RuleAttribute, RuleMessage},
    },
};

use super::{Netlink, NetlinkError};

/// One line of `ip rule`: `pref PRIORITY [to NETWORK] [iif lo ipproto PROTOCOL] lookup TABLE`. A protocol needs Linux 4.17, and
/// concerns only what is sent from here: applied to what arrives it would make sources credible that are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    pub priority: u32,
    pub is_v4: bool,
    /// `None`: wherever to.
    pub to: Option<(IpAddr, u8)>,
    pub protocol: Option<IpProtocol>,
    pub table: u32,
}

impl Rule {
    fn message(&self) -> RuleMessage {
        let mut message = RuleMessage::default();
        let header = &mut message.header;
        header.family = if self.is_v4 { AddressFamily::Inet } else { AddressFamily::Inet6 };
        header.action = RuleAction::ToTable;
        header.table = u8::try_from(self.table).unwrap_or(0);
        let attributes = &mut message.attributes;
        attributes.push(RuleAttribute::Priority(self.priority));
        attributes.push(RuleAttribute::Table(self.table));
        if let Some((network, length)) = self.to {
            header.dst_len = length;
            attributes.push(RuleAttribute::Destination(network));
        }
        if let Some(protocol) = self.protocol {
            attributes.push(RuleAttribute::IpProtocol(protocol));
            attributes.push(RuleAttribute::Iifname("lo".to_owned()));
        }
        message
    }

    fn shown(&self) -> String {
        let to = self.to.map_or_else(|| "all".to_owned(), |(n, l)| format!("{n}/{l}"));
        format!("rule {} for {to} to table {}", self.priority, self.table)
    }
}

impl Netlink {
    /// Adds a rule that may be there already.
    ///
    /// # Errors
    /// The kernel has no policy routing, or refuses.
    pub fn add_rule(&mut self, rule: &Rule) -> Result<(), NetlinkError> {
        let message = RouteNetlinkMessage::NewRule(rule.message());
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        match self.request(("add", &rule.shown()), message, flags) {
            Err(e) if !e.is_exists() => Err(e),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// Takes a rule away; whether it was there.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn delete_rule(&mut self, rule: &Rule) -> Result<bool, NetlinkError> {
        let message = RouteNetlinkMessage::DelRule(rule.message());
        match self.request(("delete", &rule.shown()), message, NLM_F_ACK) {
            Ok(_) => Ok(true),
            Err(e) if e.is_absent() => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Sends a network's packets out of an interface, by a table of its own
    /// (`ip route replace NETWORK dev NAME src SOURCE table TABLE`).
    ///
    /// # Errors
    /// Families differ, there is no such interface, or the kernel refuses.
    pub fn set_link_route(
        &mut self,
        name: &str,
        (network, length): (IpAddr, u8),
        source: IpAddr,
        table: u32,
    ) -> Result<(), NetlinkError> {
        let index = self.existing(name)?;
        let mut message = match (network, source) {
            (IpAddr::V4(to), IpAddr::V4(_)) => RouteMessageBuilder::<std::net::Ipv4Addr>::new()
                .destination_prefix(to, length)
                .output_interface(index)
                .table_id(table)
                .build(),
            (IpAddr::V6(to), IpAddr::V6(_)) => RouteMessageBuilder::<std::net::Ipv6Addr>::new()
                .destination_prefix(to, length)
                .output_interface(index)
                .table_id(table)
                .build(),
            _ => return Err(NetlinkError::Family(network, source)),
        };
        message.attributes.push(RouteAttribute::PrefSource(source.into()));
        self.set_route(&format!("{network}/{length} dev {name}"), message)
    }

    /// An interface without neighbours: nobody is asked for a hardware address, everything is sent.
    ///
    /// # Errors
    /// There is no such interface, or the kernel refuses.
    pub fn set_lonely(&mut self, name: &str, mtu: u32) -> Result<(), NetlinkError> {
        let index = self.existing(name)?;
        let mut link = LinkMessageBuilder::<LinkUnspec>::new().index(index).mtu(mtu).build();
        link.header.flags |= LinkFlags::Noarp;
        link.header.change_mask |= LinkFlags::Noarp;
        self.request(("set up", name), RouteNetlinkMessage::SetLink(link), NLM_F_ACK).map(drop)
    }
}
