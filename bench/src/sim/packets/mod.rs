//! Packets with responses, virtual channels and credits: the level that shows routing.
//!
//! A card cuts messages into requests of at most [`Profile::payload`] bytes and has at most
//! [`NicCosts::window`](super::profile::NicCosts::window) of them without response. Each request has
//! a response, which takes a route of its own and carries the bytes of a get. Packets cut through:
//! a link may begin with a packet before the last flit is there.
//!
//! * **Routers** are output-queued. A packet waits in the queue of its next link, and holds the buffer
//!   behind its last link. Flits of the buffer are the credits of a virtual channel of that link; they
//!   return when the last flit has left, after the latency of the link. Buffers cover one round trip.
//!   A link sends the packet whose request is the oldest: with turns instead, nodes near a hot link
//!   would starve those behind them.
//! * **Virtual channels** are those of the topology, once for requests and once for responses. A card
//!   takes responses always, so a response never waits for a request.
//! * **Routing** decides at the first router ([`routes::choose`]), for `adaptive1` at every router, by the router's
//!   own queues as they are, and by used credits as they were ([`Profile::snapshot_age_ns`]).
//!   [`Routed`] counts what the first router chose; for `adaptive1`, it counts the hops made.
//! * **Counters** are those of the cards. A stalled cycle is one in which the next request is ready,
//!   its link is idle, and the router's buffer has no room. Latency begins when the request leaves the
//!   card.
//!
//! What is left out: allocators and pipelines of a router (any packets of different links pass at
//! the same time), errors and their retries, and the four tiles that two cards share.
//!
//! [`routes::choose`]: toroid_fabric::routes::choose

mod costs;
mod ends;
mod links;
mod packet;
mod routers;
mod snapshot;

use toroid_fabric::NodeId;
use toroid_fabric::routes::{Counters, LinkId, Mode, Topology};

use self::costs::MAX_FLITS;
use self::links::{Kind, Links};
use self::packet::{Packet, Packets};
use super::agenda::{self, Agenda};
use super::cards::Cards;
use super::profile::FLIT;
use super::slab::Slab;
use super::transfer::Transfer;
use super::{Busiest, Happening, Message, Network, Profile, Routed, SimulationError, Ticks};

/// A simulated fabric at the level of packets.
#[derive(Debug)]
pub struct PacketNetwork<T> {
    topology: T,
    profile: Profile,
    agenda: Agenda<Event>,
    links: Links,
    cards: Cards,
    packets: Packets,
    transfers: Slab<Transfer>,
    random: fastrand::Rng,
    routed: ByDomain,
    /// Flits of load that count as a packet.
    packet_flits: u32,
    /// Ticks that a packet with payload takes the sender's card at least.
    packet_ticks: Ticks,
}

/// Packets of each domain by their path.
#[derive(Debug, Default)]
struct ByDomain(Vec<Routed>);

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A packet may enter its next link, or is in the memory of its last node.
    Arrival(u32),
    /// A link with waiting packets is free.
    Free(u32),
    /// A buffer behind a link is free.
    Credit { flits: u8, channel: u32 },
}

impl ByDomain {
    #[inline]
    fn of(&mut self, domain: u16) -> &mut Routed {
        let domain = usize::from(domain);
        if domain >= self.0.len() {
            self.0.resize(domain + 1, Routed::default());
        }
        &mut self.0[domain]
    }
}

impl<T: Topology> PacketNetwork<T> {
    /// An idle fabric. The seed decides all random candidates of routing. `memory` is what the
    /// simulation may use, in bytes.
    ///
    /// # Errors
    /// [`SimulationError::NoMemory`] if full windows of all cards may exceed the memory, and
    /// [`SimulationError::Profile`].
    pub fn new(
        topology: T,
        profile: Profile,
        seed: u64,
        memory: u64,
    ) -> Result<Self, SimulationError> {
        check(&profile)?;
        let needed = Self::memory(&topology, &profile);
        if needed > memory {
            return Err(SimulationError::NoMemory {
                nodes: topology.nodes(),
                level: "packets",
                needed,
                available: memory,
                remedy: ", or the level of chunks",
            });
        }
        let cycle = profile.nic.service(FLIT).max(1);
        Ok(PacketNetwork {
            agenda: Agenda::new(),
            links: Links::new(&topology, &profile),
            cards: Cards::new(topology.nodes(), cycle),
            packets: Slab::new(),
            transfers: Slab::new(),
            random: fastrand::Rng::with_seed(seed),
            routed: ByDomain::default(),
            packet_flits: profile.most_flits(),
            packet_ticks: profile.nic.packet_ns * super::TICKS,
            topology,
            profile,
        })
    }

