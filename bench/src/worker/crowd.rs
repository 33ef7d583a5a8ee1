//! Many connections at once, with several requests in flight on each, or several keys in a request.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::samples::Samples;
use crate::worker::pattern;
use crate::worker::store::{Batch, KeySet, Pipelined, StoreOp};

/// Load of requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Load {
    /// Number of connections.
    pub clients: u32,
    /// Requests in flight on each connection.
    pub pipeline: u32,
    /// Keys in a request.
    pub keys: u32,
}

impl Load {
    /// One client that waits for each answer.
    pub const ONE: Load = Load {
        clients: 1,
        pipeline: 1,
        keys: 1,
    };

    /// Operations in flight on a connection.
    fn operations(self) -> u32 {
        self.pipeline * self.keys
    }

    /// Name in tables.
    pub fn name(self) -> String {
        format!("{}x{}x{}", self.clients, self.pipeline, self.keys)
    }
}

/// Every `VERIFIED`th round is verified instead of timed.
const VERIFIED: u64 = 16;

/// Measures `op` on uniform random keys of `set`, all of which must be stored. In a round all
/// connections send their requests before the first answer is read. A sample is the time from a
/// connection's requests to the last answer, divided by the number of operations.
pub fn measure<C: Pipelined>(
    connections: &mut [C],
    load: Load,
    op: StoreOp,
    set: KeySet,
    salt: u64,
    time: Duration,
) -> Result<Samples> {
    let operations = load.operations();
    let mut samples = Samples {
        batch: operations,
        ..Samples::default()
    };
    let mut round = Round {
        load,
        op,
        set,
        salt,
        random: fastrand::Rng::with_seed(salt),
        turns: vec![Batch::default(); connections.len()],
    };
    let end = Instant::now() + time;
    for number in 0.. {
        if samples.ops > 0 && Instant::now() >= end {
            break;
        }
        round.prepare(operations as usize);
        let verified = number % VERIFIED == 0;
        let start = Instant::now();
        let (wrong, times) = round.run(connections, verified)?;
        samples.errors += wrong;
        if verified {
            continue;
        }
        samples.elapsed_ns += start.elapsed().as_nanos() as u64;
        let each = |time: Duration| time.as_nanos() as f64 / f64::from(operations);
        samples.ops += times.len() as u64 * u64::from(operations);
        samples.samples_ns.extend(times.into_iter().map(each));
    }
    samples.bytes = samples.ops * set.bytes as u64;
    Ok(samples)
}

struct Round {
    load: Load,
    op: StoreOp,
    set: KeySet,
    salt: u64,
    random: fastrand::Rng,
    /// Requests of each connection.
    turns: Vec<Batch>,
}

impl Round {
    fn prepare(&mut self, operations: usize) {
        let version = (self.op == StoreOp::Set).then_some(self.salt);
        for turn in &mut self.turns {
            turn.prepare(operations, self.set, version, &mut self.random);
        }
    }

    /// Runs a round. Returns the number of missing, wrong or refused values, and the time of each
    /// connection.
    fn run<C: Pipelined>(
        &self,
        connections: &mut [C],
        verified: bool,
    ) -> Result<(u64, Vec<Duration>)> {
        let keys = self.load.keys as usize;
        let mut starts = Vec::with_capacity(connections.len());
        for (connection, turn) in connections.iter_mut().zip(&self.turns) {
            starts.push(Instant::now());
            match self.op {
                StoreOp::Get => connection.send_gets(&turn.names, keys)?,
                StoreOp::Set => connection.send_sets(&turn.names, &turn.values)?,
            }
        }
        let (mut wrong, mut times) = (0, Vec::with_capacity(connections.len()));
        for ((connection, turn), start) in connections.iter_mut().zip(&self.turns).zip(starts) {
            match self.op {
                StoreOp::Get => {
                    let found = connection.receive_gets(&turn.names, keys, &mut |at, value| {
                        let right = !verified || pattern::is_value(turn.indexes[at], None, value);
                        wrong += u64::from(!right);
                    })?;
                    wrong += (turn.names.len() - found) as u64;
                }
                StoreOp::Set => wrong += connection.receive_sets(turn.names.len())?,
            }
            times.push(start.elapsed());
        }
        Ok((wrong, times))
    }
}
