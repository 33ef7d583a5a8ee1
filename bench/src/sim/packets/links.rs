//! Links with their queues, virtual channels and credits.
//!
//! A packet waits in the queue of its next link while it holds a buffer behind its last one. A link
//! serves its virtual channels in turn, and a channel only while the buffer behind it has room for
//! the whole packet.

use toroid_fabric::routes::{LinkId, Topology};

use super::costs::{Class, FROM_CARD, MAX_FLITS, TO_CARD, classes, fastest};
use super::packet::Packets;
use super::snapshot::Snapshots;
use crate::sim::profile::FLIT;
use crate::sim::{Profile, TICKS, Ticks};

/// End of a list.
pub const NONE: u32 = u32::MAX;

/// A directed link.
#[derive(Clone, Copy, Debug)]
struct Link {
    /// End of the packet on the link.
    free_at: Ticks,
    /// Ticks for which packets occupied the link.
    busy: Ticks,
    /// Flits carried.
    carried: u64,
    /// Virtual channels with waiting packets.
    waiting: u32,
    /// Flits in the queue.
    queued: u32,
    /// Flits of the buffers behind the link that are reserved.
    used: u32,
    class: u8,
    /// Virtual channel of the last packet.
    last: u8,
    /// Whether an event at `free_at` is scheduled.
    is_scheduled: bool,
}

/// A virtual channel of a link: its queue, and the credits for the buffer behind the link.
#[derive(Clone, Copy, Debug)]
struct Channel {
    head: u32,
    tail: u32,
    credits: u32,
}

/// All links. Those between routers come first, then those from network cards to routers, then those
/// from routers to cards.
#[derive(Debug)]
pub struct Links {
    classes: Vec<Class>,
    links: Vec<Link>,
    channels: Vec<Channel>,
    pub snapshots: Snapshots,
    /// Service of the fastest link between routers.
    fastest: [u32; MAX_FLITS],
    /// Number of a link in that of its channels.
    shift: u32,
    between_routers: u32,
    nodes: u32,
}

/// Times of a packet on a link.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// The last flit leaves.
    pub left: Ticks,
    /// The next link may begin, or the card has the last flit.
    pub arrival: Ticks,
}

impl Links {
    pub fn new(topology: &impl Topology, profile: &Profile) -> Self {
        let (between_routers, nodes) = (topology.links(), topology.nodes());
        let classes = classes(profile);
        let shift = shift(topology);
        let of = |number: u32| match number.checked_sub(between_routers) {
            None => topology.kind(LinkId(number)) as u8,
            Some(card) if card < nodes => FROM_CARD,
            Some(_) => TO_CARD,
        };
        let links: Vec<Link> = (0..between_routers + 2 * nodes)
            .map(|number| Link {
                free_at: 0,
                busy: 0,
                carried: 0,
                waiting: 0,
                queued: 0,
                used: 0,
                class: of(number),
                last: 0,
                is_scheduled: false,
            })
            .collect();
        let channels = links.iter().flat_map(|link| {
            let channel = Channel {
                head: NONE,
                tail: NONE,
                credits: classes[usize::from(link.class)].buffer,
            };
            std::iter::repeat_n(channel, 1 << shift)
        });
        let between = &links[..between_routers as usize];
        let fastest = fastest(between.iter().map(|link| &classes[usize::from(link.class)]));
        Links {
            channels: channels.collect(),
            fastest,
            snapshots: Snapshots::new(links.len(), profile.snapshot_age_ns * TICKS),
            classes,
            links,
            shift,
            between_routers,
            nodes,
        }
    }

    /// Bytes of the state that [`Links::new`] allocates.
    pub fn memory(topology: &impl Topology) -> u64 {
        let links = u64::from(topology.links()) + 2 * u64::from(topology.nodes());
        let channels = (size_of::<Channel>() as u64) << shift(topology);
        links * (channels + size_of::<Link>() as u64 + Snapshots::MEMORY)
    }

    /// The channel of a link between routers. Requests and responses have channels of their own.
    #[inline]
    pub fn channel(&self, link: LinkId, channel: u8, is_response: bool) -> u32 {
        link.0 << self.shift | u32::from(channel) << 1 | u32::from(is_response)
    }

