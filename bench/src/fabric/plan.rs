//! The measurements of `fabric` in contests, and their rounds.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::plan::Effort;
use crate::report::name;
use crate::samples::Samples;
use crate::worker::Job;
use crate::worker::messages::{self, LONGEST, Session};
use crate::worker::one_sided::Direction;

/// Bytes of the shortest message.
const SHORTEST: usize = 64;

/// Bytes of messages in a quick run.
const QUICK: [usize; 4] = [SHORTEST, 4096, 64 << 10, 1 << 20];

/// Bytes of one-sided reads and writes.
const OPERATIONS: [usize; 3] = [64, 4096, 1 << 20];

/// Bytes of an atomic operation.
const WORD: usize = 8;

/// One-sided operations in flight.
const DEPTHS: [u32; 2] = [1, 16];

/// The carrier of messages or operations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Provider {
    Shm,
    /// The provider of libfabric, between two processes of one node.
    LibfabricShm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// A message to the peer and one back; each is an operation.
    Pingpong,
    /// Messages in one direction.
    Stream,
    /// One-sided, from the peer's memory.
    Read,
    /// One-sided, to the peer's memory.
    Write,
    /// Addition to a word of the peer's memory, one-sided.
    Atomic,
}

impl Op {
    /// Whether both processes take part.
    pub fn is_two_sided(self) -> bool {
        matches!(self, Op::Pingpong | Op::Stream)
    }
}

/// A measurement: one row of the report, repeated in each round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Measurement {
    pub provider: Provider,
    pub op: Op,
    pub bytes: usize,
    /// The most messages or operations in flight.
    pub depth: u32,
}

impl Measurement {
    fn new(provider: Provider, op: Op, bytes: usize, depth: u32) -> Self {
        Measurement {
            provider,
            op,
            bytes,
            depth,
        }
    }

    /// The job for a worker. `count` is the number of messages of a two-sided measurement.
    pub fn job(&self, count: u32) -> Job {
        let bytes = self.bytes;
        let one_sided = |direction| Job::OneSided(direction, self.depth, bytes);
        let messages = |pingpong| {
            Job::Messages(Session {
                pingpong,
                bytes,
                count,
                bound: false,
            })
        };
        match self.op {
            _ if self.provider == Provider::LibfabricShm => Job::Libfabric(bytes, count),
            Op::Pingpong => messages(true),
            Op::Stream => messages(false),
            Op::Read => one_sided(Direction::Read),
            Op::Write => one_sided(Direction::Write),
            Op::Atomic => one_sided(Direction::Add),
        }
    }
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (op, provider) = (name(self.op), name(self.provider));
        let Measurement { bytes, depth, .. } = self;
        write!(f, "{op} of {bytes} bytes by {provider}, depth {depth}")
    }
}

/// Bytes of messages: every power of two, or some in a quick run.
fn sizes(effort: Effort) -> Vec<usize> {
    let all = (0..).map(|doublings| SHORTEST << doublings);
    match effort {
        Effort::Quick => QUICK.into(),
        Effort::Default | Effort::Full => all.take_while(|&bytes| bytes <= LONGEST).collect(),
    }
}

/// Contests: groups of measurements that are compared.
pub fn contests(effort: Effort) -> Vec<Vec<Measurement>> {
    let both = |op: Op, bytes| {
        let of = |provider| Measurement::new(provider, op, bytes, depth(provider, op, bytes));
        [Provider::Shm, Provider::LibfabricShm].map(of).into()
    };
    let messages = [Op::Pingpong, Op::Stream]
        .map(|op| sizes(effort).into_iter().map(move |bytes| both(op, bytes)));
    messages
        .into_iter()
        .flatten()
        .chain([one_sided()])
        .collect()
}

/// Messages in flight; libfabric's program has one.
fn depth(provider: Provider, op: Op, bytes: usize) -> u32 {
    match (provider, op) {
        (Provider::Shm, Op::Stream) => messages::window(bytes),
        _ => 1,
    }
}

fn one_sided() -> Vec<Measurement> {
    let copies = [Op::Read, Op::Write].map(|op| OPERATIONS.map(|bytes| (op, bytes)));
    let all = copies.into_iter().flatten().chain([(Op::Atomic, WORD)]);
    let of = |(op, bytes)| DEPTHS.map(|depth| Measurement::new(Provider::Shm, op, bytes, depth));
    all.flat_map(of).collect()
}

/// Messages of a round in each direction, equal for both providers: enough to hide the cost of the
/// first messages, with which libfabric's mean begins.
pub fn messages(bytes: usize) -> u32 {
    match bytes {
        0..65_536 => 100_000,
        65_536..1_048_576 => 10_000,
        1_048_576..4_194_304 => 1000,
        _ => 300,
    }
}

/// Divisor of [`messages`] for the trial before a contest.
pub const TRIAL: u32 = 10;

/// Messages in each direction that fit into `time`. Beside other busy processes a message takes up
/// to 60 times as long, because both sides poll.
pub fn messages_in(time: Duration, trial: &Samples) -> u32 {
    let took_ns = trial.elapsed_ns.max(1) as f64 / trial.ops.max(1) as f64;
    let there_and_back = time.as_nanos() as f64 / (2.0 * took_ns);
    (there_and_back as u32).max(LEAST_MESSAGES)
}

const LEAST_MESSAGES: u32 = 100;

/// Number of rounds if time allows.
pub fn rounds(effort: Effort) -> u32 {
    effort.quick_or(7, 21)
}

/// Time of all rounds.
pub fn limit(effort: Effort) -> Duration {
    Duration::from_secs(effort.quick_or(45, 300))
}

/// Time of a round of one-sided operations.
pub const SLICE: Duration = Duration::from_millis(40);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_provider_sends_fewer_messages() {
        let trial = |elapsed_ns| Samples {
            ops: 1000,
            elapsed_ns,
            ..Samples::default()
        };
        let second = Duration::from_secs(1);
        assert_eq!(messages_in(second, &trial(1_000_000)), 500_000);
        assert_eq!(messages_in(second, &trial(20_000_000)), 25_000);
        assert_eq!(messages_in(Duration::ZERO, &trial(1)), LEAST_MESSAGES);
    }

    #[test]
    fn message_sizes_are_all_powers_of_two() {
        let sizes_of = |effort, wanted| -> Vec<usize> {
            let contests = contests(effort).into_iter();
            let of = contests.filter(|contest| contest[0].op == wanted);
            of.map(|contest| contest[0].bytes).collect()
        };
        let all: Vec<usize> = (6..=22).map(|log2| 1 << log2).collect();
        for op in [Op::Pingpong, Op::Stream] {
            assert_eq!(sizes_of(Effort::Default, op), all);
            assert_eq!(sizes_of(Effort::Quick, op), QUICK);
        }
    }

    #[test]
    fn two_sided_contests_compare_both_providers() {
        for contest in contests(Effort::Default) {
            let two_sided = contest[0].op.is_two_sided();
            assert!(contest.iter().all(|one| one.op.is_two_sided() == two_sided));
            if two_sided {
                assert_eq!(contest.len(), 2);
                assert_ne!(contest[0].provider, contest[1].provider);
                assert_eq!(contest[0].bytes, contest[1].bytes);
            }
        }
    }
}
