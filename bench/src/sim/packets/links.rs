//! Links with their queues, virtual channels and credits.
//!
//! A packet waits in a queue of its next link while it holds a buffer behind its last one. A link
//! serves the oldest request among the queues first, and a queue only while the buffer behind its
//! virtual channel has room for the whole packet.

use toroid_fabric::routes::{LinkId, Topology};

use super::costs::{Class, FROM_CARD, MAX_FLITS, TO_CARD, classes, fastest};
use super::packet::Packets;
use super::snapshot::Snapshots;
use crate::sim::profile::FLIT;
use crate::sim::slab::NONE;
use crate::sim::{Profile, TICKS, Ticks};

/// A directed link.
#[derive(Clone, Copy, Debug, Default)]
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
    /// Whether an event at `free_at` is scheduled.
    is_scheduled: bool,
}

/// A virtual channel of a link: its queue, and the credits for the buffer behind the link. A queue of
/// packets from cards uses the credits of another one.
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
    /// Place of the first queue of packets from cards among the channels of a link.
    from_cards: u32,
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
        let idle = |number| Link {
            class: of(number),
            ..Link::default()
        };
        let links: Vec<Link> = (0..between_routers + 2 * nodes).map(idle).collect();
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
            from_cards: of_routers(topology),
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

    /// The virtual channel of a link. Requests and responses have channels of their own.
    #[inline]
    pub fn channel(&self, link: LinkId, channel: u8, is_response: bool) -> u32 {
        link.0 << self.shift | u32::from(channel) << 1 | u32::from(is_response)
    }

    /// The channel from a card to its router.
    #[inline]
    pub fn card_to_router(&self, node: u32, is_response: bool) -> u32 {
        self.channel(LinkId(self.between_routers + node), 0, is_response)
    }

    /// The channel from a router to a card.
    #[inline]
    pub fn router_to_card(&self, node: u32, is_response: bool) -> u32 {
        self.card_to_router(self.nodes + node, is_response)
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

    /// The queue of packets that wait for a channel. Packets from cards have queues of their own, so
    /// that the large buffers of cards do not crowd out packets from other routers.
    #[inline]
    pub fn queue(&self, channel: u32, is_from_card: bool) -> u32 {
        match is_from_card && channel & self.mask() < FROM_CARDS {
            true => channel + self.from_cards,
            false => channel,
        }
    }

    /// The channel for which packets wait in a queue.
    #[inline]
    fn channel_of(&self, queue: u32) -> u32 {
        match queue & self.mask() >= self.from_cards {
            true => queue - self.from_cards,
            false => queue,
        }
    }

    #[inline]
    fn mask(&self) -> u32 {
        (1 << self.shift) - 1
    }

    /// Whether packets are in a queue.
    #[inline]
    pub fn has_waiting(&self, queue: u32) -> bool {
        self.channels[queue as usize].head != NONE
    }

    /// Whether packets wait for a channel.
    #[inline]
    pub fn is_waited_for(&self, channel: u32) -> bool {
        self.has_waiting(channel) || self.has_waiting(self.queue(channel, true))
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

    /// Whether any packets wait for the link.
    #[inline]
    pub fn has_queue(&self, link: u32) -> bool {
        self.links[link as usize].waiting != 0
    }

    /// Appends a packet to a queue.
    #[inline]
    pub fn enqueue(&mut self, packets: &mut Packets, packet: u32, queue: u32) {
        packets[packet].next = NONE;
        let (number, bit) = (self.link(queue), queue & self.mask());
        let queue = &mut self.channels[queue as usize];
        match queue.head {
            NONE => queue.head = packet,
            _ => packets[queue.tail].next = packet,
        }
        queue.tail = packet;
        let link = &mut self.links[number as usize];
        link.waiting |= 1 << bit;
        link.queued += u32::from(packets[packet].flits);
    }

    /// Takes the next packet that a link may send, and its channel: of the first packets of all
    /// queues that have credits, the one with the oldest request.
    #[inline]
    pub fn dequeue(&mut self, packets: &Packets, number: u32) -> Option<(u32, u32)> {
        let mut waiting = self.links[number as usize].waiting;
        let (mut oldest, mut found) = (Ticks::MAX, None);
        while waiting != 0 {
            let queue = (number << self.shift) | waiting.trailing_zeros();
            waiting &= waiting - 1;
            let channel = self.channel_of(queue);
            let first = &packets[self.channels[queue as usize].head];
            if first.sent < oldest && self.has_credits(channel, first.flits) {
                (oldest, found) = (first.sent, Some((queue, channel)));
            }
        }
        let (queue, channel) = found?;
        Some((self.unlink(packets, queue), channel))
    }

    /// Takes the first packet of a queue.
    #[inline]
    pub fn unlink(&mut self, packets: &Packets, queue: u32) -> u32 {
        let (number, bit) = (self.link(queue), queue & self.mask());
        let queue = &mut self.channels[queue as usize];
        let index = queue.head;
        let packet = &packets[index];
        queue.head = packet.next;
        let is_empty = queue.head == NONE;
        let link = &mut self.links[number as usize];
        link.queued -= u32::from(packet.flits);
        if is_empty {
            link.waiting &= !(1 << bit);
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

/// Queues of a link for packets from cards. A path begins in one of the first two virtual channels of
/// a topology, for requests or for responses; a packet in another one waits with the others.
const FROM_CARDS: u32 = 4;

/// Channels of a link, those of requests and of responses.
fn of_routers(topology: &impl Topology) -> u32 {
    u32::from(topology.channels()).max(2) * 2
}

/// Logarithm of the places of a link's channels and queues.
fn shift(topology: &impl Topology) -> u32 {
    let queues = of_routers(topology) + FROM_CARDS;
    queues.next_power_of_two().trailing_zeros()
}
