//! What a run leaves, for programs and for people.

use std::collections::HashMap;
use std::fmt::Write;

use serde::Serialize;

use super::bed::Sample;
use super::plan::{Measurement, Op, Path};
use crate::machine::Machine;
use crate::plan::{Effort, WorkingSet};
use crate::stats::{Series, median};
use crate::table::time;

/// All rounds of all measurements, in the order in which they were first made.
#[derive(Debug, Default)]
pub struct Rounds {
    order: Vec<Measurement>,
    all: HashMap<Measurement, Measured>,
}

#[derive(Debug, Default)]
struct Measured {
    series: Series,
    /// Of each round.
    cpu_ns_per_op: Vec<f64>,
    gets: u64,
    reads: u64,
}

impl Rounds {
    /// Adds a round of a measurement.
    pub fn add(&mut self, measurement: Measurement, sample: Sample) {
        if !self.all.contains_key(&measurement) {
            self.order.push(measurement);
        }
        let measured = self.all.entry(measurement).or_default();
        let slice = &sample.measured.slice;
        measured.series.add(slice);
        measured.gets += sample.measured.gets;
        measured.reads += sample.measured.reads;
        if let Some(cpu_ns) = sample.server_cpu_ns.filter(|_| slice.ops > 0) {
            measured
                .cpu_ns_per_op
                .push(cpu_ns as f64 / slice.ops as f64);
        }
    }
}

/// A measurement over all rounds. What does not apply to it is null.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// By what.
    pub path: Path,
    /// What was done.
    pub op: Op,
    /// Bytes of a value.
    pub bytes: usize,
    /// Which values.
    pub set: WorkingSet,
    /// Clients at the same time.
    pub clients: u32,
    /// Requests that a client has under way.
    pub pipeline: u32,
    /// Operations per sample of time: a sample is the mean of so many.
    pub batch: Option<u32>,
    /// The median over rounds.
    pub ops_per_s: Option<f64>,
    /// Of all samples.
    pub p50_ns: Option<f64>,
    /// Of all samples.
    pub p99_ns: Option<f64>,
    /// Of all samples.
    pub p999_ns: Option<f64>,
    /// Processor time of the server: the median over rounds.
    pub server_cpu_ns_per_op: Option<f64>,
    /// Reads of the server's memory for each get.
    pub reads_per_get: Option<f64>,
    /// Operations that failed or gave wrong bytes.
    pub errors: u64,
}

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

/// The circumstances of a run.
#[derive(Clone, Debug, Serialize)]
pub struct Config {
    /// Which budget was asked for.
    pub effort: Effort,
    /// How often everything was measured.
    pub rounds: u32,
    /// Debian's version.
    pub memcached: String,
    /// Threads of each server.
    pub threads: u32,
    /// Where it was measured.
    #[serde(flatten)]
    pub machine: Machine,
    /// Wall time of the whole in seconds.
    pub elapsed_s: f64,
}

/// A report, as `--json` prints it.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// How it was measured.
    pub config: Config,
    /// What was measured.
    pub rows: Vec<Row>,
    /// What is wanted of it.
    pub targets: Vec<Target>,
}

impl Report {
    /// Makes it of what was measured.
    pub fn of(config: Config, rounds: &Rounds) -> Self {
        let rows = rounds.order.iter().map(|key| row(key, &rounds.all[key]));
        let rows: Vec<Row> = rows.collect();
        Report {
            config,
            targets: targets(&rows),
            rows,
        }
    }

    /// Operations that failed or gave wrong bytes.
    pub fn errors(&self) -> u64 {
        self.rows.iter().map(|row| row.errors).sum()
    }

    /// The tables.
    pub fn render(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, to: &mut String) -> std::fmt::Result {
        let Config {
            memcached,
            threads,
            machine,
            elapsed_s,
            rounds,
            ..
        } = &self.config;
        writeln!(to, "{machine}")?;
        writeln!(
            to,
            "Servers of {threads} threads, memcached {memcached}, one client; {rounds} rounds, {elapsed_s:.0} s\n"
        )?;
        writeln!(
            to,
            "{:<16}{:<5}{:>9} {:<5}{:>10}{:>10}{:>10}{:>12}{:>13}{:>7}",
            "path", "op", "bytes", "set", "p50", "p99", "p99.9", "ops/s", "server/op", "reads"
        )?;
        for row in &self.rows {
            let op = format!("{:?}", row.op).to_lowercase();
            writeln!(
                to,
                "{:<16}{op:<5}{:>9} {:<5}{:>10}{:>10}{:>10}{:>12.0}{:>13}{:>7}",
                name_of(row.path),
                row.bytes,
                format!("{:?}", row.set).to_lowercase(),
                time(row.p50_ns),
                time(row.p99_ns),
                time(row.p999_ns),
                row.ops_per_s.unwrap_or_default(),
                time(row.server_cpu_ns_per_op),
                row.reads_per_get
                    .map_or("-".into(), |reads| format!("{reads:.2}")),
            )?;
        }
        writeln!(to)?;
        for target in &self.targets {
            let bound = if target.at_most {
                "at most"
            } else {
                "at least"
            };
            let met = if target.met { "met" } else { "MISSED" };
            writeln!(
                to,
                "{met:<7}{}: {} ({bound} {})",
                target.what,
                target
                    .found
                    .map_or("-".into(), |found| format!("{found:.2}")),
                target.wanted,
            )?;
        }
        Ok(())
    }
}

