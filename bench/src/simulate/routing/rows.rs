//! Rows of the command: a workload, an allocation and a contender.

use anyhow::{Context, Result};
use toroid_fabric::routes::Mode;

use super::contender::Contender;
use super::experiment::{Experiment, Iterations, Measured};
use crate::report::{self, Fields, PERCENT, Row, Show, TEXT, TIME};
use crate::samples::Series;
use crate::stats::{Estimate, Summary, median, of_ratio};
use crate::table::{self, Table};

/// Seed of bootstraps.
const SEED: u64 = 25;

const RATIO: Show = |row, name| table::decimals(row.known(name), 3);

/// Lower and upper end of the interval of the normalised time.
const INTERVAL: Show = |row, name| match row.get(name).as_array().map(Vec::as_slice) {
    Some([low, high]) => {
        let end = |value: &serde_json::Value| table::decimals(value.as_f64(), 3);
        format!("{} .. {}", end(low), end(high))
    }
    _ => "-".into(),
};

const BYTES: Show = |row, name| {
    row.known(name)
        .map_or("-".into(), |n| table::size(n as usize))
};

/// Times over the median of the default mode, round by round.
pub fn normalised(measured: &Measured, contender: &str) -> Option<Estimate> {
    let [own, default] = [contender, Contender::DEFAULT].map(|name| measured.of(name));
    let times = own?
        .times
        .iter()
        .copied()
        .zip(default?.times.iter().copied());
    of_ratio(&times.collect::<Vec<_>>(), SEED)
}

/// Median time of a contender in nanoseconds.
pub fn time(measured: &Measured, contender: &str) -> Option<f64> {
    median(&measured.of(contender)?.times)
}

/// Quartile coefficient of dispersion: of times, host and network noise; of latencies, network
/// noise alone.
pub fn qcd(values: &[f64]) -> Option<f64> {
    Summary::of(values)
        .map(|summary| summary.qcd)
        .filter(|qcd| qcd.is_finite())
}

/// A row for each contender.
///
/// # Errors
/// A contender without iterations.
pub fn of(measured: &Measured) -> Result<Vec<Row>> {
    let contenders = measured
        .experiment
        .contenders
        .iter()
        .zip(&measured.iterations);
    contenders
        .map(|(contender, iterations)| {
            row(measured, contender, iterations).context("an experiment without iterations")
        })
        .collect()
}

fn row(measured: &Measured, contender: &Contender, iterations: &Iterations) -> Option<Row> {
    let summary = Summary::of(&iterations.times)?;
    let normalised = normalised(measured, contender.name());
    let report = &iterations.report;
    let share = |bytes: u64| match report.total_bytes() {
        0 => None,
        total => Some(bytes as f64 / total as f64),
    };
    let default = report.bytes_of(Mode::Adaptive0) + report.bytes_of(Mode::Adaptive1);
    let row = labels(Row::of(&Series::default()), &measured.experiment)
        .label("mode", contender.name())
        .figure("rounds_run", iterations.times.len())
        .figure("time_ns", summary.median)
        .figure("time_ci", summary.ci)
        .figure("normalised", normalised.map(|ratio| ratio.value))
        .figure("interval", normalised.map(|ratio| ratio.interval))
        .figure("share_default", share(default))
        .figure("qcd_time", qcd(&iterations.times))
        .figure("qcd_latency", qcd(&iterations.latencies))
        .figure("latency_cycles", median(&iterations.latencies))
        .figure("stalls_per_flit", median(&iterations.stalls))
        .figure("share_non_minimal", iterations.routed.share_non_minimal())
        .figure("decisions", report.decisions)
        .figure("switches", report.switches)
        .figure("share_skipped", share(report.skipped_bytes))
        .figure("bytes_by_mode", by_mode(iterations));
    Some(row.rounds("time_ns", iterations.times.clone()))
}

/// What tells an experiment from others.
fn labels(row: Row, experiment: &Experiment) -> Row {
    let [groups, chassis, routers, nodes] = experiment.machine.sizes;
    row.label("workload", experiment.workload.pattern)
        .label("bytes", experiment.workload.bytes)
        .label("ranks", experiment.ranks)
        .label("placement", experiment.placement)
        .label(
            "machine",
            format!("dragonfly:{groups}x{chassis}x{routers}x{nodes}"),
        )
        .label("global_links", experiment.machine.global_links)
        .label("snapshot_age_ns", experiment.machine.snapshot_age_ns)
        .label(
            "neighbours",
            experiment.neighbours.map_or(0.0, |(share, _)| share),
        )
}

fn by_mode(iterations: &Iterations) -> Fields {
    let used = Mode::ALL
        .into_iter()
        .filter(|mode| iterations.report.bytes_of(*mode) > 0);
    used.fold(Fields::default(), |fields, mode| {
        fields.with(mode.name(), iterations.report.bytes_of(mode))
    })
}

/// The table for people.
pub fn table(rows: &[Row]) -> Table {
    let columns: [(&str, &str, Show); 16] = [
        ("workload", "workload", TEXT),
        ("placement", "placement", TEXT),
        ("mode", "mode", TEXT),
        ("bytes", "bytes", BYTES),
        ("ranks", "ranks", TEXT),
        ("links", "global_links", TEXT),
        ("median", "time_ns", TIME),
        ("normalised", "normalised", RATIO),
        ("95 %", "interval", INTERVAL),
        ("on default", "share_default", PERCENT),
        ("QCD(time)", "qcd_time", RATIO),
        ("QCD(lat)", "qcd_latency", RATIO),
        ("L cycles", "latency_cycles", report::COUNT),
        ("s", "stalls_per_flit", RATIO),
        ("non-min", "share_non_minimal", PERCENT),
        ("switches", "switches", TEXT),
    ];
    report::table(rows, 3, &columns)
}
