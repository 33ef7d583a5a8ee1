//! Chunks on the clocks of the link model: the level that shows contention in large fabrics.
//!
//! A message is cut into chunks of whole packets. A chunk reserves each stage of its way (sending
//! card, links, receiving card) by the link model's own function ([`Reach::cross`]) when its first byte
//! reaches the stage, so an event is a chunk at a stage. The chunk's size is the fidelity: chunks of
//! one packet are packets without buffers; larger ones share links in larger turns, at less cost.
//!
//! Each request chunk has a response chunk, with the bytes of a get, or the headers that answer a
//! put. A card sends its next chunk when the last one has left: requests and responses in turns, and
//! requests while [the window](super::profile::NicCosts::window) has room.
//!
//! What is left out: buffers are endless, so no link ever waits for another. There is no back-pressure
//! and no stalled cycle, without which [application-aware
//! routing](toroid_fabric::routes::policy::SelectRouting) does not decide as on a machine. Routing
//! knows the present queue of the first link alone.

mod costs;
mod ends;
mod routers;

use std::collections::VecDeque;

use toroid_fabric::NodeId;
use toroid_fabric::model::{self, Reach, Reserved, Stage, VectorClocks};
use toroid_fabric::routes::{Counters, LinkId, Mode, Path, Topology};

use self::costs::Stages;
use super::agenda::{Agenda, Next};
use super::cards::Cards;
use super::profile::FLIT;
use super::slab::Slab;
use super::transfer::Transfer;
use super::{Busiest, Happening, Message, Network, Profile, Routed, SimulationError, TICKS, Ticks};

/// Bytes of a chunk at which errors are small and events few.
pub const DEFAULT_CHUNK: u64 = 4096;

/// Largest chunk: larger ones hide contention.
pub const MAX_CHUNK: u64 = 65_536;

/// Ticks of the link model in a tick of a simulation.
const FINER: u64 = model::TICKS / TICKS;

/// A simulated fabric at the level of chunks.
#[derive(Debug)]
pub struct ChunkNetwork<T> {
    topology: T,
    profile: Profile,
    /// Packets of a chunk.
    packets: u32,
    stages: Stages,
    clocks: VectorClocks,
    agenda: Agenda<Event>,
    chunks: Slab<Chunk>,
    transfers: Slab<Transfer>,
    cards: Cards,
    senders: Vec<Sender>,
    random: fastrand::Rng,
    routed: Routed,
}

/// What happens at a tick to a chunk or a card.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The first byte has reached a router.
    Router(u32),
    /// The last byte has reached a node.
    Arrival(u32),
    /// The card of a node has sent a chunk.
    Card(u32),
}

/// A chunk, in one cache line: large simulations wait for memory.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Chunk {
    reach: Reach,
    /// When the request left the card.
    sent: Ticks,
    path: Path,
    transfer: u32,
    /// Node at the end of the path.
    to: u32,
    /// Bytes of the message, which either the request or the response carries.
    payload: u32,
    /// Bytes of the chunk's packets.
    wire: u32,
    packets: u16,
    is_response: bool,
    /// Whether each router chooses the path again.
    is_adaptive: bool,
}

const _: () = assert!(size_of::<Chunk>() == 64);

/// The sending side of a card.
#[derive(Clone, Debug, Default)]
struct Sender {
    /// Requests that have arrived, without a response.
    requests: VecDeque<u32>,
    /// Whether an event at the end of a chunk is scheduled.
    is_scheduled: bool,
}

