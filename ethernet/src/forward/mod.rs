//! The link layer: which members of a partition a frame reaches. Bytes in, decision out.
//!
//! Frames between two nodes of one host have no link header. The descriptor that a frame was read
//! from identifies the sender, and with it the partition and the epoch. The checks of
//! [`toroid_fabric::link`] hold by construction:
//!
//! * *Partition*: an [`Ingress`] decides on a frame, and borrows the one `Bridge` of its port. A
//!   decision borrows its egress ports from that bridge, which holds no others. No frame reaches a
//!   port of another partition, regardless of its bytes.
//! * *Epoch*: a former member is not in the bridge, in either direction, and a port of an older
//!   epoch is refused.
//! * *Source*: the ingress is the port of the sender. The remaining check: the frame claims no
//!   address of another node.
//!
//! A bridge may have an *uplink*, which makes the domain one Ethernet with an external network.
//! Frames from there have addresses of that network and never those of a fabric: a frame of a
//! member that returns over an external loop, or through the bridge of another fabric, is dropped.
//!
//! A member may use addresses of its own choice, except those that the directory has assigned to
//! another member, may assign to a node of the torus, or has assigned in another domain
//! ([`DropReason::ForeignAddress`]). No neighbour cache therefore holds the address of a node with
//! another MAC address when the node becomes a member, except for the address of a former member,
//! which is then corrected. A node routes packets from one of its
//! domains into another only if both domains have routers ([`Port::forward`]); otherwise only the
//! gateway of a domain brings packets from elsewhere. Members of domains without routers send no
//! router advertisements either. The kernel of a node accepts packets for any of its addresses on
//! any interface, so a packet for the receiver's address in another domain is dropped.
//!
//! Frames of multicast groups reach their subscribers (`snooping`) and routers.
//!
//! Limited members talk to full members only. Frames between two limited members are dropped, and a
//! limited member gets no reply about the address of another.
//!
//! In a fenced domain whose deadline has passed, no frame of any member arrives.
//!
//! Some members may be on other hosts. Their frames go to the driver of their host, one
//! copy to each host for group addresses. A frame from another host has a header. That host is
//! trusted to name one of its own members and the present epoch, and for nothing else; the frame
//! then passes the same checks as a frame of a local member.

mod ends;
mod ingress;
mod overrun;
mod pending;
mod remote;
mod snooping;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use toroid_fabric::deadlines::Deadlines;
use toroid_fabric::{Epoch, NodeId, Partition, Place};
use toroid_model::addressing;
use toroid_model::ethernet::DropReason;
use toroid_protocol::driver::{Port, PortDrops, Uplink};

use crate::headers::mac::{self, Destination, Mac};
use crate::headers::neighbour::{AddressQuery, arp_correction};
pub(crate) use ends::End;
use ingress::Sender;
pub use ingress::{Action, Flood, Ingress, NextHop};
use overrun::OverrunDetector;
use pending::PendingQueries;
use remote::RemoteMembers;
pub use remote::UnknownDomain;
use snooping::Snooping;

/// The bridges of all partitions of a host. `X` is an egress port, or the name of one in a test.
#[derive(Debug)]
pub struct Bridges<X> {
    bridges: HashMap<Partition, Bridge<X>>,
    /// Subnets of the partitions that have had a member.
    subnets: HashMap<Partition, Subnet>,
    /// Deadlines after which members of fenced domains have stopped.
    deadlines: Option<Deadlines>,
}

/// The IPv4 subnet of a domain.
#[derive(Clone, Copy, Debug)]
struct Subnet {
    base: u32,
    mask: u32,
}

impl Subnet {
    fn of(port: &Port) -> Self {
        let mask = !u32::MAX.checked_shr(port.prefix.into()).unwrap_or_default();
        Subnet {
            base: port.ipv4.to_bits() & mask,
            mask,
        }
    }

    fn has(self, address: Ipv4Addr) -> bool {
        address.to_bits() & self.mask == self.base
    }
}

