//! The link layer: which of a partition's members a frame reaches. Bytes in, decision out.
//!
//! Between two nodes of one host no link header is written, because what it would say is known
//! better than a header could tell: the descriptor that a frame was read from identifies its
//! sender, and with it the partition and the epoch. The checks of [`fabric::link`] hold by
//! construction instead:
//!
//! * *Partition*: a frame is decided on by an [`Ingress`], which borrows the one [`Segment`]
//!   that its port belongs to. A decision borrows its exits from there, and a segment
//!   holds no others. No frame can reach a port of another partition, whatever it contains.
//! * *Epoch*: a port that is no longer a member is no longer in its segment, for frames in
//!   either direction, and one of an older epoch is not let in.
//! * *Source*: an ingress is its port; what is left to check is that the frame does not claim
//!   another one's address.
//!
//! A segment may have an *uplink*, and is one Ethernet with what is outside then. Frames from there
//! have the addresses of whoever is there, but never those of a fabric: a member's own frame that comes
//! back over a loop outside, or through another bridge, goes no further.
//!
//! A member may have addresses of its own choice, but none that the directory gave to somebody else, of
//! its domain or of another ([`DropReason::ForeignAddress`]). So no node, whatever its root does, routes packets from
//! one of its domains into another; only the gateway of a domain may bring packets from elsewhere.
//!
//! A further check has no counterpart in a header: limited members talk to full ones only, so
//! nothing passes between two of them, and neither is told the other's address.

use std::collections::{BTreeMap, HashMap, hash_map};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicU64, Ordering};

use domains::addressing;
use domains::driver_protocol::{DropReason, Port, PortDrops, Uplink};
use fabric::{Epoch, NodeId, Partition, Place, Protection};

use crate::address::{Destination, Mac};
use crate::frame::Frame;
use crate::listener;
use crate::neighbour::Question;
use crate::offload::Offload;
use crate::source;

/// The longest packet in bytes: one of the fabric, so that any provider could carry it.
pub const MAX_PACKET: usize = fabric::channel::MAX_PAYLOAD;

/// All partitions of a host. `X` is how a frame leaves to a member: a TAP, or a test's record.
#[derive(Debug)]
pub struct Segments<X> {
    segments: HashMap<Partition, Segment<X>>,
    /// Of each, once it has had a member.
    networks: HashMap<Partition, Network>,
}

/// Addresses that belong to one domain.
#[derive(Clone, Copy, Debug)]
struct Network {
    base: u32,
    mask: u32,
}

impl Network {
    fn of(port: &Port) -> Self {
        let mask = !u32::MAX.checked_shr(port.prefix.into()).unwrap_or_default();
        Network {
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
struct Segment<X> {
    /// What an address must carry to be of this segment.
    domain: u16,
    epoch: Epoch,
    members: HashMap<Place, Member<X>>,
    /// Who has an address that the directory assigned.
    owners: HashMap<IpAddr, Place>,
    uplink: Option<Outside<X>>,
}

/// What is outside, as a segment sees it.
#[derive(Debug)]
struct Outside<X> {
    exit: X,
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
    exit: X,
    /// Of what it sent.
    drops: DropCounters,
}

/// Where frames of one member come in, or of the outside. It sees one segment only.
#[derive(Debug)]
pub struct Ingress<'a, X> {
    segment: &'a Segment<X>,
    sender: Sender<'a, X>,
    /// All there are.
    networks: &'a HashMap<Partition, Network>,
}

/// Whose frames they are.
#[derive(Debug)]
enum Sender<'a, X> {
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
        /// The segment's.
        current: u32,
    },
    /// Agent: another member, or this one, is there already.
    #[error("{0} is a member already, or its address is")]
    Taken(Place),
}

impl<X> Default for Segments<X> {
    fn default() -> Self {
        Segments {
            segments: HashMap::new(),
            networks: HashMap::new(),
        }
    }
}

impl<X> Segments<X> {
    /// Makes `port` a member of its domain's segment, reached through `exit`.
    ///
    /// # Errors
    /// [`AttachError`]; nothing has changed then.
    pub fn attach(&mut self, port: Port, exit: X) -> Result<(), AttachError> {
        let domain = checked_domain(&port)?;
        let partition = Partition(port.domain_id);
        let network = Network::of(&port);
        self.networks.entry(partition).or_insert(network);
        match self.segments.entry(partition) {
            hash_map::Entry::Occupied(segment) => segment.into_mut().attach(port, exit),
            hash_map::Entry::Vacant(place) => place.insert(Segment::new(domain)).attach(port, exit),
        }
    }

