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
    let (operations, keys) = (load.operations(), load.keys as usize);
    let mut samples = Samples {
        batch: operations,
        ..Samples::default()
    };
    let mut random = fastrand::Rng::with_seed(salt);
    let version = (op == StoreOp::Set).then_some(salt);
    let mut turns = vec![Batch::default(); connections.len()];
    let end = Instant::now() + time;
    for number in 0.. {
        if samples.ops > 0 && Instant::now() >= end {
            break;
        }
        for turn in &mut turns {
            turn.prepare(operations as usize, set, version, &mut random);
        }
        let verified = number % VERIFIED == 0;
        let start = Instant::now();
        let (wrong, times) = round(connections, &turns, op, keys, verified)?;
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

/// Runs a round with the requests of each connection. Returns the number of missing, wrong or
/// refused values, and the time of each connection.
fn round<C: Pipelined>(
    connections: &mut [C],
    turns: &[Batch],
    op: StoreOp,
    keys: usize,
    verified: bool,
) -> Result<(u64, Vec<Duration>)> {
    let mut starts = Vec::with_capacity(connections.len());
    for (connection, turn) in connections.iter_mut().zip(turns) {
        starts.push(Instant::now());
        match op {
            StoreOp::Get => connection.send_gets(&turn.names, keys)?,
            StoreOp::Set => connection.send_sets(&turn.names, &turn.values)?,
        }
    }
    let (mut wrong, mut times) = (0, Vec::with_capacity(connections.len()));
    for ((connection, turn), start) in connections.iter_mut().zip(turns).zip(starts) {
        match op {
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