/// One partition: its members and nothing else.
#[derive(Debug)]
struct Bridge<X> {
    /// Domain number in the addresses of this bridge.
    domain: u16,
    epoch: Epoch,
    members: HashMap<Place, Member<X>>,
    /// Members on other hosts.
    remote: RemoteMembers,
    /// Local and remote members by number of the node.
    places: HashMap<u32, Place>,
    /// Members by assigned address.
    owners: HashMap<IpAddr, Place>,
    /// The last former member that had an IPv4 address.
    former: HashMap<Ipv4Addr, Place>,
    /// IPv4 addresses that the directory can assign; empty before the first member.
    assignable: Range<u32>,
    /// Multicast memberships, learned from frames.
    snooping: RefCell<Snooping>,
    uplink: Option<Outside<X>>,
}

/// The external network behind an uplink.
#[derive(Debug)]
struct Outside<X> {
    egress: X,
    /// Number of the node at which the uplink is.
    node: u32,
    /// Whether that node is a limited member. The external network then talks to full members only.
    limited: bool,
    /// MTU of the members, in bytes.
    mtu: u32,
    /// Dropped frames from the external network.
    drops: DropCounters,
}

#[derive(Debug)]
struct Member<X> {
    port: Port,
    egress: X,
    /// Frames read from its transmit queue.
    overrun: OverrunDetector,
    pending: PendingQueries,
    /// Dropped frames of this member.
    drops: DropCounters,
}

/// Reasons why a port cannot be a member.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// Agent: the MAC address does not belong to the domain and place.
    #[error("{mac} is not the address of {place} in domain number {domain_id}")]
    WrongMac {
        /// MAC address of the port.
        mac: Mac,
        /// Place of the port.
        place: Place,
        /// Domain of the port.
        domain_id: u32,
    },
    /// Agent: the port is older than the present membership.
    #[error("the port is of epoch {offered}, the domain is at {current}")]
    OldEpoch {
        /// Epoch of the port.
        offered: u32,
        /// Epoch of the bridge.
        current: u32,
    },
    /// Agent: the place or an address belongs to a member already.
    #[error("{0} is a member already, or its address is")]
    Taken(Place),
}

impl<X> Default for Bridges<X> {
    fn default() -> Self {
        Bridges {
            bridges: HashMap::new(),
            subnets: HashMap::new(),
            deadlines: None,
        }
    }
}

impl<X> Bridges<X> {
    /// Sets the deadlines of fenced domains.
    pub(crate) fn set_deadlines(&mut self, deadlines: Deadlines) {
        self.deadlines = Some(deadlines);
    }

    /// Whether the members of a domain have stopped.
    fn have_stopped(&self, partition: Partition) -> bool {
        let deadlines = self.deadlines.as_ref();
        deadlines.is_some_and(|its| its.has_passed(partition))
    }

    /// Makes `port` a member of the bridge of its domain, reached through `egress`.
    ///
    /// # Errors
    /// [`AttachError`]; nothing has changed then.
    pub fn attach(&mut self, port: Port, egress: X) -> Result<(), AttachError> {
        self.bridge_for(&port)?.attach(port, egress)
    }

    /// The bridge of the domain of a port, made if there is none.
    fn bridge_for(&mut self, port: &Port) -> Result<&mut Bridge<X>, AttachError> {
        let domain = u16::try_from(port.domain_id).ok();
        let domain = domain.filter(|domain| addressing::mac(*domain, port.place) == port.mac);
        let domain = domain.ok_or(AttachError::WrongMac {
            mac: Mac(port.mac),
            place: port.place,
            domain_id: port.domain_id,
        })?;
        let partition = Partition(port.domain_id);
        let subnet = Subnet::of(port);
        self.subnets.entry(partition).or_insert(subnet);
        let bridge = self.bridges.entry(partition);
        Ok(bridge.or_insert_with(|| Bridge::new(domain)))
    }

    /// Ends a membership; returns the egress port of a local member.
    pub(crate) fn detach(&mut self, partition: Partition, node: NodeId) -> Option<X> {
        let bridge = self.bridges.get_mut(&partition)?;
        let egress = bridge.detach(node);
        self.forget_if_empty(partition);
        egress
    }

