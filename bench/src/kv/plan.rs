//! What is measured, side by side with what, and for how long.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::plan::{COLD_BYTES, Effort, HOT_BYTES, WorkingSet};
use crate::store::borrow::Reading;
use crate::store::{KeySet, StoreOp};

/// Sizes of values that stay in the caches, in bytes.
pub const HOT_SIZES: [usize; 6] = [64, 1024, 4096, 16 << 10, 64 << 10, 1 << 20];

/// Sizes of values in memory, in bytes.
pub const COLD_SIZES: [usize; 3] = [1024, 64 << 10, 1 << 20];

/// Bytes of a value in memory that is set.
pub const COLD_SET: usize = 64 << 10;

/// Bytes of a value that is added up.
pub const SUM_BYTES: usize = 1 << 20;

/// Bytes of a value where many ask at once.
pub const CROWD_BYTES: usize = 1024;

/// The most parts of a round.
pub const PARTS: u32 = 5;

/// Clients of a mix at the same time.
pub const MIX_CLIENTS: [u32; 3] = [1, 2, 8];

/// By what a mix is carried out.
pub const MIX_PATHS: [Path; 2] = [Path::Rdma, Path::MemcachedTcp];

/// The items whose memory is counted.
pub const SMALL: KeySet = KeySet {
    bytes: 100,
    keys: 200_000,
};

/// By what a client reaches a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Path {
    /// The store's own client: gets read the server's memory, sets are messages.
    Rdma,
    /// The store's server, by memcached's protocol over loopback.
    ToroidTcp,
    /// Debian's memcached over loopback.
    MemcachedTcp,
    /// Debian's memcached over a unix socket.
    MemcachedUnix,
    /// No store: a copy by the processor alone.
    Memcpy,
}

impl Path {
    /// As tables and JSON have it.
    pub fn name(self) -> &'static str {
        match self {
            Path::Rdma => "rdma",
            Path::ToroidTcp => "toroid-tcp",
            Path::MemcachedTcp => "memcached-tcp",
            Path::MemcachedUnix => "memcached-unix",
            Path::Memcpy => "memcpy",
        }
    }
}

/// What is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// Values that are there.
    Get,
    /// New versions of values that are there.
    Set,
    /// Values that are there, borrowed and given back.
    Borrow,
    /// Values that are there, borrowed to add their bytes up.
    BorrowSum,
    /// Values that are there, copied to add their bytes up.
    GetSum,
    /// Copies of as many bytes.
    Copy,
    /// Copies of as many bytes, whose place has to be looked up first: see
    /// [`crate::memcpy::Source::copy_found`].
    CopyFound,
}

/// How much is under way at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Load {
    /// Connections.
    pub clients: u32,
    /// Requests of each.
    pub pipeline: u32,
    /// Keys of a request.
    pub keys: u32,
}

impl Load {
    /// One client that waits for each answer.
    pub const ONE: Load = Load {
        clients: 1,
        pipeline: 1,
        keys: 1,
    };

    /// Operations that a client has under way.
    pub fn operations(self) -> u32 {
        self.pipeline * self.keys
    }

    /// As tables have it.
    pub fn name(self) -> String {
        format!("{}x{}x{}", self.clients, self.pipeline, self.keys)
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Load {
            clients,
            pipeline,
            keys,
        } = self;
        write!(f, "{clients} x {pipeline} requests of {keys}")
    }
}

/// One thing to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Measurement {
    /// By what.
    pub path: Path,
    /// What.
    pub op: Op,
    /// Bytes of a value.
    pub bytes: usize,
    /// Which values.
    pub set: WorkingSet,
    /// By how many.
    pub load: Load,
}

impl Measurement {
    /// The keys, and the size of their values.
    pub fn keys(&self) -> KeySet {
        let total = match self.set {
            WorkingSet::Hot => HOT_BYTES,
            WorkingSet::Cold => COLD_BYTES,
        };
        KeySet::of_total(total, self.bytes)
    }

    /// Whether both ends of a connection work in turns only, so that they can have the same processor.
    pub fn is_in_turns(&self) -> bool {
        let sockets = [Path::ToroidTcp, Path::MemcachedTcp, Path::MemcachedUnix];
        let is_one_request = self.load.clients == 1 && self.load.pipeline == 1;
        is_one_request && sockets.contains(&self.path)
    }

    /// What is done to the store, if there is one.
    pub fn store_op(&self) -> Option<StoreOp> {
        match self.op {
            Op::Get => Some(StoreOp::Get),
            Op::Set => Some(StoreOp::Set),
            Op::Borrow | Op::BorrowSum | Op::GetSum | Op::Copy | Op::CopyFound => None,
        }
    }

    /// What is done with values that are borrowed, or instead of that.
    pub fn reading(&self) -> Option<Reading> {
        match self.op {
            Op::Borrow => Some(Reading::Borrow),
            Op::BorrowSum => Some(Reading::BorrowSum),
            Op::GetSum => Some(Reading::GetSum),
            Op::Get | Op::Set | Op::Copy | Op::CopyFound => None,
        }
    }
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Measurement {
            path,
            op,
            bytes,
            set,
            load,
        } = self;
        write!(f, "{op:?} of {bytes} bytes by {path:?}, {set:?}")?;
        match *load {
            Load::ONE => Ok(()),
            load => write!(f, ", {load}"),
        }
    }
}

