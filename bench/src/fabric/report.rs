//! What a run leaves, for programs and for people.

use std::fmt::Write;

use serde::Serialize;

use super::plan::{Measurement, Op, Provider};
use crate::kv::targets::{Target, quotient};
use crate::machine::Machine;
use crate::plan::Effort;
use crate::stats::Series;
use crate::table::{self, rate, time};

/// A measurement over all rounds.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// By what.
    pub provider: Provider,
    /// What was done.
    pub op: Op,
    /// Bytes of a message or operation.
    pub bytes: usize,
    /// Messages or operations under way, at most.
    pub depth: u32,
    /// What an operation took, the median of all samples: of a message, half a round trip, or its
    /// part of a stream. For messages a sample is the mean of a round.
    pub p50_ns: Option<f64>,
    /// The median over rounds, as of operations.
    pub bytes_per_s: Option<f64>,
    /// The median over rounds. Of messages to and fro each is an operation.
    pub ops_per_s: Option<f64>,
    /// Messages and operations that failed or brought wrong bytes, of those that were looked at.
    pub errors: u64,
}

impl Row {
    /// Of a measurement.
    pub fn of(measurement: &Measurement, series: &Series) -> Self {
        let &Measurement {
            provider,
            op,
            bytes,
            depth,
        } = measurement;
        Row {
            provider,
            op,
            bytes,
            depth,
            p50_ns: series.quantile_ns(0.5),
            bytes_per_s: series.bytes_per_s(),
            ops_per_s: series.ops_per_s(),
            errors: series.errors(),
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
    /// Its version.
    pub libfabric: String,
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
    pub fn of(config: Config, rows: Vec<Row>) -> Self {
        Report {
            config,
            targets: targets(&rows),
            rows,
        }
    }

    /// Messages and operations that failed or brought wrong bytes.
    pub fn errors(&self) -> u64 {
        self.rows.iter().map(|row| row.errors).sum()
    }

    /// The table.
    pub fn render(&self) -> String {
        table::text(|to| self.write(to))
    }

    fn write(&self, to: &mut String) -> std::fmt::Result {
        let Config {
            rounds,
            libfabric,
            machine,
            elapsed_s,
            ..
        } = &self.config;
        writeln!(to, "{machine}")?;
        writeln!(
            to,
            "Libfabric {libfabric}, of which a stream is a ping-pong: it has no other; {rounds} rounds, \
             {elapsed_s:.0} s\n"
        )?;
        writeln!(
            to,
            "{:<15}{:<10}{:>9}{:>7}{:>11}{:>14}{:>12}{:>8}",
            "provider", "op", "bytes", "depth", "p50", "bytes/s", "ops/s", "errors"
        )?;
        for row in &self.rows {
            let op = format!("{:?}", row.op).to_lowercase();
            writeln!(
                to,
                "{:<15}{op:<10}{:>9}{:>7}{:>11}{:>14}{:>12.0}{:>8}",
                name_of(row.provider),
                row.bytes,
                row.depth,
                time(row.p50_ns),
                rate(row.bytes_per_s),
                row.ops_per_s.unwrap_or_default(),
                row.errors
            )?;
        }
        writeln!(to)?;
        self.targets
            .iter()
            .try_for_each(|target| writeln!(to, "{target}"))
    }
}

/// As in `--json`.
fn name_of(provider: Provider) -> &'static str {
    match provider {
        Provider::Shm => "shm",
        Provider::LibfabricShm => "libfabric-shm",
    }
}

/// Messages a second of each size, ours over libfabric's.
fn targets(rows: &[Row]) -> Vec<Target> {
    let ours = rows
        .iter()
        .filter(|row| row.provider == Provider::Shm && row.op.is_two_sided());
    let target = |row: &Row| {
        let is_theirs = |other: &&Row| {
            (other.provider, other.op, other.bytes) == (Provider::LibfabricShm, row.op, row.bytes)
        };
        let theirs = rows.iter().find(is_theirs);
        let of = match row.op {
            Op::Stream => "those of libfabric's ping-pong",
            _ => "libfabric's",
        };
        let op = format!("{:?}", row.op).to_lowercase();
        Target::at_least(
            1.0,
            format!("{op} of {} bytes, bytes/s over {of}", row.bytes),
            quotient(row.bytes_per_s, theirs.and_then(|row| row.bytes_per_s)),
        )
    };
    ours.map(target).collect()
}
