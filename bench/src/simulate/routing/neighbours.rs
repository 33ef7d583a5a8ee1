//! Noisy neighbours: another domain with random traffic on the links of the measured one.

use toroid_fabric::NodeId;
use toroid_fabric::routes::Mode;

use crate::sim::{Happening, Message, Network, TICKS, Ticks};
use crate::simulate::ranks::{Beside, FIRST_TOKEN_BESIDE};

/// The domain of the neighbours.
pub const DOMAIN: u16 = 1;

/// Traffic of each neighbour: bursts of messages, one at a time, with pauses. Each burst has a random
/// neighbour as its destination.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    pub bytes: u64,
    /// Messages of a burst.
    pub burst: u32,
    /// Mean of the pauses between bursts.
    pub pause: Ticks,
}

impl Traffic {
    /// Bursts of 8 messages of 16 KiB. A neighbour sends for a fraction of the time that depends on
    /// the pause.
    pub fn with_pause_ns(pause_ns: u64) -> Self {
        Traffic {
            bytes: 16 << 10,
            burst: 8,
            pause: pause_ns * TICKS,
        }
    }
}

/// The burst of a neighbour.
#[derive(Clone, Copy, Debug)]
struct Burst {
    to: NodeId,
    /// Messages that are left.
    left: u32,
}

/// All neighbours of a job.
pub struct Neighbours {
    nodes: Vec<NodeId>,
    traffic: Traffic,
    bursts: Vec<Burst>,
    random: fastrand::Rng,
    delivered: u64,
}

impl Neighbours {
    /// Neighbours that begin at random times from now on.
    pub fn start(network: &mut dyn Network, nodes: &[NodeId], traffic: Traffic, seed: u64) -> Self {
        let mut neighbours = Neighbours {
            nodes: nodes.to_vec(),
            traffic,
            bursts: nodes.iter().map(|to| Burst { to: *to, left: 0 }).collect(),
            random: fastrand::Rng::with_seed(seed),
            delivered: 0,
        };
        if nodes.len() > 1 {
            (0..nodes.len()).for_each(|at| neighbours.rest(network, at));
        }
        neighbours
    }

    /// Messages that arrived.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Lets the neighbours run alone for a time.
    pub fn run(&mut self, network: &mut dyn Network, length: Ticks) {
        let end = network.now() + length;
        while network.now() < end {
            let Some(what) = network.next() else { return };
            self.happened(network, what);
        }
    }

    /// Pauses for an exponential time before the next burst.
    fn rest(&mut self, network: &mut dyn Network, at: usize) {
        let other = (at + self.random.usize(1..self.nodes.len())) % self.nodes.len();
        self.bursts[at] = Burst {
            to: self.nodes[other],
            left: self.traffic.burst,
        };
        let pause = -(1.0 - self.random.f64()).ln() * self.traffic.pause as f64;
        network.timer(
            network.now() + pause as Ticks,
            FIRST_TOKEN_BESIDE + at as u64,
        );
    }

    fn send(&mut self, network: &mut dyn Network, at: usize) {
        self.bursts[at].left -= 1;
        let (from, to) = (self.nodes[at], self.bursts[at].to);
        network.send(Message {
            domain: DOMAIN,
            token: FIRST_TOKEN_BESIDE + at as u64,
            ..Message::put(from.0, to.0, self.traffic.bytes, Mode::Adaptive0)
        });
    }
}

impl Beside for Neighbours {
    fn happened(&mut self, network: &mut dyn Network, what: Happening) {
        match what {
            Happening::Timer(token) => self.send(network, (token - FIRST_TOKEN_BESIDE) as usize),
            Happening::Delivered(_) => self.delivered += 1,
            Happening::Completed(token) => {
                let at = (token - FIRST_TOKEN_BESIDE) as usize;
                match self.bursts[at].left {
                    0 => self.rest(network, at),
                    _ => self.send(network, at),
                }
            }
        }
    }
}
