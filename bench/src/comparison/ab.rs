//! The command `ab`: two programs in turns.
//!
//! Each round starts both anew, so that its pair also holds the difference between two runs of one
//! program: memory elsewhere, other processors. The machine's drift is that of both.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Args;

use super::run::{Measured, Run, RunError};
use super::{Limits, Sides, compare, finish, note, share, table, verdicts};
use crate::program::Program;
use crate::progress::Progress;
use crate::report::{Fields, Report};
use crate::stats::median;

#[derive(Args, Clone, Debug)]
pub struct Options {
    /// The earlier toroid-bench.
    old: PathBuf,

    /// The later toroid-bench.
    new: PathBuf,

    /// Runs of each program.
    #[arg(long, value_name = "N", default_value_t = 15, value_parser = clap::value_parser!(u32).range(2..=1000))]
    rounds: u32,

    /// Slowdown up to which the exit status is 0, such as 1%.
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = share)]
    threshold: f64,

    /// Print one JSON object instead of tables.
    #[arg(long)]
    pub json: bool,

    /// Command of both programs with its options, such as `fabric --quick`.
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// Runs both programs in turns, and compares their rows. After a signal both have ended.
pub fn measure(options: &Options, progress: &Progress) -> Result<Report> {
    let [mut old, mut new] = [
        Side::of(&options.old, &options.command)?,
        Side::of(&options.new, &options.command)?,
    ];
    progress.expect(2 * options.rounds as usize);
    let mut rows: Vec<Sides> = Vec::new();
    for round in 1..=options.rounds {
        // The order changes, so that neither always follows the other.
        let (before, after) = if round % 2 == 1 {
            let before = old.run(round, progress)?;
            (before, new.run(round, progress)?)
        } else {
            let after = new.run(round, progress)?;
            (old.run(round, progress)?, after)
        };
        add(&mut rows, &before, &after);
    }
    let (rows, others): (Vec<_>, Vec<_>) = rows
        .into_iter()
        .partition(|row| row.old.len() >= 2 && row.have_ratio());
    let left_out: Vec<String> = others.into_iter().map(|row| row.id).collect();
    let [old, new] = [old.name, new.name];
    if rows.is_empty() {
        return Err(RunError::NothingInCommon { old, new }.into());
    }
    let limits = Limits {
        threshold: options.threshold,
        margin: 0.0,
        paired: true,
    };
    let compared = compare(rows, limits);
    let note = note(&left_out).map_or_else(String::new, |note| format!("Note: {note}.\n"));
    let mut report = Report::default();
    report.fields(
        Fields::default()
            .with("old", &old)
            .with("new", &new)
            .with("threshold", options.threshold)
            .with("left_out", left_out),
    );
    finish(&mut report, &compared, options.threshold);
    report.text = format!(
        "{old} and {new} in turns, {} rounds; {}.\n{note}\n{}",
        options.rounds,
        verdicts(&compared),
        table(&compared)
    );
    Ok(report)
}

/// Adds the medians of a round's runs, of the rows that both have.
fn add(rows: &mut Vec<Sides>, old: &Run, new: &Run) {
    for row in &old.rows {
        let is_same = |other: &&Measured| other.id == row.id && other.of == row.of;
        let other = new.rows.iter().find(is_same);
        let medians = other.and_then(|other| Some((median(&row.rounds)?, median(&other.rounds)?)));
        let Some((before, after)) = medians else {
            continue;
        };
        let known = rows.iter().position(|known| known.id == row.id);
        let at = known.unwrap_or_else(|| {
            rows.push(Sides {
                id: row.id.clone(),
                of: row.of.clone(),
                old: Vec::new(),
                new: Vec::new(),
            });
            rows.len() - 1
        });
        rows[at].old.push(before);
        rows[at].new.push(after);
    }
}

/// One of both programs.
struct Side {
    name: String,
    program: Program,
}

impl Side {
    fn of(binary: &Path, command: &[OsString]) -> Result<Self> {
        let mut arguments = vec![binary.as_os_str().to_owned()];
        arguments.extend_from_slice(command);
        if !command.iter().any(|argument| argument == "--json") {
            arguments.push("--json".into());
        }
        Ok(Side {
            name: binary.display().to_string(),
            program: Program::new(&arguments)?,
        })
    }

    fn run(&mut self, round: u32, progress: &Progress) -> Result<Run> {
        progress.step(format!("round {round}: {}", self.name));
        let output = self.program.run()?;
        Ok(Run::parse(
            format!("{} in round {round}", self.name),
            &output,
        )?)
    }
}
