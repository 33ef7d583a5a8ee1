//! What becomes of a frame that has come in: who its sender is decides what it may say and whom it
//! may reach.

use std::cell::RefCell;
use std::collections::hash_map;
use std::net::IpAddr;

use domains::driver_protocol::DropReason;
use fabric::{Place, Protection};

use super::audience::Audience;
use super::{DropCounters, MAX_PACKET, Member, Outside, Segment, Segments};
use crate::address::{Destination, Mac};
use crate::frame::Frame;
use crate::listener::{self, Message, Report};
use crate::neighbour::Question;
use crate::offload::Offload;
use crate::router;
use crate::source;

/// What is to be done with a packet.
#[derive(Debug)]
pub enum Action<'a, X> {
    /// Send it out here, as it is.
    Deliver(&'a X),
    /// Send it out at each of these, as it is, and count those that are held back.
    DeliverAll(Others<'a, X>),
    /// Send this frame back where the packet came from.
    Answer(Vec<u8>),
    /// Count it.
    Drop(DropReason),
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
        self.sender.drops().count(reason);
    }

    /// How frames go back to where those come from that come in here.
    pub fn exit(&self) -> &'a X {
        self.sender.exit()
    }

    /// Tells that a packet was read that came in here. Once there were so many that others may have been
    /// lost, there may have been reports among them, and the member hears every group.
    pub fn has_read(&self) {
        if let Sender::Member(member) = self.sender
            && member.backlog.has_read()
        {
            let mut audience = self.segment.audience.borrow_mut();
            audience.hears_all(member.port.place);
        }
    }

    /// Tells that there was no packet to read here.
    pub fn was_empty(&self) {
        if let Sender::Member(member) = self.sender {
            member.backlog.was_empty();
        }
    }

    fn admit<'p>(&self, packet: &'p [u8]) -> Result<Frame<'p>, DropReason> {
        let (offload, bytes) = Offload::split(packet).ok_or(DropReason::Malformed)?;
        let frame = Frame::new(bytes).ok_or(DropReason::Malformed)?;
        let is_own = self.sender.may_be(frame.source());
        if !is_own && !Protection::SourceCheck.is_left_out() {
            return Err(DropReason::WrongSource);
        }
        if self.is_anothers(frame) {
            return Err(DropReason::ForeignAddress);
        }
        if self.is_uninvited(frame) {
            return Err(DropReason::RouterAdvertisement);
        }
        let longest = offload.longest(bytes.len());
        match packet.len() <= MAX_PACKET && longest <= frame.longest(self.sender.mtu()) {
            true => Ok(frame),
            false => Err(DropReason::TooLong),
        }
    }

    /// Whether a packet has an address that the directory gave to somebody else.
    fn is_anothers(&self, frame: Frame<'_>) -> bool {
        source::addresses(frame).any(|address| self.belongs_to_another(address))
    }

    fn belongs_to_another(&self, address: IpAddr) -> bool {
        let is_members = || self.segment.owner_of(address).is_some();
        let port = match self.sender {
            Sender::Member(member) => &member.port,
            Sender::Outside(_) => return is_members(),
        };
        if self.segment.owner_of(address) == Some(port.place) {
            return false;
        }
        if is_members() {
            return true;
        }
        let brings_from_elsewhere = port.gateway == Some(port.ipv4);
        if brings_from_elsewhere || self.segment.uplink.is_some() {
            return false;
        }
        let other = self.all.domain_of(address, port);
        other.is_some_and(|other| !self.all.may_forward(port, other))
    }

    /// Whether a member says that it is a router, where none is expected among members.
    fn is_uninvited(&self, frame: Frame<'_>) -> bool {
        match self.sender {
            Sender::Member(member) => !member.port.forward && router::is_advertisement(frame),
            Sender::Outside(_) => false,
        }
    }

    fn answer(&self, frame: Frame<'_>) -> Option<Action<'a, X>> {
        let question = Question::read(frame)?;
        let owner = self.segment.owner(&question, self.sender.place())?;
        Some(match self.sender.may_reach(owner) {
            true => Action::Answer(question.answer(Mac(owner.port.mac))),
            false => Action::Drop(DropReason::Limited),
        })
    }

    fn route(&self, frame: Frame<'_>) -> Action<'a, X> {
        match frame.destination().destination() {
            Destination::Group => self.spread(frame),
            Destination::Member { domain, .. } if domain != self.segment.domain => {
                Action::Drop(DropReason::OtherDomain)
            }
            Destination::Member { place, .. } if Some(place) != self.sender.place() => {
                match self.segment.members.get(&place) {
                    Some(member) if self.sender.may_reach(member) => Action::Deliver(&member.exit),
                    Some(_) => Action::Drop(DropReason::Limited),
                    None => Action::Drop(DropReason::NoSuchMember),
                }
            }
            Destination::Elsewhere => match self.way_out() {
                Some(Ok(exit)) => Action::Deliver(exit),
                Some(Err(reason)) => Action::Drop(reason),
                None => Action::Drop(DropReason::NoSuchMember),
            },
            Destination::Member { .. } => Action::Drop(DropReason::NoSuchMember),
        }
    }

    fn spread(&self, frame: Frame<'_>) -> Action<'a, X> {
        let audience = &self.segment.audience;
        match (listener::read(frame), self.sender.place()) {
            (Some(Message::Report(report)), place) => {
                if let Some(place) = place {
                    audience.borrow_mut().learn(place, &report);
                }
                self.report(&report)
            }
            (Some(Message::Router), place) => {
                if let Some(place) = place {
                    audience.borrow_mut().hears_all(place);
                }
                Action::DeliverAll(self.others(Hearers::All))
            }
            (None, _) => {
                let group = listener::group(frame);
                let group = group.filter(|group| audience.borrow().is_heard(*group));
                let hearers = group.map_or(Hearers::All, Hearers::Of);
                Action::DeliverAll(self.others(hearers))
            }
        }
    }

    /// A report is for those who bring groups from elsewhere: routers, and switches outside. Other hosts that
    /// hear it may keep silent about themselves.
    fn report(&self, report: &Report<'_>) -> Action<'a, X> {
        let has_routers = || self.segment.audience.borrow().has_routers();
        // Switches may bring any group only to where a report has come from, routers none of the link.
        let is_useful =
            self.segment.uplink.is_some() || has_routers() && report.claims().next().is_some();
        match is_useful {
            true => Action::DeliverAll(self.others(Hearers::Routers)),
            false => Action::Drop(DropReason::LinkReport),
        }
    }

    /// How frames of a member get outside, if there is a way.
    fn way_out(&self) -> Option<Result<&'a X, DropReason>> {
        let outside = self.segment.uplink.as_ref()?;
        self.sender.place()?;
        Some(match self.sender.is_limited() && outside.limited {
            false => Ok(&outside.exit),
            true => Err(DropReason::Limited),
        })
    }

    fn others(&self, hearers: Hearers) -> Others<'a, X> {
        Others {
            members: self.segment.members.values(),
            sender: self.sender,
            hearers,
            audience: &self.segment.audience,
            outside: self.way_out(),
        }
    }
}

/// Whom a frame for a group is for.
#[derive(Clone, Copy, Debug)]
enum Hearers {
    All,
    /// Those who hear this group.
    Of(IpAddr),
    Routers,
}

/// The exits to members of a segment and to the outside, but the sender, with [`DropReason::Limited`] in place of
/// those that it may not reach.
#[derive(Debug)]
pub struct Others<'a, X> {
    members: hash_map::Values<'a, Place, Member<X>>,
    sender: Sender<'a, X>,
    hearers: Hearers,
    audience: &'a RefCell<Audience>,
    outside: Option<Result<&'a X, DropReason>>,
}