impl<T: Topology> ChunkNetwork<T> {
    /// An idle fabric whose messages are cut into chunks of `chunk` bytes, rounded up to whole
    /// packets. The seed decides all random candidates of routing. `memory` is what the simulation
    /// may use, in bytes.
    ///
    /// # Errors
    /// [`SimulationError::Profile`] for a chunk of 0 or above [`MAX_CHUNK`], and
    /// [`SimulationError::NoMemory`].
    pub fn new(
        topology: T,
        profile: Profile,
        chunk: u64,
        seed: u64,
        memory: u64,
    ) -> Result<Self, SimulationError> {
        if chunk == 0 || chunk > MAX_CHUNK {
            return Err(SimulationError::Profile {
                profile: profile.name.into(),
                problem: format!("a chunk has from 1 to {MAX_CHUNK} bytes, not {chunk}"),
            });
        }
        let needed = Self::memory(&topology);
        if needed > memory {
            return Err(SimulationError::NoMemory {
                nodes: topology.nodes(),
                level: "chunks",
                needed,
                available: memory,
                remedy: "",
            });
        }
        let stages = Stages::new(&topology, &profile);
        let cycle = profile.nic.service(FLIT).max(1);
        Ok(ChunkNetwork {
            packets: chunk.div_ceil(profile.payload.into()) as u32,
            clocks: VectorClocks::new(stages.clocks()),
            stages,
            agenda: Agenda::new(),
            chunks: Slab::new(),
            transfers: Slab::new(),
            cards: Cards::new(topology.nodes(), cycle),
            senders: vec![Sender::default(); topology.nodes() as usize],
            random: fastrand::Rng::with_seed(seed),
            routed: Routed::default(),
            topology,
            profile,
        })
    }

    /// Estimated bytes of a simulation in which each node has a message of [`MAX_CHUNK`] under way.
    pub fn memory(topology: &T) -> u64 {
        let chunk = size_of::<Chunk>() as u64 + Agenda::<Event>::MEMORY;
        let message = size_of::<Transfer>() as u64 + 16 * chunk;
        let clock = size_of::<Reserved>() as u64;
        let node = Cards::MEMORY + size_of::<Sender>() as u64 + 2 * clock + message;
        u64::from(topology.nodes()) * node + u64::from(topology.links()) * clock
    }

    /// The topology.
    pub fn topology(&self) -> &T {
        &self.topology
    }

    /// Whether no chunk is under way and all queues are empty.
    pub fn is_idle(&self) -> bool {
        self.chunks.is_empty() && self.transfers.is_empty()
    }

    /// Requests of all cards without response.
    pub fn outstanding(&self) -> u64 {
        self.cards.outstanding()
    }

    #[inline]
    fn happen(&mut self, event: Event) {
        match event {
            Event::Router(index) => self.forward(index),
            Event::Arrival(index) if self.chunks[index].is_response => self.complete(index),
            Event::Arrival(index) => self.answer(index),
            Event::Card(node) => {
                self.senders[node as usize].is_scheduled = false;
                self.inject(node);
            }
        }
    }
}

impl<T: Topology> Network for ChunkNetwork<T> {
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
            match self.agenda.next()? {
                Next::Event(event) => self.happen(event),
                Next::Happening(what) => return Some(what),
            }
        }
    }

    fn counters(&self, node: NodeId, domain: u16, mode: Mode) -> Counters {
        self.cards.counters(node.0, domain, mode)
    }

    /// By the time for which the link was reserved, each chunk of which is rounded up to 1/64 ns.
    fn link_bytes(&self, link: LinkId) -> u64 {
        let rate = self.profile.link(self.topology.kind(link)).rate;
        let ticks = u128::from(self.clocks.reserved(link.0).sum);
        (ticks * u128::from(rate) / (1_000_000_000 * u128::from(model::TICKS))) as u64
    }

    fn busiest(&self) -> Option<Busiest> {
        let busy = |link| (self.clocks.reserved(link).sum, link);
        let (busy, link) = (0..self.topology.links()).map(busy).max()?;
        let link = LinkId(link);
        Some(Busiest {
            link,
            bytes: self.link_bytes(link),
            busy: (busy as f64 / (self.now() * FINER).max(1) as f64).min(1.0),
        })
    }

    fn routed(&self) -> Routed {
        self.routed
    }

    fn events(&self) -> u64 {
        self.agenda.events()
    }
}

/// Reserves a stage for a chunk that has reached the stage.
#[inline]
fn reserve(reach: &mut Reach, stage: &Stage, clocks: &VectorClocks, wire: u32) {
    // Without a limit of the wait no stage refuses.
    reach.cross(stage, clocks, wire.into(), u64::MAX);
}

#[cfg(test)]
mod tests;