    /// The channel from a card to its router.
    #[inline]
    pub fn card_to_router(&self, node: u32, is_response: bool) -> u32 {
        (self.between_routers + node) << self.shift | u32::from(is_response)
    }

    /// The channel from a router to a card.
    #[inline]
    pub fn router_to_card(&self, node: u32, is_response: bool) -> u32 {
        (self.between_routers + self.nodes + node) << self.shift | u32::from(is_response)
    }

    /// The link of a channel.
    #[inline]
    pub fn link(&self, channel: u32) -> u32 {
        channel >> self.shift
    }

    /// Where a link begins and ends.
    #[inline]
    pub fn kind(&self, link: u32) -> Kind {
        match link.checked_sub(self.between_routers) {
            None => Kind::BetweenRouters,
            Some(node) if node < self.nodes => Kind::FromCard(node),
            Some(_) => Kind::ToCard,
        }
    }

    /// Flits that wait for a link, and flits that occupy buffers behind it as routing knows.
    #[inline]
    pub fn load(&self, link: u32) -> (u32, u32) {
        let state = &self.links[link as usize];
        let used = self.snapshots.known(link as usize, state.used);
        (state.queued, used)
    }

    /// Latency of the link of a channel.
    #[inline]
    pub fn latency(&self, channel: u32) -> Ticks {
        let link = &self.links[self.link(channel) as usize];
        self.classes[usize::from(link.class)].latency
    }

    /// Whether no packet is on the link.
    #[inline]
    pub fn is_free(&self, link: u32, now: Ticks) -> bool {
        self.links[link as usize].free_at <= now
    }

    /// Whether the link may begin with any packet now: it is free, and no event is about to serve it.
    #[inline]
    pub fn may_begin(&self, link: u32, now: Ticks) -> bool {
        let link = &self.links[link as usize];
        link.free_at <= now && !link.is_scheduled
    }

    #[inline]
    pub fn has_credits(&self, channel: u32, flits: u8) -> bool {
        self.channels[channel as usize].credits >= flits.into()
    }

    /// Whether packets wait for a channel.
    #[inline]
    pub fn has_waiting(&self, channel: u32) -> bool {
        self.channels[channel as usize].head != NONE
    }

    /// The time at which an event must look at a busy link, unless one does already.
    #[inline]
    pub fn wake(&mut self, link: u32) -> Option<Ticks> {
        let link = &mut self.links[link as usize];
        (!link.is_scheduled).then(|| {
            link.is_scheduled = true;
            link.free_at
        })
    }

    /// The event of [`Links::wake`] has happened.
    #[inline]
    pub fn woken(&mut self, link: u32) {
        self.links[link as usize].is_scheduled = false;
    }

    /// Whether the link has packets that wait.
    #[inline]
    pub fn is_waited_for(&self, link: u32) -> bool {
        self.links[link as usize].waiting != 0
    }

    /// Appends a packet to the queue of a channel.
    #[inline]
    pub fn enqueue(&mut self, packets: &mut Packets, packet: u32, channel: u32) {
        packets[packet].next = NONE;
        let queue = &mut self.channels[channel as usize];
        match queue.head {
            NONE => queue.head = packet,
            _ => packets[queue.tail].next = packet,
        }
        queue.tail = packet;
        let link = &mut self.links[(channel >> self.shift) as usize];
        link.waiting |= 1 << (channel & ((1 << self.shift) - 1));
        link.queued += u32::from(packets[packet].flits);
    }

    /// Takes the next packet that a link may send: channels in turn, those without credits left out.
    #[inline]
    pub fn dequeue(&mut self, packets: &Packets, number: u32) -> Option<(u32, u32)> {
        let link = self.links[number as usize];
        let first = u32::from(link.last) + 1;
        let mut turn = link.waiting.rotate_right(first);
        while turn != 0 {
            let channel = turn.trailing_zeros();
            turn &= turn - 1;
            let channel = (number << self.shift) | ((channel + first) % 32);
            let queue = self.channels[channel as usize];
            let packet = &packets[queue.head];
            if queue.credits >= packet.flits.into() {
                return Some((self.unlink(packets, channel), channel));
            }
        }
        None
    }

