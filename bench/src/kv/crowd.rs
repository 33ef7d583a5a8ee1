//! Many connections at once, with several requests under way on each, or several keys in one
//! request.

use std::time::{Duration, Instant};

use super::plan::Load;
use crate::pattern::{self, Random};
use crate::stats::Slice;
use crate::store::{KeySet, Pipelined, StoreOp};

/// One round in so many is verified, and not timed.
const VERIFIED: u64 = 16;

/// Measures `op` on uniform random keys of `set`, all of which must be stored. Each connection sends
/// what a round has for it, and only then their answers are read, so all are under way at once. A sample is
/// the time from a connection's requests to its last answer, divided by its operations.
///
/// # Errors
/// Those of any connection.
pub fn measure<C: Pipelined>(
    connections: &mut [C],
    load: Load,
    op: StoreOp,
    set: KeySet,
    salt: u64,
    time: Duration,
) -> Result<Slice, C::Error> {
    let operations = load.operations();
    let mut slice = Slice {
        batch: operations,
        ..Slice::default()
    };
    let mut round = Round {
        load,
        op,
        set,
        salt,
        random: Random::new(salt),
        turns: vec![Turn::default(); connections.len()],
    };
    let end = Instant::now() + time;
    for number in 0.. {
        if slice.ops > 0 && Instant::now() >= end {
            break;
        }
        round.prepare(operations as usize);
        let verified = number % VERIFIED == 0;
        let start = Instant::now();
        let (wrong, times) = round.run(connections, verified)?;
        slice.errors += wrong;
        if verified {
            continue;
        }
        slice.elapsed_ns += start.elapsed().as_nanos() as u64;
        let each = |time: Duration| time.as_nanos() as f64 / f64::from(operations);
        slice.ops += times.len() as u64 * u64::from(operations);
        slice.samples_ns.extend(times.into_iter().map(each));
    }
    slice.bytes = slice.ops * set.bytes as u64;
    Ok(slice)
}

struct Round {
    load: Load,
    op: StoreOp,
    set: KeySet,
    salt: u64,
    random: Random,
    turns: Vec<Turn>,
}

/// What one connection does in a round.
#[derive(Clone, Default)]
struct Turn {
    indexes: Vec<u64>,
    names: Vec<Vec<u8>>,
    values: Vec<Vec<u8>>,
}

impl Round {
    fn prepare(&mut self, operations: usize) {
        let (set, random) = (self.set, &mut self.random);
        for turn in &mut self.turns {
            turn.indexes.clear();
            turn.indexes
                .extend((0..operations).map(|_| random.below(set.keys)));
            turn.names.resize(operations, Vec::new());
            for (name, index) in turn.names.iter_mut().zip(&turn.indexes) {
                set.name(*index, name);
            }
            if self.op == StoreOp::Set {
                turn.values.resize(operations, vec![0; set.bytes]);
                for (value, index) in turn.values.iter_mut().zip(&turn.indexes) {
                    pattern::fill_value(*index, self.salt, value);
                }
            }
        }
    }

    /// Returns how many values were missing, wrong or refused, and how long each connection took.
    fn run<C: Pipelined>(
        &self,
        connections: &mut [C],
        verified: bool,
    ) -> Result<(u64, Vec<Duration>), C::Error> {
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
