//! The report of `noise os`.

use std::time::Instant;

use super::detour::Detour;
use super::work::excess;
use super::{Measured, QUANTUM};
use crate::machine;
use crate::plan::Effort;
use crate::report::{COUNT, Fields, PERCENT, Report, Row, Show, TEXT, TIME, table};
use crate::samples::{Samples, Series};
use crate::stats::{Summary, quantile};
use crate::table::digits;

/// Parts of the run by which two runs are compared.
const PARTS: usize = 10;

/// A shorter run has too few detours for a share.
const SHORT_NS: u64 = 1_000_000_000;

const MILLIONTHS: Show = |row, name| {
    let millionths = row.known(name).map(|share| share * 1e6);
    millionths.map_or_else(|| "-".into(), |share| format!("{} ppm", digits(share)))
};

pub fn report(effort: Effort, start: Instant, measured: &Measured) -> Report {
    let config = Fields::default()
        .with("cpu_measured", measured.cpu)
        .with("quantum_ns", QUANTUM.as_nanos() as u64);
    let mut report = Report::new(effort, start, config);
    let rows = [detours(measured), work(measured), quanta(measured)];
    report.rows("rows", &rows);
    let starts = series(measured.detours.all().iter().map(|detour| detour.start_ns));
    let labels = Fields::default().with("test", "starts of detours");
    report.samples("scatter", labels, starts);
    report.text = text(measured, &rows);
    report
}

fn series(times_ns: impl Iterator<Item = u64>) -> Series {
    let samples_ns: Vec<f64> = times_ns.map(|time_ns| time_ns as f64).collect();
    Series::from(Samples {
        batch: 1,
        ops: samples_ns.len() as u64,
        samples_ns,
        ..Samples::default()
    })
}

fn row(measured: &Measured, test: &str, series: &Series) -> Row {
    let row = Row::of(series)
        .label("test", test)
        .label("cpu", measured.cpu);
    let quantile = |q| series.quantile_ns(q);
    row.figure("p50_ns", quantile(0.5))
        .figure("p99_ns", quantile(0.99))
        .figure("max_ns", quantile(1.0))
}

fn detours(measured: &Measured) -> Row {
    let detours = &measured.detours;
    let lens = series(detours.all().iter().map(|detour: &Detour| detour.len_ns));
    let elapsed_s = detours.elapsed_ns() as f64 / 1e9;
    row(measured, "detours", &lens)
        .figure("t_min_ns", detours.shortest_ns)
        .figure("threshold_ns", detours.threshold_ns())
        .figure("count", detours.all().len())
        .figure("elapsed_s", elapsed_s)
        .figure("per_s", detours.all().len() as f64 / elapsed_s)
        .figure("time_share", detours.time_share())
        .figure("count_share", detours.count_share())
        .rounds("time_share", detours.time_shares(PARTS))
}

fn work(measured: &Measured) -> Row {
    let times = &measured.work.samples_ns;
    let summary = Summary::of(times);
    row(measured, "fixed work", &measured.work.clone().into())
        .figure("count", times.len())
        .figure("time_share", excess(times))
        .figure("qcd", summary.map(|summary| summary.qcd))
}

fn quanta(measured: &Measured) -> Row {
    let counts = measured.quanta.counts();
    row(measured, "fixed time", &Series::default())
        .figure("count", counts.len())
        .figure("work_p50", quantile(counts, 0.5))
        .figure("work_min", quantile(counts, 0.0))
        .figure("time_share", measured.quanta.share())
        .figure("qcd", Summary::of(counts).map(|summary| summary.qcd))
        .rounds("time_share", measured.quanta.shares(PARTS))
}

fn text(measured: &Measured, rows: &[Row]) -> String {
    let table = table(
        rows,
        1,
        &[
            ("test", "test", TEXT),
            ("count", "count", COUNT),
            ("p50", "p50_ns", TIME),
            ("p99", "p99_ns", TIME),
            ("longest", "max_ns", TIME),
            ("share of time", "time_share", PERCENT),
            ("of executions", "count_share", MILLIONTHS),
        ],
    );
    let detours = &measured.detours;
    let warning = if detours.elapsed_ns() < SHORT_NS {
        "Less than a second: take more with --detours or --seconds.\n"
    } else {
        ""
    };
    format!(
        "Processor {} of {}\nshortest gap {} ns; detours are gaps of over {} ns\n\n{table}{warning}",
        measured.cpu,
        machine::describe(),
        detours.shortest_ns,
        detours.threshold_ns(),
    )
}
