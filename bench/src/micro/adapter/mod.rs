//! A software adapter on a virtual clock: the same micro-benchmarks run against two hosts of it.
//!
//! The [mechanisms] are code, and their work is counted. Only its price is given, and goes to the
//! clocks of the fabric's [model](toroid_fabric::model). Each host has its own clock and a thread:
//!
//! ```text
//!   send overhead ─► card: gap + work, bytes at a rate ─► wire ─► receive overhead
//!   host's clock      stage of the pair                            peer's clock
//! ```
//!
//! Messages carry their arrival, and a host receives only messages that its script announces. So the
//! times do not depend on the order in which the threads run.

mod layered;
pub mod mechanisms;
mod presets;

use std::collections::VecDeque;
use std::iter;
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use anyhow::{Context, Result};
use toroid_fabric::NodeId;
use toroid_fabric::model::{ClockId, Costs, LocalClocks, Route, Stage, carry};

use self::layered::Layered;
use self::mechanisms::{Card, Counts, Data, Descriptor, Doorbell};
pub use self::presets::{Parameters, Preset, PresetName};
use crate::worker::micro::exchange::{Count, Host, follow, lead};
use crate::worker::micro::message_layer::{Links, Piece};
use crate::worker::micro::script::{Gather, Layer, Message, Nanos, SHORTEST, Script, Wait};

/// Messages that may wait at a card.
const DEPTH: usize = 32;

/// Time of a poll that finds nothing.
const POLL: Nanos = 10;

/// Time for which a receive polls before it sleeps, if the caller asks for that.
const SPIN: Nanos = 100_000;

/// The endpoint in use; all others are idle.
const ACTIVE: usize = 0;

/// Places of packed messages and of headers, in no page of another buffer.
const PACKED: usize = 1 << 41;
const HEADERS: usize = 1 << 42;

/// Carries out a script between two fresh hosts. Returns the times in nanoseconds.
pub fn run(preset: &Preset, script: &Script, count: Count) -> Result<Vec<f64>> {
    let (to_follower, from_leader) = channel();
    let (to_leader, from_follower) = channel();
    let leader = Adapter::new(preset, script, [0, 1], to_follower, from_follower);
    let follower = Adapter::new(preset, script, [1, 0], to_leader, from_leader);
    if script.layer == Layer::Fabric {
        return exchange(leader, follower, script, count);
    }
    let leader = Layered::new(leader, script, true)?;
    exchange(
        leader,
        Layered::new(follower, script, false)?,
        script,
        count,
    )
}

fn exchange(
    mut leader: impl Host,
    mut follower: impl Host + Send,
    script: &Script,
    count: Count,
) -> Result<Vec<f64>> {
    thread::scope(|scope| {
        let following = scope.spawn(move || follow(&mut follower, script, count));
        let times = lead(&mut leader, script, count);
        // Otherwise the follower of a failed leader waits for ever.
        drop(leader);
        let followed = following.join().ok().context("the follower panicked")?;
        times.and_then(|times| followed.map(|()| times))
    })
}

/// A message on the wire.
#[derive(Debug)]
struct Packet {
    arrival: Nanos,
    endpoint: usize,
    bytes: Vec<u8>,
}

/// One host with its card.
struct Adapter<'a> {
    preset: &'a Preset,
    card: Card,
    /// The host itself, and the way to the peer.
    clocks: LocalClocks,
    ids: [ClockId; 2],
    now: Nanos,
    sent: u32,
    /// Times at which the card begins with posted messages.
    posted: VecDeque<Nanos>,
    to_peer: Sender<Packet>,
    from_peer: Receiver<Packet>,
    /// Messages that were seen before their receive.
    early: VecDeque<Packet>,
    endpoints: usize,
    /// The endpoint at which the next look for a message of any peer begins.
    next: usize,
    /// Endpoints of completed receives, if completions come through one queue.
    completed: Option<VecDeque<usize>>,
}

