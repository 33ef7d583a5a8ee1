//! The time of a choice of routes through a torus, in this process.

use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use toroid_fabric::model::{ClockId, Clocks, Costs, Nanos, Passage, Path, SharedClocks, TICKS};
use toroid_fabric::routes::policy::{Fixed, Policy, SelectRouting};
use toroid_fabric::routes::{LinkId, Mode, Operation, Topology, TorusNetwork};
use toroid_fabric::routing::{Leg, RouteRecords, Router, Stages, Trip};
use toroid_fabric::{NodeId, Torus};

use crate::stats::median;

/// Time of all messages. Links are reserved up to `BACKLOG` from then on.
const NOW: Nanos = 1_000_000_000;
const BACKLOG: Nanos = 20_000;

/// Bytes of a message, on which `auto` decides.
const BYTES: u64 = 8192;

/// Peers of the sender.
const PEERS: u32 = 8;

/// Messages of a batch, and of the first one, in which routers meet most of their candidates.
const BATCH: usize = 1_000;
const FIRST: usize = 50_000;

/// A sender in a loaded torus.
pub struct Decisions {
    mode: Option<Mode>,
    routers: Vec<Arc<Router>>,
    clocks: SharedClocks,
    records: Arc<RouteRecords>,
    /// The way to the first peer.
    first: Leg,
}

impl Decisions {
    /// A sender in a torus of `side` nodes in each dimension, with a mode or with `auto`.
    pub fn new(side: u16, mode: Option<Mode>) -> Result<Self> {
        let torus = Torus::new(side, side, side)?;
        let network = TorusNetwork::from(torus);
        let records = Arc::new(RouteRecords::map(&SharedClocks::create()?)?);
        let clocks = SharedClocks::map(&SharedClocks::create()?)?;
        let mut random = fastrand::Rng::with_seed(1);
        for link in (0..network.links()).map(LinkId) {
            let clock = ClockId::hop(TorusNetwork::hop(link));
            clocks.reserve(clock, NOW * TICKS, random.u64(..BACKLOG) * TICKS, u64::MAX);
        }
        let stages = Stages {
            before: Vec::new(),
            link: Costs {
                rate: 425_000_000,
                latency: 70,
                ..Costs::default()
            },
            after: Vec::new(),
            base: 0,
        };
        let peers: Vec<Leg> = (0..PEERS)
            .map(|_| leg(NodeId(random.u32(1..network.nodes()))))
            .collect();
        let first = peers[0];
        let router = |leg| {
            let policy: Box<dyn Policy> = match mode {
                Some(mode) => Box::new(Fixed::new(mode)),
                None => Box::new(SelectRouting::default()),
            };
            let router = Router::new(torus, leg, stages.clone(), policy, Arc::clone(&records));
            Arc::new(router)
        };
        let decisions = Decisions {
            mode,
            routers: peers.into_iter().map(router).collect(),
            clocks,
            records,
            first,
        };
        decisions.batch(FIRST);
        Ok(decisions)
    }

    /// Nanoseconds of a decision: the median of batches.
    pub fn decision(&self, time: Duration) -> f64 {
        median_of(time, || self.batch(BATCH))
    }

    /// Nanoseconds of a look at the counters of a peer in one mode.
    pub fn counters(&self, time: Duration) -> f64 {
        median_of(time, || {
            let start = Instant::now();
            for _ in 0..BATCH {
                black_box(self.records.counters(black_box(self.first), self.counted()));
            }
            start.elapsed().as_nanos() as f64 / BATCH as f64
        })
    }

    /// A mode that counts.
    fn counted(&self) -> Mode {
        self.mode.unwrap_or(Mode::Adaptive0)
    }

    /// Chooses routes of messages to all peers in turns. Their passage does not count.
    fn batch(&self, messages: usize) -> f64 {
        let mut trips: Vec<Trip> = Vec::with_capacity(messages);
        let start = Instant::now();
        let routers = self.routers.iter().cycle().take(messages);
        trips.extend(routers.map(|router| router.send(&self.clocks, NOW, BYTES, Operation::Put)));
        let elapsed = start.elapsed().as_nanos() as f64;
        let passage = Passage::new(NOW, BYTES);
        trips.iter().for_each(|trip| trip.passed(&passage));
        let decisions = match self.mode {
            Some(Mode::Adaptive1) => trips.iter().map(|trip| trip.links().len()).sum(),
            _ => messages,
        };
        elapsed / decisions as f64
    }
}

fn leg(to: NodeId) -> Leg {
    Leg {
        from: NodeId(0),
        to,
        path: Path::Rdma,
    }
}

fn median_of(time: Duration, mut batch: impl FnMut() -> f64) -> f64 {
    let (mut batches, start) = (Vec::new(), Instant::now());
    while batches.is_empty() || start.elapsed() < time {
        batches.push(batch());
    }
    median(&batches).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_measured() {
        for mode in [Some(Mode::Adaptive0), Some(Mode::Adaptive1), None] {
            let decisions = Decisions::new(4, mode).unwrap();
            let found = [
                decisions.decision(Duration::ZERO),
                decisions.counters(Duration::ZERO),
            ];
            assert!(found.iter().all(|ns| *ns > 0.0), "{found:?}");
            // Counters without a message would be looked for in vain, in less time.
            let counted = decisions.counted();
            let counted = decisions.records.counters(decisions.first, counted);
            assert!(counted.packets > 0, "{counted:?}");
        }
    }
}
