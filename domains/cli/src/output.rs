//! Results on standard output: tables and lines of text, or JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};

use serde::Serialize;
use serde_json::json;

/// Prints a line of a result. A reader that has seen enough, such as `head`, ends the program
/// quietly.
macro_rules! line {
    ($($text:tt)*) => { $crate::output::print(format_args!($($text)*)) };
}
pub(crate) use line;

pub(crate) fn print(line: fmt::Arguments<'_>) {
    match writeln!(io::stdout(), "{line}") {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => {
            eprintln!("toroid: cannot print the result: {error}");
            std::process::exit(1);
        }
    }
}

/// Form of results.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Show {
    pub(crate) json: bool,
}

impl Show {
    /// Prints a note to standard error, unless results are JSON.
    pub(crate) fn note(self, text: &str) {
        if !self.json {
            eprintln!("{text}");
        }
    }

    /// Ends a command without a result: `{}` in JSON.
    pub(crate) fn done(self) {
        if self.json {
            self.value(&json!({}));
        }
    }

    pub(crate) fn value(self, value: &impl Serialize) {
        match serde_json::to_string(value) {
            Ok(text) => line!("{text}"),
            Err(error) => eprintln!("toroid: cannot print the result: {error}"),
        }
    }
}

/// Names hosts whose part a result lacks, with the reasons, on standard error.
pub(crate) fn name_missing(hosts: &BTreeMap<String, String>) {
    for (host, why) in hosts {
        let why = why.escape_debug();
        eprintln!("the part of host {host} is missing: {why}; see `toroid status`");
    }
}

/// A number with its noun, such as `1 member`.
pub(crate) fn count(number: impl Into<u64>, one: &str) -> String {
    counted(number, one, &format!("{one}s"))
}

pub(crate) fn counted(number: impl Into<u64>, one: &str, several: &str) -> String {
    match number.into() {
        1 => format!("1 {one}"),
        number => format!("{number} {several}"),
    }
}

/// Columns as wide as their widest cell.
pub(crate) fn table<const N: usize>(head: [&str; N], rows: impl Iterator<Item = [String; N]>) {
    let rows: Vec<_> = std::iter::once(head.map(String::from))
        .chain(rows)
        .collect();
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    for row in &rows {
        let cells = row
            .iter()
            .zip(widths)
            .map(|(cell, width)| format!("{cell:width$}"));
        line!("{}", cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}
