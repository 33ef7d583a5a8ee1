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
use super::{Member, Outside, Segment, Segments};
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
    Deliver(Way<'a, X>),
    /// Send it out at each of these, as it is, and count those that are held back.
    DeliverAll(Others<'a, X>),
    /// Send this frame back where the packet came from.
    Reply(Vec<u8>),
    /// Count it.
    Drop(DropReason),
}

/// How a packet gets to whom it is for.
#[derive(Debug)]
pub enum Way<'a, X> {
    /// Out here.
    Port(&'a X),
    /// To the driver of another host, which decides there.
    Host(HostId),
}

/// Where frames of one member come in, or of the outside. It sees one segment only.
#[derive(Debug)]
pub struct Ingress<'a, X> {
    pub(super) segment: &'a Segment<X>,
    pub(super) sender: Sender<'a, X>,
    /// For what it has to do with others.
    pub(super) all: &'a Segments<X>,
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
            Sender::Remote(member) => self.segment.remote.count(member.host, reason),
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
                partition: Partition(self.segment.domain.into()),
                epoch: self.segment.epoch,
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
            let mut snooping = self.segment.snooping.borrow_mut();
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
        if self.is_anothers(frame) {
            return Err(DropReason::ForeignAddress);
        }
        if self.is_uninvited(frame) {
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
    fn is_anothers(&self, frame: Frame<'_>) -> bool {
        ip_addresses::claimed(frame).any(|address| self.belongs_to_another(address))
    }

    fn belongs_to_another(&self, address: IpAddr) -> bool {
        let is_of_node = || self.segment.is_of_node(address);
        let Some(port) = self.sender.port() else {
            return is_of_node();
        };
        if self.segment.owner_of(address) == Some(port.place) {
            return false;
        }
        if is_of_node() {
            return true;
        }
        let brings_from_elsewhere = port.gateway == Some(port.ipv4);
        if brings_from_elsewhere || self.segment.uplink.is_some() {
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
    fn is_uninvited(&self, frame: Frame<'_>) -> bool {
        let port = self.sender.port();
        port.is_some_and(|port| !port.forward) && ra_guard::is_router_advertisement(frame)
    }

    fn answer(&self, frame: Frame<'_>) -> Option<Action<'a, X>> {
        // Those of other hosts have been answered there.
        self.egress()?;
        let query = AddressQuery::read(frame)?;
        let Some(owner) = self.segment.owner(&query, self.sender.place()) else {
            self.keep(query);
            return None;
        };
        // From outside there is no way to the others.
        if matches!(self.sender, Sender::Outside(_)) && self.segment.is_remote(&query) {
            return None;
        }
        Some(if self.sender.may_reach(owner) {
            Action::Reply(query.reply(Mac(owner.mac)))
        } else {
            Action::Drop(DropReason::Limited)
        })
    }

    /// Keeps a query about a node that is no member yet.
    fn keep(&self, query: AddressQuery) {
        let target = query.target();
        if let Sender::Member(member) = self.sender
            && self.segment.is_of_node(target)
            && self.segment.owner_of(target) != Some(member.port.place)
            && !query.is_probe()
        {
            member.pending.add(query);
        }
    }

    /// The member that a packet is for by its address in another domain. The member's kernel would take
    /// the packet from any interface.
    fn bypassed(&self, frame: Frame<'_>) -> Option<Place> {
        let ours = Partition(self.segment.domain.into());
        let address = ip_addresses::destination(frame)?;
        let (other, place) = self.all.owner_elsewhere(address, ours)?;
        let port = self.segment.port(place)?;
        (!self.all.may_forward(port, other)).then_some(place)
    }

    fn route(&self, frame: Frame<'_>) -> Action<'a, X> {
        let destination = frame.destination().destination();
        let bypasses = match (destination, self.bypassed(frame)) {
            (Destination::Member { place, .. }, Some(receiver)) => place == receiver,
            (Destination::Group, bypassed) => bypassed.is_some(),
            _ => false,
        };
        if bypasses {
            return Action::Drop(DropReason::ForeignAddress);
        }
        match destination {
            Destination::Group => self.spread(frame),
            Destination::Member { domain, .. } if domain != self.segment.domain => {
                Action::Drop(DropReason::OtherDomain)
            }
            Destination::Member { place, .. } => match self.way_to(place) {
                Some((port, way)) if self.sender.may_reach(port) => Action::Deliver(way),
                Some(_) => Action::Drop(DropReason::Limited),
                None => Action::Drop(DropReason::NoSuchMember),
            },
            Destination::Elsewhere => match self.way_out() {
                Some(Ok(egress)) => Action::Deliver(Way::Port(egress)),
                Some(Err(reason)) => Action::Drop(reason),
                None => Action::Drop(DropReason::NoSuchMember),
            },
        }
    }

    /// How frames get to another member.
    fn way_to(&self, place: Place) -> Option<(&'a Port, Way<'a, X>)> {
        if Some(place) == self.sender.place() {
            return None;
        }
        if let Some(member) = self.segment.members.get(&place) {
            return Some((&member.port, Way::Port(&member.egress)));
        }
        self.tag()?;
        let member = self.segment.remote.member(place)?;
        Some((&member.port, Way::Host(member.host)))
    }

    fn spread(&self, frame: Frame<'_>) -> Action<'a, X> {
        let snooping = &self.segment.snooping;
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
                Action::DeliverAll(self.others(Recipients::All))
            }
            (None, _) => {
                let group = igmp_mld::group(frame);
                let group = group.filter(|group| snooping.borrow().is_known(*group));
                let recipients = group.map_or(Recipients::All, Recipients::Subscribers);
                Action::DeliverAll(self.others(recipients))
            }
        }
    }

    /// A report is for those who bring groups from elsewhere: routers, switches outside, and drivers of other
    /// hosts. Other hosts that hear it may keep silent about themselves.
    fn report(&self, report: &MembershipReport<'_>) -> Action<'a, X> {
        let snooping = &self.segment.snooping;
        let is_wanted = || self.remote_hosts().next().is_some() || snooping.borrow().has_routers();
        // Switches may bring any group only to where a report has come from, routers none of the link.
        let is_useful =
            self.segment.uplink.is_some() || is_wanted() && report.records().next().is_some();
        if is_useful {
            Action::DeliverAll(self.others(Recipients::Routers))
        } else {
            Action::Drop(DropReason::LinkReport)
        }
    }

    /// The other hosts that frames for several go to.
    fn remote_hosts(&self) -> btree_map::Iter<'a, HostId, RemoteHost> {
        match self.tag() {
            Some(_) => self.segment.remote.hosts(),
            None => btree_map::Iter::default(),
        }
    }

    /// How frames of a member get outside, if there is a way.
    fn way_out(&self) -> Option<Result<&'a X, DropReason>> {
        let outside = self.segment.uplink.as_ref()?;
        // What is outside is where it came from, and so not told to come back from other hosts.
        self.tag()?;
        Some(if self.sender.is_limited() && outside.limited {
            Err(DropReason::Limited)
        } else {
            Ok(&outside.egress)
        })
    }

    fn others(&self, recipients: Recipients) -> Others<'a, X> {
        Others {
            members: self.segment.members.values(),
            remote_hosts: self.remote_hosts(),
            sender: self.sender,
            recipients,
            snooping: &self.segment.snooping,
            outside: self.way_out(),
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

/// The ways to members of a segment and to the outside, but the sender, with [`DropReason::Limited`] in place of
/// those that it may not reach. Members of one other host have one way.
#[derive(Debug)]
pub struct Others<'a, X> {
    members: hash_map::Values<'a, Place, Member<X>>,
    remote_hosts: btree_map::Iter<'a, HostId, RemoteHost>,
    sender: Sender<'a, X>,
    recipients: Recipients,
    snooping: &'a RefCell<Snooping>,
    outside: Option<Result<&'a X, DropReason>>,
}

impl<X> Others<'_, X> {
    fn is_for(&self, place: Place) -> bool {
        let hears = match self.recipients {
            Recipients::All => true,
            Recipients::Subscribers(group) => self.snooping.borrow().is_subscribed(place, group),
            Recipients::Routers => self.snooping.borrow().receives_all(place),
        };
        hears && Some(place) != self.sender.place()
    }
}

impl<'a, X> Iterator for Others<'a, X> {
    type Item = Result<Way<'a, X>, DropReason>;

    fn next(&mut self) -> Option<Self::Item> {
        while let Some(member) = self.members.next() {
            if self.is_for(member.port.place) {
                return Some(if self.sender.may_reach(&member.port) {
                    Ok(Way::Port(&member.egress))
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
                Ok(Way::Host(*host))
            });
        }
        self.outside.take().map(|egress| egress.map(Way::Port))
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
