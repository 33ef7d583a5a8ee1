//! What a run leaves, for programs and for people.

use std::collections::HashMap;
use std::fmt::Write;

use serde::Serialize;

use super::bed::Sample;
use super::client::{MixedByOne, Reads};
use super::mix::Mix;
use super::mixes::{MixRow, Mixes};
use super::plan::{Load, Measurement, Op, Path, SMALL};
use super::targets::{self, Target};
use crate::machine::Machine;
use crate::plan::{Effort, WorkingSet};
use crate::stats::{Series, median, quantile};
use crate::table::{self, time};

/// All rounds of all measurements, in the order in which they were first made.
#[derive(Debug, Default)]
pub struct Rounds {
    order: Vec<Measurement>,
    all: HashMap<Measurement, Measured>,
    mixes: Mixes,
    memory: Vec<MemoryRow>,
}

#[derive(Debug, Default)]
struct Measured {
    series: Series,
    rounds: Vec<Round>,
    reads: Reads,
}

/// What one round gave.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Round {
    /// Operations per second.
    pub ops_per_s: Option<f64>,
    /// Of its samples.
    pub p50_ns: Option<f64>,
    /// Of its samples.
    pub p99_ns: Option<f64>,
    /// Processor time of the server.
    pub server_cpu_ns_per_op: Option<f64>,
}

impl Round {
    fn of(sample: &Sample) -> Self {
        let slice = &sample.measured.slice;
        let (ops, seconds) = (slice.ops as f64, slice.elapsed_ns as f64 / 1e9);
        let cpu_ns = sample.server_cpu_ns.filter(|_| slice.ops > 0);
        Round {
            ops_per_s: (seconds > 0.0).then(|| ops / seconds),
            p50_ns: quantile(&slice.samples_ns, 0.5),
            p99_ns: quantile(&slice.samples_ns, 0.99),
            server_cpu_ns_per_op: cpu_ns.map(|cpu_ns| cpu_ns as f64 / ops),
        }
    }
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
        measured.reads.add(sample.measured.reads);
        measured.rounds.push(Round::of(&sample));
    }

    /// Adds a round of a mix.
    pub fn add_mix(&mut self, mix: Mix, path: Path, all: &[MixedByOne]) {
        self.mixes.add(mix, path, all);
    }

    /// Adds what memory a server takes for small items.
    pub fn add_memory(&mut self, path: Path, bytes_per_item: Option<f64>) {
        self.memory.push(MemoryRow {
            path,
            bytes: SMALL.bytes,
            items: SMALL.keys,
            bytes_per_item,
        });
    }
}

/// The memory that a server takes for small items.
#[derive(Clone, Debug, Serialize)]
pub struct MemoryRow {
    /// Which server.
    pub path: Path,
    /// Bytes of a value.
    pub bytes: usize,
    /// How many.
    pub items: u64,
    /// By how much the process grew, for each.
    pub bytes_per_item: Option<f64>,
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
    /// Keys of a request.
    pub keys_per_request: u32,
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
    /// The same of each round: those of rows that are compared follow each other.
    pub rounds: Vec<Round>,
}

impl Row {
    /// What was under way at the same time.
    pub fn load(&self) -> Load {
        Load {
            clients: self.clients,
            pipeline: self.pipeline,
            keys: self.keys_per_request,
        }
    }
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
    /// Whether client and server had one processor where they work in turns: over sockets, with one request
    /// under way.
    pub shared_processor: bool,
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
    /// Mixes of gets and sets, by several clients.
    pub mixes: Vec<MixRow>,
    /// Memory for small items.
    pub memory: Vec<MemoryRow>,
    /// What is wanted of it.
    pub targets: Vec<Target>,
}

impl Report {
    /// Makes it of what was measured.
    pub fn of(config: Config, rounds: &Rounds) -> Self {
        let rows = rounds.order.iter().map(|key| row(key, &rounds.all[key]));
        let rows: Vec<Row> = rows.collect();
        let mixes = rounds.mixes.rows();
        Report {
            config,
            targets: targets::all(&rows, &mixes, &rounds.memory),
            rows,
            mixes,
            memory: rounds.memory.clone(),
        }
    }

    /// Operations that failed or gave wrong bytes.
    pub fn errors(&self) -> u64 {
        let rows: u64 = self.rows.iter().map(|row| row.errors).sum();
        rows + self.mixes.iter().map(|row| row.errors).sum::<u64>()
    }

    /// The tables.
    pub fn render(&self) -> String {
        table::text(|to| self.write(to))
    }

