//! A network of tests: a message takes a microsecond and a nanosecond a byte, whatever else flies.

use std::collections::BTreeMap;

use anyhow::Result;
use toroid_fabric::NodeId;
use toroid_fabric::routes::policy::{Fixed, Policy, Recorded};
use toroid_fabric::routes::{Counters, LinkId, Mode};

use super::{Costs, Job, SimulatedRank, Stop};
use crate::sim::{Busiest, Happening, Message, Network, Routed, TICKS, Ticks};

const OVERHEAD: Ticks = 500 * TICKS;
const LATENCY: Ticks = 1000 * TICKS;

/// Runs a program. Every send waits for its receive, so that a program that depends on buffers is
/// found; an operation takes a nanosecond. Returns the result of each rank.
pub fn run<T: 'static>(
    ranks: usize,
    program: impl Fn(&mut SimulatedRank<'_>) -> Result<T> + 'static,
) -> Vec<Result<T>> {
    try_run(ranks, program).unwrap_or_else(|stop| panic!("{stop}"))
}

/// As [`run`], for programs that stop.
pub fn try_run<T: 'static>(
    ranks: usize,
    program: impl Fn(&mut SimulatedRank<'_>) -> Result<T> + 'static,
) -> Result<Vec<Result<T>>, Stop> {
    let costs = Costs {
        send: OVERHEAD,
        receive: OVERHEAD,
        operation: TICKS as f64,
        eager: 0,
        ..Costs::default()
    };
    let job = Job {
        network: &mut Uniform::default(),
        nodes: &(0..ranks as u32).map(NodeId).collect::<Vec<_>>(),
        domain: 0,
        costs,
        policies: &mut policies(ranks),
        beside: None,
    };
    super::run(job, program)
}

/// The usual modes for each rank.
pub fn policies(ranks: usize) -> Vec<Recorded<Box<dyn Policy>>> {
    let policy = |_| -> Recorded<Box<dyn Policy>> { Recorded::new(Box::new(Fixed::DEFAULT)) };
    (0..ranks).map(policy).collect()
}

#[derive(Default)]
pub struct Uniform {
    now: Ticks,
    /// Times, numbers for their order, and what happens.
    pending: BTreeMap<(Ticks, u64), Happening>,
    count: u64,
    /// Packets so far.
    pub sent: Vec<Message>,
}

impl Network for Uniform {
    fn now(&self) -> Ticks {
        self.now
    }

    fn send(&mut self, message: Message) {
        self.sent.push(message);
        self.count += 1;
        let at = self.now + LATENCY + message.bytes * TICKS;
        let what = Happening::Delivered(message.token);
        self.pending.insert((at, self.count), what);
        self.count += 1;
        let what = Happening::Completed(message.token);
        self.pending.insert((at, self.count), what);
    }

    fn timer(&mut self, at: Ticks, token: u64) {
        self.count += 1;
        let what = Happening::Timer(token);
        self.pending.insert((at.max(self.now), self.count), what);
    }

    fn next(&mut self) -> Option<Happening> {
        let ((at, _), what) = self.pending.pop_first()?;
        self.now = at;
        Some(what)
    }

    fn counters(&self, _: NodeId, _: u16, _: Mode) -> Counters {
        Counters::default()
    }

    fn link_bytes(&self, _: LinkId) -> u64 {
        0
    }

    fn busiest(&self) -> Option<Busiest> {
        None
    }

    fn routed(&self) -> Routed {
        Routed::default()
    }

    fn events(&self) -> u64 {
        self.count
    }
}
