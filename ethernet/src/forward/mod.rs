//! The link layer: which of a partition's members a frame reaches. Bytes in, decision out.
//!
//! Between two nodes of one host no link header is written, because what it would say is known
//! better than a header could tell: the descriptor that a frame was read from identifies its
//! sender, and with it the partition and the epoch. The checks of [`toroid_fabric::link`] hold by
//! construction instead:
//!
//! * *Partition*: a frame is decided on by an [`Ingress`], which borrows the one [`Bridge`]
//!   that its port belongs to. A decision borrows its ports from there, and a bridge
//!   holds no others. No frame can reach a port of another partition, whatever it contains.
//! * *Epoch*: a port that is no longer a member is no longer in its bridge, for frames in
//!   either direction, and one of an older epoch is not let in.
//! * *Source*: an ingress is its port; what is left to check is that the frame does not claim
//!   another one's address.
//!
//! A bridge may have an *uplink*, and is one Ethernet with what is outside then. Frames from there
//! have the addresses of whoever is there, but never those of a fabric: a member's own frame that comes
//! back over a loop outside, or through another bridge, goes no further.
//!
//! A member may have addresses of its own choice, but none that the directory gave to another member, or
//! can give to a node of the torus that is no member yet, nor one of another domain
//! ([`DropReason::ForeignAddress`]). A node's address is therefore in no neighbour cache with another
//! MAC when the node becomes a member. So no node, whatever its root does, routes packets from
//! one of its domains into another, unless both say that they forward ([`Port::forward`]); otherwise only the
//! gateway of a domain may bring packets from elsewhere. Members of domains that do not say so announce no
//! [routers](crate::headers::ra_guard) either. A node's kernel takes packets for any of its addresses from any of its
//! interfaces, so a packet for the address that the receiver has in another domain is not delivered. Nobody outside has the address of a member.
//!
//! Frames for groups reach those who listen, as far as that is known (`snooping`), and routers.
//!
//! A further check has no counterpart in a header: limited members talk to full ones only, so
//! nothing passes between two of them, and neither is told the other's address.
//!
//! Some members may be on [other hosts](remote). Frames for them go to their host's driver, those for
//! groups once to each host, and what comes from there has a header, of which nothing holds by construction: it
//! is believed of a host only that it speaks for the members that it carries, in the present epoch. Then
//! it has to pass what a frame of a member here has to.

mod ingress;
mod overrun;
mod pending;
mod remote;
mod snooping;

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, hash_map};
use std::net::{IpAddr, Ipv4Addr};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use toroid_fabric::{Epoch, NodeId, Partition, Place};
use toroid_model::addressing;
use toroid_model::ethernet::DropReason;
use toroid_protocol::driver::{Port, PortDrops, Uplink};

use crate::headers::mac::{self, Destination, Mac};
use crate::headers::neighbour::AddressQuery;
use ingress::Sender;
pub use ingress::{Action, Flood, Ingress, NextHop};
use overrun::OverrunDetector;
use pending::PendingQueries;
use remote::RemoteMembers;
pub use remote::UnknownDomain;
use snooping::Snooping;

/// All partitions of a host. `X` is how a frame leaves to a member: a TAP, or a test's record.
#[derive(Debug)]
pub struct Bridges<X> {
    bridges: HashMap<Partition, Bridge<X>>,
    /// Of each, once it has had a member.
    subnets: HashMap<Partition, Subnet>,
}

/// Addresses that belong to one domain.
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
    /// What an address must carry to be of this bridge.
    domain: u16,
    epoch: Epoch,
    members: HashMap<Place, Member<X>>,
    /// Those that other hosts carry.
    remote: RemoteMembers,
    /// Who has an address that the directory assigned.
    owners: HashMap<IpAddr, Place>,
    /// The IPv4 addresses that the directory can assign; none before there is a member.
    assignable: Range<u32>,
    /// Who hears which groups, which frames tell.
    snooping: RefCell<Snooping>,
    uplink: Option<Outside<X>>,
}

/// What is outside, as a bridge sees it.
#[derive(Debug)]
struct Outside<X> {
    egress: X,
    /// The node at which it is connected.
    node: u32,
    /// Whether that talks to full members only, and so does what is behind it.
    limited: bool,
    /// The longest packet for members, in bytes.
    mtu: u32,
    /// Of what came from there.
    drops: DropCounters,
}

#[derive(Debug)]
struct Member<X> {
    port: Port,
    egress: X,
    /// Of what it sends.
    overrun: OverrunDetector,
    pending: PendingQueries,
    /// Of what it sent.
    drops: DropCounters,
}

/// Why a port cannot be a member.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// Agent: the MAC is not the one that domain and place give.
    #[error("{mac} is not the address of {place} in domain number {domain_id}")]
    WrongMac {
        /// As given.
        mac: Mac,
        /// The port's place.
        place: Place,
        /// The port's domain.
        domain_id: u32,
    },
    /// Agent: the port is of a time before the present membership.
    #[error("the port is of epoch {offered}, the domain is at {current}")]
    OldEpoch {
        /// The port's.
        offered: u32,
        /// The bridge's.
        current: u32,
    },
    /// Agent: another member, or this one, is there already.
    #[error("{0} is a member already, or its address is")]
    Taken(Place),
}