    /// Ends a membership and returns the exit, if there was one.
    pub fn detach(&mut self, partition: Partition, node: NodeId) -> Option<X> {
        let segment = self.segments.get_mut(&partition)?;
        let exit = segment.detach(node);
        self.forget_if_empty(partition);
        exit
    }

    /// Connects a segment to the outside, through `exit`; returns what it was connected through.
    pub fn connect(&mut self, uplink: &Uplink, exit: X) -> Option<X> {
        let domain = u16::try_from(uplink.domain_id).ok()?;
        let segment = self.segments.entry(Partition(uplink.domain_id));
        let segment = segment.or_insert_with(|| Segment::new(domain));
        let before = segment.uplink.replace(Outside {
            exit,
            node: uplink.node,
            limited: uplink.limited,
            mtu: uplink.mtu,
            drops: DropCounters::default(),
        });
        before.map(|outside| outside.exit)
    }

    /// Disconnects a segment; returns what it was connected through.
    pub fn disconnect(&mut self, partition: Partition) -> Option<X> {
        let outside = self.segments.get_mut(&partition)?.uplink.take();
        self.forget_if_empty(partition);
        outside.map(|outside| outside.exit)
    }

    fn forget_if_empty(&mut self, partition: Partition) {
        let is_empty =
            |segment: &Segment<X>| segment.members.is_empty() && segment.uplink.is_none();
        if self.segments.get(&partition).is_some_and(is_empty) {
            self.segments.remove(&partition);
            self.networks.remove(&partition);
        }
    }

    /// Sets whether a member is limited, from its next frame on.
    pub fn set_limited(&mut self, partition: Partition, place: Place, limited: bool) {
        let segment = self.segments.get_mut(&partition);
        if let Some(member) = segment.and_then(|segment| segment.members.get_mut(&place)) {
            member.port.limited = limited;
        }
    }

    /// Sets by whom packets of a member leave the domain, from its next frame on.
    pub fn set_gateway(&mut self, partition: Partition, place: Place, gateway: Option<Ipv4Addr>) {
        let segment = self.segments.get_mut(&partition);
        if let Some(member) = segment.and_then(|segment| segment.members.get_mut(&place)) {
            member.port.gateway = gateway;
        }
    }

    /// How frames leave to a member, to be changed.
    pub fn exit_mut(&mut self, partition: Partition, place: Place) -> Option<&mut X> {
        let segment = self.segments.get_mut(&partition)?;
        Some(&mut segment.members.get_mut(&place)?.exit)
    }

    /// Raises the epoch of a partition; an epoch never goes back.
    pub fn raise_epoch(&mut self, partition: Partition, epoch: Epoch) {
        if let Some(segment) = self.segments.get_mut(&partition) {
            segment.epoch = segment.epoch.max(epoch);
        }
    }

    /// What became of the frames that members of a partition sent and nobody received.
    pub fn drops(&self, partition: Partition) -> Vec<PortDrops> {
        let Some(segment) = self.segments.get(&partition) else {
            return Vec::new();
        };
        let of = |member: &Member<X>| PortDrops {
            node: member.port.node,
            outside: false,
            dropped: member.drops.all(),
        };
        let from_outside = segment.uplink.as_ref().map(|outside| PortDrops {
            node: outside.node,
            outside: true,
            dropped: outside.drops.all(),
        });
        segment
            .members
            .values()
            .map(of)
            .chain(from_outside)
            .collect()
    }

    /// Where a member is.
    pub fn place_of(&self, partition: Partition, node: NodeId) -> Option<Place> {
        self.segments.get(&partition)?.place_of(node)
    }

