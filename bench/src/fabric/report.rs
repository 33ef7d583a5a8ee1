//! The report of `fabric`.

use std::time::Instant;

use serde_json::json;

use super::plan::{self, Measurement, Op, Provider};
use crate::machine;
use crate::plan::Effort;
use crate::report::{self, COUNT, Fields, RATE, Report, Row, Show, TEXT, TIME, name, number};
use crate::samples::Series;
use crate::stats::quotient;
use crate::target::Bound::AtLeast;
use crate::target::{self, Target};

const COLUMNS: [(&str, &str, Show); 8] = [
    ("provider", "provider", TEXT),
    ("op", "op", TEXT),
    ("bytes", "bytes", TEXT),
    ("depth", "depth", TEXT),
    ("p50", "p50_ns", TIME),
    ("bytes/s", "bytes_per_s", RATE),
    ("ops/s", "ops_per_s", COUNT),
    ("errors", "errors", TEXT),
];

pub fn report(
    effort: Effort,
    start: Instant,
    libfabric: &str,
    measured: &[(Measurement, Series)],
) -> Report {
    let rows = report::rows_of(measured, row);
    let targets = targets(&rows, measured);
    let rounds = plan::rounds(effort);
    let config = Fields::default()
        .with("rounds", rounds)
        .with("libfabric", libfabric);
    let mut report = Report::new(effort, start, config);
    report.rows("rows", &rows);
    report.targets(&targets);
    report.text = format!(
        "{}\nLibfabric {libfabric}, of which a stream is a ping-pong: it has no other; {rounds} rounds, \
         {:.0} s\n\n{}\n{}",
        machine::describe(),
        start.elapsed().as_secs_f64(),
        report::table(&rows, 2, &COLUMNS),
        target::render(&targets),
    );
    report
}

/// `p50_ns` is half a round trip, or a message's share of a stream. A sample of messages is the
/// mean of a round, and every message of a ping-pong is an operation.
fn row(key: &Measurement, series: &Series) -> Row {
    Row::of(series)
        .label("provider", key.provider)
        .label("op", key.op)
        .label("bytes", key.bytes)
        .label("depth", key.depth)
        .figure("p50_ns", series.quantile_ns(0.5))
        .figure("bytes_per_s", series.bytes_per_s())
        .figure("ops_per_s", series.ops_per_s())
        .figure("errors", series.errors())
}

/// Targets of each message size: bytes/s over libfabric's.
fn targets(rows: &[Row], measured: &[(Measurement, Series)]) -> Vec<Target> {
    let ours = measured.iter().map(|(key, _)| key);
    let ours = ours.filter(|key| key.provider == Provider::Shm && key.op.is_two_sided());
    let target = |key: &Measurement| {
        let by = |provider: Provider| {
            let labels = json!({"provider": provider, "op": key.op, "bytes": key.bytes});
            number(rows, &labels, "bytes_per_s")
        };
        let of = match key.op {
            Op::Stream => "those of libfabric's ping-pong",
            _ => "libfabric's",
        };
        let what = format!("{} of {} bytes, bytes/s over {of}", name(key.op), key.bytes);
        let ratio = quotient(by(Provider::Shm), by(Provider::LibfabricShm));
        Target::new(AtLeast(1.0), what, ratio)
    };
    ours.map(target).collect()
}
