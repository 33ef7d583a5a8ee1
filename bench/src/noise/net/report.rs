//! The report of `noise connect`.

use std::time::Instant;

use serde_json::json;

use super::plan::Measurement;
use super::wire::Direction;
use crate::machine;
use crate::plan::Effort;
use crate::report::{
    COUNT, Fields, PERCENT, RATE, Report, Row, SHARE, Show, TEXT, TIME, rows_of, table,
};
use crate::samples::{Samples, Series};
use crate::stats::{Interval, Summary, mean};

/// Head, figure and format of a column.
type Column = (&'static str, &'static str, Show);

const LATENCY: [Column; 10] = [
    ("latency", "protocol", TEXT),
    ("bytes", "bytes", COUNT),
    ("p50", "p50_ns", TIME),
    ("95 %", "ci", SPAN),
    ("mean", "mean_ns", TIME),
    ("p99", "p99_ns", TIME),
    ("p99.9", "p999_ns", TIME),
    ("max", "max_ns", TIME),
    ("QCD", "qcd", SHARE),
    ("lost", "lost", COUNT),
];

const BANDWIDTH: [Column; 8] = [
    ("bandwidth", "protocol", TEXT),
    ("way", "direction", TEXT),
    ("bytes", "bytes", COUNT),
    ("median", "bytes_per_s", RATE),
    ("lowest", "min_bytes_per_s", RATE),
    ("highest", "max_bytes_per_s", RATE),
    ("QCD", "qcd", SHARE),
    ("lost", "lost_share", PERCENT),
];

const STREAMS: [Column; 7] = [
    ("streams", "streams", TEXT),
    ("way", "direction", TEXT),
    ("middle window", "bytes_per_s", RATE),
    ("out", "out_bytes_per_s", RATE),
    ("in", "in_bytes_per_s", RATE),
    ("lowest", "min_bytes_per_s", RATE),
    ("QCD", "qcd", SHARE),
];

const NOISE: [Column; 8] = [
    ("round trips", "count", COUNT),
    ("p50", "p50_ns", TIME),
    ("p99", "p99_ns", TIME),
    ("QCD of time", "time_qcd", SHARE),
    ("QCD of latency", "latency_qcd", SHARE),
    ("with detours", "detours", PERCENT),
    ("outliers in detours", "outliers_in_detours", PERCENT),
    ("lost", "lost", COUNT),
];

const SPAN: Show = |row, name| {
    let ends = row.get(name).as_array().cloned().unwrap_or_default();
    let ends = ends.iter().map(|end| crate::table::time(end.as_f64()));
    ends.collect::<Vec<_>>().join(" .. ")
};

/// The rows of all measurements, and a table for each kind.
pub fn report(
    effort: Effort,
    start: Instant,
    address: &str,
    measured: &[(Measurement, Series)],
) -> Report {
    let config = Fields::default().with("server", address);
    let mut report = Report::new(effort, start, config);
    let rows = rows_of(measured, row);
    report.rows("rows", &rows);
    report.text = text(address, &rows);
    report
}

fn row(measurement: &Measurement, series: &Series) -> Row {
    let row = Row::of(series);
    match *measurement {
        Measurement::Latency { protocol, bytes } => latency(
            row.label("test", "latency").label("protocol", protocol),
            bytes,
            series,
        ),
        Measurement::Read { bytes } => latency(
            row.label("test", "latency").label("protocol", "rdma"),
            bytes,
            series,
        ),
        Measurement::Bandwidth {
            protocol,
            direction,
            bytes,
        } => {
            let row = row.label("test", "bandwidth").label("protocol", protocol);
            bandwidth(row, direction, bytes, series)
        }
        Measurement::OneSided { direction, bytes } => {
            let row = row.label("test", "bandwidth").label("protocol", "rdma");
            bandwidth(row, direction, bytes, series)
        }
        Measurement::Streams { streams, direction } => {
            let row = row.label("test", "streams").label("protocol", "tcp");
            let row = row.label("streams", streams).label("direction", direction);
            let mut row = rates(row, series);
            for name in ["out_bytes_per_s", "in_bytes_per_s"] {
                let rate = series.median(|round| round.figure(name));
                row = row.figure(name, rate.filter(|rate| *rate > 0.0));
            }
            row
        }
        Measurement::Noise => noise(row.label("test", "noise").label("protocol", "udp"), series),
    }
}

