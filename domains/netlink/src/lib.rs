//! Links, addresses and routes of the calling thread's network namespace, over rtnetlink, and
//! tables of nftables.
//!
//! Requests are synchronous: each method returns when the kernel has acknowledged.

use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkHeader,
    NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressHeaderFlags, AddressMessage, AddressScope,
};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage, State,
};
use netlink_packet_route::route::{
    RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr};
use nix::errno::Errno;

mod bridge;
pub mod namespace;
pub mod nftables;
pub mod policy;

/// Multicast group of changed links (RTNLGRP_LINK).
const LINKS: u32 = 1;

/// Multicast group of changed forwarding (RTNLGRP_IPV4_NETCONF).
const FORWARDING: u32 = 24;

/// Multicast group of changed IPv4 routes (RTNLGRP_IPV4_ROUTE).
const ROUTES: u32 = 7;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// No link has this name.
    #[error("no interface {0}")]
    NoSuchLink(String),
    /// The kernel refused a request.
    #[error("cannot {action} {target}: {source}")]
    Refused {
        /// Requested action, as a verb.
        action: &'static str,
        /// The link.
        target: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The socket failed.
    #[error("netlink: {0}")]
    Io(#[from] io::Error),
    /// The kernel sent a malformed answer.
    #[error("netlink: {0}")]
    Malformed(String),
}

impl NetlinkError {
    /// Whether the thing to be made is there already.
    pub fn already_exists(&self) -> bool {
        matches!(self, NetlinkError::Refused { source, .. }
            if source.kind() == io::ErrorKind::AlreadyExists)
    }
}

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Index in its namespace.
    pub index: u32,
    /// Name.
    pub name: String,
    /// MAC address; empty for links without one.
    pub mac: Vec<u8>,
    /// Bytes.
    pub mtu: u32,
    /// Maximum number of unsent packets.
    pub queue_len: u32,
    /// Whether it is up.
    pub up: bool,
    /// Whether something is at its other end.
    pub has_carrier: bool,
    /// Whether it sends packets, which begins some time after both.
    pub is_operational: bool,
}

impl Link {
    /// Whether both are the same interface with the same settings, in whatever state.
    pub fn is_same_interface(&self, other: &Link) -> bool {
        let present = Link {
            up: other.up,
            has_carrier: other.has_carrier,
            is_operational: other.is_operational,
            ..self.clone()
        };
        present == *other
    }
}

/// Notifications of changed links, IPv4 forwarding and IPv4 routes in one network namespace.
#[derive(Debug)]
pub struct LinkChanges(Socket);

impl LinkChanges {
    /// Subscribes to changes in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The system's.
    pub fn open() -> Result<Self, NetlinkError> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.add_membership(LINKS)?;
        socket.add_membership(FORWARDING)?;
        socket.add_membership(ROUTES)?;
        Ok(LinkChanges(socket))
    }

    /// Waits until something has changed, and forgets all that has changed until now.
    ///
    /// # Errors
    /// The system's.
    pub fn wait(&self) -> Result<(), NetlinkError> {
        let mut flags = 0;
        loop {
            // The notification itself is ignored: callers query the present state.
            let mut start = [0_u8; 16];
            match self.0.recv(&mut &mut start[..], flags) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                // More changes than the socket's buffer holds.
                Err(error) if is(&error, Errno::ENOBUFS) => {}
                Err(error) => return Err(error.into()),
            }
            flags = nix::libc::MSG_DONTWAIT;
        }
    }
}

