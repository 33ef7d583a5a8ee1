//! The measurements of `compare`, their order and time.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use crate::plan::{Effort, LONG_WRITE, PIPELINE, Path, WorkingSet};
use crate::report::name;
use crate::worker::files::BLOCK;
use crate::worker::network::Transport;
use crate::worker::store::StoreOp;

/// Message sizes of the paper's Figure 4, in bytes.
pub const MESSAGES: [usize; 3] = [200, 1000, 8000];

/// Value sizes of the store, in bytes.
pub const VALUES: [usize; 3] = [1024, 16 * 1024, 64 * 1024];

/// Turns per round of a memory-bound measurement.
const TURNS: u32 = 10;

/// Time kept for cleaning up: twice the time for ending an agent and releasing memory on a busy
/// machine.
const CLEANING_UP: Duration = Duration::from_millis(2000);

/// Divisor of the remaining time for real input. The slower cold working sets get the rest.
const FILES_SHARE: u32 = 6;

/// Bytes of the smallest cold working set.
const COLD_LEAST: u64 = 128 << 20;

/// Bytes of the trial that estimates the time of a cold working set: enough to hide one pause.
pub const TRIAL_BYTES: u64 = 64 << 20;

/// Highest cost of a byte in the whole set over that in the trial, because `memcpy` needs memory of
/// its own.
const WHOLE_COST: f64 = 1.25;

/// Usual highest cost of a byte in the next, smaller values (up to 16 times as many) over that in
/// the last ones. Rarely, on a busy machine, the factor was 1.9. The last set then overruns its
/// share by less than [`CLEANING_UP`].
const SMALLER_COST: f64 = 1.5;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Half a round trip.
    Pingpong,
    /// Messages in one direction.
    Stream,
    /// Reads a value of the store.
    Get,
    /// Writes a value of the store.
    Set,
    /// One-sided, from the peer's memory.
    Read,
    /// One-sided, to the peer's memory.
    Write,
    /// `memcpy`.
    Copy,
}

/// A measurement: one row of the report, repeated in each round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Test {
    pub path: Path,
    pub op: Op,
    /// Transport of sockets; `None` for one-sided operations and copies.
    pub proto: Option<Transport>,
    /// Bytes of a message, operation or value.
    pub bytes: usize,
    /// Operations in flight.
    pub depth: Option<u32>,
    /// Working set; `None` for messages between sockets.
    pub set: Option<WorkingSet>,
}

impl Test {
    fn new(path: Path, op: Op, bytes: usize) -> Self {
        let (proto, depth, set) = (None, None, None);
        Test {
            path,
            op,
            proto,
            bytes,
            depth,
            set,
        }
    }

    /// Messages of sockets.
    pub fn socket(op: Op, path: Path, proto: Transport, bytes: usize) -> Self {
        let proto = Some(proto);
        let depth = (op == Op::Pingpong).then_some(1);
        Test {
            proto,
            depth,
            ..Test::new(path, op, bytes)
        }
    }

    /// An operation on a peer's memory.
    pub fn one_sided(op: Op, bytes: usize, depth: u32) -> Self {
        let (depth, set) = (Some(depth), Some(WorkingSet::Hot));
        Test {
            depth,
            set,
            ..Test::new(Path::Rdma, op, bytes)
        }
    }

    /// Messages in packets of channels, to a peer and back.
    pub fn messages(bytes: usize) -> Self {
        let depth = Some(1);
        Test {
            depth,
            ..Test::new(Path::Rdma, Op::Pingpong, bytes)
        }
    }

    /// Values of the store.
    pub fn store(path: Path, op: Op, bytes: usize, set: WorkingSet) -> Self {
        let proto = (path != Path::Rdma).then_some(Transport::Tcp);
        let (depth, set) = (Some(1), Some(set));
        Test {
            proto,
            depth,
            set,
            ..Test::new(path, op, bytes)
        }
    }

    /// Blocks of real input, which have no working set.
    pub fn file(path: Path, op: StoreOp) -> Self {
        let op = match op {
            StoreOp::Get => Op::Get,
            StoreOp::Set => Op::Set,
        };
        let set = None;
        Test {
            set,
            ..Test::store(path, op, BLOCK, WorkingSet::Cold)
        }
    }

