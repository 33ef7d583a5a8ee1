//! Decisions on frames that come in. The sender determines which addresses a frame may claim and
//! which members it may reach.

use std::cell::RefCell;
use std::collections::{btree_map, hash_map};
use std::net::IpAddr;

use toroid_fabric::{NodeId, Partition, Place, TestKnob};
use toroid_model::ethernet::DropReason;
use toroid_model::link::Rate;
use toroid_protocol::driver::Port;

use super::ends::End;
use super::remote::{RemoteHost, RemoteMember};
use super::snooping::Snooping;
use super::{Bridge, Bridges, Member, Outside};
use crate::headers::frame::Frame;
use crate::headers::igmp_mld::{self, GroupMessage, MembershipReport};
use crate::headers::ip_addresses;
use crate::headers::mac::{Destination, Mac};
use crate::headers::neighbour::AddressQuery;
use crate::headers::ra_guard;
use crate::offload::{MAX_PACKET, Offload};
use crate::tunnel::{HostId, TunnelHeader};

/// Decision on a packet.
#[derive(Debug)]
pub enum Action<'a, X> {
    /// The packet goes to this next hop, unchanged.
    Forward(NextHop<'a, X>),
    /// The packet goes to each of these next hops, unchanged; refused ones are counted.
    Flood(Flood<'a, X>),
    /// This frame goes back to the sender.
    Reply(Vec<u8>),
    /// The packet is dropped and counted.
    Drop(DropReason),
}

/// Next hop of a packet.
#[derive(Debug)]
pub enum NextHop<'a, X> {
    /// A member on this host, and its egress port.
    Member(&'a Port, &'a X),
    /// The external network, and the egress port of the uplink at this node.
    Outside(NodeId, &'a X),
    /// The driver of another host, which decides there. The receiver, unless there may be several.
    Host(HostId, Option<&'a Port>),
}

impl<'a, X> NextHop<'a, X> {
    /// The local egress port.
    pub fn egress(&self) -> Option<&'a X> {
        match self {
            NextHop::Member(_, egress) | NextHop::Outside(_, egress) => Some(egress),
            NextHop::Host(..) => None,
        }
    }
}

impl<'a, X> From<Result<NextHop<'a, X>, DropReason>> for Action<'a, X> {
    fn from(decided: Result<NextHop<'a, X>, DropReason>) -> Self {
        decided.map_or_else(Action::Drop, Action::Forward)
    }
}

/// Entry point for the frames of one sender: a member or the external network. Decisions see one
/// bridge only.
#[derive(Debug)]
pub struct Ingress<'a, X> {
    pub(super) bridge: &'a Bridge<X>,
    pub(super) sender: Sender<'a, X>,
    /// All bridges, for addresses of other domains.
    pub(super) all: &'a Bridges<X>,
}

