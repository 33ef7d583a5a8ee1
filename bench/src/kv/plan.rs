//! The measurements of `kv` in contests, and their time.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::Serialize;

use crate::plan::{COLD_BYTES, Effort, HOT_BYTES, Path, WorkingSet};
use crate::report::name;
use crate::worker::Job;
use crate::worker::borrow::Reading;
use crate::worker::crowd::Load;
use crate::worker::store::{KeySet, StoreOp};

/// Sizes of values that stay in the caches, in bytes.
pub const HOT_SIZES: [usize; 6] = [64, 1024, 4096, 16 << 10, 64 << 10, 1 << 20];

/// Sizes of values in memory, in bytes.
pub const COLD_SIZES: [usize; 3] = [1024, 64 << 10, 1 << 20];

/// Bytes of values of cold sets.
pub const COLD_SET: usize = 64 << 10;

/// Bytes of a value whose bytes are summed.
pub const SUM_BYTES: usize = 1 << 20;

/// Bytes of a value under load of many requests.
pub const CROWD_BYTES: usize = 1024;

/// The most parts of a round.
pub const PARTS: u32 = 5;

/// Numbers of concurrent clients of a mix.
pub const MIX_CLIENTS: [u32; 3] = [1, 2, 8];

/// Paths to stores.
pub const STORES: [Path; 4] = [
    Path::Rdma,
    Path::ToroidTcp,
    Path::MemcachedTcp,
    Path::MemcachedUnix,
];

/// Paths to the servers of memcached's protocol over TCP.
pub const SERVERS: [Path; 2] = [Path::ToroidTcp, Path::MemcachedTcp];

/// Paths of a mix.
pub const MIX_PATHS: [Path; 2] = [Path::Rdma, Path::MemcachedTcp];

/// The items of the measurement of memory per item.
pub const SMALL: KeySet = KeySet {
    bytes: 100,
    keys: 200_000,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Stored values.
    Get,
    /// New versions of stored values.
    Set,
    /// Stored values, borrowed and released.
    Borrow,
    /// Stored values, borrowed to sum their bytes.
    BorrowSum,
    /// Stored values, copied to sum their bytes.
    GetSum,
    /// `memcpy` of as many bytes.
    Copy,
    /// `memcpy` of as many bytes after a lookup of their location.
    CopyFound,
}

/// A measurement: one row of the report, repeated in each round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Measurement {
    pub path: Path,
    pub op: Op,
    pub bytes: usize,
    pub set: WorkingSet,
    pub load: Load,
}

impl Measurement {
    /// A measurement with one request in flight.
    fn new(path: Path, op: Op, bytes: usize, set: WorkingSet) -> Self {
        let load = Load::ONE;
        Measurement {
            path,
            op,
            bytes,
            set,
            load,
        }
    }

    /// Keys and size of values.
    pub fn keys(&self) -> KeySet {
        let total = match self.set {
            WorkingSet::Hot => HOT_BYTES,
            WorkingSet::Cold => COLD_BYTES,
        };
        KeySet::of_total(total, self.bytes)
    }

    /// Whether both ends of a connection work only in turns and can share a processor.
    pub fn is_in_turns(&self) -> bool {
        let sockets = [Path::ToroidTcp, Path::MemcachedTcp, Path::MemcachedUnix];
        let is_one_request = self.load.clients == 1 && self.load.pipeline == 1;
        is_one_request && sockets.contains(&self.path)
    }

    /// The job for a worker.
    pub fn job(&self) -> Job {
        let (path, bytes, set) = (self.path, self.bytes, self.keys());
        let store = |op| match self.load {
            Load::ONE => Job::Store(path, op, set),
            load => Job::Crowd(path, op, set, load),
        };
        let borrow = |reading| Job::Borrow(reading, set);
        let copy = |found| Job::Copy(bytes, set.total(), found);
        match self.op {
            Op::Get => store(StoreOp::Get),
            Op::Set => store(StoreOp::Set),
            Op::Borrow => borrow(Reading::Borrow),
            Op::BorrowSum => borrow(Reading::BorrowSum),
            Op::GetSum => borrow(Reading::GetSum),
            Op::Copy => copy(false),
            Op::CopyFound => copy(true),
        }
    }
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [path, op, bytes, set, load] = Words::of(self);
        write!(f, "{op} of {bytes} bytes by {path}, {set}, {load}")
    }
}

/// A filter of rows by words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Words(Vec<String>);

impl FromStr for Words {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words = Words(text.split('/').map(str::to_lowercase).collect());
        let all = contests(&[]).concat();
        if all.iter().any(|row| words.choose(row)) {
            return Ok(words);
        }
        let mut known: Vec<String> = all.iter().flat_map(Words::of).collect();
        known.sort();
        known.dedup();
        Err(format!(
            "no row has these words; the words of rows are {}",
            known.join(", ")
        ))
    }
}

impl Words {
    /// Whether the row has all words.
    fn choose(&self, row: &Measurement) -> bool {
        let words = Words::of(row);
        self.0.iter().all(|word| words.contains(word))
    }

    /// The words of a row.
    fn of(row: &Measurement) -> [String; 5] {
        [
            name(row.path),
            format!("{:?}", row.op).to_lowercase(),
            row.bytes.to_string(),
            format!("{:?}", row.set).to_lowercase(),
            row.load.name(),
        ]
    }
}