    /// Where frames of the member at `place` come in, or `None` if it is no member.
    pub fn ingress(&self, partition: Partition, place: Place) -> Option<Ingress<'_, X>> {
        let segment = self.segments.get(&partition)?;
        let member = segment.members.get(&place)?;
        let sender = Sender::Member(member);
        Some(self.ingress_of(segment, sender))
    }

    /// Where frames from outside come in, or `None` if the segment is not connected.
    pub fn outside(&self, partition: Partition) -> Option<Ingress<'_, X>> {
        let segment = self.segments.get(&partition)?;
        let sender = Sender::Outside(segment.uplink.as_ref()?);
        Some(self.ingress_of(segment, sender))
    }

    fn ingress_of<'a>(&'a self, segment: &'a Segment<X>, sender: Sender<'a, X>) -> Ingress<'a, X> {
        Ingress {
            segment,
            sender,
            networks: &self.networks,
        }
    }
}

impl<X> Segment<X> {
    fn new(domain: u16) -> Self {
        Segment {
            domain,
            epoch: Epoch(0),
            members: HashMap::new(),
            owners: HashMap::new(),
            uplink: None,
        }
    }

    fn attach(&mut self, port: Port, exit: X) -> Result<(), AttachError> {
        if port.epoch < self.epoch.0 {
            return Err(AttachError::OldEpoch {
                offered: port.epoch,
                current: self.epoch.0,
            });
        }
        let (place, addresses) = (port.place, addresses(&port));
        let taken = |address| self.owners.contains_key(address);
        if self.members.contains_key(&place) || addresses.iter().any(taken) {
            return Err(AttachError::Taken(place));
        }
        self.epoch = Epoch(port.epoch);
        self.owners
            .extend(addresses.map(|address| (address, place)));
        let drops = DropCounters::default();
        self.members.insert(place, Member { port, exit, drops });
        Ok(())
    }

    fn detach(&mut self, node: NodeId) -> Option<X> {
        let place = self.place_of(node)?;
        let member = self.members.remove(&place)?;
        for address in addresses(&member.port) {
            self.owners.remove(&address);
        }
        Some(member.exit)
    }

    fn place_of(&self, node: NodeId) -> Option<Place> {
        let is_it = |member: &&Member<X>| member.port.node == node.0;
        Some(self.members.values().find(is_it)?.port.place)
    }

    /// The member other than `asker` whose address is in question.
    fn owner(&self, question: &Question, asker: Option<Place>) -> Option<&Member<X>> {
        let place = self.owners.get(&question.target())?;
        // Who asks for its own address announces it, and an answer would tell of a conflict.
        self.members.get(place).filter(|_| Some(*place) != asker)
    }
}

impl<'a, X> Ingress<'a, X> {
    /// Decides on a packet that came in here: a frame with its [offloads](Offload).
    pub fn decide(&self, packet: &[u8]) -> Action<'a, X> {
        match self.admit(packet) {
            Ok(frame) if self.is_useless(frame) => Action::Drop(DropReason::LinkReport),
            Ok(frame) => self
                .answer(frame)
                .unwrap_or_else(|| self.route(frame.destination())),
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

    /// Switches outside may bring groups only to where a report has come from.
    fn is_useless(&self, frame: Frame<'_>) -> bool {
        self.segment.uplink.is_none() && listener::is_about_the_link(frame)
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
        let longest = offload.longest(bytes.len());
        match packet.len() <= MAX_PACKET && longest <= frame.longest(self.sender.mtu()) {
            true => Ok(frame),
            false => Err(DropReason::TooLong),
        }
    }

    /// Whether a member's packet has an address that the directory gave to somebody else.
    fn is_anothers(&self, frame: Frame<'_>) -> bool {
        let Sender::Member(Member { port, .. }) = self.sender else {
            return false;
        };
        let address = match source::address(frame) {
            None => return false,
            Some(own) if own == port.ipv4 || own == port.ipv6 => return false,
            Some(other) => other,
        };
        let brings_from_elsewhere = port.gateway == Some(port.ipv4);
        if brings_from_elsewhere || self.segment.uplink.is_some() {
            return false;
        }
        if self.segment.owners.contains_key(&address) {
            return true;
        }
        match address {
            IpAddr::V4(address) => {
                let is_in = |network: &Network| network.has(address);
                !is_in(&Network::of(port)) && self.networks.values().any(is_in)
            }
            IpAddr::V6(address) => {
                let [one, two, three, domain, ..] = address.segments();
                let [a, b, c, ours, ..] = port.ipv6.segments();
                [one, two, three] == [a, b, c] && domain != ours
            }
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

    fn route(&self, destination: Mac) -> Action<'a, X> {
        match destination.destination() {
            Destination::Group => Action::DeliverAll(self.others()),
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

    /// How frames of a member get outside, if there is a way.
    fn way_out(&self) -> Option<Result<&'a X, DropReason>> {
        let outside = self.segment.uplink.as_ref()?;
        self.sender.place()?;
        Some(match self.sender.is_limited() && outside.limited {
            false => Ok(&outside.exit),
            true => Err(DropReason::Limited),
        })
    }

    fn others(&self) -> Others<'a, X> {
        Others {
            members: self.segment.members.values(),
            sender: self.sender,
            outside: self.way_out(),
        }
    }
}

/// The exits to all members of a segment and to the outside, but the sender, with [`DropReason::Limited`] in place of
/// those that it may not reach.
#[derive(Debug)]
pub struct Others<'a, X> {
    members: hash_map::Values<'a, Place, Member<X>>,
    sender: Sender<'a, X>,
    outside: Option<Result<&'a X, DropReason>>,
}

impl<'a, X> Iterator for Others<'a, X> {
    type Item = Result<&'a X, DropReason>;