/// Words that choose rows.
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
    /// Whether these are words of the row.
    fn choose(&self, row: &Measurement) -> bool {
        let words = Words::of(row);
        self.0.iter().all(|word| words.contains(word))
    }

    /// The words of a row.
    fn of(row: &Measurement) -> [String; 5] {
        [
            row.path.name().to_owned(),
            format!("{:?}", row.op).to_lowercase(),
            row.bytes.to_string(),
            format!("{:?}", row.set).to_lowercase(),
            row.load.name(),
        ]
    }
}

/// All that is compared, in the order in which the report has it; of that, what any of `words`
/// choose, if there are any.
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

/// What is compared with each other, in caches.
pub fn hot() -> Vec<Vec<Measurement>> {
    let stores = [
        Path::Rdma,
        Path::ToroidTcp,
        Path::MemcachedTcp,
        Path::MemcachedUnix,
    ];
    let contest = |bytes| {
        let of = |path, op| Measurement {
            path,
            op,
            bytes,
            set: WorkingSet::Hot,
            load: Load::ONE,
        };
        let mut contest = vec![of(Path::Memcpy, Op::Copy)];
        for op in [Op::Get, Op::Set] {
            contest.extend(stores.map(|path| of(path, op)));
        }
        contest.push(of(Path::Rdma, Op::Borrow));
        if bytes == SUM_BYTES {
            contest.extend([Op::GetSum, Op::BorrowSum].map(|op| of(Path::Rdma, op)));
        }
        contest
    };
    HOT_SIZES.map(contest).into()
}

/// What is compared with each other, in memory.
pub fn cold() -> Vec<Vec<Measurement>> {
    let contest = |bytes| {
        let rows = [
            (Path::Memcpy, Op::Copy),
            (Path::Memcpy, Op::CopyFound),
            (Path::Rdma, Op::Get),
        ];
        rows.map(|(path, op)| Measurement {
            path,
            op,
            bytes,
            set: WorkingSet::Cold,
            load: Load::ONE,
        })
        .into()
    };
    // By itself: sets move values, which gets would then have to find again.
    let set = Measurement {
        path: Path::Rdma,
        op: Op::Set,
        bytes: COLD_SET,
        set: WorkingSet::Cold,
        load: Load::ONE,
    };
    COLD_SIZES
        .map(contest)
        .into_iter()
        .chain([vec![set]])
        .collect()
}

/// What keeps servers busy: clients, requests of each, keys of a request.
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

/// What is compared with each other where servers have much to do.
pub fn crowds() -> Vec<Vec<Measurement>> {
    let mut contest = Vec::new();
    for op in [Op::Get, Op::Set] {
        for load in loads(op) {
            let by = |path| Measurement {
                path,
                op,
                bytes: CROWD_BYTES,
                set: WorkingSet::Hot,
                load,
            };
            contest.extend([Path::ToroidTcp, Path::MemcachedTcp].map(by));
            // Several gets at once are one request there.
            let is_usual = load.clients == 1 && (op == Op::Set || load.pipeline == 1);
            contest.extend(is_usual.then(|| by(Path::Rdma)));
        }
    }
    vec![contest]
}

/// How often everything is measured.
pub fn rounds(effort: Effort) -> u32 {
    match effort {
        Effort::Quick => 3,
        Effort::Default | Effort::Full => 7,
    }
}

/// For how long each time. In a quick run what one process does by itself, by reading or copying, has
/// less time: there are many samples of it, and they differ little.
pub fn slice(effort: Effort, measurement: &Measurement) -> Duration {
    let is_alone =
        matches!(measurement.path, Path::Rdma | Path::Memcpy) && measurement.op != Op::Set;
    match effort {
        Effort::Quick if is_alone => Duration::from_millis(30),
        Effort::Quick => Duration::from_millis(80),
        Effort::Default | Effort::Full => Duration::from_millis(250),
    }
}

/// Into how many parts a round of it is divided. Over sockets a rate may double or halve with where the
/// system puts both ends, for as long as it leaves them there, if they do not
/// [work in turns](Measurement::is_in_turns). What is compared is the median of all parts, and many short
/// ones tell more than a few long ones.
pub fn parts(measurement: &Measurement) -> u32 {
    let is_text = matches!(measurement.path, Path::ToroidTcp | Path::MemcachedTcp);
    if is_text && measurement.bytes == CROWD_BYTES {
        PARTS
    } else {
        1
    }
}

/// For how long a mix is carried out each time.
pub fn mix_slice(effort: Effort) -> Duration {
    match effort {
        Effort::Quick => Duration::from_millis(60),
        Effort::Default | Effort::Full => Duration::from_millis(250),
    }
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
            ["Borrow of 64 bytes by Rdma, Hot"]
        );
        assert_eq!(
            chosen(&["set/50x1x1", "Memcpy/cold/1048576"]),
            [
                "Set of 1024 bytes by ToroidTcp, Hot, 50 x 1 requests of 1",
                "Set of 1024 bytes by MemcachedTcp, Hot, 50 x 1 requests of 1",
                "Copy of 1048576 bytes by Memcpy, Cold",
                "CopyFound of 1048576 bytes by Memcpy, Cold",
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