impl<X> Default for Bridges<X> {
    fn default() -> Self {
        Bridges {
            bridges: HashMap::new(),
            subnets: HashMap::new(),
        }
    }
}

impl<X> Bridges<X> {
    /// Makes `port` a member of its domain's bridge, reached through `egress`.
    ///
    /// # Errors
    /// [`AttachError`]; nothing has changed then.
    pub fn attach(&mut self, port: Port, egress: X) -> Result<(), AttachError> {
        let domain = checked_domain(&port)?;
        let partition = Partition(port.domain_id);
        let subnet = Subnet::of(&port);
        self.subnets.entry(partition).or_insert(subnet);
        match self.bridges.entry(partition) {
            hash_map::Entry::Occupied(bridge) => bridge.into_mut().attach(port, egress),
            hash_map::Entry::Vacant(place) => {
                place.insert(Bridge::new(domain)).attach(port, egress)
            }
        }
    }

    /// Ends a membership and returns the egress port, if there was one.
    pub fn detach(&mut self, partition: Partition, node: NodeId) -> Option<X> {
        let bridge = self.bridges.get_mut(&partition)?;
        let egress = bridge.detach(node);
        self.forget_if_empty(partition);
        egress
    }

    /// Connects a bridge to the outside, through `egress`; returns what it was connected through.
    pub fn connect(&mut self, uplink: &Uplink, egress: X) -> Option<X> {
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

    /// Disconnects a bridge; returns what it was connected through.
    pub fn disconnect(&mut self, partition: Partition) -> Option<X> {
        let outside = self.bridges.get_mut(&partition)?.uplink.take();
        self.forget_if_empty(partition);
        outside.map(|outside| outside.egress)
    }

    fn forget_if_empty(&mut self, partition: Partition) {
        let is_empty =
            |s: &Bridge<X>| s.members.is_empty() && s.remote.is_empty() && s.uplink.is_none();
        if self.bridges.get(&partition).is_some_and(is_empty) {
            self.bridges.remove(&partition);
            self.subnets.remove(&partition);
        }
    }

    /// Sets whether a member is limited, from its next frame on.
    pub fn set_limited(&mut self, partition: Partition, place: Place, limited: bool) {
        let bridge = self.bridges.get_mut(&partition);
        if let Some(member) = bridge.and_then(|bridge| bridge.members.get_mut(&place)) {
            member.port.limited = limited;
        }
    }

    /// Sets by whom packets of a member leave the domain, from its next frame on.
    pub fn set_gateway(&mut self, partition: Partition, place: Place, gateway: Option<Ipv4Addr>) {
        let bridge = self.bridges.get_mut(&partition);
        if let Some(member) = bridge.and_then(|bridge| bridge.members.get_mut(&place)) {
            member.port.gateway = gateway;
        }
    }

    /// Sets whether a member's domain has routers, from its next frame on.
    pub fn set_forward(&mut self, partition: Partition, place: Place, forward: bool) {
        let bridge = self.bridges.get_mut(&partition);
        if let Some(member) = bridge.and_then(|bridge| bridge.members.get_mut(&place)) {
            member.port.forward = forward;
        }
    }

    /// Lets a member hear every group from now on, because nobody knows which it has joined before.
    pub fn receive_all(&mut self, partition: Partition, place: Place) {
        if let Some(bridge) = self.bridges.get_mut(&partition)
            && bridge.members.contains_key(&place)
        {
            bridge.snooping.get_mut().receive_all(place);
        }
    }

    /// How frames leave to a member, to be changed.
    pub fn egress_mut(&mut self, partition: Partition, place: Place) -> Option<&mut X> {
        let bridge = self.bridges.get_mut(&partition)?;
        Some(&mut bridge.members.get_mut(&place)?.egress)
    }

    /// Raises the epoch of a partition; an epoch never goes back.
    pub fn raise_epoch(&mut self, partition: Partition, epoch: Epoch) {
        if let Some(bridge) = self.bridges.get_mut(&partition) {
            bridge.epoch = bridge.epoch.max(epoch);
        }
    }

    /// What became of the frames that members of a partition sent and nobody received.
    pub fn drops(&self, partition: Partition) -> Vec<PortDrops> {
        let Some(bridge) = self.bridges.get(&partition) else {
            return Vec::new();
        };
        let of = |member: &Member<X>| PortDrops {
            node: member.port.node,
            outside: false,
            dropped: member.drops.all(),
        };
        let from_outside = bridge.uplink.as_ref().map(|outside| PortDrops {
            node: outside.node,
            outside: true,
            dropped: outside.drops.all(),
        });
        bridge
            .members
            .values()
            .map(of)
            .chain(from_outside)
            .collect()
    }

    /// The answers about the member at `place` to queries that other members have asked before it was
    /// one, each with the next_hop to the asker. They are given once.
    pub fn pending_replies(&self, partition: Partition, place: Place) -> Vec<(&X, Vec<u8>)> {
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

    /// Where a member is.
    pub fn place_of(&self, partition: Partition, node: NodeId) -> Option<Place> {
        self.bridges.get(&partition)?.place_of(node)
    }

    /// Where frames of the member at `place` come in, or `None` if it is no member.
    pub fn ingress(&self, partition: Partition, place: Place) -> Option<Ingress<'_, X>> {
        let bridge = self.bridges.get(&partition)?;
        let member = bridge.members.get(&place)?;
        let sender = Sender::Member(member);
        Some(self.ingress_of(bridge, sender))
    }

    /// Where frames from outside come in, or `None` if the bridge is not connected.
    pub fn outside(&self, partition: Partition) -> Option<Ingress<'_, X>> {
        let bridge = self.bridges.get(&partition)?;
        let sender = Sender::Outside(bridge.uplink.as_ref()?);
        Some(self.ingress_of(bridge, sender))
    }