    fn copy(bytes: usize, set: WorkingSet) -> Self {
        let set = Some(set);
        Test {
            set,
            ..Test::new(Path::Memcpy, Op::Copy, bytes)
        }
    }

    /// Whether an operation takes microseconds without the kernel, so that a short slice is enough.
    fn is_short(&self) -> bool {
        matches!(self.op, Op::Read | Op::Write)
    }

    /// Whether one process does the work at the speed of memory.
    fn is_memory_bound(&self) -> bool {
        matches!((self.path, self.op), (Path::Rdma, Op::Get) | (_, Op::Copy))
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let proto = self.proto.map(|proto| format!(" ({})", name(proto)));
        let (op, path) = (name(self.op), name(self.path));
        write!(
            f,
            "{op}, {} B, {path}{}",
            self.bytes,
            proto.unwrap_or_default()
        )
    }
}

impl Effort {
    /// Longest duration of a run, without the time for cleaning up.
    pub fn limit(self) -> Duration {
        Duration::from_secs(self.pick(15, 30, 90)) - CLEANING_UP
    }

    /// Number of rounds, each with several turns of memory-bound measurements.
    pub fn rounds(self) -> u32 {
        self.pick(3, 5, 9)
    }

    /// Time of one turn of `test`.
    pub fn slice(self, test: &Test) -> Duration {
        let long = Duration::from_millis(self.pick(12, 24, 70));
        match test {
            test if test.is_memory_bound() => long / TURNS,
            test if test.is_short() => long / 3,
            _ => long,
        }
    }

    /// Time of all rounds of `tests`, without preparation.
    pub fn all_rounds(self, tests: &[Test]) -> Duration {
        let slices = turns(tests).into_iter().map(|at| self.slice(&tests[at]));
        let round: Duration = slices.sum();
        round * self.rounds()
    }

    /// The most bytes of real input.
    pub fn file_bytes(self) -> u64 {
        self.pick(32, 128, 512) << 20
    }
}

/// Time for real input, given the time left after the hot measurements. Small files are slow even
/// with few bytes in all.
pub fn file_time(left: Duration) -> Duration {
    left / FILES_SHARE
}

/// Time per byte to fill and use a working set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Seconds per byte.
    per_byte: f64,
}

impl Cost {
    /// Estimated cost of the whole after a trial of `bytes` bytes took `took`.
    pub fn after_trial(bytes: u64, took: Duration) -> Self {
        Cost {
            per_byte: WHOLE_COST * took.as_secs_f64() / bytes as f64,
        }
    }

    /// Estimated cost of the next set after `bytes` bytes in larger values took `took`.
    pub fn after_larger_values(bytes: u64, took: Duration) -> Self {
        Cost {
            per_byte: SMALLER_COST * took.as_secs_f64() / bytes as f64,
        }
    }
}

/// Bytes of a cold working set: `full`, halved until the set fits `time` or becomes too small. So a
/// run keeps its limit on a busy machine.
pub fn cold_bytes(full: u64, time: Duration, cost: Cost) -> u64 {
    let mut set = full;
    while set / 2 >= COLD_LEAST && set as f64 * cost.per_byte > time.as_secs_f64() {
        set /= 2;
    }
    set
}

/// The order of a round, as indexes into `tests`. Memory-bound neighbours alternate in short turns.
/// Even on a busy machine most short turns run without interruption, so the medians over turns show
/// the memory's speed and are comparable.
pub fn turns(tests: &[Test]) -> Vec<usize> {
    let (mut order, mut first) = (Vec::new(), 0);
    for group in tests.chunk_by(|a, b| a.is_memory_bound() && b.is_memory_bound()) {
        let times = if group[0].is_memory_bound() { TURNS } else { 1 };
        for _ in 0..times {
            order.extend(first..first + group.len());
        }
        first += group.len();
    }
    order
}

