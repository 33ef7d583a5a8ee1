//! The commands `noise burst` and `noise stress`: one question each, over minutes.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use clap::{Args, value_parser};

use super::burst::{NAMES, REPETITIONS, Steps, Verdict, WAITS};
use super::changes::changes;
use super::client::Client;
use super::error::NetError;
use super::plan::Server;
use super::wire::{Direction, LARGEST, Protocol, Streams};
use crate::machine;
use crate::noise::signals::Signals;
use crate::plan::Common;
use crate::progress::Progress;
use crate::report::{Fields, RATE, Report, Row, SHARE, Show, TEXT, TIME, table};
use crate::samples::{Samples, Series};
use crate::stats::{Estimate, Summary, median, quotient};
use crate::table;

/// Bytes of a message.
const MIB: u32 = 1 << 20;

/// Round trips of a measurement: bursts, and continuous use.
const IN_A_ROW: [u32; 2] = [1, 100];

/// Most round trips that keep a path busy, and the time after which no further one begins. The other
/// connection is silent meanwhile, which an end bears for [`super::PATIENCE`].
const TO_KEEP_BUSY: (u32, Duration) = (IN_A_ROW[1], Duration::from_secs(1));

/// Round trips before the first measurement.
const WARM_UP: u32 = 20;

/// Least difference of rates that counts as a change.
const LEAST_CHANGE: f64 = 0.05;

// Not a doc comment, which would replace the text of the command.
#[derive(Args)]
pub(crate) struct BurstOptions {
    #[command(flatten)]
    pub common: Common,

    #[command(flatten)]
    server: Server,

    /// Bytes of a message.
    #[arg(
        long,
        value_name = "N",
        default_value_t = MIB,
        value_parser = value_parser!(u32).range(1..=i64::from(LARGEST))
    )]
    bytes: u32,
}

// Not a doc comment, which would replace the text of the command.
#[derive(Args)]
pub(crate) struct StressOptions {
    #[command(flatten)]
    pub common: Common,

    #[command(flatten)]
    server: Server,

    /// Length of the run [default: 900, with --quick 30].
    #[arg(long, value_name = "SECONDS", value_parser = value_parser!(u32).range(10..=3_600))]
    seconds: Option<u32>,
}

/// Measures bursts.
pub(crate) fn burst(options: &BurstOptions, progress: &Progress) -> Result<Report> {
    let start = Instant::now();
    let signals = Signals::catch()?;
    let effort = options.common.effort();
    let mut client = options.server.connect(&signals)?;
    progress.expect(IN_A_ROW.len() * WAITS.len() + 1);
    let mut measured = Vec::new();
    for (row, quick) in IN_A_ROW.into_iter().zip([10, 5]) {
        let repetitions = effort.quick_or(quick, REPETITIONS);
        let steps = steps(&mut client, options.bytes, row, repetitions, progress);
        measured.push((row, steps.map_err(|error| client.failed(error))?));
    }
    progress.step(format!("waits of {} on a busy path", NAMES[0]));
    let repetitions = effort.quick_or(10, REPETITIONS);
    let kept_busy = kept_busy(&mut client, options.bytes, repetitions);
    let kept_busy = kept_busy.map_err(|error| client.failed(error))?;
    let verdict = Verdict::of(&measured[0].1, &measured[1].1, &kept_busy);
    let verdict = verdict.ok_or_else(|| anyhow!("a wait has no measurement"))?;
    let config = Fields::default()
        .with("server", options.server.address())
        .with("bytes", options.bytes);
    let mut report = Report::new(effort, start, config);
    let mut rows: Vec<Row> = measured
        .iter()
        .flat_map(|(row, steps)| burst_rows(options.bytes, *row, steps))
        .collect();
    let wait = format!("{}, path busy", NAMES[0]);
    rows.push(burst_row(options.bytes, 1, (0, &wait), &kept_busy).label("kept_busy", true));
    report.rows("rows", &rows);
    report.object("verdict", fields(&verdict));
    report.text = burst_text(options.server.address(), &rows, &verdict);
    Ok(report)
}