impl<'a> Adapter<'a> {
    fn new(
        preset: &'a Preset,
        script: &Script,
        [here, there]: [u32; 2],
        to_peer: Sender<Packet>,
        from_peer: Receiver<Packet>,
    ) -> Self {
        let (here, there) = (NodeId(here), NodeId(there));
        let endpoints = 1 + script.idle.max(script.queues.saturating_sub(1)) as usize;
        // MPI's libraries take all completions from one queue where they can.
        let is_layered = script.layer != Layer::Fabric;
        let has_queue = script.queues > 0 || is_layered && preset.mechanisms.completion_queues;
        Adapter {
            preset,
            card: Card::new(preset.mechanisms, endpoints),
            clocks: LocalClocks::default(),
            ids: [ClockId::endpoint(here, 0), ClockId::pair(here, there)],
            now: 0,
            sent: 0,
            posted: VecDeque::new(),
            to_peer,
            from_peer,
            early: VecDeque::new(),
            endpoints,
            next: 0,
            completed: has_queue.then(VecDeque::new),
        }
    }

    /// Passes time of the host.
    fn spend(&mut self, time: Nanos) {
        let costs = Costs {
            message: time,
            ..Costs::default()
        };
        self.now = self.carry(0, costs, 0).1;
    }

    /// Carries bytes through one of the two stages; returns start and arrival.
    fn carry(&self, stage: usize, costs: Costs, bytes: usize) -> (Nanos, Nanos) {
        let stage = Stage {
            clock: self.ids[stage],
            costs,
            whole: true,
        };
        let route = Route {
            stages: vec![stage],
            ..Route::default()
        };
        let times = carry(&route, &self.clocks, self.now, bytes as u64, 0);
        (times.start, times.arrival)
    }

    fn await_room(&mut self) {
        while self.posted.len() >= DEPTH {
            self.now = self.now.max(self.posted.pop_front().unwrap_or_default());
        }
    }

    /// The next message of an endpoint, or of any.
    fn take(&mut self, from: Option<usize>) -> Result<Packet> {
        let is_wanted = |packet: &Packet| from.is_none_or(|from| from == packet.endpoint);
        let known = self.early.iter().position(is_wanted);
        if let Some(packet) = known.and_then(|at| self.early.remove(at)) {
            return Ok(packet);
        }
        loop {
            let packet = self.from_peer.recv().context("the peer has ended")?;
            if is_wanted(&packet) {
                return Ok(packet);
            }
            self.early.push_back(packet);
        }
    }

    /// Posts a message of these places at an endpoint.
    fn post(
        &mut self,
        endpoint: usize,
        mut places: Vec<Range<usize>>,
        packs: bool,
        bytes: Vec<u8>,
    ) -> Result<()> {
        self.await_room();
        let preset = self.preset;
        let mut copied = 0;
        let packs = packs || !preset.mechanisms.gathers;
        if packs && places.len() > 1 {
            copied += bytes.len() as u64;
            places.clear();
            places.push(PACKED..PACKED + bytes.len());
        }
        if preset.mechanisms.data == Data::HostCopy {
            copied += bytes.len() as u64;
        }
        let mut work = self.card.post(endpoint, Descriptor(places));
        work.copied += copied;
        self.spend(preset.send + preset.beyond(&work, &preset.usual_of_host()));
        let work = self.card.take(endpoint);
        let costs = Costs {
            message: preset.gap + preset.beyond(&work, &preset.usual_of_card()),
            rate: preset.rate,
            latency: preset.wire(),
            ..Costs::default()
        };
        let (start, arrival) = self.carry(1, costs, bytes.len().saturating_sub(SHORTEST));
        self.posted.push_back(start);
        let packet = Packet {
            arrival,
            endpoint,
            bytes,
        };
        self.to_peer.send(packet).ok().context("the peer has ended")
    }

    /// Waits for a message of an endpoint, or of any, and receives it.
    fn await_packet(&mut self, from: Option<usize>, wait: Wait) -> Result<Packet> {
        let packet = self.take(from)?;
        let spin = match wait {
            Wait::Poll => Nanos::MAX,
            Wait::Block => self.preset.mechanisms.spin,
            Wait::SpinThenBlock => self.preset.mechanisms.spin.max(SPIN),
        };
        let sleeps = packet.arrival > self.now.saturating_add(spin);
        self.now = self.now.max(packet.arrival);
        let mut work = Counts {
            wakeups: sleeps.into(),
            ..Counts::default()
        };
        if from.is_none() && self.completed.is_none() {
            work.looked = self.look(packet.endpoint);
        }
        self.accept(&packet, work);
        Ok(packet)
    }

