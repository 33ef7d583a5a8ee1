//! The report of `noise os`.

use std::time::Instant;

use serde_json::json;

use super::detour::{Detour, Detours};
use super::spectrum::{Peak, Spectrum};
use super::work::{Quanta, excess};
use super::{Measured, QUANTUM};
use crate::machine;
use crate::plan::Effort;
use crate::report::{COUNT, Fields, PERCENT, Report, Row, Show, TEXT, TIME, table};
use crate::samples::{Samples, Series};
use crate::stats::{Summary, quantile};
use crate::table::{Table, digits};

/// Parts of the run by which two runs are compared.
const PARTS: usize = 10;

/// Most peaks of a report, and most bands of its chart.
const PEAKS: usize = 8;
const BANDS: usize = 200;

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
    let cpu = measured.cpu;
    let found = measured.detours.as_ref();
    let work = measured.work.as_ref().map(|times| work(cpu, times));
    let quanta = measured.quanta.as_ref();
    let rows = [
        found.map(|found| detours(cpu, found)),
        work,
        quanta.map(|found| self::quanta(cpu, found)),
    ];
    let rows: Vec<Row> = rows.into_iter().flatten().collect();
    report.rows("rows", &rows);
    if let Some(found) = found {
        let starts = series(found.all().iter().map(|detour| detour.start_ns));
        let labels = Fields::default().with("test", "starts of detours");
        report.samples("scatter", labels, starts);
    }
    let spectrum = quanta.and_then(|found| Spectrum::of(found.counts(), found.quantum_ns()));
    let peaks = spectrum.as_ref().map(|found| found.peaks(PEAKS));
    if let (Some(spectrum), Some(peaks)) = (&spectrum, &peaks) {
        report.list("peaks", peaks.iter().map(peak).collect());
        report.list(
            "spectrum",
            spectrum.bands(BANDS, peaks).into_iter().map(band).collect(),
        );
    }
    report.text = text(measured, &rows);
    if let Some(peaks) = peaks {
        report.text += &spectrum_text(&peaks);
    }
    report
}

fn peak(peak: &Peak) -> Fields {
    Fields::default()
        .with("hz", peak.hz)
        .with("power", peak.power)
        .with("multiples", peak.multiples)
}

/// A point of the chart, without rounds: another run has other frequencies.
fn band((hz, power): (f64, f64)) -> Fields {
    Fields::default()
        .with("hz", hz)
        .with("power", power)
        .with("id", format!("hz={}", json!(hz)))
        .with("rounds_of", "power")
}

fn spectrum_text(peaks: &[Peak]) -> String {
    if peaks.is_empty() {
        return "\nNo regular noise: the spectrum of fixed time has no peaks.\n".into();
    }
    let mut table = Table::new(0, &["regular noise", "power over the median", "multiples"]);
    for peak in peaks {
        table.row([
            format!("{} Hz", digits(peak.hz)),
            digits(peak.power),
            peak.multiples.to_string(),
        ]);
    }
    format!("\n{table}")
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

fn row(cpu: usize, test: &str, series: &Series) -> Row {
    let row = Row::of(series).label("test", test).label("cpu", cpu);
    let quantile = |q| series.quantile_ns(q);
    row.figure("p50_ns", quantile(0.5))
        .figure("p99_ns", quantile(0.99))
        .figure("max_ns", quantile(1.0))
}

fn detours(cpu: usize, detours: &Detours) -> Row {
    let lens = series(detours.all().iter().map(|detour: &Detour| detour.len_ns));
    let elapsed_s = detours.elapsed_ns() as f64 / 1e9;
    row(cpu, "detours", &lens)
        .figure("t_min_ns", detours.shortest_ns)
        .figure("threshold_ns", detours.threshold_ns())
        .figure("count", detours.all().len())
        .figure("elapsed_s", elapsed_s)
        .figure("per_s", detours.all().len() as f64 / elapsed_s)
        .figure("time_share", detours.time_share())
        .figure("count_share", detours.count_share())
        .rounds("time_share", detours.time_shares(PARTS))
}

fn work(cpu: usize, work: &Samples) -> Row {
    let times = &work.samples_ns;
    let summary = Summary::of(times);
    row(cpu, "fixed work", &work.clone().into())
        .figure("count", times.len())
        .figure("time_share", excess(times))
        .figure("qcd", summary.map(|summary| summary.qcd))
}

fn quanta(cpu: usize, quanta: &Quanta) -> Row {
    let counts = quanta.counts();
    row(cpu, "fixed time", &Series::default())
        .figure("count", counts.len())
        .figure("work_p50", quantile(counts, 0.5))
        .figure("work_min", quantile(counts, 0.0))
        .figure("time_share", quanta.share())
        .figure("qcd", Summary::of(counts).map(|summary| summary.qcd))
        .rounds("time_share", quanta.shares(PARTS))
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
    let machine = machine::describe();
    let Some(detours) = &measured.detours else {
        return format!("Processor {} of {machine}\n\n{table}", measured.cpu);
    };
    let warning = if detours.elapsed_ns() < SHORT_NS {
        "Less than a second: take more with --detours or --seconds.\n"
    } else {
        ""
    };
    format!(
        "Processor {} of {machine}\nshortest gap {} ns; detours are gaps of over {} ns\n\n\
         {table}{warning}",
        measured.cpu,
        detours.shortest_ns,
        detours.threshold_ns(),
    )
}