    fn next(&mut self) -> Option<Self::Item> {
        let sender = self.sender;
        let is_other = |member: &&Member<X>| Some(member.port.place) != sender.place();
        let Some(member) = self.members.find(is_other) else {
            return self.outside.take();
        };
        Some(match sender.may_reach(member) {
            true => Ok(&member.exit),
            false => Err(DropReason::Limited),
        })
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
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// An exit's name: domain and place.
    type Name = (u32, u8);

    const BROADCAST: [u8; 6] = [0xff; 6];

    fn place(x: u8) -> Place {
        Place { x, y: 0, z: 0 }
    }

    fn mac(domain: u16, x: u8) -> [u8; 6] {
        addressing::mac(domain, place(x))
    }

    fn port(domain: u16, x: u8) -> Port {
        Port {
            node: x.into(),
            place: place(x),
            domain_id: domain.into(),
            epoch: 1,
            ifname: "blue".into(),
            mac: mac(domain, x),
            // The same in every domain, so that a mistake would show.
            ipv4: [10, 64, 0, x + 1].into(),
            prefix: 24,
            ipv6: addressing::ipv6(0, place(x)),
            ipv6_prefix: 64,
            offload: true,
            mtu: 1500,
            limited: false,
            gateway: None,
            stack: false,
        }
    }

    /// Two domains, 7 and 8, each with members 0, 1 and 2.
    fn segments() -> Segments<Name> {
        let mut segments = Segments::default();
        for domain in [7, 8] {
            for x in 0..3 {
                let name = (domain.into(), x);
                segments.attach(port(domain, x), name).unwrap();
            }
        }
        segments
    }

    /// A frame and that it needs no offload.
    fn packet(destination: [u8; 6], source: [u8; 6], payload: usize) -> Vec<u8> {
        let mut bytes = [&Offload::NONE[..], &destination, &source].concat();
        bytes.extend([8, 0]);
        bytes.resize(bytes.len() + payload, 0);
        bytes
    }

    fn arp(source: [u8; 6], target: [u8; 4]) -> Vec<u8> {
        let mut bytes = [&Offload::NONE[..], &BROADCAST, &source].concat();
        bytes.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]);
        bytes.extend(source);
        bytes.extend([0; 4 + 6]);
        bytes.extend(target);
        bytes
    }

    /// Domain 7 is connected to the outside, which is called 99.
    const OUTSIDE: u8 = 99;

    fn connected(limited: bool) -> Segments<Name> {
        let mut segments = segments();
        let uplink = Uplink {
            domain_id: 7,
            node: 0,
            ifname: "eth1".into(),
            mtu: 1500,
            limited,
        };
        assert_eq!(segments.connect(&uplink, (7, OUTSIDE)), None);
        segments
    }

    /// Whom a frame from outside of domain 7 reaches.
    fn let_in(segments: &Segments<Name>, bytes: &[u8]) -> Result<Vec<Name>, DropReason> {
        whom(&segments.outside(Partition(7)).unwrap(), bytes)
    }

