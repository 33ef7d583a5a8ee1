//! The command `diff`: two runs that were measured before.

use std::collections::HashMap;
use std::path::PathBuf;

use clap::Args;

use super::run::{Run, RunError};
use super::{Limits, Sides, compare, finish, note, share, table, verdicts};
use crate::report::{Fields, Report};
use crate::table::percent;

/// Steal above which a run is said to be disturbed.
const STEAL: f64 = 0.01;

#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The earlier run: a file written with --json or --save. Of several runs in one file, written
    /// with >>, the medians are compared.
    old: PathBuf,

    /// The later run.
    new: PathBuf,

    /// Slowdown up to which the exit status is 0, such as 5%.
    ///
    /// Two runs of one program differ, too: a row is called slower or faster only beyond the
    /// threshold. Where runs vary by 10 %, 15 runs a side show 20 %. `ab` decides smaller
    /// differences.
    #[arg(long, value_name = "SHARE", default_value = "5%", value_parser = share)]
    threshold: f64,

    /// Compare runs of unlike machines or configurations, too, and leave out rows of one round.
    #[arg(long)]
    force: bool,

    /// Print one JSON object instead of tables.
    #[arg(long)]
    pub json: bool,
}

/// Compares both runs.
pub fn run(options: &Options) -> Result<Report, RunError> {
    let (old, new) = (Run::read(&options.old)?, Run::read(&options.new)?);
    let unlike = old.unlike(&new);
    if !unlike.is_empty() && !options.force {
        return Err(RunError::Unlike {
            old: old.name,
            new: new.name,
            unlike: unlike.join("; "),
        });
    }
    let (rows, left_out) = common(&old, &new, options.force)?;
    let limits = Limits {
        threshold: options.threshold,
        margin: options.threshold,
        paired: false,
    };
    let compared = compare(rows, limits);
    let mut notes = unlike;
    if old.runs.min(new.runs) == 1 {
        notes.push(
            "two runs of one program may differ by more than their rounds do; append runs to each \
             file (>>), or use ab"
                .into(),
        );
    }
    notes.extend([&old, &new].into_iter().filter_map(disturbed));
    notes.extend(note(&left_out));
    let mut report = Report::default();
    for (side, run) in [("old", &old), ("new", &new)] {
        let fields = Fields::default().with("name", &run.name);
        let fields = fields.with("runs", run.runs);
        report.object(side, fields.with("manifest", &run.manifest));
    }
    report.fields(
        Fields::default()
            .with("threshold", options.threshold)
            .with("notes", &notes)
            .with("left_out", left_out),
    );
    finish(&mut report, &compared, options.threshold);
    let notes: String = notes
        .iter()
        .map(|note| format!("Note: {note}.\n"))
        .collect();
    report.text = format!(
        "{} and {}; {}.\n{notes}\n{}",
        old.name,
        new.name,
        verdicts(&compared),
        table(&compared)
    );
    Ok(report)
}

fn disturbed(run: &Run) -> Option<String> {
    let steal = run.manifest.get("steal")?.as_f64();
    let steal = steal.filter(|steal| *steal > STEAL)?;
    let lost = percent(Some(steal));
    Some(format!(
        "the hypervisor took {lost} of the processors from {}",
        run.name
    ))
}

/// The rows of both runs, and the names of those left out.
fn common(old: &Run, new: &Run, force: bool) -> Result<(Vec<Sides>, Vec<String>), RunError> {
    let mut others: HashMap<&str, _> = new.rows.iter().map(|row| (row.id.as_str(), row)).collect();
    let (mut rows, mut left_out) = (Vec::new(), Vec::new());
    for row in &old.rows {
        let other = others.remove(row.id.as_str());
        let Some(other) = other.filter(|other| other.of == row.of) else {
            left_out.push(row.id.clone());
            continue;
        };
        let sides = [(old, row), (new, other)];
        if sides.iter().any(|(_, row)| row.rounds.is_empty()) {
            left_out.push(row.id.clone());
        } else if let Some((run, _)) = sides.iter().find(|(_, row)| row.rounds.len() == 1) {
            let (name, row) = (run.name.clone(), row.id.clone());
            if !force {
                return Err(RunError::OneRound { name, row });
            }
            left_out.push(row);
        } else {
            let both = Sides {
                id: row.id.clone(),
                of: row.of.clone(),
                old: row.rounds.clone(),
                new: other.rounds.clone(),
            };
            if both.have_ratio() {
                rows.push(both);
            } else {
                left_out.push(both.id);
            }
        }
    }
    let only_new = new
        .rows
        .iter()
        .filter(|row| others.contains_key(row.id.as_str()));
    left_out.extend(only_new.map(|row| row.id.clone()));
    if rows.is_empty() {
        return Err(RunError::NothingInCommon {
            old: old.name.clone(),
            new: new.name.clone(),
        });
    }
    Ok((rows, left_out))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_with_a_difference_below_zero_has_no_ratio() {
        let run = |gap: f64| {
            let row = |id, first| json!({"id": id, "rounds_of": "p50_ns", "rounds": [first, 4.0]});
            let json = json!({"manifest": {}, "rows": [row("gap", gap), row("os", 3.0)]});
            Run::parse("f".into(), json.to_string().as_bytes()).unwrap()
        };
        for gap in [0.0, -1.0] {
            let (rows, left_out) = common(&run(gap), &run(2.0), false).unwrap();
            assert_eq!((rows.len(), left_out), (1, vec!["gap".to_owned()]));
        }
        let (rows, left_out) = common(&run(1.0), &run(2.0), false).unwrap();
        assert_eq!((rows.len(), left_out.len()), (2, 0));
    }
}
