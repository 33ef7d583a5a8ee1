//! A rank: the message layer over packets that the scheduler carries.

use anyhow::{Result, ensure};
use corosensei::Yielder;

use super::Costs;
use super::deadlock::Wish;
use crate::sim::{TICKS, Ticks};
use crate::worker::micro::message_layer::{Links, MessageLayer, Piece};
use crate::worker::micro::script::Wait;
use crate::worker::programs::rank::{Nanos, Rank};

/// A request of a rank to the scheduler.
pub enum Call {
    /// Sends a packet at a time on the rank's clock.
    Send { at: Ticks, packet: Packet },
    /// Receives the first packet of a rank, or of any.
    Receive { from: Option<usize>, wish: Wish },
}

/// A packet of the message layer on its way to a rank.
pub struct Packet {
    pub to: usize,
    pub bytes: Vec<u8>,
    pub is_alltoall: bool,
}

/// A packet that a rank received.
pub struct Received {
    /// The time of the arrival.
    pub at: Ticks,
    pub from: usize,
    pub bytes: Vec<u8>,
}

/// The result of a [`Call`].
pub enum Answer {
    /// The run begins, or a packet is at the network interface.
    Done,
    Received(Received),
}

/// A rank of a program, on a clock of its own that never waits for the scheduler's.
pub struct SimulatedRank<'a> {
    rank: usize,
    ranks: usize,
    layer: MessageLayer,
    links: SimulatedLinks<'a>,
}

struct SimulatedLinks<'a> {
    scheduler: &'a Yielder<Answer, Call>,
    costs: Costs,
    clock: Ticks,
    /// The operation of the program that waits below.
    wish: Wish,
    is_alltoall: bool,
}

impl<'a> SimulatedRank<'a> {
    pub fn new(
        [rank, ranks]: [usize; 2],
        costs: Costs,
        clock: Ticks,
        scheduler: &'a Yielder<Answer, Call>,
    ) -> Self {
        SimulatedRank {
            rank,
            ranks,
            layer: MessageLayer::new(costs.eager, Wait::Block),
            links: SimulatedLinks {
                scheduler,
                costs,
                clock,
                wish: Wish::Receive(None),
                is_alltoall: false,
            },
        }
    }

    fn peer(&self, rank: usize) -> Result<usize> {
        ensure!(
            rank < self.ranks && rank != self.rank,
            "a message of rank {} with rank {rank} of {}",
            self.rank,
            self.ranks
        );
        Ok(rank)
    }
}

impl SimulatedLinks<'_> {
    fn charge(&mut self, count: usize, ticks: f64) {
        self.clock += (count as f64 * ticks).round() as Ticks;
    }
}

impl Links for SimulatedLinks<'_> {
    fn send(&mut self, peer: usize, header: &[u8], piece: Piece<'_>) -> Result<()> {
        self.clock += self.costs.send;
        let packet = Packet {
            to: peer,
            bytes: [header, piece.bytes].concat(),
            is_alltoall: self.is_alltoall,
        };
        let at = self.clock;
        self.scheduler.suspend(Call::Send { at, packet });
        Ok(())
    }

    fn receive(&mut self, from: Option<usize>, into: &mut Vec<u8>, _: Wait) -> Result<usize> {
        let wish = self.wish;
        let answer = self.scheduler.suspend(Call::Receive { from, wish });
        let Answer::Received(packet) = answer else {
            unreachable!("a receive is answered by a packet");
        };
        self.clock = self.clock.max(packet.at) + self.costs.receive;
        *into = packet.bytes;
        Ok(packet.from)
    }

    fn copied(&mut self, bytes: usize) {
        self.charge(bytes, self.costs.copied_byte);
    }

    fn longest(&self) -> usize {
        self.costs.piece
    }
}

impl Rank for SimulatedRank<'_> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn now(&self) -> Nanos {
        self.links.clock / TICKS
    }

    fn compute(&mut self, operations: usize) {
        self.links.charge(operations, self.links.costs.operation);
    }

    fn alltoall(&mut self, runs: bool) {
        self.links.is_alltoall = runs;
    }

    fn send(&mut self, to: usize, message: &[u8]) -> Result<()> {
        let to = self.peer(to)?;
        self.links.wish = Wish::Send(to);
        let whole = std::iter::once(0..message.len());
        self.layer.send(&mut self.links, to, message, whole)
    }

    fn receive(&mut self, from: Option<usize>, bytes: usize, into: &mut Vec<u8>) -> Result<usize> {
        let from = from.map(|rank| self.peer(rank)).transpose()?;
        self.links.wish = Wish::Receive(from);
        let whole = std::iter::once(0..bytes);
        self.layer.receive(&mut self.links, from, into, whole)
    }
}