    /// Connects a bridge to the external network through `egress`; returns the former uplink.
    pub(crate) fn connect(&mut self, uplink: &Uplink, egress: X) -> Option<X> {
        let domain = u16::try_from(uplink.domain_id).ok()?;
        let bridge = self.bridges.entry(Partition(uplink.domain_id));
        let bridge = bridge.or_insert_with(|| Bridge::new(domain));
        let before = bridge.uplink.replace(Outside {
            egress,
            node: uplink.node,
            limited: uplink.limited,
            mtu: uplink.mtu,
            drops: DropCounters::default(),
        });
        before.map(|outside| outside.egress)
    }

    /// Disconnects a bridge from the external network; returns the former uplink.
    pub(crate) fn disconnect(&mut self, partition: Partition) -> Option<X> {
        let outside = self.bridges.get_mut(&partition)?.uplink.take();
        self.forget_if_empty(partition);
        outside.map(|outside| outside.egress)
    }

    fn forget_if_empty(&mut self, partition: Partition) {
        let is_empty = |s: &Bridge<X>| {
            s.members.is_empty() && s.remote.members.is_empty() && s.uplink.is_none()
        };
        if self.bridges.get(&partition).is_some_and(is_empty) {
            self.bridges.remove(&partition);
            self.subnets.remove(&partition);
        }
    }

    /// Replaces the port of a local member by one with the same interface, from its next frame on.
    pub(crate) fn renew(&mut self, port: Port) {
        let Some(bridge) = self.bridges.get_mut(&Partition(port.domain_id)) else {
            return;
        };
        bridge.epoch = bridge.epoch.max(Epoch(port.epoch));
        if let Some(member) = bridge.members.get_mut(&port.place) {
            member.port = port;
        }
    }

    /// Sends every multicast group to a member from now on: its earlier reports are unknown.
    pub(crate) fn receive_all(&mut self, partition: Partition, place: Place) {
        if let Some(bridge) = self.bridges.get_mut(&partition)
            && bridge.members.contains_key(&place)
        {
            bridge.snooping.get_mut().receive_all(place);
        }
    }

    /// The egress port of a member.
    pub(crate) fn egress_mut(&mut self, partition: Partition, place: Place) -> Option<&mut X> {
        let bridge = self.bridges.get_mut(&partition)?;
        Some(&mut bridge.members.get_mut(&place)?.egress)
    }

    /// Raises the epoch of a partition; an epoch never decreases.
    pub(crate) fn raise_epoch(&mut self, partition: Partition, epoch: Epoch) {
        if let Some(bridge) = self.bridges.get_mut(&partition) {
            bridge.epoch = bridge.epoch.max(epoch);
        }
    }

    /// Dropped frames of the members and the external network of a partition, by reason.
    pub(crate) fn drops(&self, partition: Partition) -> Vec<PortDrops> {
        let Some(bridge) = self.bridges.get(&partition) else {
            return Vec::new();
        };
        let members = bridge.members.values().map(|member| PortDrops {
            node: member.port.node,
            outside: false,
            dropped: member.drops.all(),
        });
        let outside = bridge.uplink.iter().map(|outside| PortDrops {
            node: outside.node,
            outside: true,
            dropped: outside.drops.all(),
        });
        members.chain(outside).collect()
    }

    /// Replies about the member at `place` to queries of other members before its membership, each
    /// with the egress port of the requester. Each reply is returned once.
    pub(crate) fn pending_replies(&self, partition: Partition, place: Place) -> Vec<(&X, Vec<u8>)> {
        let bridge = self.bridges.get(&partition);
        let Some((bridge, port)) = bridge.and_then(|s| Some((s, s.port(place)?))) else {
            return Vec::new();
        };
        let of = |member| {
            let may_reach = Sender::Member(member).may_reach(port);
            let queries = member.pending.take(addresses(port));
            let queries = queries.into_iter().filter(move |_| may_reach);
            queries.map(|query| (&member.egress, query.reply(Mac(port.mac))))
        };
        bridge.members.values().flat_map(of).collect()
    }