    fn write(&self, to: &mut String) -> std::fmt::Result {
        let Config {
            memcached,
            threads,
            shared_processor,
            machine,
            elapsed_s,
            rounds,
            ..
        } = &self.config;
        writeln!(to, "{machine}")?;
        writeln!(
            to,
            "Servers of {threads} threads, memcached {memcached}; load: clients x requests of each under way x keys \
             of a request; {rounds} rounds, {elapsed_s:.0} s"
        )?;
        let where_in_turns = if *shared_processor {
            "on one processor"
        } else {
            "wherever the system puts them"
        };
        writeln!(
            to,
            "Over sockets, with one request under way, client and server ran {where_in_turns}.\n"
        )?;
        writeln!(
            to,
            "{:<16}{:<10}{:>9} {:<5}{:>9}{:>10}{:>10}{:>10}{:>12}{:>13}{:>7}",
            "path",
            "op",
            "bytes",
            "set",
            "load",
            "p50",
            "p99",
            "p99.9",
            "ops/s",
            "server/op",
            "reads"
        )?;
        for row in &self.rows {
            let op = format!("{:?}", row.op).to_lowercase();
            writeln!(
                to,
                "{:<16}{op:<10}{:>9} {:<5}{:>9}{:>10}{:>10}{:>10}{:>12.0}{:>13}{:>7}",
                row.path.name(),
                row.bytes,
                format!("{:?}", row.set).to_lowercase(),
                row.load().name(),
                time(row.p50_ns),
                time(row.p99_ns),
                time(row.p999_ns),
                row.ops_per_s.unwrap_or_default(),
                time(row.server_cpu_ns_per_op),
                row.reads_per_get
                    .map_or("-".into(), |reads| format!("{reads:.2}")),
            )?;
        }
        self.write_mixes(to)?;
        writeln!(to)?;
        // Of rows that were not chosen nothing is known.
        let mut found = self.targets.iter().filter(|target| target.found.is_some());
        found.try_for_each(|target| writeln!(to, "{target}"))
    }

    fn write_mixes(&self, to: &mut String) -> std::fmt::Result {
        writeln!(
            to,
            "\n{:<8}{:<16}{:>7}{:>12}{:>11}{:>11}{:>11}{:>11}{:>7}{:>8}{:>7}",
            "mix",
            "path",
            "clients",
            "ops/s",
            "get p50",
            "get p99",
            "set p50",
            "set p99",
            "hits",
            "reads",
            "asked"
        )?;
        let or_none =
            |of: Option<f64>, digits: usize| of.map_or("-".into(), |of| format!("{of:.digits$}"));
        for row in &self.mixes {
            writeln!(
                to,
                "{:<8}{:<16}{:>7}{:>12.0}{:>11}{:>11}{:>11}{:>11}{:>7.3}{:>8}{:>7}",
                row.mix.to_string(),
                row.path.name(),
                row.clients,
                row.ops_per_s.unwrap_or_default(),
                time(row.get_p50_ns),
                time(row.get_p99_ns),
                time(row.set_p50_ns),
                time(row.set_p99_ns),
                row.hit_ratio,
                or_none(row.reads_per_get, 2),
                or_none(row.asked_ratio, 3),
            )?;
        }
        writeln!(to)?;
        for row in &self.memory {
            writeln!(
                to,
                "{} takes {} bytes of memory for each of {} values of {} bytes",
                row.path.name(),
                or_none(row.bytes_per_item, 0),
                row.items,
                row.bytes
            )?;
        }
        Ok(())
    }
}

fn row(key: &Measurement, measured: &Measured) -> Row {
    let series = &measured.series;
    let Reads { gets, reads, .. } = measured.reads;
    let reads_per_get = reads as f64 / gets as f64;
    let cpu_ns = measured
        .rounds
        .iter()
        .filter_map(|round| round.server_cpu_ns_per_op);
    let cpu_ns: Vec<f64> = cpu_ns.collect();
    Row {
        path: key.path,
        op: key.op,
        bytes: key.bytes,
        set: key.set,
        clients: key.load.clients,
        pipeline: key.load.pipeline,
        keys_per_request: key.load.keys,
        batch: series.batch(),
        ops_per_s: series.ops_per_s(),
        p50_ns: series.quantile_ns(0.5),
        p99_ns: series.quantile_ns(0.99),
        p999_ns: series.quantile_ns(0.999),
        server_cpu_ns_per_op: median(&cpu_ns),
        reads_per_get: (gets > 0 && key.op != Op::Set).then_some(reads_per_get),
        errors: series.errors(),
        rounds: measured.rounds.clone(),
    }
}