/// A connection to the kernel for one network namespace.
#[derive(Debug)]
pub struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    /// Connects to the network namespace of the calling thread; the connection stays with that
    /// namespace wherever it is used.
    ///
    /// # Errors
    /// The system's.
    pub fn open() -> Result<Self, NetlinkError> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        Ok(Netlink {
            socket,
            sequence: 0,
        })
    }

    /// Connects to another network namespace.
    ///
    /// # Errors
    /// The system's.
    pub fn open_in(namespace: BorrowedFd<'_>) -> Result<Self, NetlinkError> {
        namespace::inside(namespace, Self::open)?
    }

    /// The link with this name.
    ///
    /// # Errors
    /// [`NetlinkError::NoSuchLink`], and others.
    pub fn link(&mut self, name: &str) -> Result<Link, NetlinkError> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.into()));
        let request = RouteNetlinkMessage::GetLink(message);
        let missing = || NetlinkError::NoSuchLink(name.into());
        match self.request("find", name, request, NLM_F_ACK) {
            Err(NetlinkError::Refused { source, .. }) if is(&source, Errno::ENODEV) => {
                Err(missing())
            }
            answers => answers?.iter().find_map(link_in).ok_or_else(missing),
        }
    }

    /// All links of the namespace.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn links(&mut self) -> Result<Vec<Link>, NetlinkError> {
        let request = RouteNetlinkMessage::GetLink(LinkMessage::default());
        let answers = self.request("list", "interfaces", request, NLM_F_DUMP)?;
        Ok(answers.iter().filter_map(link_in).collect())
    }

    /// The index of the link with this name.
    ///
    /// # Errors
    /// [`NetlinkError::NoSuchLink`], and others.
    pub fn index(&mut self, name: &str) -> Result<u32, NetlinkError> {
        Ok(self.link(name)?.index)
    }

    /// Brings a link up.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn set_up(&mut self, index: u32) -> Result<(), NetlinkError> {
        self.set_flags("bring up", index, LinkFlags::Up)
    }

    /// Takes a link down.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn set_down(&mut self, index: u32) -> Result<(), NetlinkError> {
        self.set_flags("take down", index, LinkFlags::empty())
    }

    fn set_flags(
        &mut self,
        action: &'static str,
        index: u32,
        flags: LinkFlags,
    ) -> Result<(), NetlinkError> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.header.flags = flags;
        message.header.change_mask = LinkFlags::Up;
        self.set_link(action, message)
    }

    /// Gives a link another name; some kernels allow it only while the link is down. In a name
    /// with `%d` the kernel puts the first number that makes it unique.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn rename(&mut self, index: u32, name: &str) -> Result<(), NetlinkError> {
        self.set_attribute("rename", index, LinkAttribute::IfName(name.into()))
    }

    /// Sets the longest packet, in bytes.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn set_mtu(&mut self, index: u32, mtu: u32) -> Result<(), NetlinkError> {
        self.set_attribute("set the MTU of", index, LinkAttribute::Mtu(mtu))
    }

    /// Sets how many packets a link may have that are not sent yet.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn set_queue_len(&mut self, index: u32, packets: u32) -> Result<(), NetlinkError> {
        let len = LinkAttribute::TxQueueLen(packets);
        self.set_attribute("set the queue of", index, len)
    }

    /// Sets the MAC address; some links must be down for that.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn set_mac(&mut self, index: u32, mac: [u8; 6]) -> Result<(), NetlinkError> {
        let address = LinkAttribute::Address(mac.to_vec());
        self.set_attribute("set the MAC address of", index, address)
    }

    fn set_attribute(
        &mut self,
        action: &'static str,
        index: u32,
        attribute: LinkAttribute,
    ) -> Result<(), NetlinkError> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        message.attributes.push(attribute);
        self.set_link(action, message)
    }

    fn set_link(&mut self, action: &'static str, message: LinkMessage) -> Result<(), NetlinkError> {
        let target = format!("interface {}", message.header.index);
        let request = RouteNetlinkMessage::SetLink(message);
        self.request(action, &target, request, NLM_F_ACK).map(drop)
    }

    /// Gives a link an address, or keeps it if the link has it. An IPv6 address can be used at
    /// once: it is not checked for duplicates.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn add_address(
        &mut self,
        index: u32,
        address: IpAddr,
        prefix: u8,
    ) -> Result<(), NetlinkError> {
        self.put_address(index, address, prefix, NLM_F_REPLACE)
    }

    /// Gives a link an address that it may have lost; returns whether it had.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn restore_address(
        &mut self,
        index: u32,
        address: IpAddr,
        prefix: u8,
    ) -> Result<bool, NetlinkError> {
        match self.put_address(index, address, prefix, NLM_F_EXCL) {
            Err(error) if error.already_exists() => Ok(false),
            result => result.map(|()| true),
        }
    }

    fn put_address(
        &mut self,
        index: u32,
        address: IpAddr,
        prefix: u8,
        flags: u16,
    ) -> Result<(), NetlinkError> {
        let mut message = AddressMessage::default();
        message.header.index = index;
        message.header.prefix_len = prefix;
        message.header.scope = AddressScope::Universe;
        message.attributes.push(AddressAttribute::Local(address));
        message.attributes.push(AddressAttribute::Address(address));
        match address {
            IpAddr::V4(address) => {
                message.header.family = AddressFamily::Inet;
                let host_bits = u32::MAX.checked_shr(prefix.into()).unwrap_or_default();
                let broadcast = (address.to_bits() | host_bits).into();
                let broadcast = AddressAttribute::Broadcast(broadcast);
                message.attributes.push(broadcast);
            }
            IpAddr::V6(_) => {
                message.header.family = AddressFamily::Inet6;
                message.header.flags = AddressHeaderFlags::Nodad;
                let flags = AddressAttribute::Flags(AddressFlags::Nodad);
                message.attributes.push(flags);
            }
        }
        let target = format!("{address}/{prefix} to interface {index}");
        let request = RouteNetlinkMessage::NewAddress(message);
        let flags = NLM_F_ACK | NLM_F_CREATE | flags;
        self.request("add", &target, request, flags).map(drop)
    }

    /// Whether packets for `address` are delivered in this namespace. The kernel begins that in
    /// the background some time after [`Netlink::add_address`], for IPv6.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn is_local(&mut self, address: IpAddr) -> Result<bool, NetlinkError> {
        let mut message = RouteMessage::default();
        (
            message.header.address_family,
            message.header.destination_prefix_length,
        ) = match address {
            IpAddr::V4(_) => (AddressFamily::Inet, 32),
            IpAddr::V6(_) => (AddressFamily::Inet6, 128),
        };
        let destination = RouteAttribute::Destination(address.into());
        message.attributes.push(destination);
        let request = RouteNetlinkMessage::GetRoute(message);
        let target = format!("the route to {address}");
        match self.request("find", &target, request, NLM_F_ACK) {
            Err(NetlinkError::Refused { source, .. }) if unreachable(&source) => Ok(false),
            answers => Ok(answers?.iter().any(is_local_route)),
        }
    }

    /// Sets the default route with this metric: through a link to `gateway`. A default route with a
    /// lower metric takes precedence.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn set_default_route(
        &mut self,
        index: u32,
        gateway: Ipv4Addr,
        metric: u32,
    ) -> Result<(), NetlinkError> {
        let mut message = default_route(index, metric);
        message.header.protocol = RouteProtocol::Static;
        message.header.scope = RouteScope::Universe;
        message.header.kind = RouteType::Unicast;
        let gateway_attribute = RouteAttribute::Gateway(gateway.into());
        message.attributes.push(gateway_attribute);
        let request = RouteNetlinkMessage::NewRoute(message);
        let target = format!("a default route by {gateway} through interface {index}");
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
        self.request("add", &target, request, flags).map(drop)
    }

    /// Takes back [`Netlink::set_default_route`]; nothing to do if there is no such route.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn remove_default_route(&mut self, index: u32, metric: u32) -> Result<(), NetlinkError> {
        let mut message = default_route(index, metric);
        // Matches any scope.
        message.header.scope = RouteScope::NoWhere;
        let request = RouteNetlinkMessage::DelRoute(message);
        let target = format!("the default route through interface {index}");
        match self.request("remove", &target, request, NLM_F_ACK) {
            Err(NetlinkError::Refused { source, .. }) if is(&source, Errno::ESRCH) => Ok(()),
            result => result.map(drop),
        }
    }

    /// Deletes a link.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn delete(&mut self, index: u32) -> Result<(), NetlinkError> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        let target = format!("interface {index}");
        let request = RouteNetlinkMessage::DelLink(message);
        self.request("delete", &target, request, NLM_F_ACK)
            .map(drop)
    }

    /// Creates a pair of connected links: `name` here, `peer` in the given network namespace.
    ///
    /// # Errors
    /// [`NetlinkError`].
    pub fn create_veth(
        &mut self,
        name: &str,
        peer: &str,
        peer_namespace: BorrowedFd<'_>,
    ) -> Result<(), NetlinkError> {
        let mut other = LinkMessage::default();
        other.attributes.push(LinkAttribute::IfName(peer.into()));
        let namespace = LinkAttribute::NetNsFd(peer_namespace.as_raw_fd());
        other.attributes.push(namespace);

        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.into()));
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(other))),
        ]));
        let request = RouteNetlinkMessage::NewLink(message);
        let flags = NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL;
        self.request("create", name, request, flags).map(drop)
    }

    /// Sends one request and collects the kernel's answers before its acknowledgement.
    fn request(
        &mut self,
        action: &'static str,
        target: &str,
        request: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<Vec<RouteNetlinkMessage>, NetlinkError> {
        self.send(request, flags)?;
        self.answers().map_err(|error| match error {
            NetlinkError::Io(source) => NetlinkError::Refused {
                action,
                target: target.into(),
                source,
            },
            other => other,
        })
    }

    fn send(&mut self, request: RouteNetlinkMessage, flags: u16) -> Result<(), NetlinkError> {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = NLM_F_REQUEST | flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(request));
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        Ok(())
    }

    fn answers(&mut self) -> Result<Vec<RouteNetlinkMessage>, NetlinkError> {
        let mut answers = Vec::new();
        while !self.hear(&mut answers)? {}
        Ok(answers)
    }

    /// Receives some answers. Returns whether there are no more.
    fn hear(&mut self, answers: &mut Vec<RouteNetlinkMessage>) -> Result<bool, NetlinkError> {
        let (datagram, _) = self.socket.recv_from_full()?;
        let mut rest = &datagram[..];
        while !rest.is_empty() {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                .map_err(|error| NetlinkError::Malformed(error.to_string()))?;
            let ours = message.header.sequence_number == self.sequence;
            let padded = (message.header.length as usize).next_multiple_of(4);
            rest = rest.get(padded..).unwrap_or_default();
            match message.payload {
                _ if !ours => {}
                NetlinkPayload::InnerMessage(answer) => answers.push(answer),
                NetlinkPayload::Done(_) => return Ok(true),
                NetlinkPayload::Error(end) if end.code.is_none() => return Ok(true),
                NetlinkPayload::Error(error) => return Err(error.to_io().into()),
                _ => {}
            }
        }
        Ok(false)
    }
}