    /// Takes the first packet of a channel.
    #[inline]
    pub fn unlink(&mut self, packets: &Packets, channel: u32) -> u32 {
        let queue = &mut self.channels[channel as usize];
        let index = queue.head;
        let packet = &packets[index];
        queue.head = packet.next;
        let is_empty = queue.head == NONE;
        let link = &mut self.links[(channel >> self.shift) as usize];
        link.queued -= u32::from(packet.flits);
        if is_empty {
            link.waiting &= !(1 << (channel & ((1 << self.shift) - 1)));
        }
        index
    }

    /// The flits of the first packet of a channel.
    pub fn first_flits(&self, packets: &Packets, channel: u32) -> Option<u8> {
        let head = self.channels[channel as usize].head;
        (head != NONE).then(|| packets[head].flits)
    }

    /// Begins with a packet: takes its credits, and occupies the link for at least `least` ticks.
    ///
    /// The packet cuts through: the next link begins with the first flit, and later only if it is
    /// faster, so that the last flit is there in time.
    #[inline]
    pub fn send(&mut self, channel: u32, flits: u8, now: Ticks, next: Next, least: Ticks) -> Sent {
        let (number, size) = (channel >> self.shift, usize::from(flits));
        let link = &mut self.links[number as usize];
        let class = &self.classes[usize::from(link.class)];
        let service = Ticks::from(class.service[size]).max(least);
        self.snapshots.keep(number as usize, link.used);
        self.channels[channel as usize].credits -= u32::from(flits);
        link.used += u32::from(flits);
        link.free_at = now + service;
        link.busy += service;
        link.carried += u64::from(flits);
        link.last = (channel & ((1 << self.shift) - 1)) as u8;
        let next = match next {
            Next::Memory => 0,
            Next::Card => self.classes[usize::from(TO_CARD)].service[size],
            Next::Router => self.fastest[size],
        };
        Sent {
            left: now + service,
            arrival: now + class.latency + service.saturating_sub(next.into()),
        }
    }

    /// Returns the credits of a packet that has left a buffer.
    #[inline]
    pub fn credit(&mut self, channel: u32, flits: u8) {
        self.channels[channel as usize].credits += u32::from(flits);
        let number = (channel >> self.shift) as usize;
        let link = &mut self.links[number];
        self.snapshots.keep(number, link.used);
        link.used -= u32::from(flits);
    }

    /// Bytes that a link has carried.
    pub fn bytes(&self, link: u32) -> u64 {
        self.links[link as usize].carried * FLIT
    }

    /// The link between routers with the most ticks of work, and the ticks.
    pub fn busiest(&self) -> Option<(LinkId, Ticks)> {
        let links = &self.links[..self.between_routers as usize];
        let (number, link) = links.iter().enumerate().max_by_key(|(_, link)| link.busy)?;
        Some((LinkId(number as u32), link.busy))
    }

    /// Ticks for which a link was occupied.
    pub fn busy(&self, link: u32) -> Ticks {
        self.links[link as usize].busy
    }

    /// Whether all queues are empty and all credits are back.
    pub fn is_idle(&self) -> bool {
        let is_full = |(number, channel): (usize, &Channel)| {
            let link = &self.links[number >> self.shift];
            channel.credits == self.classes[usize::from(link.class)].buffer
        };
        self.links
            .iter()
            .all(|link| link.used == 0 && link.queued == 0)
            && self.channels.iter().enumerate().all(is_full)
    }
}

/// Where a link begins and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    BetweenRouters,
    FromCard(u32),
    ToCard,
}

/// What a packet enters behind a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A link between routers.
    Router,
    /// The link to a card.
    Card,
    /// The memory of a card's node.
    Memory,
}

/// Power of two with the channels of a link, those of requests and responses.
fn shift(topology: &impl Topology) -> u32 {
    u32::from(topology.channels().max(1) * 2)
        .next_power_of_two()
        .trailing_zeros()
}