    /// Whom a frame from member `x` of domain 7 reaches, or why nobody.
    fn reached(segments: &Segments<Name>, x: u8, bytes: &[u8]) -> Result<Vec<Name>, DropReason> {
        whom(&segments.ingress(Partition(7), place(x)).unwrap(), bytes)
    }

    fn whom(ingress: &Ingress<'_, Name>, bytes: &[u8]) -> Result<Vec<Name>, DropReason> {
        match ingress.decide(bytes) {
            Action::Deliver(name) => Ok(vec![*name]),
            Action::DeliverAll(others) => Ok(others
                .filter_map(|other| other.ok().copied())
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect()),
            Action::Answer(_) => Ok(vec![*ingress.exit()]),
            Action::Drop(reason) => Err(reason),
        }
    }

    const STRANGER: [u8; 6] = [0x52, 0x54, 0, 0, 0, 1];

    /// An IPv4 packet from an address, in a frame from member `x` of domain 7 for another.
    fn packet_from(x: u8, address: [u8; 4]) -> Vec<u8> {
        let mut bytes = packet(mac(7, 2), mac(7, x), 40);
        let ip = Offload::LEN + 14;
        bytes[ip] = 0x45;
        bytes[ip + 12..ip + 16].copy_from_slice(&address);
        bytes
    }

    #[test]
    fn a_packet_has_no_address_that_is_anothers() {
        let mut segments = Segments::default();
        for (domain, third) in [(7, 0), (8, 1)] {
            for x in 0..3 {
                let ipv4 = [10, 64, third, x + 1].into();
                let ipv6 = addressing::ipv6(domain, place(x));
                let port = Port {
                    ipv4,
                    ipv6,
                    ..port(domain, x)
                };
                segments.attach(port, (domain.into(), x)).unwrap();
            }
        }
        let foreign = Err(DropReason::ForeignAddress);
        let delivered = Ok(vec![(7, 2)]);
        let sent =
            |segments: &Segments<Name>, address| reached(segments, 0, &packet_from(0, address));
        // Its own, none yet (DHCP), one of its choice, and what is nobody's here.
        for own in [[10, 64, 0, 1], [0; 4], [10, 64, 0, 77], [192, 0, 2, 1]] {
            assert_eq!(sent(&segments, own), delivered, "{own:?}");
        }
        for others in [[10, 64, 0, 2], [10, 64, 1, 1], [10, 64, 1, 200]] {
            assert_eq!(sent(&segments, others), foreign, "{others:?}");
        }
        let mut announced = arp(mac(7, 0), [10, 64, 0, 3]);
        let sender = Offload::LEN + 14 + 14;
        announced[sender..sender + 4].copy_from_slice(&[10, 64, 0, 2]);
        assert_eq!(reached(&segments, 0, &announced), foreign);

        let uplink = Uplink {
            domain_id: 7,
            node: 0,
            ifname: "eth1".into(),
            mtu: 1500,
            limited: false,
        };
        segments.connect(&uplink, (7, OUTSIDE));
        assert_eq!(sent(&segments, [10, 64, 1, 1]), delivered);
        segments.disconnect(Partition(7));
        segments.detach(Partition(7), NodeId(0));
        let gateway = Port {
            gateway: Some([10, 64, 0, 1].into()),
            ipv4: [10, 64, 0, 1].into(),
            ipv6: addressing::ipv6(7, place(0)),
            ..port(7, 0)
        };
        segments.attach(gateway, (7, 0)).unwrap();
        assert_eq!(sent(&segments, [10, 64, 1, 1]), delivered);
        segments.detach(Partition(7), NodeId(0));
    }

    #[test]
    fn what_is_for_strangers_leaves_by_the_uplink() {
        let (inside, connected) = (segments(), connected(false));
        let to_stranger = packet(STRANGER, mac(7, 0), 46);
        let nobody = Err(DropReason::NoSuchMember);
        assert_eq!(reached(&inside, 0, &to_stranger), nobody);
        assert_eq!(reached(&connected, 0, &to_stranger), Ok(vec![(7, OUTSIDE)]));
        let to_all = packet(BROADCAST, mac(7, 0), 46);
        let everybody = vec![(7, 1), (7, 2), (7, OUTSIDE)];
        assert_eq!(reached(&connected, 0, &to_all), Ok(everybody));
        // What could be a member's is for members only.
        let absent = packet(mac(7, 9), mac(7, 0), 46);
        assert_eq!(reached(&connected, 0, &absent), nobody);
        let elsewhere = packet(mac(8, 1), mac(7, 0), 46);
        let other = Err(DropReason::OtherDomain);
        assert_eq!(reached(&connected, 0, &elsewhere), other);
        assert!(connected.outside(Partition(8)).is_none());
    }