/// All contests in the order of the report. With `words`, only rows that match one of them.
pub fn contests(words: &[Words]) -> Vec<Vec<Measurement>> {
    let mut contests = [hot(), crowds(), cold()].concat();
    if !words.is_empty() {
        for contest in &mut contests {
            contest.retain(|row| words.iter().any(|words| words.choose(row)));
        }
        contests.retain(|contest| !contest.is_empty());
    }
    contests
}

/// Contests with hot working sets.
pub fn hot() -> Vec<Vec<Measurement>> {
    let contest = |bytes| {
        let of = |path, op| Measurement::new(path, op, bytes, WorkingSet::Hot);
        let mut contest = vec![of(Path::Memcpy, Op::Copy)];
        for op in [Op::Get, Op::Set] {
            contest.extend(STORES.map(|path| of(path, op)));
        }
        contest.push(of(Path::Rdma, Op::Borrow));
        if bytes == SUM_BYTES {
            contest.extend([Op::GetSum, Op::BorrowSum].map(|op| of(Path::Rdma, op)));
        }
        contest
    };
    HOT_SIZES.map(contest).into()
}

/// Contests with cold working sets.
pub fn cold() -> Vec<Vec<Measurement>> {
    let of = |path, op, bytes| Measurement::new(path, op, bytes, WorkingSet::Cold);
    let contest = |bytes| {
        let copies = [Op::Copy, Op::CopyFound].map(|op| of(Path::Memcpy, op, bytes));
        [&copies[..], &[of(Path::Rdma, Op::Get, bytes)]].concat()
    };
    // A contest of its own: sets move values, which gets would have to find again.
    let set = vec![of(Path::Rdma, Op::Set, COLD_SET)];
    COLD_SIZES.into_iter().map(contest).chain([set]).collect()
}

/// Loads that keep servers busy.
pub fn loads(op: Op) -> Vec<Load> {
    let loads: &[_] = match op {
        Op::Get => &[(1, 16, 1), (1, 1, 16), (50, 1, 1), (50, 16, 1), (50, 1, 16)],
        _ => &[(1, 16, 1), (50, 1, 1), (50, 16, 1)],
    };
    let load = |&(clients, pipeline, keys)| Load {
        clients,
        pipeline,
        keys,
    };
    loads.iter().map(load).collect()
}

/// Contests of busy servers.
pub fn crowds() -> Vec<Vec<Measurement>> {
    let mut contest = Vec::new();
    for op in [Op::Get, Op::Set] {
        for load in loads(op) {
            let of = |path| Measurement::new(path, op, CROWD_BYTES, WorkingSet::Hot);
            let by = |path| Measurement { load, ..of(path) };
            contest.extend(SERVERS.map(by));
            // Over RDMA several gets at once are one request.
            let is_usual = load.clients == 1 && (op == Op::Set || load.pipeline == 1);
            contest.extend(is_usual.then(|| by(Path::Rdma)));
        }
    }
    vec![contest]
}

/// Number of rounds.
pub fn rounds(effort: Effort) -> u32 {
    effort.quick_or(3, 7)
}

/// Time of a round. In a quick run one-sided gets and copies have less time: one process does the
/// work, and its many samples differ little.
pub fn slice(effort: Effort, measurement: &Measurement) -> Duration {
    let is_alone =
        matches!(measurement.path, Path::Rdma | Path::Memcpy) && measurement.op != Op::Set;
    let quick = if is_alone { 30 } else { 80 };
    Duration::from_millis(effort.quick_or(quick, 250))
}

/// Number of parts of a round. If both ends of a socket do not [work in
/// turns](Measurement::is_in_turns), the rate doubles or halves with the processors that the
/// scheduler leaves them on. The medians of many short parts are more stable than those of a few
/// long ones.
pub fn parts(measurement: &Measurement) -> u32 {
    let is_text = matches!(measurement.path, Path::ToroidTcp | Path::MemcachedTcp);
    if is_text && measurement.bytes == CROWD_BYTES {
        PARTS
    } else {
        1
    }
}

/// Time of a mix in a round.
pub fn mix_slice(effort: Effort) -> Duration {
    Duration::from_millis(effort.quick_or(60, 250))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_chosen_by_their_words() {
        let chosen = |texts: &[&str]| -> Vec<String> {
            let words: Vec<Words> = texts.iter().map(|text| text.parse().unwrap()).collect();
            let contests = contests(&words).concat();
            contests.iter().map(Measurement::to_string).collect()
        };
        assert_eq!(
            chosen(&["rdma/borrow/64"]),
            ["borrow of 64 bytes by rdma, hot, 1x1x1"]
        );
        assert_eq!(
            chosen(&["set/50x1x1", "Memcpy/cold/1048576"]),
            [
                "set of 1024 bytes by toroid-tcp, hot, 50x1x1",
                "set of 1024 bytes by memcached-tcp, hot, 50x1x1",
                "copy of 1048576 bytes by memcpy, cold, 1x1x1",
                "copyfound of 1048576 bytes by memcpy, cold, 1x1x1",
            ]
        );
        let unknown = "rdma/get/6".parse::<Words>().unwrap_err();
        assert!(unknown.contains("memcpy"), "{unknown}");
        assert_eq!(
            contests(&[]).concat(),
            [hot(), crowds(), cold()].concat().concat()
        );
    }
}
