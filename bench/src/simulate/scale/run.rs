//! The simulation of one torus.

use std::fmt;
use std::time::Instant;

use anyhow::{Result, ensure};
use toroid_fabric::routes::{Mode, TorusNetwork};

use super::Placement;
use super::placement::Nodes;
use crate::sim::chunks::{ChunkNetwork, MAX_CHUNK};
use crate::sim::profile::NicCosts;
use crate::sim::{Happening, Message, Network, Profile, Ticks, nanoseconds};

/// Gets on one torus.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// A power of two.
    pub nodes: u32,
    /// Of an item.
    pub bytes: u64,
    pub placement: Placement,
    /// Of each client, one after another.
    pub gets: u32,
    /// Bytes of a chunk.
    pub chunk: u64,
    pub seed: u64,
}

/// Figures of a case.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Of a client: its bytes by the mean time of all clients, in 10^6 bytes a second.
    pub mb_per_s: f64,
    /// `mb_per_s` by that of one client and one server.
    pub normalised: f64,
    /// Share of the time for which the busiest link was in use.
    pub busiest_link: f64,
    pub events: u64,
    pub elapsed_s: f64,
}

/// Clients in all that a figure is the mean of: smaller tori are simulated several times with places
/// of their own.
const CLIENTS: u32 = 512;

impl Case {
    /// Compares the values with each other.
    ///
    /// # Errors
    /// What is wrong, and the limit.
    pub fn check(&self) -> Result<()> {
        let (nodes, most) = (self.nodes, TorusNetwork::MAX_NODES);
        ensure!(
            nodes > 0,
            "a torus of 0 nodes has none: write --nodes from 2 on"
        );
        ensure!(
            nodes.is_power_of_two() && nodes > 1,
            "{nodes} nodes are no power of two from 2 on, which the tori of Blue Gene/P have"
        );
        ensure!(
            u64::from(nodes) <= most,
            "a torus of {nodes} nodes is too large: at most {most} are possible"
        );
        ensure!(
            (1..=MAX_CHUNK).contains(&self.chunk),
            "a chunk has from 1 to {MAX_CHUNK} bytes, not {}: larger ones hide contention",
            self.chunk
        );
        Ok(())
    }

    /// A measure of the work.
    pub fn weight(&self) -> u64 {
        let hops = match self.placement {
            Placement::Nearest => 1,
            _ => self.shape().iter().sum::<u32>() / 4,
        };
        u64::from(self.nodes) * u64::from(hops + 1) * (1 + self.bytes.div_ceil(self.chunk))
    }

    /// Sizes of the torus: x is at most twice z.
    pub fn shape(&self) -> [u32; 3] {
        let log2 = self.nodes.ilog2();
        [2, 1, 0].map(|more| 1 << ((log2 + more) / 3))
    }

    /// Simulates. `memory` is what the simulation may use, in bytes.
    ///
    /// # Errors
    /// Too little memory.
    pub fn run(&self, memory: u64) -> Result<Measured> {
        let start = Instant::now();
        let alone = Case {
            nodes: 2,
            placement: Placement::Nearest,
            ..*self
        };
        let alone = alone.simulate(0, memory)?.mb_per_s();
        let (mut sum, mut busiest, mut events) = (0.0, 0.0, 0);
        let rounds = (2 * CLIENTS / self.nodes).max(1);
        for round in 0..rounds {
            let round = self.simulate(round.into(), memory)?;
            sum += round.mb_per_s();
            busiest += round.busiest_link;
            events += round.events;
        }
        let mb_per_s = sum / f64::from(rounds);
        Ok(Measured {
            mb_per_s,
            normalised: mb_per_s / alone,
            busiest_link: busiest / f64::from(rounds),
            events,
            elapsed_s: start.elapsed().as_secs_f64(),
        })
    }