/// Times of `row` round trips in a row, as their mean, with all waits.
fn steps(
    client: &mut Client,
    bytes: u32,
    row: u32,
    repetitions: u32,
    progress: &Progress,
) -> Result<Steps, NetError> {
    let count = WARM_UP + WAITS.len() as u32 * repetitions * row;
    let mut echo = client.echo(Protocol::Tcp, bytes, 1, count)?;
    for _ in 0..WARM_UP {
        echo.round_trip()?;
    }
    let mut steps = Steps::default();
    for (step, wait) in WAITS.into_iter().enumerate() {
        progress.step(format!("{row} in a row, waits of {}", NAMES[step]));
        for _ in 0..repetitions {
            let mut sum = Duration::ZERO;
            for _ in 0..row {
                sum += echo.round_trip()?.unwrap_or_default();
            }
            steps.0[step].push(sum.as_nanos() as f64 / f64::from(row));
            busy_wait(wait);
        }
    }
    echo.finish(count.into())?;
    Ok(steps)
}

/// Times of single round trips after the longest wait of their connection, at the end of which
/// another one keeps the path busy.
fn kept_busy(client: &mut Client, bytes: u32, repetitions: u32) -> Result<Vec<f64>, NetError> {
    let [measured, other] = [0, 1];
    let count = WARM_UP + repetitions * TO_KEEP_BUSY.0;
    let mut echo = client.echo(Protocol::Tcp, bytes, 2, count)?;
    for _ in 0..WARM_UP {
        echo.round_trip_on(measured)?;
        echo.round_trip_on(other)?;
    }
    let (mut times, mut taken) = (Vec::new(), 2 * WARM_UP + repetitions);
    for _ in 0..repetitions {
        busy_wait(WAITS[0]);
        taken += keep_busy(|| echo.round_trip_on(other))?;
        let time = echo.round_trip_on(measured)?.unwrap_or_default();
        times.push(time.as_nanos() as f64);
    }
    echo.finish(taken.into())?;
    Ok(times)
}

/// Takes round trips within [`TO_KEEP_BUSY`], and one at least. Returns their number.
fn keep_busy(
    mut round_trip: impl FnMut() -> Result<Option<Duration>, NetError>,
) -> Result<u32, NetError> {
    let (most, limit) = TO_KEEP_BUSY;
    let (mut taken, mut sum) = (0, Duration::ZERO);
    while taken < most && sum < limit {
        sum += round_trip()?.unwrap_or_default();
        taken += 1;
    }
    Ok(taken)
}

/// Waits without a sleep, which would let the processor rest. A signal ends the next round trip.
fn busy_wait(wait: Duration) {
    let end = Instant::now() + wait;
    while Instant::now() < end {}
}

fn burst_rows(bytes: u32, row: u32, steps: &Steps) -> Vec<Row> {
    let steps = steps.0.iter().enumerate();
    let of = |(step, times): (usize, &Vec<f64>)| {
        burst_row(bytes, row, (step, NAMES[step]), times).label("kept_busy", false)
    };
    steps.map(of).collect()
}

/// A row of a step with this name.
fn burst_row(bytes: u32, row: u32, (step, wait): (usize, &str), times: &[f64]) -> Row {
    let series = Series::from(Samples {
        batch: row,
        samples_ns: times.to_vec(),
        ops: times.len() as u64 * u64::from(row),
        ..Samples::default()
    });
    let quantile = |q| series.quantile_ns(q);
    let rate = quotient(Some(2e9 * f64::from(bytes)), quantile(0.5));
    Row::of(&series)
        .label("test", "burst")
        .label("in_a_row", row)
        .label("step", step)
        .label("wait_ns", WAITS[step].as_nanos() as u64)
        .figure("wait", wait)
        .figure("p50_ns", quantile(0.5))
        .figure("min_ns", quantile(0.0))
        .figure("max_ns", quantile(1.0))
        .figure("qcd", Summary::of(times).map(|summary| summary.qcd))
        .figure("bytes_per_s", rate)
}

fn fields(verdict: &Verdict) -> Fields {
    let ratios = |flanks: [Estimate; 2]| flanks.map(|flank| flank.value);
    let intervals = |flanks: [Estimate; 2]| flanks.map(|flank| flank.interval);
    let names = verdict
        .between
        .map(|pair| pair.map(|pair| pair.map(|step| NAMES[step])));
    Fields::default()
        .with("switches", verdict.switches)
        .with("idle_ns", verdict.idle_ns)
        .with("busy_ns", verdict.busy_ns)
        .with("kept_busy_ns", verdict.kept_busy_ns)
        .with("ratio", ratios(verdict.single))
        .with("ci", intervals(verdict.single))
        .with("path_ratio", ratios(verdict.path))
        .with("path_ci", intervals(verdict.path))
        .with("ratio_in_a_row", ratios(verdict.row))
        .with("ci_in_a_row", intervals(verdict.row))
        .with("between", names)
}