/// Measurements with hot working sets, paths in turn.
pub fn hot() -> Vec<Test> {
    let mut tests = Vec::new();
    for bytes in MESSAGES {
        for proto in [Transport::Tcp, Transport::Udp] {
            tests.extend(sockets(Op::Pingpong, proto, bytes));
        }
        tests.extend(one_sided(bytes));
        for proto in [Transport::Tcp, Transport::Udp] {
            tests.extend(sockets(Op::Stream, proto, bytes));
        }
    }
    tests.extend(sockets(Op::Stream, Transport::Tcp, LONG_WRITE));
    tests.extend(one_sided(LONG_WRITE));
    let copied = MESSAGES.into_iter().chain([LONG_WRITE]);
    tests.extend(copied.map(|bytes| Test::copy(bytes, WorkingSet::Hot)));
    tests.extend(
        VALUES
            .iter()
            .flat_map(|&bytes| store(bytes, WorkingSet::Hot)),
    );
    tests
}

/// Measurements with a cold working set of values of `bytes` bytes.
pub fn cold(bytes: usize) -> Vec<Test> {
    store(bytes, WorkingSet::Cold)
}

/// A socket test over every path; veth is a baseline of TCP only.
fn sockets(op: Op, proto: Transport, bytes: usize) -> impl Iterator<Item = Test> {
    let veth = (proto == Transport::Tcp).then_some(Path::Veth);
    let paths = [Path::Ethernet, Path::Loopback].into_iter().chain(veth);
    paths.map(move |path| Test::socket(op, path, proto, bytes))
}

fn one_sided(bytes: usize) -> impl Iterator<Item = Test> {
    let ops = [Op::Read, Op::Write].into_iter();
    ops.flat_map(move |op| [1, PIPELINE].map(|depth| Test::one_sided(op, bytes, depth)))
}

/// The store's tests, with `memcpy` next to the one-sided get that is compared with it.
fn store(bytes: usize, set: WorkingSet) -> Vec<Test> {
    let mut tests = Vec::new();
    for op in [Op::Get, Op::Set] {
        for path in [Path::Ethernet, Path::Rdma, Path::Veth] {
            tests.push(Test::store(path, op, bytes, set));
            if (path, op) == (Path::Rdma, Op::Get) {
                tests.push(Test::copy(bytes, set));
            }
        }
    }
    tests
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::{COLD_BYTES, HOT_BYTES};

    #[test]
    fn a_cold_set_is_whole_unless_time_is_short() {
        let second = Duration::from_secs(1);
        let cost = Cost {
            per_byte: 1.0 / COLD_BYTES as f64,
        };
        assert_eq!(cold_bytes(COLD_BYTES, second, cost), COLD_BYTES);
        assert_eq!(
            cold_bytes(COLD_BYTES, second * 9 / 10, cost),
            COLD_BYTES / 2
        );
        assert_eq!(cold_bytes(COLD_BYTES, second / 3, cost), COLD_BYTES / 4);
        assert_eq!(cold_bytes(COLD_BYTES, Duration::ZERO, cost), COLD_LEAST);
        assert_eq!(cold_bytes(HOT_BYTES, Duration::ZERO, cost), HOT_BYTES);
    }

    #[test]
    fn cost_estimates_exceed_the_measured_cost() {
        let second = Duration::from_secs(1);
        let trial = Cost::after_trial(TRIAL_BYTES, second);
        let larger = Cost::after_larger_values(TRIAL_BYTES, second);
        let seen = 1.0 / TRIAL_BYTES as f64;
        assert!(trial.per_byte > seen);
        assert!(larger.per_byte > trial.per_byte);
    }

    #[test]
    fn one_sided_gets_and_memcpy_alternate() {
        let tests = cold(1024);
        let order = turns(&tests);
        let turns = order.iter().map(|&at| &tests[at]);
        let of_memory: Vec<&Test> = turns.filter(|test| test.is_memory_bound()).collect();
        assert_eq!(of_memory.len(), 2 * TURNS as usize);
        for pair in of_memory.chunks(2) {
            assert!(pair[0].op == Op::Get && pair[1].op == Op::Copy);
        }
        // All other tests have one turn.
        assert_eq!(order.len(), tests.len() + 2 * (TURNS as usize - 1));
        assert!((0..tests.len()).all(|at| order.contains(&at)));
    }

    #[test]
    fn limits_are_those_of_the_help_text() {
        let limits = [Effort::Quick, Effort::Default, Effort::Full].map(Effort::limit);
        let seconds = [15, 30, 90].map(Duration::from_secs);
        assert_eq!(limits.map(|limit| limit + CLEANING_UP), seconds);
    }
}
