//! The packets of all ranks on the network: their modes and their order.

use std::collections::{HashMap, VecDeque};

use toroid_fabric::NodeId;
use toroid_fabric::routes::policy::{Outgoing, Policy};
use toroid_fabric::routes::{Counters, Mode, Operation};

use super::Job;
use super::rank::{Packet, Received};
use crate::sim::{Message, Ticks};

/// Packets in flight, and the counters of each sender.
pub struct Posts {
    /// Packets by their tokens, with the receiver.
    flying: HashMap<u64, Flight>,
    /// Tokens by sender and receiver, in the order of the sends: packets of several paths overtake
    /// each other, and the message layer takes them in order.
    lanes: HashMap<[usize; 2], VecDeque<u64>>,
    next_token: u64,
    /// Packets whose sender lacks a response.
    incomplete: usize,
    /// The last reading of each rank's counters, by mode.
    read: Vec<[Counters; Mode::ALL.len()]>,
}

struct Flight {
    ends: [usize; 2],
    bytes: Vec<u8>,
    has_arrived: bool,
}

impl Posts {
    /// No packets. Counters of earlier runs do not count.
    pub fn new(job: &Job<'_>) -> Self {
        let read =
            |node: &NodeId| Mode::ALL.map(|mode| job.network.counters(*node, job.domain, mode));
        Posts {
            flying: HashMap::new(),
            lanes: HashMap::new(),
            next_token: 0,
            incomplete: 0,
            read: job.nodes.iter().map(read).collect(),
        }
    }

    /// Packets that have not arrived, or whose sender lacks a response.
    pub fn in_flight(&self) -> usize {
        self.flying.len().max(self.incomplete)
    }

    /// Notes that the sender of a packet has all responses.
    pub fn completed(&mut self) {
        self.incomplete -= 1;
    }

    /// Hands a packet to the network interface of its sender.
    pub fn post(&mut self, job: &mut Job<'_>, from: usize, packet: Packet) {
        let [sender, receiver] = [from, packet.to].map(|rank| job.nodes[rank]);
        let outgoing = Outgoing {
            to: receiver,
            bytes: packet.bytes.len() as u64,
            operation: Operation::Put,
            is_alltoall: packet.is_alltoall,
        };
        if job.policies[from].decides(&outgoing) {
            self.learn(job, from);
        }
        let mode = job.policies[from].choose(&outgoing);
        let token = self.next_token;
        self.next_token += 1;
        self.incomplete += 1;
        job.network.send(Message {
            from: sender,
            to: receiver,
            bytes: outgoing.bytes,
            operation: outgoing.operation,
            mode,
            domain: job.domain,
            token,
        });
        let ends = [from, packet.to];
        self.lanes.entry(ends).or_default().push_back(token);
        let flight = Flight {
            ends,
            bytes: packet.bytes,
            has_arrived: false,
        };
        self.flying.insert(token, flight);
    }

    /// Tells the policy of a rank all that its counters gained.
    pub fn learn(&mut self, job: &mut Job<'_>, rank: usize) {
        for mode in Mode::ALL {
            let now = job.network.counters(job.nodes[rank], job.domain, mode);
            let gained = now.since(&self.read[rank][mode as usize]);
            if gained != Counters::default() {
                job.policies[rank].learn(mode, &gained);
                self.read[rank][mode as usize] = now;
            }
        }
    }

    /// Takes a packet off the network. Returns its receiver with the packets that it can receive now:
    /// none as long as an earlier one of the same sender is in flight, otherwise the later ones that
    /// waited for this one, too.
    pub fn arrived(&mut self, token: u64, at: Ticks) -> Option<(usize, Vec<Received>)> {
        let flight = self.flying.get_mut(&token)?;
        flight.has_arrived = true;
        let ends = flight.ends;
        let lane = self.lanes.get_mut(&ends)?;
        let mut received = Vec::new();
        while lane
            .front()
            .is_some_and(|first| self.flying[first].has_arrived)
        {
            let bytes = self.flying.remove(&lane.pop_front()?)?.bytes;
            let [from, _] = ends;
            received.push(Received { at, from, bytes });
        }
        let [_, to] = ends;
        Some((to, received))
    }
}