    /// Estimated bytes of a simulation in which all windows are full.
    pub fn memory(topology: &T, profile: &Profile) -> u64 {
        let packet = size_of::<Packet>() as u64 + 3 * Agenda::<Event>::MEMORY;
        let window = u64::from(profile.nic.window) * packet;
        Links::memory(topology) + u64::from(topology.nodes()) * (Cards::MEMORY + window)
    }

    /// The topology.
    pub fn topology(&self) -> &T {
        &self.topology
    }

    /// Requests of all cards without response.
    pub fn outstanding(&self) -> u64 {
        self.cards.outstanding()
    }

    /// Most requests without response that any card has had.
    pub fn most_outstanding(&self) -> u32 {
        let most = self.cards.cards.iter().map(|card| card.most_outstanding);
        most.max().unwrap_or(0)
    }

    /// Requests and responses of a domain by their path.
    pub fn routed_in(&self, domain: u16) -> Routed {
        let of = self.routed.0.get(usize::from(domain));
        of.copied().unwrap_or_default()
    }

    /// Bytes that arrived at a node in a domain.
    pub fn delivered(&self, node: NodeId, domain: u16) -> u64 {
        self.cards.delivered(node.0, domain)
    }

    /// Whether no packet is under way, all queues are empty and all credits are back.
    pub fn is_idle(&self) -> bool {
        self.packets.is_empty() && self.transfers.is_empty() && self.links.is_idle()
    }

    /// Ticks for which a link was occupied.
    pub fn busy(&self, link: LinkId) -> Ticks {
        self.links.busy(link.0)
    }

    #[inline]
    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrival(packet) => self.arrive(packet),
            Event::Credit { flits, channel } => self.credit(channel, flits),
            Event::Free(link) => {
                self.links.woken(link);
                match self.links.kind(link) {
                    Kind::FromCard(node) => self.inject(node),
                    _ => self.serve(link),
                }
            }
        }
    }
}

fn check(profile: &Profile) -> Result<(), SimulationError> {
    let problem = if profile.payload == 0 || profile.header == 0 {
        "a packet needs at least 1 byte of payload and of header".to_owned()
    } else if profile.most_flits() as usize >= MAX_FLITS {
        format!(
            "a packet of {} bytes is too large: at most {} are possible",
            profile.payload + profile.header,
            (MAX_FLITS as u64 - 1) * FLIT
        )
    } else if profile.nic.window == 0 {
        "a window of 0 packets sends nothing: write at least 1".to_owned()
    } else {
        return Ok(());
    };
    Err(SimulationError::Profile {
        profile: profile.name.to_owned(),
        problem,
    })
}

impl<T: Topology> Network for PacketNetwork<T> {
    fn now(&self) -> Ticks {
        self.agenda.now()
    }

    fn send(&mut self, message: Message) {
        let flow = self.cards.flow(message.from.0, message.domain);
        let index = (self.transfers).insert(Transfer::new(message, flow, &self.profile));
        self.cards.enqueue(&mut self.transfers, index);
        self.inject(message.from.0);
    }

    fn timer(&mut self, at: Ticks, token: u64) {
        self.agenda.timer(at, token);
    }

    fn next(&mut self) -> Option<Happening> {
        loop {
            let next = self.agenda.next()?;
            self.links.snapshots.advance(self.agenda.now());
            match next {
                agenda::Next::Event(event) => self.happen(event),
                agenda::Next::Happening(what) => return Some(what),
            }
        }
    }

    fn counters(&self, node: NodeId, domain: u16, mode: Mode) -> Counters {
        self.cards.counters(node.0, domain, mode)
    }

    fn link_bytes(&self, link: LinkId) -> u64 {
        self.links.bytes(link.0)
    }

    fn busiest(&self) -> Option<Busiest> {
        let (link, busy) = self.links.busiest()?;
        Some(Busiest {
            link,
            bytes: self.link_bytes(link),
            busy: busy as f64 / self.now().max(1) as f64,
        })
    }

    fn routed(&self) -> Routed {
        let all = self.routed.0.iter().copied();
        all.fold(Routed::default(), |sum, of| Routed {
            minimal: sum.minimal + of.minimal,
            non_minimal: sum.non_minimal + of.non_minimal,
        })
    }

    fn events(&self) -> u64 {
        self.agenda.events()
    }
}

#[cfg(test)]
mod tests;
