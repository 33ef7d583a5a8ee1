//! Tables for people: no borders, texts left-aligned, numbers right-aligned.

use std::fmt;

use comfy_table::{CellAlignment, presets};

/// Spaces between two columns.
const GAP: u16 = 2;

pub struct Table(comfy_table::Table);

impl Table {
    /// A table with these heads. The first `texts` columns are left-aligned.
    pub fn new(texts: usize, heads: &[&str]) -> Self {
        let mut table = comfy_table::Table::new();
        table
            .load_style(presets::NOTHING)
            .set_header(heads.to_vec());
        for (at, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, GAP));
            if at >= texts {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        Table(table)
    }

    pub fn row<C: ToString>(&mut self, cells: impl IntoIterator<Item = C>) {
        let cells: Vec<String> = cells.into_iter().map(|cell| cell.to_string()).collect();
        self.0.add_row(cells);
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.0.trim_fmt())
    }
}

fn cell(value: Option<f64>, text: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| "-".into(), text)
}

/// About three significant digits.
pub fn digits(value: f64) -> String {
    match value.abs() {
        size if size < 10.0 => format!("{value:.2}"),
        size if size < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

/// A time of `ns` nanoseconds.
pub fn time(ns: Option<f64>) -> String {
    cell(ns, |ns| match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{} us", digits(ns / 1e3)),
        ns => format!("{} ms", digits(ns / 1e6)),
    })
}

/// Bytes per second.
pub fn rate(bytes_per_s: Option<f64>) -> String {
    cell(bytes_per_s, |rate| match rate {
        rate if rate < 1e9 => format!("{} MB/s", digits(rate / 1e6)),
        rate => format!("{} GB/s", digits(rate / 1e9)),
    })
}

pub fn times(ratio: Option<f64>) -> String {
    cell(ratio, |ratio| format!("{}x", digits(ratio)))
}

/// A fraction in percent.
pub fn percent(fraction: Option<f64>) -> String {
    cell(fraction, |fraction| {
        format!("{} %", digits(fraction * 100.0))
    })
}

/// A number with `decimals` decimals.
pub fn decimals(value: Option<f64>, decimals: usize) -> String {
    cell(value, |value| format!("{value:.decimals$}"))
}

/// Bytes in MiB.
pub fn mebibytes(bytes: Option<f64>) -> String {
    cell(bytes, |bytes| {
        format!("{:.0} MiB", bytes / f64::from(1 << 20))
    })
}

/// Bytes of a message or value.
pub fn size(bytes: usize) -> String {
    match bytes {
        bytes if bytes.is_multiple_of(1024) => format!("{} KiB", bytes / 1024),
        bytes => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_left_aligned_and_numbers_right_aligned() {
        let mut table = Table::new(1, &["op", "p50"]);
        table.row(["get".into(), time(Some(95.0))]);
        table.row(["a longer one".into(), time(None)]);
        assert_eq!(
            table.to_string(),
            "op              p50\nget           95 ns\na longer one      -\n"
        );
    }
}
