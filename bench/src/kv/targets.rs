//! What is wanted of the figures.

use std::fmt;

use serde::Serialize;

use super::mixes::MixRow;
use super::plan::{self, Load, Op, Path};
use super::report::{MemoryRow, Round, Row};
use crate::plan::WorkingSet;
use crate::stats::median;

/// A goal and how it was met.
#[derive(Clone, Debug, Serialize)]
pub struct Target {
    /// What is judged.
    pub what: String,
    /// What was measured.
    pub found: Option<f64>,
    /// The least or, with `at_most`, the most.
    pub wanted: f64,
    /// What `wanted` is.
    pub at_most: bool,
    /// Whether it was met.
    pub met: bool,
}

impl Target {
    /// A goal for which more is better.
    pub fn at_least(wanted: f64, what: String, found: Option<f64>) -> Self {
        Target {
            met: found.is_some_and(|found| found >= wanted),
            at_most: false,
            what,
            found,
            wanted,
        }
    }

    /// A goal for which less is better.
    pub fn at_most(wanted: f64, what: String, found: Option<f64>) -> Self {
        Target {
            met: found.is_some_and(|found| found <= wanted),
            at_most: true,
            what,
            found,
            wanted,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let met = if self.met { "met" } else { "MISSED" };
        let bound = if self.at_most { "at most" } else { "at least" };
        write!(f, "{met:<7}{}: ", self.what)?;
        match self.found {
            Some(found) => write!(f, "{found:.2}")?,
            None => f.write_str("-")?,
        }
        write!(f, " ({bound} {})", self.wanted)
    }
}

/// Judges everything.
pub fn all(rows: &[Row], mixes: &[MixRow], memory: &[MemoryRow]) -> Vec<Target> {
    let rows = Rows(rows);
    let mut targets = gets(rows);
    targets.extend(borrows(rows));
    targets.extend(sets(rows));
    targets.extend(text(rows));
    targets.extend(mixed(mixes));
    let of = |path| memory.iter().find(|row| row.path == path)?.bytes_per_item;
    targets.push(Target::at_most(
        1.1,
        "memory of an item of 100 bytes over memcached's".into(),
        quotient(of(Path::ToroidTcp), of(Path::MemcachedTcp)),
    ));
    targets
}

fn gets(rows: Rows<'_>) -> Vec<Target> {
    let hot = |path, op, bytes| rows.of(path, op, bytes, WorkingSet::Hot)?.p50_ns;
    let cold = |path, op, bytes| rows.of(path, op, bytes, WorkingSet::Cold)?.p50_ns;
    let times = [(1024, 15.0), (4096, 10.0), (64 << 10, 3.5), (1 << 20, 1.7)];
    let mut targets: Vec<Target> = times
        .map(|(bytes, wanted)| {
            Target::at_least(
                wanted,
                format!("get of {bytes} bytes, hot, times faster than memcached over loopback"),
                quotient(
                    hot(Path::MemcachedTcp, Op::Get, bytes),
                    hot(Path::Rdma, Op::Get, bytes),
                ),
            )
        })
        .into();
    targets.push(Target::at_most(
        350.0,
        "get of 1024 bytes, hot, p50 in ns".into(),
        hot(Path::Rdma, Op::Get, 1024),
    ));
    let over_memcpy = [(1024, 3.0), (64 << 10, 1.3), (1 << 20, 1.3)];
    targets.extend(over_memcpy.map(|(bytes, wanted)| {
        Target::at_most(
            wanted,
            format!("get of {bytes} bytes, cold, over memcpy"),
            quotient(
                cold(Path::Rdma, Op::Get, bytes),
                cold(Path::Memcpy, Op::Copy, bytes),
            ),
        )
    }));
    let row = rows.of(Path::Rdma, Op::Get, 1024, WorkingSet::Hot);
    targets.push(Target::at_most(
        50.0,
        "server's processor time for a one-sided get in ns".into(),
        row.and_then(|row| row.server_cpu_ns_per_op),
    ));
    targets
}

fn borrows(rows: Rows<'_>) -> [Target; 2] {
    let hot = |op, bytes| rows.of(Path::Rdma, op, bytes, WorkingSet::Hot)?.p50_ns;
    let all = plan::HOT_SIZES.map(|bytes| hot(Op::Borrow, bytes));
    let slowest = all.into_iter().reduce(|a, b| Some(f64::max(a?, b?)));
    let [got, borrowed] = [Op::GetSum, Op::BorrowSum].map(|op| hot(op, plan::SUM_BYTES));
    [
        Target::at_most(
            300.0,
            "borrow of any size, hot, p50 in ns".into(),
            slowest.flatten(),
        ),
        Target::at_least(
            1.5,
            "borrow and sum of 1 MiB, hot, times faster than get and sum".into(),
            quotient(got, borrowed),
        ),
    ]
}

fn sets(rows: Rows<'_>) -> Vec<Target> {
    let p50 = |path, bytes, set| rows.of(path, Op::Set, bytes, set)?.p50_ns;
    let hot = |path, bytes| p50(path, bytes, WorkingSet::Hot);
    let mut targets: Vec<Target> = [64, 1024, 4096, 16 << 10]
        .map(|bytes| {
            Target::at_least(
                1.0,
                format!("set of {bytes} bytes, times faster than memcached over loopback"),
                quotient(hot(Path::MemcachedTcp, bytes), hot(Path::Rdma, bytes)),
            )
        })
        .into();
    let bytes = 64 << 10;
    targets.push(Target::at_least(
        2.0,
        format!("set of {bytes} bytes, times faster than memcached over a unix socket"),
        quotient(hot(Path::MemcachedUnix, bytes), hot(Path::Rdma, bytes)),
    ));
    targets.push(Target::at_most(
        30_000.0,
        format!("set of {} bytes, cold, p50 in ns", plan::COLD_SET),
        p50(Path::Rdma, plan::COLD_SET, WorkingSet::Cold),
    ));
    targets
}

/// Memcached's protocol, ours against memcached's own: the median over rounds, in each of which one
/// followed the other at once. Rates over sockets jump with where the system puts both ends, so those of
/// different rounds are hardly comparable.
fn text(rows: Rows<'_>) -> Vec<Target> {
    let mut targets = Vec::new();
    let mut judge = |op: Op, load: Load| {
        let row = |path| rows.under(load, path, op, plan::CROWD_BYTES, WorkingSet::Hot);
        let both = [Path::ToroidTcp, Path::MemcachedTcp].map(row);
        let over = |of: fn(&Round) -> Option<f64>| {
            let [ours, theirs] = both.map(|row| row.map(|row| &row.rounds));
            let pairs = ours?.iter().zip(theirs?);
            let each = pairs.filter_map(|(ours, theirs)| quotient(of(ours), of(theirs)));
            median(&each.collect::<Vec<f64>>())
        };
        let what = format!("{op:?} by memcached's protocol, {load}");
        targets.push(Target::at_least(
            1.0,
            format!("{what}: rate over memcached's"),
            over(|round| round.ops_per_s),
        ));
        targets.push(Target::at_most(
            1.1,
            format!("{what}: p99 over memcached's"),
            over(|round| round.p99_ns),
        ));
    };
    for op in [Op::Get, Op::Set] {
        judge(op, Load::ONE);
        for load in plan::loads(op) {
            judge(op, load);
        }
    }
    targets
}

fn mixed(mixes: &[MixRow]) -> [Target; 2] {
    let rows = || mixes.iter().filter(|row| row.path == Path::Rdma);
    let most = |of: fn(&MixRow) -> Option<f64>| rows().filter_map(of).reduce(f64::max);
    [
        Target::at_most(
            3.0,
            "reads for a get of a mix, at most".into(),
            most(|row| row.reads_per_get),
        ),
        Target::at_most(
            0.05,
            "share of gets of a mix that the server had to answer, at most".into(),
            most(|row| row.asked_ratio),
        ),
    ]
}

#[derive(Clone, Copy)]
struct Rows<'a>(&'a [Row]);

impl<'a> Rows<'a> {
    fn of(self, path: Path, op: Op, bytes: usize, set: WorkingSet) -> Option<&'a Row> {
        self.under(Load::ONE, path, op, bytes, set)
    }

    fn under(
        self,
        load: Load,
        path: Path,
        op: Op,
        bytes: usize,
        set: WorkingSet,
    ) -> Option<&'a Row> {
        let mut rows = self.0.iter();
        rows.find(|row| {
            (row.path, row.op, row.bytes, row.set) == (path, op, bytes, set) && row.load() == load
        })
    }
}

/// How many times one is the other.
pub fn quotient(over: Option<f64>, under: Option<f64>) -> Option<f64> {
    Some(over? / under?)
}
