//! What becomes of a frame that has come in: who its sender is decides what it may say and whom it
//! may reach.

use std::cell::RefCell;
use std::collections::{btree_map, hash_map};
use std::net::IpAddr;

use toroid_fabric::{Partition, Place, TestKnob};
use toroid_model::ethernet::DropReason;
use toroid_protocol::driver::Port;

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

/// What is to be done with a packet.
#[derive(Debug)]
pub enum Action<'a, X> {
    /// Send it out there, as it is.
    Forward(NextHop<'a, X>),
    /// Send it out at each of these, as it is, and count those that are held back.
    Flood(Flood<'a, X>),
    /// Send this frame back where the packet came from.
    Reply(Vec<u8>),
    /// Count it.
    Drop(DropReason),
}

/// How a packet gets to whom it is for.
#[derive(Debug)]
pub enum NextHop<'a, X> {
    /// Out here.
    Port(&'a X),
    /// To the driver of another host, which decides there.
    Host(HostId),
}

/// Where frames of one member come in, or of the outside. It sees one bridge only.
#[derive(Debug)]
pub struct Ingress<'a, X> {
    pub(super) bridge: &'a Bridge<X>,
    pub(super) sender: Sender<'a, X>,
    /// For what it has to do with others.
    pub(super) all: &'a Bridges<X>,
}