    /// Replies to all members that the member at `place` has its IPv4 address, if another one had
    /// it, because their kernels may know that one.
    pub(crate) fn corrections(&self, partition: Partition, place: Place) -> Vec<(&X, Vec<u8>)> {
        let bridge = self.bridges.get(&partition);
        let Some((bridge, port)) = bridge.and_then(|s| Some((s, s.port(place)?))) else {
            return Vec::new();
        };
        let former = bridge.former.get(&port.ipv4);
        let is_reused = former.is_some_and(|former| *former != place);
        let others = bridge.members.values().filter(|_| is_reused);
        let others = others
            .filter(|member| member.port.place != place && Sender::Member(member).may_reach(port));
        let owner = (Mac(port.mac), port.ipv4);
        others
            .map(|member| (&member.egress, arp_correction(Mac(member.port.mac), owner)))
            .collect()
    }

    /// Place of a member.
    pub(crate) fn place_of(&self, partition: Partition, node: NodeId) -> Option<Place> {
        self.bridges.get(&partition)?.place_of(node)
    }

    /// The ingress of the member at `place`; `None` if there is none.
    pub fn ingress(&self, partition: Partition, place: Place) -> Option<Ingress<'_, X>> {
        let bridge = self.bridges.get(&partition)?;
        let member = bridge.members.get(&place)?;
        let sender = Sender::Member(member);
        Some(self.ingress_of(bridge, sender))
    }

    /// The ingress of the external network; `None` without an uplink.
    pub(crate) fn outside(&self, partition: Partition) -> Option<Ingress<'_, X>> {
        let bridge = self.bridges.get(&partition)?;
        let sender = Sender::Outside(bridge.uplink.as_ref()?);
        Some(self.ingress_of(bridge, sender))
    }

    /// The domain other than that of `port` to which an address belongs.
    fn domain_of(&self, address: IpAddr, port: &Port) -> Option<Partition> {
        match address {
            IpAddr::V4(address) if Subnet::of(port).has(address) => None,
            IpAddr::V4(address) => {
                let has_it = |(_, subnet): &(&Partition, &Subnet)| subnet.has(address);
                Some(*self.subnets.iter().find(has_it)?.0)
            }
            IpAddr::V6(address) => {
                let [one, two, three, domain, ..] = address.segments();
                let [a, b, c, ours, ..] = port.ipv6.segments();
                let is_other = [one, two, three] == [a, b, c] && domain != ours;
                is_other.then(|| Partition(domain.into()))
            }
        }
    }

    /// The member of a domain other than `ours` to which an address is assigned, and its domain.
    fn owner_elsewhere(&self, address: IpAddr, ours: Partition) -> Option<(Partition, Place)> {
        let partition = match address {
            IpAddr::V4(address) if self.subnets.get(&ours)?.has(address) => return None,
            IpAddr::V4(address) => {
                let has_it = |(_, subnet): &(&Partition, &Subnet)| subnet.has(address);
                *self.subnets.iter().find(has_it)?.0
            }
            IpAddr::V6(address) => Partition(addressing::parse_ipv6(address)?.0.into()),
        };
        let elsewhere = self.bridges.get(&partition)?;
        let place = elsewhere.owners.get(&address)?;
        (partition != ours).then_some((partition, *place))
    }

    /// Whether the node of a port may forward packets from another domain: it is a member there,
    /// and both domains have routers.
    fn may_forward(&self, port: &Port, from: Partition) -> bool {
        let there = self.bridges.get(&from);
        let there = there.and_then(|bridge| bridge.port(port.place));
        port.forward && there.is_some_and(|port| port.forward)
    }

    /// Whether this host has a bridge of a partition.
    fn is_here(&self, partition: Partition) -> bool {
        self.bridges.contains_key(&partition)
    }

    fn ingress_of<'a>(&'a self, bridge: &'a Bridge<X>, sender: Sender<'a, X>) -> Ingress<'a, X> {
        Ingress {
            bridge,
            sender,
            all: self,
        }
    }
}

impl<X> Bridge<X> {
    fn new(domain: u16) -> Self {
        Bridge {
            domain,
            epoch: Epoch(0),
            members: HashMap::new(),
            remote: RemoteMembers::default(),
            places: HashMap::new(),
            owners: HashMap::new(),
            former: HashMap::new(),
            assignable: 0..0,
            snooping: RefCell::default(),
            uplink: None,
        }
    }

