//! Chunks on the clocks of the link model: the level that shows contention in large fabrics.
//!
//! A message is cut into chunks of whole packets. A chunk reserves each stage of its way (sending
//! card, links, receiving card) by the link model's own function ([`Reach::cross`]) when its first byte
//! reaches the stage, so an event is a chunk at a stage. The chunk's size is the fidelity: chunks of
//! one packet are packets without buffers; larger ones share links in larger turns, at less cost.
//!
//! Each request chunk has a response chunk, with the bytes of a get, or the headers that answer a
//! put. A card sends a chunk of a message when the last one has left and
//! [the window](super::profile::NicCosts::window) has room.
//!
//! What is left out: buffers are endless, so no link ever waits for another (no back-pressure, no
//! stalls but those of the window), and routing knows the present queue of the first link alone.

mod costs;

use std::collections::{HashMap, VecDeque};

use toroid_fabric::NodeId;
use toroid_fabric::model::{self, Reach, Reserved, Stage, VectorClocks};
use toroid_fabric::routes::{
    Counters, LinkId, Load, Mode, Operation, Path, Topology, choose, choose_again,
};

use self::costs::Stages;
use super::profile::FLIT;
use super::slab::Slab;
use super::wheel::Wheel;
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
    packets: u64,
    stages: Stages,
    clocks: VectorClocks,
    wheel: Wheel<Event>,
    chunks: Slab<Chunk>,
    transfers: Slab<Transfer>,
    timers: Slab<u64>,
    cards: Vec<Card>,
    counters: HashMap<(NodeId, u16, Mode), Counters>,
    happenings: VecDeque<Happening>,
    random: fastrand::Rng,
    routed: Routed,
    events: u64,
}