fn default_route(index: u32, metric: u32) -> RouteMessage {
    let mut message = RouteMessage::default();
    message.header.address_family = AddressFamily::Inet;
    message.header.table = RouteHeader::RT_TABLE_MAIN;
    message.attributes.push(RouteAttribute::Oif(index));
    message.attributes.push(RouteAttribute::Priority(metric));
    message
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno as i32)
}

fn unreachable(error: &io::Error) -> bool {
    use io::ErrorKind::{HostUnreachable, NetworkUnreachable};
    matches!(error.kind(), HostUnreachable | NetworkUnreachable)
}

fn is_local_route(answer: &RouteNetlinkMessage) -> bool {
    matches!(answer, RouteNetlinkMessage::NewRoute(route)
        if route.header.kind == RouteType::Local)
}

fn link_in(answer: &RouteNetlinkMessage) -> Option<Link> {
    let RouteNetlinkMessage::NewLink(message) = answer else {
        return None;
    };
    let mut link = Link {
        index: message.header.index,
        name: String::new(),
        mac: Vec::new(),
        mtu: 0,
        queue_len: 0,
        up: message.header.flags.contains(LinkFlags::Up),
        has_carrier: message.header.flags.contains(LinkFlags::LowerUp),
        is_operational: false,
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Address(mac) => link.mac.clone_from(mac),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::TxQueueLen(packets) => link.queue_len = *packets,
            LinkAttribute::OperState(state) => link.is_operational = *state == State::Up,
            _ => {}
        }
    }
    Some(link)
}

#[cfg(test)]
mod tests;