fn latency(row: Row, bytes: u32, series: &Series) -> Row {
    times(row.label("bytes", bytes), series).figure("lost", series.sum("lost"))
}

fn bandwidth(row: Row, direction: Direction, bytes: u32, series: &Series) -> Row {
    let row = row.label("direction", direction).label("bytes", bytes);
    let lost = series.median(|round| round.figure("lost_share"));
    rates(row, series).figure("lost_share", lost)
}

/// All samples of all rounds.
fn all(series: &Series) -> Vec<f64> {
    let rounds = series.rounds().iter();
    rounds
        .flat_map(|round| &round.samples_ns)
        .copied()
        .collect()
}

fn quantiles(row: Row, series: &Series) -> Row {
    let times = [
        ("min_ns", 0.0),
        ("p50_ns", 0.5),
        ("p99_ns", 0.99),
        ("p999_ns", 0.999),
        ("max_ns", 1.0),
    ];
    let row = row.figure("count", series.count());
    times.into_iter().fold(row, |row, (name, q)| {
        row.figure(name, series.quantile_ns(q))
    })
}

/// Figures of times.
fn times(row: Row, series: &Series) -> Row {
    let all = all(series);
    let summary = Summary::of(&all);
    let medians = Summary::of(&series.medians().1);
    quantiles(row, series)
        .figure("mean_ns", mean(&all))
        .figure("ci", medians.and_then(|medians| medians.ci))
        .and(spread(summary))
}

/// Figures of rates, one of each run or part of a window.
fn rates(row: Row, series: &Series) -> Row {
    let summary = Summary::of(&series.rates());
    let ends = summary.as_ref().map(|summary| {
        let rates = summary.rounds.iter().copied();
        (
            rates.clone().fold(f64::MAX, f64::min),
            rates.fold(0.0, f64::max),
        )
    });
    row.figure("bytes_per_s", series.bytes_per_s())
        .figure("min_bytes_per_s", ends.map(|ends| ends.0))
        .figure("max_bytes_per_s", ends.map(|ends| ends.1))
        .figure("ci", summary.as_ref().and_then(|summary| summary.ci))
        .and(spread(summary))
}

fn spread(summary: Option<Summary>) -> Fields {
    let interval = |of: fn(&Summary) -> Interval| summary.as_ref().map(of);
    Fields::default()
        .with("quartiles", interval(|summary| summary.quartiles))
        .with("whiskers", interval(|summary| summary.whiskers))
        .with("outliers", summary.as_ref().map(|summary| summary.outliers))
        .with("qcd", summary.as_ref().map(|summary| summary.qcd))
}

/// Host and network, and network alone.
fn noise(row: Row, series: &Series) -> Row {
    let median = |name: &'static str| series.median(|round: &Samples| round.figure(name));
    quantiles(row, series)
        .figure("time_qcd", median("time_qcd"))
        .figure("latency_qcd", median("latency_qcd"))
        .figure("latency_p50_ns", median("latency_p50_ns"))
        .figure("detours", median("detours"))
        .figure("outliers", series.sum("outliers"))
        .figure("outliers_in_detours", median("outliers_in_detours"))
        .figure("lost", series.sum("lost"))
}

fn text(address: &str, rows: &[Row]) -> String {
    let mut text = format!("To {address}, from {}\n", machine::describe());
    let tables: [(&str, usize, &[Column]); 4] = [
        ("latency", 1, &LATENCY),
        ("bandwidth", 2, &BANDWIDTH),
        ("streams", 2, &STREAMS),
        ("noise", 0, &NOISE),
    ];
    for (test, texts, columns) in tables {
        let of_test = rows.iter().filter(|row| row.has(&json!({"test": test})));
        let of_test: Vec<Row> = of_test.cloned().collect();
        if !of_test.is_empty() {
            text += &format!("\n{}", table(&of_test, texts, columns));
        }
        if test == "noise" && !of_test.is_empty() {
            text += "QCD of latency, of round trips without detours, is noise of the network; \
                     QCD of time is that of hosts and network.\n";
        }
    }
    text
}