    fn simulate(&self, round: u64, memory: u64) -> Result<Round> {
        let seed = self.seed.wrapping_mul(0x9e37_79b9) ^ round;
        let torus = TorusNetwork::new(self.shape())?;
        let nodes = self
            .placement
            .nodes(&torus, &mut fastrand::Rng::with_seed(seed));
        let mut network = ChunkNetwork::new(torus, profile(), self.chunk, self.seed, memory)?;
        let finish_ns = self.mean_finish(&mut network, nodes, seed);
        Ok(Round {
            bytes: self.bytes * u64::from(self.gets),
            finish_ns,
            busiest_link: network.busiest().map_or(0.0, |link| link.busy),
            events: network.events(),
        })
    }

    /// Mean time in nanoseconds in which a client has all its items, at any level of detail.
    pub fn mean_finish(&self, network: &mut impl Network, nodes: Nodes, seed: u64) -> f64 {
        let clients = nodes.clients.len();
        let mut job = Job {
            case: self,
            network,
            left: vec![self.gets; clients],
            nodes,
            seed,
        };
        let finishes = job.run();
        finishes.iter().map(|at| nanoseconds(*at)).sum::<f64>() / clients as f64
    }
}

/// Figures of one simulation.
struct Round {
    /// Of a client.
    bytes: u64,
    /// Mean time of the clients.
    finish_ns: f64,
    busiest_link: f64,
    events: u64,
}

impl Round {
    fn mb_per_s(&self) -> f64 {
        self.bytes as f64 / self.finish_ns * 1e3
    }
}

/// Clients that get.
struct Job<'a, N> {
    case: &'a Case,
    network: &'a mut N,
    nodes: Nodes,
    /// Gets of each client.
    left: Vec<u32>,
    seed: u64,
}

impl<N: Network> Job<'_, N> {
    /// Times at which the clients have all their items, in order of time.
    fn run(&mut self) -> Vec<Ticks> {
        let mut finishes = Vec::with_capacity(self.left.len());
        for client in 0..self.left.len() {
            self.get(client);
        }
        while let Some(happening) = self.network.next() {
            let Happening::Completed(client) = happening else {
                continue;
            };
            let client = client as usize;
            self.left[client] -= 1;
            if self.left[client] > 0 {
                self.get(client);
            } else {
                finishes.push(self.network.now());
            }
        }
        finishes
    }

    fn get(&mut self, client: usize) {
        let (case, get) = (self.case, self.left[client]);
        let server = case.placement.server(&self.nodes, client, get, self.seed);
        let from = self.nodes.clients[client];
        self.network.send(Message {
            token: client as u64,
            ..Message::get(from.0, server.0, case.bytes, Mode::InOrder)
        });
    }
}

/// Blue Gene/P, with costs of RDMA as gets have them.
///
/// * No time per packet, which would limit a get to 266 MB/s: the paper's gets of 64 KiB reach
///   340 MB/s, four fifths of a link.
/// * A get costs a message once, not at both ends: the other card answers by itself. Each end has half
///   of the cost.
pub fn profile() -> Profile {
    let bgp = Profile::bgp();
    let nic = NicCosts {
        packet_ns: 0,
        send_ns: bgp.nic.send_ns / 2,
        ..bgp.nic
    };
    Profile { nic, ..bgp }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case {
            nodes,
            bytes,
            placement,
            ..
        } = self;
        write!(f, "{nodes} nodes, {bytes} B, {placement}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tori_are_as_near_to_cubes_as_powers_of_two_are() {
        let shape = |nodes| {
            let case = Case {
                nodes,
                bytes: 1,
                placement: Placement::Random,
                gets: 1,
                chunk: 1,
                seed: 1,
            };
            case.shape()
        };
        assert_eq!(shape(2), [2, 1, 1]);
        assert_eq!(shape(8), [2, 2, 2]);
        assert_eq!(shape(1024), [16, 8, 8]);
        assert_eq!(shape(65_536), [64, 32, 32]);
        assert_eq!(shape(131_072), [64, 64, 32]);
    }
}