    #[test]
    fn what_comes_from_outside_is_for_members_and_has_no_address_of_a_fabric() {
        let segments = connected(false);
        let to_member = packet(mac(7, 1), STRANGER, 46);
        assert_eq!(let_in(&segments, &to_member), Ok(vec![(7, 1)]));
        let to_all = packet(BROADCAST, STRANGER, 46);
        let members = vec![(7, 0), (7, 1), (7, 2)];
        assert_eq!(let_in(&segments, &to_all), Ok(members));
        let refused = |destination: [u8; 6], source: [u8; 6], payload: usize| {
            let_in(&segments, &packet(destination, source, payload)).unwrap_err()
        };
        // Over a loop outside, from the bridge of another fabric, and from nobody at all.
        for source in [mac(7, 1), mac(300, 1), BROADCAST] {
            assert_eq!(refused(BROADCAST, source, 46), DropReason::WrongSource);
        }
        assert_eq!(refused(STRANGER, STRANGER, 46), DropReason::NoSuchMember);
        assert_eq!(refused(mac(8, 1), STRANGER, 46), DropReason::OtherDomain);
        assert_eq!(refused(mac(7, 1), STRANGER, 1501), DropReason::TooLong);
        let drops = segments.drops(Partition(7));
        assert_eq!(drops.iter().filter(|port| port.outside).count(), 1);
    }

    #[test]
    fn questions_from_outside_about_members_are_answered() {
        let segments = connected(false);
        let about_member = arp(STRANGER, [10, 64, 0, 2]);
        assert_eq!(let_in(&segments, &about_member), Ok(vec![(7, OUTSIDE)]));
        let about_nobody = arp(STRANGER, [10, 64, 0, 200]);
        assert_eq!(let_in(&segments, &about_nobody).unwrap().len(), 3);
        // And members ask outside.
        let asked = reached(&segments, 0, &arp(mac(7, 0), [10, 64, 0, 200]));
        assert_eq!(asked, Ok(vec![(7, 1), (7, 2), (7, OUTSIDE)]));
    }

    #[test]
    fn what_is_behind_a_limited_member_is_limited() {
        let mut segments = connected(true);
        segments.set_limited(Partition(7), place(1), true);
        let limited = Err(DropReason::Limited);
        let out = packet(STRANGER, mac(7, 1), 46);
        assert_eq!(reached(&segments, 1, &out), limited);
        let within = packet(mac(7, 1), STRANGER, 46);
        assert_eq!(let_in(&segments, &within), limited);
        let to_full = packet(mac(7, 2), STRANGER, 46);
        assert_eq!(let_in(&segments, &to_full), Ok(vec![(7, 2)]));
    }

    #[test]
    fn a_connection_is_the_segments_as_long_as_it_is_wanted() {
        let mut segments = connected(false);
        for node in 0..3 {
            segments.detach(Partition(7), NodeId(node));
        }
        // A node that is made anew leaves for a moment.
        segments.attach(port(7, 1), (7, 1)).unwrap();
        let to_all = packet(BROADCAST, STRANGER, 46);
        assert_eq!(let_in(&segments, &to_all), Ok(vec![(7, 1)]));
        assert_eq!(segments.disconnect(Partition(7)), Some((7, OUTSIDE)));
        assert!(segments.outside(Partition(7)).is_none());
        assert_eq!(segments.disconnect(Partition(7)), None);
    }

    #[test]
    fn unicast_reaches_its_member_and_broadcast_all_others() {
        let segments = segments();
        let unicast = packet(mac(7, 2), mac(7, 1), 100);
        assert_eq!(reached(&segments, 1, &unicast), Ok(vec![(7, 2)]));
        let broadcast = packet(BROADCAST, mac(7, 1), 100);
        let others = Ok(vec![(7, 0), (7, 2)]);
        assert_eq!(reached(&segments, 1, &broadcast), others);
        let multicast = packet([0x33, 0x33, 0, 0, 0, 1], mac(7, 1), 100);
        assert_eq!(reached(&segments, 1, &multicast), others);
    }