    /// The other domain than that of `port` to which an address belongs.
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

    /// The member of another domain than `ours` that has an address, and the domain.
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

    /// Whether the node of a port may bring packets from another domain: it is there, too, and both
    /// say so.
    fn may_forward(&self, port: &Port, from: Partition) -> bool {
        let there = self.bridges.get(&from);
        let there = there.and_then(|bridge| bridge.port(port.place));
        port.forward && there.is_some_and(|port| port.forward)
    }

    /// Whether a member of a partition is on this host.
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
            owners: HashMap::new(),
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

    /// Notes whose addresses those of a new member are.
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
        let first = port.ipv4.to_bits().saturating_sub(port.node);
        self.assignable = first..first.saturating_add(port.nodes);
        self.owners
            .extend(addresses.map(|address| (address, place)));
        Ok(())
    }

    fn detach(&mut self, node: NodeId) -> Option<X> {
        let Some(place) = self.place_of(node) else {
            self.detach_remote(node);
            return None;
        };
        let member = self.members.remove(&place)?;
        self.forget(&member.port);
        Some(member.egress)
    }

    fn forget(&mut self, port: &Port) {
        self.snooping.get_mut().forget(port.place);
        for address in addresses(port) {
            self.owners.remove(&address);
        }
    }

    /// That of a member, wherever it is.
    fn port(&self, place: Place) -> Option<&Port> {
        let here = self.members.get(&place).map(|member| &member.port);
        here.or_else(|| self.remote.port(place))
    }

    fn place_of(&self, node: NodeId) -> Option<Place> {
        let is_it = |member: &&Member<X>| member.port.node == node.0;
        Some(self.members.values().find(is_it)?.port.place)
    }

    /// Whose an address is: the directory gave it to a member, or a member's kernel makes it of its MAC.
    fn owner_of(&self, address: IpAddr) -> Option<Place> {
        let assigned = self.owners.get(&address).copied();
        assigned.or_else(|| match mac::from_link_local(address)?.destination() {
            Destination::Member { domain, place } => (domain == self.domain).then_some(place),
            _ => None,
        })
    }

    /// Whether an address belongs to a node, be the node a member or not.
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

    /// The member other than `asker` whose address is in query.
    fn owner(&self, query: &AddressQuery, asker: Option<Place>) -> Option<&Port> {
        let place = self.owners.get(&query.target())?;
        // Who asks for its own address announces it, and an answer would tell of a conflict.
        self.port(*place).filter(|_| Some(*place) != asker)
    }

    /// Whether the address in query is a member's that another host carries.
    fn is_remote(&self, query: &AddressQuery) -> bool {
        let place = self.owners.get(&query.target());
        place.is_some_and(|place| self.remote.member(*place).is_some())
    }
}

/// Frames of a member that did not reach an interface, by reason.
#[derive(Debug, Default)]
struct DropCounters([AtomicU64; DropReason::ALL.len()]);

impl DropCounters {
    fn count(&self, reason: DropReason) {
        self.0[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Those that are not 0.
    fn all(&self) -> BTreeMap<DropReason, u64> {
        let count = |reason| (reason, self.0[reason as usize].load(Ordering::Relaxed));
        let counts = DropReason::ALL.into_iter().map(count);
        counts.filter(|(_, count)| *count > 0).collect()
    }
}

fn addresses(port: &Port) -> [IpAddr; 2] {
    [port.ipv4.into(), port.ipv6.into()]
}

/// The domain's number as addresses carry it.
fn checked_domain(port: &Port) -> Result<u16, AttachError> {
    u16::try_from(port.domain_id)
        .ok()
        .filter(|domain| addressing::mac(*domain, port.place) == port.mac)
        .ok_or(AttachError::WrongMac {
            mac: Mac(port.mac),
            place: port.place,
            domain_id: port.domain_id,
        })
}

#[cfg(test)]
mod tests;