fn burst_text(address: &str, rows: &[Row], verdict: &Verdict) -> String {
    let columns: [(&str, &str, Show); 7] = [
        ("in a row", "in_a_row", TEXT),
        ("wait", "wait", TEXT),
        ("p50", "p50_ns", TIME),
        ("min", "min_ns", TIME),
        ("max", "max_ns", TIME),
        ("QCD", "qcd", SHARE),
        ("rate", "bytes_per_s", RATE),
    ];
    let table = table(rows, 2, &columns);
    let words = if verdict.switches {
        "switches"
    } else {
        "is flat"
    };
    let [before, after] = verdict.single.map(ratio);
    let [path_before, path_after] = verdict.path.map(ratio);
    let [idle, busy, kept] =
        [verdict.idle_ns, verdict.busy_ns, verdict.kept_busy_ns].map(|ns| table::time(Some(ns)));
    let pairs = verdict.between.iter().flatten();
    let waits = pairs.map(|[first, second]| format!("{} and {}", NAMES[*first], NAMES[*second]));
    let waits: Vec<String> = waits.collect();
    let between = if waits.is_empty() {
        String::new()
    } else {
        format!("between waits of {}", waits.join(", then "))
    };
    format!(
        "To {address}, from {}\n\n{table}\nThe path {words} {between}\n\
         idle {idle}, busy {busy}: {before} before the middle, {after} after\n\
         idle on a busy path {kept}, so by the path alone: {path_before}, {path_after}\n",
        machine::describe(),
    )
    .replace(" \n", "\n")
}

fn ratio(flank: Estimate) -> String {
    let [value, low, high] = [flank.value, flank.interval.low, flank.interval.high]
        .map(|ratio| table::decimals(Some(ratio), 2));
    format!("{value}x ({low} .. {high})")
}

/// Measures one stream for long.
pub(crate) fn stress(options: &StressOptions, progress: &Progress) -> Result<Report> {
    let start = Instant::now();
    let signals = Signals::catch()?;
    let effort = options.common.effort();
    let seconds = options.seconds.unwrap_or(effort.quick_or(30, 900));
    let slice_ms = effort.quick_or(500, 1000);
    let order = Streams {
        protocol: Protocol::Tcp,
        streams: 1,
        direction: Direction::Out,
        bytes: MIB,
        slice_ms,
        slices: seconds * 1000 / slice_ms,
    };
    let mut client = options.server.connect(&signals)?;
    progress.expect(2);
    progress.step(format!("a stream of {seconds} s"));
    let streamed = client.streams(&order);
    let streamed = streamed.map_err(|error| client.failed(error))?;
    let slices = streamed.outward.first().map(|flow| flow.slices.as_slice());
    let series = slice_series(&order, slices.unwrap_or_default());
    let config = Fields::default()
        .with("server", options.server.address())
        .with("interval_ms", slice_ms);
    let mut report = Report::new(effort, start, config);
    let row = stress_row(&series);
    let found = levels(&series.rates(), f64::from(slice_ms) / 1e3);
    report.rows("rows", std::slice::from_ref(&row));
    let levels = found.iter().map(Level::fields);
    report.list("levels", levels.collect());
    report.text = stress_text(options.server.address(), &row, &found);
    Ok(report)
}

/// Each slice of time as a round.
fn slice_series(order: &Streams, slices: &[u64]) -> Series {
    let mut series = Series::default();
    for bytes in slices {
        series.add(Samples {
            batch: 1,
            ops: bytes / u64::from(order.bytes),
            bytes: *bytes,
            elapsed_ns: u64::from(order.slice_ms) * 1_000_000,
            ..Samples::default()
        });
    }
    series
}

fn stress_row(series: &Series) -> Row {
    let rates = series.rates();
    let summary = Summary::of(&rates);
    let at = |q| crate::stats::quantile(&rates, q);
    let tenth = rates.len() / 10;
    let ends = [&rates[..tenth], &rates[rates.len() - tenth..]].map(median);
    Row::of(series)
        .label("test", "stress")
        .label("protocol", "tcp")
        .figure("intervals", rates.len())
        .figure("bytes_per_s", at(0.5))
        .figure("min_bytes_per_s", at(0.0))
        .figure("max_bytes_per_s", at(1.0))
        .figure("qcd", summary.as_ref().map(|summary| summary.qcd))
        .figure("outliers", summary.as_ref().map(|summary| summary.outliers))
        .figure("drift", quotient(ends[1], ends[0]))
        .rounds("bytes_per_s", rates)
}