    #[test]
    fn each_reason_to_drop_is_named() {
        let segments = segments();
        let dropped = |bytes: &[u8]| reached(&segments, 1, bytes).unwrap_err();
        let unicast = |destination, source| packet(destination, source, 100);
        assert_eq!(dropped(&[0; 9]), DropReason::Malformed);
        assert_eq!(dropped(&[0; 23]), DropReason::Malformed);
        assert_eq!(dropped(&[0xff; 100]), DropReason::Malformed);
        assert_eq!(
            dropped(&unicast(mac(7, 0), mac(7, 2))),
            DropReason::WrongSource
        );
        assert_eq!(
            dropped(&packet(mac(7, 0), mac(7, 1), 1501)),
            DropReason::TooLong
        );
        assert_eq!(
            dropped(&unicast(mac(8, 0), mac(7, 1))),
            DropReason::OtherDomain
        );
        for nobody in [mac(7, 9), mac(7, 1), [0; 6], [2, 0, 0, 0, 0, 1]] {
            assert_eq!(
                dropped(&unicast(nobody, mac(7, 1))),
                DropReason::NoSuchMember
            );
        }
    }

    #[test]
    fn questions_are_answered_for_assigned_addresses_only() {
        let segments = segments();
        let ingress = segments.ingress(Partition(7), place(1)).unwrap();
        let Action::Answer(answer) = ingress.decide(&arp(mac(7, 1), [10, 64, 0, 3])) else {
            panic!("no answer");
        };
        assert_eq!(answer[..6], mac(7, 1));
        assert_eq!(answer[22..28], mac(7, 2));
        let others = Ok(vec![(7, 0), (7, 2)]);
        let unassigned = arp(mac(7, 1), [10, 64, 0, 77]);
        assert_eq!(reached(&segments, 1, &unassigned), others);
        let announcement = arp(mac(7, 1), [10, 64, 0, 2]);
        assert_eq!(reached(&segments, 1, &announcement), others);
    }

    #[test]
    fn who_left_reaches_nobody_and_is_reached_by_nobody() {
        let mut segments = segments();
        assert_eq!(segments.detach(Partition(7), NodeId(2)), Some((7, 2)));
        assert_eq!(segments.detach(Partition(7), NodeId(2)), None);
        assert!(segments.ingress(Partition(7), place(2)).is_none());
        let unicast = packet(mac(7, 2), mac(7, 1), 100);
        assert_eq!(
            reached(&segments, 1, &unicast),
            Err(DropReason::NoSuchMember)
        );
        let broadcast = packet(BROADCAST, mac(7, 1), 100);
        assert_eq!(reached(&segments, 1, &broadcast), Ok(vec![(7, 0)]));
        let question = arp(mac(7, 1), [10, 64, 0, 3]);
        assert_eq!(reached(&segments, 1, &question), Ok(vec![(7, 0)]));
    }

    /// Members 1 and 2 are limited, so each has member 0 to talk to.
    #[test]
    fn limited_members_reach_full_ones_only_and_what_they_may_not_is_counted() {
        let mut segments = segments();
        for x in [1, 2] {
            segments.set_limited(Partition(7), place(x), true);
        }
        let unicast = |to, from| packet(mac(7, to), mac(7, from), 100);
        let refused = Err(DropReason::Limited);
        assert_eq!(reached(&segments, 1, &unicast(2, 1)), refused);
        assert_eq!(reached(&segments, 2, &unicast(1, 2)), refused);
        assert_eq!(reached(&segments, 1, &unicast(0, 1)), Ok(vec![(7, 0)]));
        assert_eq!(reached(&segments, 0, &unicast(2, 0)), Ok(vec![(7, 2)]));

        let full = Ok(vec![(7, 0)]);
        for group in [BROADCAST, [0x33, 0x33, 0, 0, 0, 1]] {
            assert_eq!(reached(&segments, 1, &packet(group, mac(7, 1), 9)), full);
            let all = Ok(vec![(7, 1), (7, 2)]);
            assert_eq!(reached(&segments, 0, &packet(group, mac(7, 0), 9)), all);
        }
        let ingress = segments.ingress(Partition(7), place(1)).unwrap();
        let Action::DeliverAll(others) = ingress.decide(&packet(BROADCAST, mac(7, 1), 9)) else {
            panic!("not for all");
        };
        assert_eq!(others.filter(|other| other.is_err()).count(), 1);

        segments.set_limited(Partition(7), place(2), false);
        assert_eq!(
            reached(&segments, 1, &unicast(2, 1)),
            Ok(vec![(7, 2)]),
            "one of two suffices"
        );
    }