    fn attach(&mut self, port: Port, egress: X) -> Result<(), AttachError> {
        self.register(&port)?;
        let place = port.place;
        let member = Member {
            port,
            egress,
            overrun: OverrunDetector::default(),
            pending: PendingQueries::default(),
            drops: DropCounters::default(),
        };
        self.members.insert(place, member);
        Ok(())
    }

    /// Registers the addresses of a new member.
    fn register(&mut self, port: &Port) -> Result<(), AttachError> {
        if port.epoch < self.epoch.0 {
            return Err(AttachError::OldEpoch {
                offered: port.epoch,
                current: self.epoch.0,
            });
        }
        let (place, addresses) = (port.place, addresses(port));
        let taken = |address| self.owners.contains_key(address);
        if self.port(place).is_some() || addresses.iter().any(taken) {
            return Err(AttachError::Taken(place));
        }
        self.epoch = Epoch(port.epoch);
        let first = Subnet::of(port).base.saturating_add(1);
        self.assignable = first..first.saturating_add(port.nodes);
        self.places.insert(port.node, place);
        self.owners
            .extend(addresses.map(|address| (address, place)));
        Ok(())
    }

    fn detach(&mut self, node: NodeId) -> Option<X> {
        let place = self.place_of(node)?;
        let Some(member) = self.members.remove(&place) else {
            self.detach_remote(place);
            return None;
        };
        self.forget(&member.port);
        Some(member.egress)
    }

    fn forget(&mut self, port: &Port) {
        self.snooping.get_mut().forget(port.place);
        self.places.remove(&port.node);
        for address in addresses(port) {
            self.owners.remove(&address);
        }
        self.former.insert(port.ipv4, port.place);
    }

    /// The port of a local or remote member.
    fn port(&self, place: Place) -> Option<&Port> {
        let here = self.members.get(&place).map(|member| &member.port);
        here.or_else(|| self.remote.members.get(&place).map(|member| &member.port))
    }

    /// The place of a local or remote member.
    fn place_of(&self, node: NodeId) -> Option<Place> {
        self.places.get(&node.0).copied()
    }

    /// The owner of an address that the directory has assigned, or that a kernel derives from a MAC
    /// address.
    fn owner_of(&self, address: IpAddr) -> Option<Place> {
        let assigned = self.owners.get(&address).copied();
        assigned.or_else(|| match mac::from_link_local(address)?.destination() {
            Destination::Member { domain, place } => (domain == self.domain).then_some(place),
            _ => None,
        })
    }

    /// Whether an address belongs to a node of the torus, member or not.
    fn is_of_node(&self, address: IpAddr) -> bool {
        let is_assignable = match address {
            IpAddr::V4(address) => self.assignable.contains(&address.to_bits()),
            IpAddr::V6(address) => {
                let parsed = addressing::parse_ipv6(address);
                parsed.is_some_and(|(domain, _)| domain == self.domain)
            }
        };
        is_assignable || self.owner_of(address).is_some()
    }

    /// The member other than `requester` that owns the queried address.
    fn owner(&self, query: &AddressQuery, requester: Option<Place>) -> Option<&Port> {
        let place = self.owners.get(&query.target())?;
        // A query for the own address is an announcement; a reply would report a conflict.
        self.port(*place).filter(|_| Some(*place) != requester)
    }

    /// Whether the queried address belongs to a member on another host.
    fn is_remote(&self, query: &AddressQuery) -> bool {
        let place = self.owners.get(&query.target());
        place.is_some_and(|place| self.remote.members.contains_key(place))
    }
}

/// Numbers of dropped frames, by reason.
#[derive(Debug, Default)]
struct DropCounters([AtomicU64; DropReason::ALL.len()]);

impl DropCounters {
    fn count(&self, reason: DropReason) {
        self.0[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The numbers that are not 0.
    fn all(&self) -> BTreeMap<DropReason, u64> {
        let count = |reason| (reason, self.0[reason as usize].load(Ordering::Relaxed));
        let counts = DropReason::ALL.into_iter().map(count);
        counts.filter(|(_, count)| *count > 0).collect()
    }
}

fn addresses(port: &Port) -> [IpAddr; 2] {
    [port.ipv4.into(), port.ipv6.into()]
}

#[cfg(test)]
pub(crate) mod tests;