/// What happens at a tick: to a chunk, a card or a timer.
#[derive(Clone, Copy, Debug)]
enum Event {
    /// The first byte has reached a router.
    Router(u32),
    /// The last byte has reached a node.
    Arrival(u32),
    /// The card of a node has sent a chunk.
    Card(u32),
    Timer(u32),
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

/// A message under way.
#[derive(Clone, Copy, Debug)]
struct Transfer {
    message: Message,
    /// Bytes that no chunk has yet.
    unsent: u64,
    /// Packets of requests that have not arrived.
    requests: u64,
    /// Packets of responses that have not arrived.
    responses: u64,
    /// Next message of the card.
    next: u32,
}

/// A card of a node, with a queue of messages.
#[derive(Clone, Copy, Debug)]
struct Card {
    head: u32,
    tail: u32,
    /// Packets without a response.
    outstanding: u32,
    /// Whether an event at the end of a chunk is scheduled.
    is_sending: bool,
    /// Since when the window holds a chunk.
    held: Option<Ticks>,
}

/// End of a list.
const NONE: u32 = u32::MAX;

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
        let card = Card {
            head: NONE,
            tail: NONE,
            outstanding: 0,
            is_sending: false,
            held: None,
        };
        Ok(ChunkNetwork {
            packets: chunk.div_ceil(profile.payload.into()),
            clocks: VectorClocks::new(stages.clocks()),
            stages,
            wheel: Wheel::new(),
            chunks: Slab::new(),
            transfers: Slab::new(),
            timers: Slab::new(),
            cards: vec![card; topology.nodes() as usize],
            counters: HashMap::new(),
            happenings: VecDeque::new(),
            random: fastrand::Rng::with_seed(seed),
            routed: Routed::default(),
            events: 0,
            topology,
            profile,
        })
    }

    /// Estimated bytes of a simulation in which each node has a message of [`MAX_CHUNK`] under way.
    pub fn memory(topology: &T) -> u64 {
        let chunk = size_of::<Chunk>() as u64 + Wheel::<Event>::MEMORY;
        let message = size_of::<Transfer>() as u64 + 16 * chunk;
        let clock = size_of::<Reserved>() as u64;
        let node = size_of::<Card>() as u64 + 2 * clock + message;
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

    /// Sends the next chunk of a card, if there is one and the window has room.
    fn inject(&mut self, node: u32) {
        let now = self.wheel.now();
        let card = &mut self.cards[node as usize];
        let index = card.head;
        if index == NONE || card.is_sending {
            return;
        }
        let transfer = &mut self.transfers[index];
        let payload = u64::from(self.profile.payload);
        let bytes = transfer.unsent.min(self.packets * payload);
        let packets = bytes.div_ceil(payload).max(1) as u16;
        if card.outstanding > 0 && card.outstanding + u32::from(packets) > self.profile.nic.window {
            card.held.get_or_insert(now);
            return;
        }
        let held = card.held.take().map_or(0, |since| now - since);
        transfer.unsent -= bytes;
        card.outstanding += u32::from(packets);
        card.is_sending = true;
        if transfer.unsent == 0 {
            card.head = transfer.next;
        }
        let message = transfer.message;
        self.launch(index, bytes as u32, packets, now, false);
        let clock = self.stages.sender_clock(node);
        let free_at = self.clocks.reserved(clock).until.div_ceil(FINER);
        self.wheel.schedule(free_at, Event::Card(node));
        let payload = if message.operation == Operation::Put {
            bytes
        } else {
            0
        };
        let flits =
            u64::from(self.profile.header_flits() * u32::from(packets)) + payload.div_ceil(FLIT);
        let counters = self
            .counters
            .entry((message.from, message.domain, message.mode));
        let counters = counters.or_default();
        counters.request_flits += flits;
        counters.stalled_cycles += held / self.profile.nic.service(FLIT).max(1);
    }

    /// Lets a chunk with `payload` bytes of a message leave the card of its first node.
    fn launch(
        &mut self,
        transfer: u32,
        payload: u32,
        packets: u16,
        sent: Ticks,
        is_response: bool,
    ) {
        let message = self.transfers[transfer].message;
        let is_carrier = (message.operation == Operation::Get) == is_response;
        let carried = if is_carrier { payload } else { 0 };
        let (from, to) = match is_response {
            true => (message.to, message.from),
            false => (message.from, message.to),
        };
        let wire = carried + u32::from(packets) * self.profile.header;
        let mut reach = Reach::at(self.wheel.now() * FINER);
        reserve(
            &mut reach,
            &self.stages.sender(from.0, carried > 0),
            &self.clocks,
            wire,
        );
        let path = self.route((from, to), message.mode);
        let index = self.chunks.insert(Chunk {
            reach,
            sent,
            path,
            transfer,
            to: to.0,
            payload,
            wire,
            packets,
            is_response,
            is_adaptive: message.mode == Mode::Adaptive1,
        });
        self.wheel
            .schedule(reach.head / FINER, Event::Router(index));
    }

    fn route(&mut self, (from, to): (NodeId, NodeId), mode: Mode) -> Path {
        let ends = (self.topology.router(from), self.topology.router(to));
        let load = load(
            &self.clocks,
            &self.profile,
            &self.topology,
            self.wheel.now(),
        );
        let random = || self.random.u64(..);
        let biases = &self.profile.biases;
        let path = choose(&self.topology, mode, ends, biases, random, load);
        if path.is_minimal() {
            self.routed.minimal += 1;
        } else {
            self.routed.non_minimal += 1;
        }
        path
    }

    /// A chunk at a router reserves the next link, or the receiving card.
    #[inline]
    fn forward(&mut self, index: u32) {
        let chunk = &mut self.chunks[index];
        if chunk.is_adaptive && chunk.path.hop() > 0 && !chunk.path.is_at_end() {
            let load = load(
                &self.clocks,
                &self.profile,
                &self.topology,
                self.wheel.now(),
            );
            let random = || self.random.u64(..);
            let biases = &self.profile.biases;
            chunk.path = choose_again(&self.topology, &chunk.path, biases, random, load);
        }
        match self.topology.step(&mut chunk.path) {
            Some(step) => {
                let stage = self.stages.link(step.link, self.topology.kind(step.link));
                reserve(&mut chunk.reach, &stage, &self.clocks, chunk.wire);
                let head = chunk.reach.head / FINER;
                self.wheel.schedule(head, Event::Router(index));
            }
            None => {
                let stage = self.stages.receiver(chunk.to);
                reserve(&mut chunk.reach, &stage, &self.clocks, chunk.wire);
                let tail = chunk.reach.tail.div_ceil(FINER);
                self.wheel.schedule(tail, Event::Arrival(index));
            }
        }
    }

    /// A request has arrived and is answered.
    fn answer(&mut self, chunk: Chunk) {
        let transfer = &mut self.transfers[chunk.transfer];
        transfer.requests -= u64::from(chunk.packets);
        if transfer.requests == 0 && transfer.message.operation == Operation::Put {
            let delivered = Happening::Delivered(transfer.message.token);
            self.happenings.push_back(delivered);
        }
        self.launch(
            chunk.transfer,
            chunk.payload,
            chunk.packets,
            chunk.sent,
            true,
        );
    }

    /// A response has arrived and makes room in the window.
    fn complete(&mut self, chunk: Chunk) {
        let transfer = &mut self.transfers[chunk.transfer];
        transfer.responses -= u64::from(chunk.packets);
        let is_last = transfer.responses == 0;
        let Message {
            from,
            operation,
            mode,
            domain,
            token,
            ..
        } = transfer.message;
        let latency = (self.wheel.now() - chunk.sent) / TICKS;
        let counters = self.counters.entry((from, domain, mode)).or_default();
        counters.packets += u64::from(chunk.packets);
        counters.latency_ns += latency * u64::from(chunk.packets);
        self.cards[from.0 as usize].outstanding -= u32::from(chunk.packets);
        if is_last {
            self.transfers.remove(chunk.transfer);
            if operation == Operation::Get {
                self.happenings.push_back(Happening::Delivered(token));
            }
            self.happenings.push_back(Happening::Completed(token));
        }
        self.inject(from.0);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Router(index) => self.forward(index),
            Event::Arrival(index) => {
                let chunk = self.chunks.remove(index);
                if chunk.is_response {
                    self.complete(chunk);
                } else {
                    self.answer(chunk);
                }
            }
            Event::Card(node) => {
                self.cards[node as usize].is_sending = false;
                self.inject(node);
            }
            Event::Timer(index) => {
                let token = self.timers.remove(index);
                self.happenings.push_back(Happening::Timer(token));
            }
        }
    }
}