/// As in `--json`.
fn name_of(path: Path) -> &'static str {
    match path {
        Path::Rdma => "rdma",
        Path::ToroidTcp => "toroid-tcp",
        Path::MemcachedTcp => "memcached-tcp",
        Path::MemcachedUnix => "memcached-unix",
        Path::Memcpy => "memcpy",
    }
}

fn row(key: &Measurement, measured: &Measured) -> Row {
    let series = &measured.series;
    let reads_per_get = measured.reads as f64 / measured.gets as f64;
    Row {
        path: key.path,
        op: key.op,
        bytes: key.bytes,
        set: key.set,
        clients: 1,
        pipeline: 1,
        batch: series.batch(),
        ops_per_s: series.ops_per_s(),
        p50_ns: series.quantile_ns(0.5),
        p99_ns: series.quantile_ns(0.99),
        p999_ns: series.quantile_ns(0.999),
        server_cpu_ns_per_op: median(&measured.cpu_ns_per_op),
        reads_per_get: (measured.gets > 0 && key.op == Op::Get).then_some(reads_per_get),
        errors: series.errors(),
    }
}

fn targets(rows: &[Row]) -> Vec<Target> {
    let of = |path, op, bytes, set| {
        let mut rows = rows.iter();
        rows.find(|row: &&Row| (row.path, row.op, row.bytes, row.set) == (path, op, bytes, set))
    };
    let hot = |path, op, bytes| of(path, op, bytes, WorkingSet::Hot);
    let cold = |path, op, bytes| of(path, op, bytes, WorkingSet::Cold);
    let p50 = |row: Option<&Row>| row?.p50_ns;
    let quotient = |over: Option<f64>, under: Option<f64>| Some(over? / under?);
    let mut targets = Vec::new();
    let mut add = |what: String, found: Option<f64>, wanted: f64, at_most: bool| {
        let met = found.is_some_and(|found| {
            if at_most {
                found <= wanted
            } else {
                found >= wanted
            }
        });
        targets.push(Target {
            what,
            found,
            wanted,
            at_most,
            met,
        });
    };
    for (bytes, wanted) in [(1024, 15.0), (4096, 10.0), (64 << 10, 3.5), (1 << 20, 1.7)] {
        let theirs = p50(hot(Path::MemcachedTcp, Op::Get, bytes));
        let found = quotient(theirs, p50(hot(Path::Rdma, Op::Get, bytes)));
        add(
            format!("get of {bytes} bytes, hot, times faster than memcached over loopback"),
            found,
            wanted,
            false,
        );
    }
    let shortest = p50(hot(Path::Rdma, Op::Get, 1024));
    add(
        "get of 1024 bytes, hot, p50 in ns".into(),
        shortest,
        350.0,
        true,
    );
    for (bytes, wanted) in [(1024, 3.0), (64 << 10, 1.3), (1 << 20, 1.3)] {
        let found = p50(cold(Path::Rdma, Op::Get, bytes));
        let found = quotient(found, p50(cold(Path::Memcpy, Op::Copy, bytes)));
        add(
            format!("get of {bytes} bytes, cold, over memcpy"),
            found,
            wanted,
            true,
        );
    }
    for bytes in [64, 1024, 4096] {
        let theirs = p50(hot(Path::MemcachedTcp, Op::Set, bytes));
        let found = quotient(theirs, p50(hot(Path::Rdma, Op::Set, bytes)));
        add(
            format!("set of {bytes} bytes, times faster than memcached over loopback"),
            found,
            1.0,
            false,
        );
    }
    let cpu = hot(Path::Rdma, Op::Get, 1024).and_then(|row| row.server_cpu_ns_per_op);
    add(
        "server's processor time for a one-sided get in ns".into(),
        cpu,
        50.0,
        true,
    );
    for op in [Op::Get, Op::Set] {
        let rate = |path| hot(path, op, 1024)?.ops_per_s;
        let found = quotient(rate(Path::ToroidTcp), rate(Path::MemcachedTcp));
        add(
            format!("{op:?} of 1024 bytes by memcached's protocol, rate over memcached's"),
            found,
            1.0,
            false,
        );
        let p99 = |path| hot(path, op, 1024)?.p99_ns;
        let found = quotient(p99(Path::ToroidTcp), p99(Path::MemcachedTcp));
        add(
            format!("{op:?} of 1024 bytes by memcached's protocol, p99 over memcached's"),
            found,
            1.1,
            true,
        );
    }
    targets
}