impl<'a, X> Ingress<'a, X> {
    /// Decides on a packet: a frame with its [offloads](Offload).
    pub fn decide(&self, packet: &[u8]) -> Action<'a, X> {
        if self.has_stopped() {
            return Action::Drop(DropReason::Fenced);
        }
        match self.admit(packet) {
            Ok(frame) => self.answer(frame).unwrap_or_else(|| self.route(frame)),
            Err(reason) => Action::Drop(reason),
        }
    }

    /// Whether the members of the domain have stopped.
    pub(crate) fn has_stopped(&self) -> bool {
        self.all.have_stopped(self.partition())
    }

    /// Counts a dropped frame of this sender.
    pub(crate) fn count(&self, reason: DropReason) {
        match self.sender {
            Sender::Member(member) => member.drops.count(reason),
            Sender::Outside(outside) => outside.drops.count(reason),
            Sender::Remote(member) => self.bridge.remote.count(member.host, reason),
        }
    }

    /// The egress port to this sender; `None` if the sender is on another host.
    pub(crate) fn egress(&self) -> Option<&'a X> {
        match self.sender {
            Sender::Member(member) => Some(&member.egress),
            Sender::Outside(outside) => Some(&outside.egress),
            Sender::Remote(_) => None,
        }
    }

    /// The rate of this sender, if it is a local member with one. Frames of others were charged
    /// where they entered.
    pub(crate) fn rate(&self) -> Option<Rate> {
        match self.sender {
            Sender::Member(member) => member.port.rate,
            Sender::Outside(_) | Sender::Remote(_) => None,
        }
    }

    /// The header of frames of this sender in a tunnel; `None` if they do not go to other hosts.
    pub(crate) fn header(&self) -> Option<TunnelHeader> {
        match self.sender {
            Sender::Member(member) => Some(TunnelHeader {
                partition: Partition(self.bridge.domain.into()),
                epoch: self.bridge.epoch,
                place: member.port.place,
            }),
            Sender::Outside(_) | Sender::Remote(_) => None,
        }
    }

    /// Records that a packet of this sender was read. After so many packets that others may have
    /// been lost, among them membership reports, the member receives every group.
    pub(crate) fn record_read(&self) {
        if let Sender::Member(member) = self.sender
            && member.overrun.record_read()
        {
            let mut snooping = self.bridge.snooping.borrow_mut();
            snooping.receive_all(member.port.place);
        }
    }

    /// Records that the transmit queue of this sender was empty.
    pub(crate) fn record_empty(&self) {
        if let Sender::Member(member) = self.sender {
            member.overrun.record_empty();
        }
    }

    fn admit<'p>(&self, packet: &'p [u8]) -> Result<Frame<'p>, DropReason> {
        let (offload, bytes) = Offload::split(packet).ok_or(DropReason::Malformed)?;
        let frame = Frame::new(bytes).ok_or(DropReason::Malformed)?;
        let is_own = self.sender.may_be(frame.source());
        if !is_own && !TestKnob::WithoutSourceCheck.is_set() {
            return Err(DropReason::WrongSource);
        }
        if self.claims_foreign_address(frame) {
            return Err(DropReason::ForeignAddress);
        }
        if self.is_rogue_advertisement(frame) {
            return Err(DropReason::RouterAdvertisement);
        }
        let longest = offload.longest(bytes.len());
        if packet.len() <= MAX_PACKET && longest <= frame.max_len(self.sender.mtu()) {
            Ok(frame)
        } else {
            Err(DropReason::TooLong)
        }
    }

    /// Whether a packet claims an address of another node or domain.
    fn claims_foreign_address(&self, frame: Frame<'_>) -> bool {
        ip_addresses::claimed(frame).any(|address| self.belongs_to_another(address))
    }

    fn belongs_to_another(&self, address: IpAddr) -> bool {
        let is_of_node = || self.bridge.is_of_node(address);
        let Some(port) = self.sender.port() else {
            return is_of_node();
        };
        if self.bridge.owner_of(address) == Some(port.place) {
            return false;
        }
        if is_of_node() {
            return true;
        }
        let brings_from_elsewhere = port.gateway == Some(port.ipv4);
        if brings_from_elsewhere || self.bridge.uplink.is_some() {
            return false;
        }
        let other = self.all.domain_of(address, port);
        match (other, self.sender) {
            (None, _) => false,
            // Only the host of the sender knows whether it is in a domain that is not here.
            (Some(other), Sender::Remote(_)) if !self.all.is_here(other) => !port.forward,
            (Some(other), _) => !self.all.may_forward(port, other),
        }
    }

    /// Whether a member sends a router advertisement in a domain without routers.
    fn is_rogue_advertisement(&self, frame: Frame<'_>) -> bool {
        let port = self.sender.port();
        port.is_some_and(|port| !port.forward) && ra_guard::is_router_advertisement(frame)
    }

    fn answer(&self, frame: Frame<'_>) -> Option<Action<'a, X>> {
        // The driver of a remote requester has replied already.
        self.egress()?;
        let query = AddressQuery::read(frame)?;
        let Some(owner) = self.bridge.owner(&query, self.sender.place()) else {
            self.remember(query);
            return None;
        };
        // Frames from the external network do not go to other hosts.
        if matches!(self.sender, Sender::Outside(_)) && self.bridge.is_remote(&query) {
            return None;
        }
        Some(if self.sender.may_reach(owner) {
            Action::Reply(query.reply(Mac(owner.mac)))
        } else {
            Action::Drop(DropReason::Limited)
        })
    }

    /// Remembers a query about a node that is no member yet.
    fn remember(&self, query: AddressQuery) {
        let target = query.target();
        if let Sender::Member(member) = self.sender
            && self.bridge.is_of_node(target)
            && self.bridge.owner_of(target) != Some(member.port.place)
            && !query.is_probe()
        {
            member.pending.add(query);
        }
    }

    /// The member whose address in another domain is the destination of the packet. Its kernel
    /// would accept the packet on any interface.
    fn cross_domain_receiver(&self, frame: Frame<'_>) -> Option<Place> {
        let ours = Partition(self.bridge.domain.into());
        let address = ip_addresses::destination(frame)?;
        let (other, place) = self.all.owner_elsewhere(address, ours)?;
        let port = self.bridge.port(place)?;
        (!self.all.may_forward(port, other)).then_some(place)
    }

    fn route(&self, frame: Frame<'_>) -> Action<'a, X> {
        let destination = frame.destination().destination();
        let bypasses = match (destination, self.cross_domain_receiver(frame)) {
            (Destination::Member { place, .. }, Some(receiver)) => place == receiver,
            (Destination::Group, cross_domain_receiver) => cross_domain_receiver.is_some(),
            _ => false,
        };
        if bypasses {
            return Action::Drop(DropReason::ForeignAddress);
        }
        match destination {
            Destination::Group => self.flood(frame),
            Destination::Member { domain, .. } if domain != self.bridge.domain => {
                Action::Drop(DropReason::OtherDomain)
            }
            Destination::Member { place, .. } => self.reach(End::Member(place)).into(),
            Destination::Elsewhere => self.reach(End::Outside).into(),
        }
    }

    /// The next hop to another member.
    pub(super) fn next_hop(&self, place: Place) -> Result<NextHop<'a, X>, DropReason> {
        let (port, next_hop) = self.find(place).ok_or(DropReason::NoSuchMember)?;
        let may_reach = self.sender.may_reach(port);
        may_reach.then_some(next_hop).ok_or(DropReason::Limited)
    }

    fn find(&self, place: Place) -> Option<(&'a Port, NextHop<'a, X>)> {
        if Some(place) == self.sender.place() {
            return None;
        }
        if let Some(Member { port, egress, .. }) = self.bridge.members.get(&place) {
            return Some((port, NextHop::Member(port, egress)));
        }
        self.header()?;
        let RemoteMember { port, host, .. } = self.bridge.remote.members.get(&place)?;
        Some((port, NextHop::Host(*host, Some(port))))
    }

    fn flood(&self, frame: Frame<'_>) -> Action<'a, X> {
        let snooping = &self.bridge.snooping;
        match (igmp_mld::read(frame), self.sender.place()) {
            (Some(GroupMessage::Report(report)), place) => {
                if let Some(place) = place {
                    snooping.borrow_mut().learn(place, &report);
                }
                self.report(&report)
            }
            (Some(GroupMessage::Router), place) => {
                if let Some(place) = place {
                    snooping.borrow_mut().receive_all(place);
                }
                Action::Flood(self.flood_to(Recipients::All))
            }
            (None, _) => {
                let group = igmp_mld::group(frame);
                let group = group.filter(|group| snooping.borrow().is_known(*group));
                let recipients = group.map_or(Recipients::All, Recipients::Subscribers);
                Action::Flood(self.flood_to(recipients))
            }
        }
    }

    /// Sends a report to the sources of groups from elsewhere: routers, external switches, and
    /// drivers of other hosts. Remote hosts that receive a report may suppress their own.
    fn report(&self, report: &MembershipReport<'_>) -> Action<'a, X> {
        let snooping = &self.bridge.snooping;
        let is_wanted = || self.remote_hosts().next().is_some() || snooping.borrow().has_routers();
        // An external switch may forward a group only to ports on which it has seen a report.
        // Routers forward no link-local groups.
        let is_useful =
            self.bridge.uplink.is_some() || is_wanted() && report.records().next().is_some();
        if is_useful {
            Action::Flood(self.flood_to(Recipients::Routers))
        } else {
            Action::Drop(DropReason::LinkReport)
        }
    }

    /// The other hosts that flooded frames go to.
    pub(super) fn remote_hosts(&self) -> btree_map::Iter<'a, HostId, RemoteHost> {
        match self.header() {
            Some(_) => self.bridge.remote.hosts.iter(),
            None => btree_map::Iter::default(),
        }
    }

    /// The next hop of frames of a member to the external network, if there is one.
    pub(super) fn uplink(&self) -> Option<Result<NextHop<'a, X>, DropReason>> {
        let outside = self.bridge.uplink.as_ref()?;
        // Other hosts do not send frames of the external network back.
        self.header()?;
        Some(if self.sender.is_limited() && outside.limited {
            Err(DropReason::Limited)
        } else {
            Ok(NextHop::Outside(NodeId(outside.node), &outside.egress))
        })
    }

    fn flood_to(&self, recipients: Recipients) -> Flood<'a, X> {
        Flood {
            members: self.bridge.members.values(),
            remote_hosts: self.remote_hosts(),
            sender: self.sender,
            recipients,
            snooping: &self.bridge.snooping,
            outside: self.uplink(),
        }
    }
}