impl<T: Topology> Network for ChunkNetwork<T> {
    fn now(&self) -> Ticks {
        self.wheel.now()
    }

    fn send(&mut self, message: Message) {
        let payload = u64::from(self.profile.payload);
        let packets = message.bytes.div_ceil(payload).max(1);
        let index = self.transfers.insert(Transfer {
            message,
            unsent: message.bytes,
            requests: packets,
            responses: packets,
            next: NONE,
        });
        let card = &mut self.cards[message.from.0 as usize];
        if card.head == NONE {
            card.head = index;
        } else {
            self.transfers[card.tail].next = index;
        }
        card.tail = index;
        self.inject(message.from.0);
    }

    fn timer(&mut self, at: Ticks, token: u64) {
        let index = self.timers.insert(token);
        self.wheel.schedule(at, Event::Timer(index));
    }

    fn next(&mut self) -> Option<Happening> {
        loop {
            if let Some(happening) = self.happenings.pop_front() {
                return Some(happening);
            }
            let (_, event) = self.wheel.pop()?;
            self.events += 1;
            self.happen(event);
        }
    }

    fn counters(&self, node: NodeId, domain: u16, mode: Mode) -> Counters {
        let counters = self.counters.get(&(node, domain, mode));
        counters.copied().unwrap_or_default()
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
        self.events
    }
}

/// Reserves a stage for a chunk that has reached the stage.
#[inline]
fn reserve(reach: &mut Reach, stage: &Stage, clocks: &VectorClocks, wire: u32) {
    // Without a limit of the wait no stage refuses.
    reach.cross(stage, clocks, wire.into(), u64::MAX);
}

/// What a router knows of a link: the packets for which the link is reserved.
fn load<'a>(
    clocks: &'a VectorClocks,
    profile: &'a Profile,
    topology: &'a impl Topology,
    now: Ticks,
) -> impl Fn(LinkId, u8) -> Load + 'a {
    let wire = u64::from(profile.payload + profile.header);
    move |link, _| {
        let backlog = clocks.reserved(link.0).until.saturating_sub(now * FINER) / FINER;
        let packet = profile.link(topology.kind(link)).service(wire).max(1);
        Load {
            queue: u32::try_from(backlog / packet).unwrap_or(u32::MAX),
            credits: 0,
        }
    }
}

#[cfg(test)]
mod tests;