impl<'a, X> Ingress<'a, X> {
    /// Decides on a packet that came in here: a frame with its [offloads](Offload).
    pub fn decide(&self, packet: &[u8]) -> Action<'a, X> {
        match self.admit(packet) {
            Ok(frame) => self.answer(frame).unwrap_or_else(|| self.route(frame)),
            Err(reason) => Action::Drop(reason),
        }
    }

    /// Counts a frame from here that did not reach an interface.
    pub fn count(&self, reason: DropReason) {
        match self.sender {
            Sender::Member(member) => member.drops.count(reason),
            Sender::Outside(outside) => outside.drops.count(reason),
            Sender::Remote(member) => self.bridge.remote.count(member.host, reason),
        }
    }

    /// How frames go back to where those come from that come in here, unless it is another host.
    pub fn egress(&self) -> Option<&'a X> {
        match self.sender {
            Sender::Member(member) => Some(&member.egress),
            Sender::Outside(outside) => Some(&outside.egress),
            Sender::Remote(_) => None,
        }
    }

    /// What other hosts are told of frames that come in here; nothing of what nobody tells them.
    pub fn tag(&self) -> Option<TunnelHeader> {
        match self.sender {
            Sender::Member(member) => Some(TunnelHeader {
                partition: Partition(self.bridge.domain.into()),
                epoch: self.bridge.epoch,
                place: member.port.place,
            }),
            Sender::Outside(_) | Sender::Remote(_) => None,
        }
    }

    /// Tells that a packet was read that came in here. Once there were so many that others may have been
    /// lost, there may have been reports among them, and the member hears every group.
    pub fn has_read(&self) {
        if let Sender::Member(member) = self.sender
            && member.overrun.has_read()
        {
            let mut snooping = self.bridge.snooping.borrow_mut();
            snooping.receive_all(member.port.place);
        }
    }

    /// Tells that there was no packet to read here.
    pub fn was_empty(&self) {
        if let Sender::Member(member) = self.sender {
            member.overrun.was_empty();
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

    /// Whether a packet has an address of another node, or of another domain.
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
            // Whether it is in both, only its host can know where nobody here is in the other.
            (Some(other), Sender::Remote(_)) if !self.all.is_here(other) => !port.forward,
            (Some(other), _) => !self.all.may_forward(port, other),
        }
    }

    /// Whether a member says that it is a router, where none is expected among members.
    fn is_rogue_advertisement(&self, frame: Frame<'_>) -> bool {
        let port = self.sender.port();
        port.is_some_and(|port| !port.forward) && ra_guard::is_router_advertisement(frame)
    }

    fn answer(&self, frame: Frame<'_>) -> Option<Action<'a, X>> {
        // Those of other hosts have been answered there.
        self.egress()?;
        let query = AddressQuery::read(frame)?;
        let Some(owner) = self.bridge.owner(&query, self.sender.place()) else {
            self.remember(query);
            return None;
        };
        // From outside there is no next_hop to the others.
        if matches!(self.sender, Sender::Outside(_)) && self.bridge.is_remote(&query) {
            return None;
        }
        Some(if self.sender.may_reach(owner) {
            Action::Reply(query.reply(Mac(owner.mac)))
        } else {
            Action::Drop(DropReason::Limited)
        })
    }

    /// Keeps a query about a node that is no member yet.
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

    /// The member that a packet is for by its address in another domain. The member's kernel would take
    /// the packet from any interface.
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
            Destination::Member { place, .. } => match self.next_hop(place) {
                Some((port, next_hop)) if self.sender.may_reach(port) => Action::Forward(next_hop),
                Some(_) => Action::Drop(DropReason::Limited),
                None => Action::Drop(DropReason::NoSuchMember),
            },
            Destination::Elsewhere => match self.uplink() {
                Some(Ok(egress)) => Action::Forward(NextHop::Port(egress)),
                Some(Err(reason)) => Action::Drop(reason),
                None => Action::Drop(DropReason::NoSuchMember),
            },
        }
    }

    /// How frames get to another member.
    fn next_hop(&self, place: Place) -> Option<(&'a Port, NextHop<'a, X>)> {
        if Some(place) == self.sender.place() {
            return None;
        }
        if let Some(member) = self.bridge.members.get(&place) {
            return Some((&member.port, NextHop::Port(&member.egress)));
        }
        self.tag()?;
        let member = self.bridge.remote.member(place)?;
        Some((&member.port, NextHop::Host(member.host)))
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

    /// A report is for those who bring groups from elsewhere: routers, switches outside, and drivers of other
    /// hosts. Other hosts that hear it may keep silent about themselves.
    fn report(&self, report: &MembershipReport<'_>) -> Action<'a, X> {
        let snooping = &self.bridge.snooping;
        let is_wanted = || self.remote_hosts().next().is_some() || snooping.borrow().has_routers();
        // Switches may bring any group only to where a report has come from, routers none of the link.
        let is_useful =
            self.bridge.uplink.is_some() || is_wanted() && report.records().next().is_some();
        if is_useful {
            Action::Flood(self.flood_to(Recipients::Routers))
        } else {
            Action::Drop(DropReason::LinkReport)
        }
    }

    /// The other hosts that frames for several go to.
    fn remote_hosts(&self) -> btree_map::Iter<'a, HostId, RemoteHost> {
        match self.tag() {
            Some(_) => self.bridge.remote.hosts(),
            None => btree_map::Iter::default(),
        }
    }

    /// How frames of a member get outside, if there is a next_hop.
    fn uplink(&self) -> Option<Result<&'a X, DropReason>> {
        let outside = self.bridge.uplink.as_ref()?;
        // What is outside is where it came from, and so not told to come back from other hosts.
        self.tag()?;
        Some(if self.sender.is_limited() && outside.limited {
            Err(DropReason::Limited)
        } else {
            Ok(&outside.egress)
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

/// Whom a frame for a group is for.
#[derive(Clone, Copy, Debug)]
enum Recipients {
    All,
    /// Those who hear this group.
    Subscribers(IpAddr),
    Routers,
}

/// The ways to members of a bridge and to the outside, but the sender, with [`DropReason::Limited`] in place of
/// those that it may not reach. Members of one other host have one next_hop.
#[derive(Debug)]
pub struct Flood<'a, X> {
    members: hash_map::Values<'a, Place, Member<X>>,
    remote_hosts: btree_map::Iter<'a, HostId, RemoteHost>,
    sender: Sender<'a, X>,
    recipients: Recipients,
    snooping: &'a RefCell<Snooping>,
    outside: Option<Result<&'a X, DropReason>>,
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
                    Ok(NextHop::Port(&member.egress))
                } else {
                    Err(DropReason::Limited)
                });
            }
        }
        // Which of its members hear a group each host knows best.
        if let Some((host, remote_host)) = self.remote_hosts.next() {
            return Some(if self.sender.is_limited() && !remote_host.has_full() {
                Err(DropReason::Limited)
            } else {
                Ok(NextHop::Host(*host))
            });
        }
        self.outside.take().map(|egress| egress.map(NextHop::Port))
    }
}

/// Whose frames they are.
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
    /// Its port, if it is a member.
    fn port(self) -> Option<&'a Port> {
        match self {
            Sender::Member(member) => Some(&member.port),
            Sender::Remote(member) => Some(&member.port),
            Sender::Outside(_) => None,
        }
    }

    /// Its place, if it is a member.
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

    /// Whether a frame may say that it is from `source`.
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