/// A part of the run between two changes.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Level {
    from_s: f64,
    to_s: f64,
    bytes_per_s: f64,
}

impl Level {
    fn fields(&self) -> Fields {
        Fields::default()
            .with("from_s", self.from_s)
            .with("to_s", self.to_s)
            .with("bytes_per_s", self.bytes_per_s)
    }
}

/// The parts of a run between changes of at least [`LEAST_CHANGE`].
fn levels(rates: &[f64], interval_s: f64) -> Vec<Level> {
    let mut levels: Vec<Level> = Vec::new();
    let (mut begin, mut from) = (0, 0);
    for to in changes(rates, 0).into_iter().chain([rates.len()]) {
        let Some(rate) = median(&rates[from..to]) else {
            break;
        };
        let end_s = to as f64 * interval_s;
        match levels.last_mut() {
            Some(last) if (rate / last.bytes_per_s - 1.0).abs() < LEAST_CHANGE => {
                last.to_s = end_s;
                last.bytes_per_s = median(&rates[begin..to]).unwrap_or(rate);
                from = to;
                continue;
            }
            _ => levels.push(Level {
                from_s: from as f64 * interval_s,
                to_s: end_s,
                bytes_per_s: rate,
            }),
        }
        (begin, from) = (from, to);
    }
    levels
}

fn stress_text(address: &str, row: &Row, levels: &[Level]) -> String {
    let columns: [(&str, &str, Show); 7] = [
        ("intervals", "intervals", TEXT),
        ("median", "bytes_per_s", RATE),
        ("lowest", "min_bytes_per_s", RATE),
        ("highest", "max_bytes_per_s", RATE),
        ("QCD", "qcd", SHARE),
        ("outliers", "outliers", TEXT),
        ("last tenth / first", "drift", SHARE),
    ];
    let table = table(std::slice::from_ref(row), 0, &columns);
    let mut parts = table::Table::new(0, &["from", "to", "rate"]);
    for level in levels {
        parts.row([
            format!("{:.1} s", level.from_s),
            format!("{:.1} s", level.to_s),
            table::rate(Some(level.bytes_per_s)),
        ]);
    }
    let machine = machine::describe();
    let changes = levels.len().saturating_sub(1);
    format!("To {address}, from {machine}\n\n{table}\n{changes} changes\n{parts}")
}

#[cfg(test)]
mod tests {
    use super::super::PATIENCE;
    use super::*;

    /// On a path of 100 Mbit/s, 100 round trips of 1 MiB silenced the measured connection for 17 s.
    #[test]
    fn a_slow_path_is_kept_busy_for_less_than_the_patience_of_the_ends() {
        let busy = |ms| {
            let (took, mut sum) = (Duration::from_millis(ms), Duration::ZERO);
            let taken = keep_busy(|| {
                sum += took;
                Ok(Some(took))
            });
            (taken.unwrap(), WAITS[0] + sum)
        };
        assert_eq!(busy(1).0, 100);
        let (taken, silent) = busy(168);
        assert!(taken == 6 && silent < PATIENCE / 2, "{taken}, {silent:?}");
        assert_eq!(busy(3000).0, 1);
    }

    #[test]
    fn levels_are_the_parts_between_large_changes() {
        let rate = |at: u32| {
            let level = if (40..50).contains(&at) { 0.5e9 } else { 1e9 };
            level + f64::from(at * 7 % 10) * 1e6
        };
        let rates: Vec<f64> = (0..120).map(rate).collect();
        let found = levels(&rates, 0.5);
        let times: Vec<(f64, f64)> = found
            .iter()
            .map(|level| (level.from_s, level.to_s))
            .collect();
        assert_eq!(times, [(0.0, 20.0), (20.0, 25.0), (25.0, 60.0)]);
        assert!(found[1].bytes_per_s < 0.52e9 && found[2].bytes_per_s >= 1e9);
        let small: Vec<f64> = (0..60)
            .map(|at| if at < 30 { 1e9 } else { 1.01e9 })
            .collect();
        let merged = levels(&small, 1.0);
        assert_eq!(merged.len(), 1);
        // The median of all, not that of the first part.
        assert_eq!(merged[0].bytes_per_s, 1.005e9);
    }
}