impl<X> Others<'_, X> {
    fn is_for(&self, place: Place) -> bool {
        let hears = match self.hearers {
            Hearers::All => true,
            Hearers::Of(group) => self.audience.borrow().hears(place, group),
            Hearers::Routers => self.audience.borrow().is_router(place),
        };
        hears && Some(place) != self.sender.place()
    }
}

impl<'a, X> Iterator for Others<'a, X> {
    type Item = Result<&'a X, DropReason>;

    fn next(&mut self) -> Option<Self::Item> {
        while let Some(member) = self.members.next() {
            if self.is_for(member.port.place) {
                return Some(match self.sender.may_reach(member) {
                    true => Ok(&member.exit),
                    false => Err(DropReason::Limited),
                });
            }
        }
        self.outside.take()
    }
}

/// Whose frames they are.
#[derive(Debug)]
pub(super) enum Sender<'a, X> {
    Member(&'a Member<X>),
    Outside(&'a Outside<X>),
}

impl<X> Clone for Sender<'_, X> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<X> Copy for Sender<'_, X> {}

impl<'a, X> Sender<'a, X> {
    /// Its place, if it is a member.
    fn place(self) -> Option<Place> {
        match self {
            Sender::Member(member) => Some(member.port.place),
            Sender::Outside(_) => None,
        }
    }

    fn is_limited(self) -> bool {
        match self {
            Sender::Member(member) => member.port.limited,
            Sender::Outside(outside) => outside.limited,
        }
    }

    fn mtu(self) -> u32 {
        match self {
            Sender::Member(member) => member.port.mtu,
            Sender::Outside(outside) => outside.mtu,
        }
    }

    /// Whether a frame may say that it is from `source`.
    fn may_be(self, source: Mac) -> bool {
        match self {
            Sender::Member(member) => source == Mac(member.port.mac),
            Sender::Outside(_) => source.destination() == Destination::Elsewhere,
        }
    }

    fn may_reach(self, member: &Member<X>) -> bool {
        !(self.is_limited() && member.port.limited)
    }

    fn exit(self) -> &'a X {
        match self {
            Sender::Member(member) => &member.exit,
            Sender::Outside(outside) => &outside.exit,
        }
    }

    fn drops(self) -> &'a DropCounters {
        match self {
            Sender::Member(member) => &member.drops,
            Sender::Outside(outside) => &outside.drops,
        }
    }
}