/// Recipients of a group frame.
#[derive(Clone, Copy, Debug)]
enum Recipients {
    All,
    /// Subscribers of this group.
    Subscribers(IpAddr),
    Routers,
}

/// Next hops to the members and the uplink except the sender. [`DropReason::Limited`] stands for each
/// recipient that the sender may not reach. All members of another host share one next hop.
#[derive(Debug)]
pub struct Flood<'a, X> {
    members: hash_map::Values<'a, Place, Member<X>>,
    remote_hosts: btree_map::Iter<'a, HostId, RemoteHost>,
    sender: Sender<'a, X>,
    recipients: Recipients,
    snooping: &'a RefCell<Snooping>,
    outside: Option<Result<NextHop<'a, X>, DropReason>>,
}

impl<X> Flood<'_, X> {
    fn is_for(&self, place: Place) -> bool {
        let hears = match self.recipients {
            Recipients::All => true,
            Recipients::Subscribers(group) => self.snooping.borrow().is_subscribed(place, group),
            Recipients::Routers => self.snooping.borrow().receives_all(place),
        };
        hears && Some(place) != self.sender.place()
    }
}

impl<'a, X> Iterator for Flood<'a, X> {
    type Item = Result<NextHop<'a, X>, DropReason>;

    fn next(&mut self) -> Option<Self::Item> {
        while let Some(member) = self.members.next() {
            if self.is_for(member.port.place) {
                return Some(if self.sender.may_reach(&member.port) {
                    Ok(NextHop::Member(&member.port, &member.egress))
                } else {
                    Err(DropReason::Limited)
                });
            }
        }
        // The other host knows which of its members subscribe to a group.
        if let Some((host, remote_host)) = self.remote_hosts.next() {
            return Some(if self.sender.is_limited() && remote_host.full == 0 {
                Err(DropReason::Limited)
            } else {
                Ok(NextHop::Host(*host, None))
            });
        }
        self.outside.take()
    }
}

