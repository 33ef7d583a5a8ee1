//! Bridges of the kernel without learning.
//!
//! A port of such a bridge admits frames from one MAC address, and receives only frames to that
//! address and to groups: the port is locked, learns nothing, and has one static entry.

use netlink_packet_core::{NLM_F_ACK, NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::link::{
    InfoBridgePort, InfoKind, InfoPortData, InfoPortKind, LinkAttribute, LinkInfo, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::{Netlink, NetlinkError};

impl Netlink {
    /// Creates a bridge without ports, still down.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn create_bridge(&mut self, name: &str) -> Result<(), NetlinkError> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.into()));
        let info = vec![LinkInfo::Kind(InfoKind::Bridge)];
        message.attributes.push(LinkAttribute::LinkInfo(info));
        let request = RouteNetlinkMessage::NewLink(message);
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        self.request("create", name, request, flags).map(drop)
    }

    /// Makes a link that is down a port of a bridge, for one MAC address at its other end. The
    /// port is restricted before it is brought up, so no other frame passes at any time.
    ///
    /// # Errors
    /// [`NetlinkError`]: the link is up, or the kernel has no locked ports (before Linux 5.18). The
    /// link is down then.
    pub fn add_locked_port(
        &mut self,
        bridge: u32,
        port: u32,
        mac: [u8; 6],
    ) -> Result<(), NetlinkError> {
        let target = format!("interface {port}");
        self.set_attribute("add to a bridge", port, LinkAttribute::Controller(bridge))?;
        let mut message = LinkMessage::default();
        message.header.index = port;
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::PortKind(InfoPortKind::Bridge),
            LinkInfo::PortData(InfoPortData::BridgePort(vec![
                InfoBridgePort::Locked(true),
                InfoBridgePort::Learning(false),
                InfoBridgePort::UnicastFlood(false),
            ])),
        ]));
        let request = RouteNetlinkMessage::NewLink(message);
        self.request("lock bridge port", &target, request, NLM_F_ACK)?;

        let mut entry = NeighbourMessage::default();
        entry.header.family = AddressFamily::Bridge;
        entry.header.ifindex = port;
        // A static entry; a permanent one would be an address of the bridge itself.
        entry.header.state = NeighbourState::Noarp;
        entry.header.flags = NeighbourFlags::Controller;
        let address = NeighbourAttribute::LinkLayerAddress(mac.into());
        entry.attributes.push(address);
        let request = RouteNetlinkMessage::NewNeighbour(entry);
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
        self.request("add the address of", &target, request, flags)?;
        self.set_up(port)
    }
}
