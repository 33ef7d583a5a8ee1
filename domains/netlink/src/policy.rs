//! IPv4 routes in tables, and rules that choose a table by the source of packets.

use std::net::Ipv4Addr;

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::route::{
    RouteAttribute, RouteFlags, RouteHeader, RouteMessage, RouteProtocol, RouteType,
};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use nix::errno::Errno;

use crate::{Netlink, NetlinkError, is};

/// The table that applies to all packets, unless a rule says otherwise.
pub const MAIN_TABLE: u32 = RouteHeader::RT_TABLE_MAIN as u32;

/// An IPv4 route of an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route(RouteMessage);

impl Route {
    /// Whether the route leads to neighbours, by which others may lead further.
    pub fn is_direct(&self) -> bool {
        let is_gateway = |it: &RouteAttribute| matches!(it, RouteAttribute::Gateway(_));
        !self.0.attributes.iter().any(is_gateway)
    }

    /// The route without its table, if it is an ordinary one.
    fn of(mut message: RouteMessage) -> Option<Self> {
        message.header.table = RouteHeader::RT_TABLE_UNSPEC;
        message.header.protocol = RouteProtocol::Static;
        // Flags such as that of a lost carrier are not the route's.
        message.header.flags &= RouteFlags::Onlink;
        let is_own = |it: &RouteAttribute| {
            matches!(
                it,
                RouteAttribute::Destination(_)
                    | RouteAttribute::Gateway(_)
                    | RouteAttribute::Oif(_)
                    | RouteAttribute::Priority(_)
                    | RouteAttribute::PrefSource(_)
            )
        };
        message.attributes.retain(is_own);
        let is_link = |it: &RouteAttribute| matches!(it, RouteAttribute::Oif(_));
        let leads = message.attributes.iter().any(is_link);
        (message.header.kind == RouteType::Unicast && leads).then_some(Route(message))
    }

    fn within(&self, table: u32) -> RouteMessage {
        let mut message = self.0.clone();
        message.attributes.push(RouteAttribute::Table(table));
        message
    }
}

impl Netlink {
    /// The routes of a table, or those through a link; `None` if there are more than `most`.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn routes(
        table: u32,
        index: Option<u32>,
        most: usize,
    ) -> Result<Option<Vec<Route>>, NetlinkError> {
        // A connection of its own, which filters, and whose rest is discarded.
        let mut netlink = Netlink::open()?;
        netlink.socket.set_netlink_get_strict_chk(true)?;
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet;
        message.attributes.push(RouteAttribute::Table(table));
        message.attributes.extend(index.map(RouteAttribute::Oif));
        netlink.send(RouteNetlinkMessage::GetRoute(message), NLM_F_DUMP)?;
        let (mut routes, mut has_ended) = (Vec::new(), false);
        while !has_ended {
            let mut answers = Vec::new();
            has_ended = netlink.hear(&mut answers)?;
            let found = answers.into_iter().filter_map(|answer| match answer {
                RouteNetlinkMessage::NewRoute(message) => Route::of(message),
                _ => None,
            });
            routes.extend(found);
            if routes.len() > most {
                return Ok(None);
            }
        }
        Ok(Some(routes))
    }

    /// Adds a route to a table, or replaces the one with the same destination and priority.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn put_route(&mut self, table: u32, route: &Route) -> Result<(), NetlinkError> {
        let request = RouteNetlinkMessage::NewRoute(route.within(table));
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
        let target = format!("a route to table {table}");
        self.request("add", &target, request, flags).map(drop)
    }

    /// Removes a route from a table, if it is there.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn remove_route(&mut self, table: u32, route: &Route) -> Result<(), NetlinkError> {
        let request = RouteNetlinkMessage::DelRoute(route.within(table));
        let target = format!("a route from table {table}");
        match self.request("remove", &target, request, NLM_F_ACK) {
            Err(NetlinkError::Refused { source, .. }) if is(&source, Errno::ESRCH) => Ok(()),
            result => result.map(drop),
        }
    }

    /// Makes a table apply to packets from an address. Packets for which it has no route go by later
    /// rules.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn add_source_rule(
        &mut self,
        source: Ipv4Addr,
        table: u32,
        priority: u32,
    ) -> Result<(), NetlinkError> {
        let request = RouteNetlinkMessage::NewRule(source_rule(source, table, priority));
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        let target = format!("a rule for packets from {source}");
        match self.request("add", &target, request, flags) {
            Err(error) if error.already_exists() => Ok(()),
            result => result.map(drop),
        }
    }

    /// Takes back [`Netlink::add_source_rule`]; nothing to do if there is no such rule.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn remove_source_rule(
        &mut self,
        source: Ipv4Addr,
        table: u32,
        priority: u32,
    ) -> Result<(), NetlinkError> {
        let request = RouteNetlinkMessage::DelRule(source_rule(source, table, priority));
        let target = format!("the rule for packets from {source}");
        match self.request("remove", &target, request, NLM_F_ACK) {
            Err(NetlinkError::Refused { source, .. }) if is(&source, Errno::ENOENT) => Ok(()),
            result => result.map(drop),
        }
    }
}

fn source_rule(source: Ipv4Addr, table: u32, priority: u32) -> RuleMessage {
    let mut message = RuleMessage::default();
    message.header.family = AddressFamily::Inet;
    message.header.src_len = 32;
    message.header.action = RuleAction::ToTable;
    message
        .attributes
        .push(RuleAttribute::Source(source.into()));
    message.attributes.push(RuleAttribute::Table(table));
    message.attributes.push(RuleAttribute::Priority(priority));
    message
}
