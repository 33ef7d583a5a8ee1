//! Time that each layer adds: messages to packets of their path, Ethernet to shared memory.

use super::measure::Row;
use super::plan::{Case, LayerName};
use super::report::{Measured, interval, time};
use crate::stats::quotient;
use crate::table::{Table, percent};

const HEADS: [&str; 8] = [
    "layer",
    "over",
    "bytes",
    "below",
    "with it",
    "adds",
    "95 %",
    "of the bandwidth",
];

/// Whether a row belongs to this table.
pub fn has(row: &Row) -> bool {
    row.case.test.starts_with("layers/")
}

/// Rows of Ethernet with shared memory as the base, if both were measured.
pub fn of_ethernet(measured: &[Measured]) -> Vec<Row> {
    let find = |path| measured.iter().find(|measured| measured.path == path);
    let Some((below, above)) = find("shm").zip(find("ethernet")) else {
        return Vec::new();
    };
    let pairs = below.layers().zip(above.layers());
    let of = |(below_row, above_row): (&Row, &Row)| {
        let case = Case {
            // Bases of these rows are packets of their path.
            base: below_row.case.base.clone(),
            changed: above_row.case.base.clone(),
            ..above_row.case.clone()
        };
        Row::between(&case, &below.times, &above.times)
    };
    pairs.map(of).collect()
}

/// The table of all layers; `None` if none was measured.
pub fn table(measured: &[Measured], ethernet: &[Row]) -> Option<Table> {
    let mut table = Table::new(2, &HEADS);
    let mut is_empty = true;
    let mut add = |layer: &str, over: &str, rows: Vec<&Row>| {
        for cells in lines(&rows) {
            is_empty = false;
            table.row([layer.into(), over.into()].into_iter().chain(cells));
        }
    };
    for one in measured {
        add("messages", &one.name(), one.layers().collect());
    }
    add("ethernet", "shm", ethernet.iter().collect());
    (!is_empty).then_some(table)
}

/// Cells from the bytes on, by size.
fn lines(rows: &[&Row]) -> Vec<[String; 6]> {
    let named = |test| rows.iter().filter(move |row| row.case.test == test);
    let of = |latency: &&Row| {
        let bytes = latency.case.bytes;
        let bandwidth = named("layers/bandwidth").find(|row| row.case.bytes == bytes);
        let share = bandwidth.and_then(|row| quotient(row.base(), row.changed()));
        [
            bytes.to_string(),
            time(latency.base()),
            time(latency.changed()),
            time(latency.cost().map(|cost| cost.value)),
            interval(latency),
            percent(share),
        ]
    };
    named("layers/latency").map(of).collect()
}

impl Measured {
    fn layers(&self) -> impl Iterator<Item = &Row> {
        let parts = self.parts.iter();
        let parts = parts.filter(|part| part.layer == LayerName::Msg);
        parts.flat_map(|part| &part.rows).filter(|row| has(row))
    }
}
