//! The report of `programs`.

use std::time::Instant;

use super::bed::{have_processors, wait};
use crate::machine;
use crate::micro::bed::Path;
use crate::plan::Effort;
use crate::report::{self, COUNT, Fields, PERCENT, Report, Row, Show, TEXT, TIME};
use crate::samples::{Samples, Series};
use crate::table;
use crate::worker::micro::script::Wait;
use crate::worker::programs::task::Task;

const COLUMNS: [(&str, &str, Show); 9] = [
    ("program", "program", TEXT),
    ("size", "size", TEXT),
    ("path", "path", TEXT),
    ("ranks", "ranks", TEXT),
    ("time", "p50_ns", TIME),
    ("communication", "communication", PERCENT),
    ("messages", "messages", COUNT),
    ("MB", "bytes", MEGABYTES),
    ("checked", "checked", TEXT),
];

const MEGABYTES: Show = |row, name| {
    let megabytes = row.known(name).map(|bytes| bytes / 1e6);
    table::decimals(megabytes, 2)
};

/// A path with its measured programs.
pub type Measured = (Path, Vec<(Task, Series)>);

pub fn report(effort: Effort, start: Instant, ranks: usize, measured: &[Measured]) -> Report {
    let of_path = |(path, tasks): &Measured| {
        let row = |task: &Task, series: &Series| row(task, *path, ranks, series);
        report::rows_of(tasks, row)
    };
    let rows: Vec<Row> = measured.iter().flat_map(of_path).collect();
    let mut report = Report::new(effort, start, Fields::default());
    report.rows("rows", &rows);
    let waits: Vec<String> = measured
        .iter()
        .map(|(path, _)| waits(*path, ranks))
        .collect();
    report.text = format!(
        "{}, {:.0} s\n{}\n\n{}",
        machine::describe(),
        start.elapsed().as_secs_f64(),
        waits.join("\n"),
        report::table(&rows, 3, &COLUMNS),
    );
    report
}

/// How the ranks of a path wait, as a sentence.
fn waits(path: Path, ranks: usize) -> String {
    let how = match wait(path, ranks) {
        Wait::Poll => "ranks poll, each on a processor of its own",
        _ if !have_processors(ranks) => {
            "ranks sleep while they wait: there is no processor for each"
        }
        _ => "ranks sleep while they wait",
    };
    format!("{path}: {ranks} {how}")
}

/// The result of each round is checked: a wrong one ends the run.
fn row(task: &Task, path: Path, ranks: usize, series: &Series) -> Row {
    let median = |name: &str| series.median(|round| round.figure(name));
    Row::of(series)
        .label("program", task.name())
        .label("size", task.size())
        .label("path", path)
        .label("ranks", ranks)
        .figure("p50_ns", series.quantile_ns(0.5))
        .figure("communication", median("communication"))
        .figure("messages", median("messages"))
        .figure("most_messages", median("most_messages"))
        .figure(
            "bytes",
            series.median(|round: &Samples| Some(round.bytes as f64)),
        )
        .figure("wait", wait(path, ranks))
        .figure("checked", true)
}