    #[test]
    fn limited_members_are_not_told_where_others_of_them_are() {
        let mut segments = segments();
        for x in [1, 2] {
            segments.set_limited(Partition(7), place(x), true);
        }
        let question = |from, target: u8| arp(mac(7, from), [10, 64, 0, target + 1]);
        let refused = Err(DropReason::Limited);
        assert_eq!(reached(&segments, 1, &question(1, 2)), refused);
        let answered = Ok(vec![(7, 1)]);
        assert_eq!(reached(&segments, 1, &question(1, 0)), answered);
        let answered = Ok(vec![(7, 0)]);
        assert_eq!(reached(&segments, 0, &question(0, 2)), answered);
        // Announcements and questions about nobody's address go to those who may hear them.
        let announcement = question(1, 1);
        assert_eq!(reached(&segments, 1, &announcement), Ok(vec![(7, 0)]));
    }

    #[test]
    fn wrong_ports_are_refused() {
        let mut segments = segments();
        let mut refuse = |change: fn(&mut Port)| {
            let mut port = port(7, 3);
            change(&mut port);
            segments.attach(port, (7, 3)).unwrap_err()
        };
        let wrong_mac = |error| matches!(error, AttachError::WrongMac { .. });
        assert!(wrong_mac(refuse(|port| port.mac[0] = 2)));
        assert!(wrong_mac(refuse(|port| port.domain_id += 1 << 16)));
        let old = AttachError::OldEpoch {
            offered: 0,
            current: 1,
        };
        assert_eq!(refuse(|port| port.epoch = 0), old);
        let same_ipv4 = refuse(|port| port.ipv4 = [10, 64, 0, 1].into());
        assert_eq!(same_ipv4, AttachError::Taken(place(3)));
        let again = segments.attach(port(7, 1), (7, 1));
        assert_eq!(again, Err(AttachError::Taken(place(1))));
        segments.raise_epoch(Partition(7), Epoch(5));
        segments.raise_epoch(Partition(7), Epoch(4));
        assert!(segments.attach(port(7, 3), (7, 3)).is_err());
    }

    /// Addresses that hit, miss and nearly hit.
    fn any_mac() -> impl Strategy<Value = [u8; 6]> {
        prop_oneof![
            (7_u16..9, 0_u8..4).prop_map(|(domain, x)| mac(domain, x)),
            Just(BROADCAST),
            any::<[u8; 6]>(),
        ]
    }

    proptest! {
        #[test]
        fn no_bytes_reach_another_domain_or_their_sender(
            x in 0_u8..3,
            offload in prop_oneof![
                Just(Offload::NONE.to_vec()),
                proptest::collection::vec(0_u8..6, 0..12),
            ],
            addresses in proptest::option::of((any_mac(), any_mac())),
            rest in proptest::collection::vec(any::<u8>(), 0..1600),
        ) {
            let mut bytes = offload;
            if let Some((destination, source)) = addresses {
                bytes.extend([destination, source].concat());
            }
            bytes.extend(rest);
            let segments = segments();
            let ingress = segments.ingress(Partition(7), place(x)).unwrap();
            let reached: Vec<Name> = match ingress.decide(&bytes) {
                Action::Deliver(name) => vec![*name],
                Action::DeliverAll(others) => others.filter_map(|o| o.ok().copied()).collect(),
                Action::Answer(_) | Action::Drop(_) => vec![],
            };
            for (domain, receiver) in reached {
                prop_assert_eq!(domain, 7);
                prop_assert_ne!(receiver, x);
                prop_assert_eq!(&bytes[16..22], mac(7, x));
            }
        }
    }
}
