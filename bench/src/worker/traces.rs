//! Traces for hit rates: sequences of keys, more than fit the memory.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::store::Pipelined;
use crate::samples::Samples;
use crate::worker::pattern::{self, mix};

/// Bytes of a value.
pub const VALUE: usize = 1000;

/// About the number of items of [`VALUE`] bytes that memcached keeps in 64 MiB.
pub const ROOM: u64 = 57_000;

/// Keys in one request.
const TOGETHER: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Trace {
    /// Ten times the room, Zipf distribution of exponent 0.99.
    Zipf99,
    /// The same with exponent 0.7.
    Zipf70,
    /// Half of the gets have keys that occur once.
    Scan,
    /// A window of nine tenths of the room that moves by a key every eight gets.
    SlidingFits,
    /// A window of twice the room that moves by a key every four gets.
    Sliding,
    /// Seven tenths of the room, new keys after twice as many gets as the room.
    PhasesFit,
    /// Twice the room, Zipf of exponent 0.7, new keys after six times as many gets as the room.
    Phases,
    /// The room's keys three times, then 10,000 other keys in turn.
    Dead,
    /// A loop over 1.2 times the room.
    Loop,
}

impl Trace {
    pub const ALL: [Trace; 9] = [
        Trace::Zipf99,
        Trace::Zipf70,
        Trace::Scan,
        Trace::SlidingFits,
        Trace::Sliding,
        Trace::PhasesFit,
        Trace::Phases,
        Trace::Dead,
        Trace::Loop,
    ];

    /// Number of keys and exponent of the trace's Zipf distribution.
    fn zipf(self) -> Option<(u64, f64)> {
        match self {
            Trace::Zipf99 => Some((10 * ROOM, 0.99)),
            Trace::Zipf70 => Some((10 * ROOM, 0.7)),
            Trace::Scan => Some((ROOM, 0.99)),
            Trace::Phases => Some((2 * ROOM, 0.7)),
            _ => None,
        }
    }
}

/// The keys of a trace, each a function of the get's number.
#[derive(Debug)]
pub struct Keys {
    trace: Trace,
    /// Cumulative weights of the trace's Zipf distribution.
    sums: Vec<f64>,
}

impl Keys {
    pub fn new(trace: Trace) -> Self {
        let (keys, exponent) = trace.zipf().unwrap_or((0, 0.0));
        let mut sum = 0.0;
        let sums = (1..=keys).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        Keys {
            trace,
            sums: sums.collect(),
        }
    }

    /// The key of get number `get`.
    pub fn of(&self, get: u64) -> u64 {
        let random = |of: u64| mix(get ^ mix(of));
        let below = |limit: u64| ((u128::from(random(1)) * u128::from(limit)) >> 64) as u64;
        const OTHERS: u64 = 1 << 40;
        match self.trace {
            Trace::Zipf99 | Trace::Zipf70 => self.rank(random(1)),
            Trace::Scan if random(2).is_multiple_of(2) => OTHERS + get,
            Trace::Scan => self.rank(random(1)),
            Trace::SlidingFits => get / 8 + below(ROOM * 9 / 10),
            Trace::Sliding => get / 4 + below(2 * ROOM),
            Trace::PhasesFit => get / (2 * ROOM) * OTHERS + below(ROOM * 7 / 10),
            Trace::Phases => get / (6 * ROOM) * OTHERS + self.rank(random(1)),
            Trace::Dead if get < 3 * ROOM => get % ROOM,
            Trace::Dead => OTHERS + (get - 3 * ROOM) % 10_000,
            Trace::Loop => get % (ROOM * 12 / 10),
        }
    }

    fn rank(&self, random: u64) -> u64 {
        let all = self.sums.last().copied().unwrap_or_default();
        let at = random as f64 / 2f64.powi(64) * all;
        self.sums.partition_point(|sum| *sum < at) as u64
    }
}

/// Carries out the gets of a trace in a range of numbers, and sets each missing key. The figure
/// `hits` counts gets that found a value; wrong values are errors.
pub fn run(
    client: &mut impl Pipelined,
    keys: &Keys,
    gets: std::ops::Range<u64>,
) -> Result<Samples> {
    let (mut done, mut hits) = (Samples::default(), 0.0);
    let numbers: Vec<u64> = gets.collect();
    for numbers in numbers.chunks(TOGETHER) {
        let mut asked: Vec<u64> = numbers.iter().map(|get| keys.of(*get)).collect();
        // A key twice in a request would count as two misses.
        let all = asked.len();
        asked.sort_unstable();
        asked.dedup();
        let names: Vec<Vec<u8>> = asked.iter().map(|key| name(*key)).collect();
        let mut found = vec![false; asked.len()];
        let mut wrong = 0;
        client.send_gets(&names, TOGETHER)?;
        client.receive_gets(&names, TOGETHER, &mut |at, value| {
            found[at] = true;
            wrong += u64::from(!pattern::is_value(asked[at], None, value));
        })?;
        let missed = (0..asked.len()).filter(|at| !found[*at]);
        let missed: Vec<usize> = missed.collect();
        done.ops += all as u64;
        done.errors += wrong;
        hits += (all - missed.len()) as f64;
        let names: Vec<Vec<u8>> = missed.iter().map(|at| names[*at].clone()).collect();
        let values = missed.iter().map(|at| {
            let mut value = vec![0; VALUE];
            pattern::fill_value(asked[*at], 0, &mut value);
            value
        });
        client.send_sets(&names, &values.collect::<Vec<_>>())?;
        // A refused value is a later miss.
        client.receive_sets(names.len())?;
    }
    Ok(done.with("hits", hits))
}

fn name(key: u64) -> Vec<u8> {
    format!("trace{key:016x}").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_follow_their_trace() {
        let keys = |trace, gets: std::ops::Range<u64>| -> Vec<u64> {
            let keys = Keys::new(trace);
            gets.map(|get| keys.of(get)).collect()
        };
        let first = keys(Trace::Zipf99, 0..10_000);
        let zeros = first.iter().filter(|key| **key == 0).count();
        // 10,000 over the sum of all weights, 13.9.
        assert!((600..850).contains(&zeros), "{zeros}");
        let window = keys(Trace::Sliding, 8_000..9_000);
        assert!(
            window
                .iter()
                .all(|key| (2_000..2_250 + 2 * ROOM).contains(key))
        );
        let dead = keys(Trace::Dead, 3 * ROOM..3 * ROOM + 20_000);
        assert_eq!(dead[..10_000], dead[10_000..]);
        let before = keys(Trace::PhasesFit, 0..1000);
        let after = keys(Trace::PhasesFit, 2 * ROOM..2 * ROOM + 1000);
        assert!(before.iter().all(|key| !after.contains(key)));
    }
}