    /// Looks at each endpoint in turns, from the one after the last find on, until the one with the
    /// message; returns the number of endpoints without.
    fn look(&mut self, found: usize) -> u64 {
        let mut empty = 0;
        while self.next != found {
            empty += 1;
            self.next = (self.next + 1) % self.endpoints;
        }
        self.next = (found + 1) % self.endpoints;
        empty
    }

    /// Receives a message that has arrived.
    fn accept(&mut self, packet: &Packet, mut work: Counts) {
        if let Some(queue) = &mut self.completed {
            queue.push_back(packet.endpoint);
            work.completions += u64::from(queue.pop_front().is_some());
        }
        self.spend(self.preset.receive + self.preset.prices.of(&work));
    }
}

impl Links for Adapter<'_> {
    fn send(&mut self, peer: usize, header: &[u8], piece: Piece<'_>) -> Result<()> {
        let own = iter::once(HEADERS..HEADERS + header.len());
        let piece_place = iter::once(piece.place..piece.place + piece.bytes.len());
        let places = own.chain(piece_place).filter(|place| !place.is_empty());
        let bytes = [header, piece.bytes].concat();
        self.post(peer, places.collect(), false, bytes)
    }

    fn receive(&mut self, from: Option<usize>, into: &mut Vec<u8>, wait: Wait) -> Result<usize> {
        let packet = self.await_packet(from, wait)?;
        *into = packet.bytes;
        Ok(packet.endpoint)
    }

    fn copied(&mut self, bytes: usize) {
        let work = Counts {
            copied: bytes as u64,
            ..Counts::default()
        };
        self.spend(self.preset.prices.of(&work));
    }
}

impl Host for Adapter<'_> {
    fn now(&self) -> Nanos {
        self.now
    }

    fn compute(&mut self, time: Nanos) {
        self.spend(time);
    }

    fn send(&mut self, message: &Message) -> Result<()> {
        let places = message.places(self.sent).collect();
        self.sent += 1;
        let packs = message.gather == Gather::Pack;
        self.post(ACTIVE, places, packs, vec![0; message.bytes])
    }

    fn receive(&mut self, message: &Message, wait: Wait) -> Result<()> {
        let packet = self.await_packet(Some(ACTIVE), wait)?;
        packet.is(message)
    }

    fn poll(&mut self, message: &Message, is_expected: bool) -> Result<bool> {
        self.now += POLL;
        if !is_expected {
            return Ok(false);
        }
        let packet = self.take(Some(ACTIVE))?;
        if packet.arrival > self.now {
            self.early.push_front(packet);
            return Ok(false);
        }
        self.accept(&packet, Counts::default());
        packet.is(message).map(|()| true)
    }
}

impl Packet {
    fn is(&self, message: &Message) -> Result<()> {
        let is_expected = self.bytes.len() == message.bytes;
        anyhow::ensure!(is_expected, "a message of another length");
        Ok(())
    }
}

impl Preset {
    /// The price of work beyond the usual, which the overheads contain.
    fn beyond(&self, work: &Counts, usual: &Counts) -> Nanos {
        self.prices.of(work).saturating_sub(self.prices.of(usual))
    }

    /// Work of the host for the shortest message, in one piece.
    fn usual_of_host(&self) -> Counts {
        Counts {
            traps: u64::from(self.mechanisms.doorbell == Doorbell::Trap),
            copied: match self.mechanisms.data {
                Data::HostCopy => SHORTEST as u64,
                Data::Peer => 0,
            },
            ..Counts::default()
        }
    }

    /// Work of the card for a message in one piece, on the only endpoint.
    fn usual_of_card(&self) -> Counts {
        Counts {
            scanned: u64::from(self.mechanisms.doorbell == Doorbell::Scan),
            segments: 1,
            ..Counts::default()
        }
    }
}