/// Sender of a frame.
#[derive(Debug)]
pub(super) enum Sender<'a, X> {
    Member(&'a Member<X>),
    Outside(&'a Outside<X>),
    Remote(&'a RemoteMember),
}

impl<X> Clone for Sender<'_, X> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<X> Copy for Sender<'_, X> {}

impl<'a, X> Sender<'a, X> {
    /// The port, if the sender is a member.
    fn port(self) -> Option<&'a Port> {
        match self {
            Sender::Member(member) => Some(&member.port),
            Sender::Remote(member) => Some(&member.port),
            Sender::Outside(_) => None,
        }
    }

    /// The place, if the sender is a member.
    fn place(self) -> Option<Place> {
        self.port().map(|port| port.place)
    }

    fn is_limited(self) -> bool {
        match self {
            Sender::Member(Member { port, .. }) | Sender::Remote(RemoteMember { port, .. }) => {
                port.limited
            }
            Sender::Outside(outside) => outside.limited,
        }
    }

    fn mtu(self) -> u32 {
        match self {
            Sender::Member(Member { port, .. }) | Sender::Remote(RemoteMember { port, .. }) => {
                port.mtu
            }
            Sender::Outside(outside) => outside.mtu,
        }
    }

    /// Whether `source` is a permitted source address.
    fn may_be(self, source: Mac) -> bool {
        match self.port() {
            Some(port) => source == Mac(port.mac),
            None => source.destination() == Destination::Elsewhere,
        }
    }

    pub(super) fn may_reach(self, port: &Port) -> bool {
        !(self.is_limited() && port.limited)
    }
}
