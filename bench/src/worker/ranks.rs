//! A live rank of a parallel program: the message layer over a connection with each other rank.

use std::collections::HashMap;
use std::net::SocketAddrV4;

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use toroid_client::member::Domain;
use toroid_fabric::os::thread::monotonic;

use super::micro::connections::Connections;
use super::micro::message_layer::{EAGER, MessageLayer};
use super::micro::script::Wait;
use super::micro::wire::Wire;
use super::micro::{Carrier, Listening, Transport};
use super::processor::{self, Bound};
use crate::worker::programs::rank::{Meter, Nanos, Rank, Usage};
use crate::worker::programs::task::Task;

/// Another rank.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Peer {
    /// The node.
    pub place: String,
    /// The address of its sockets.
    pub at: SocketAddrV4,
}

/// All ranks in their order, and how they wait.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Join {
    pub peers: Vec<Peer>,
    pub wait: Wait,
}

/// A rank that others can connect to.
pub struct Newcomer {
    transport: Transport,
    listening: Listening,
    rank: usize,
}

impl Newcomer {
    /// Begins to listen. Returns the port, too, 0 for [`Carrier::Fabric`].
    pub fn listen(carrier: Carrier, domain: &Domain, rank: usize) -> Result<(Self, u16)> {
        let transport = Transport::open(carrier, domain)?;
        let (listening, port) = transport.listen()?;
        let newcomer = Newcomer {
            transport,
            listening,
            rank,
        };
        Ok((newcomer, port))
    }

    /// Connects to all ranks below, and accepts those above.
    pub fn join(self, join: Join) -> Result<LiveRank> {
        let Join { peers, wait } = join;
        let mut wires: Vec<Option<Wire>> = Vec::new();
        for peer in &peers[..self.rank] {
            let mut wire = self.transport.connect(peer.place.parse()?, peer.at)?;
            wire.send(&[&[self.rank as u8]])?;
            wires.push(Some(wire));
        }
        wires.resize_with(peers.len(), || None);
        let mut greeting = Vec::new();
        for _ in self.rank + 1..peers.len() {
            let mut wire = self.listening.accept()?;
            wire.receive(&mut greeting, Wait::Block)?;
            let rank = greeting.first().map(|rank| usize::from(*rank));
            let rank = rank.filter(|rank| *rank > self.rank);
            let place = rank.and_then(|rank| wires.get_mut(rank));
            let place = place.filter(|place| place.is_none());
            *place.context("a rank gave a wrong number")? = Some(wire);
        }
        // A rank that polls alone on its processor is not moved.
        let bound = match wait {
            Wait::Poll => Some(Bound::new(None, processor::nth(self.rank)?)?),
            _ => None,
        };
        Ok(LiveRank {
            rank: self.rank,
            ranks: peers.len(),
            connections: Connections::fixed(wires.into_iter().flatten().collect()),
            layer: MessageLayer::new(EAGER, wait),
            serial: HashMap::new(),
            _bound: bound,
        })
    }
}

/// A rank that is connected with all others.
pub struct LiveRank {
    rank: usize,
    ranks: usize,
    /// Those with all other ranks, in their order.
    connections: Connections,
    layer: MessageLayer,
    /// This rank's part of the result of each serial run, which is made once.
    serial: HashMap<Task, Vec<u8>>,
    /// Its only processor, if it polls.
    _bound: Option<Bound>,
}

impl LiveRank {
    /// Runs a program together with the other ranks.
    pub fn run(&mut self, task: &Task) -> Result<Usage> {
        let mut serial = self.serial.remove(task);
        let usage = task.run(&mut Meter::new(self), &mut serial)?;
        self.serial.extend(serial.map(|part| (*task, part)));
        Ok(usage)
    }

    /// The number of the connection with another rank.
    fn peer(&self, rank: usize) -> Result<usize> {
        ensure!(rank != self.rank, "a message from rank {rank} to itself");
        Ok(rank - usize::from(rank > self.rank))
    }
}

impl Rank for LiveRank {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    /// The kernel's clock, which is the same in all nodes of a host.
    fn now(&self) -> Nanos {
        monotonic()
    }

    fn send(&mut self, to: usize, message: &[u8]) -> Result<()> {
        let whole = std::iter::once(0..message.len());
        let to = self.peer(to)?;
        self.layer.send(&mut self.connections, to, message, whole)
    }

    fn receive(&mut self, from: Option<usize>, bytes: usize, into: &mut Vec<u8>) -> Result<usize> {
        let whole = std::iter::once(0..bytes);
        let from = from.map(|rank| self.peer(rank)).transpose()?;
        let connections = &mut self.connections;
        let peer = self.layer.receive(connections, from, into, whole)?;
        Ok(peer + usize::from(peer >= self.rank))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Effort;
    use crate::worker::programs::task::Name;

    #[test]
    fn a_serial_run_is_kept_for_the_rounds_of_its_program_alone() {
        let mut rank = LiveRank {
            rank: 0,
            ranks: 1,
            connections: Connections::fixed(Vec::new()),
            layer: MessageLayer::new(EAGER, Wait::Block),
            serial: HashMap::new(),
            _bound: None,
        };
        let [task, other] = [Name::Halo3d, Name::Lu].map(|name| Task::new(name, Effort::Quick));
        rank.run(&task).unwrap();
        rank.serial.get_mut(&task).unwrap()[0] ^= 1;
        rank.run(&other).unwrap();
        let error = rank.run(&task).unwrap_err().to_string();
        assert_eq!(error, "1 values differ from the serial run's");
    }
}
