//! Targets: bounds of figures, checked within one run. Reports print them; nothing asserts them.

use serde::Serialize;

use crate::table::{self, Table};

/// The bound of a target.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// A figure with its bound.
#[derive(Clone, Debug, Serialize)]
pub struct Target {
    /// The figure's name.
    pub what: String,
    /// The figure; null if not measured.
    pub found: Option<f64>,
    pub wanted: f64,
    /// Whether `wanted` is an upper bound.
    pub at_most: bool,
    /// Whether the figure is within the bound.
    pub met: bool,
    #[serde(skip)]
    show: fn(Option<f64>) -> String,
}

impl Target {
    pub fn new(bound: Bound, what: impl Into<String>, found: Option<f64>) -> Self {
        let (at_most, wanted) = match bound {
            Bound::AtLeast(wanted) => (false, wanted),
            Bound::AtMost(wanted) => (true, wanted),
        };
        let is_met = |found: f64| {
            if at_most {
                found <= wanted
            } else {
                found >= wanted
            }
        };
        Target {
            met: found.is_some_and(is_met),
            at_most,
            what: what.into(),
            found,
            wanted,
            show: |value| table::decimals(value, 2),
        }
    }

    /// Prints the figures with `show` instead of two decimals.
    pub fn shown(self, show: fn(Option<f64>) -> String) -> Self {
        Target { show, ..self }
    }
}

/// A table of targets.
pub fn render<'a>(targets: impl IntoIterator<Item = &'a Target>) -> String {
    let mut table = Table::new(2, &["", "Targets", "found", "wanted"]);
    for target in targets {
        let verdict = match (target.found, target.met) {
            (None, _) => "not measured",
            (_, true) => "met",
            (_, false) => "MISSED",
        };
        let bound = if target.at_most {
            "at most"
        } else {
            "at least"
        };
        let wanted = format!("{bound} {}", (target.show)(Some(target.wanted)));
        table.row([
            verdict.into(),
            target.what.clone(),
            (target.show)(target.found),
            wanted,
        ]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::Bound::{AtLeast, AtMost};
    use super::*;

    #[test]
    fn a_target_is_met_missed_or_not_measured() {
        let targets = [
            Target::new(AtMost(2e3), "a", Some(1e3)).shown(table::time),
            Target::new(AtLeast(1.0), "b", Some(0.5)),
            Target::new(AtLeast(1.0), "c", None),
        ];
        let text = render(&targets);
        let one_spaced = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<String> = text.lines().map(one_spaced).collect();
        assert_eq!(lines[1], "met a 1.00 us at most 2.00 us");
        assert_eq!(lines[2], "MISSED b 0.50 at least 1.00");
        assert_eq!(lines[3], "not measured c - at least 1.00");
    }
}
