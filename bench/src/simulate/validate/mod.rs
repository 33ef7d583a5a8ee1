//! Comparisons of the simulator with closed forms, other simulators, the live fabric and published
//! figures.
//!
//! A [`Check`] computes one or several [`Outcome`]s. Checks run on all processors. A new check is a
//! function in a file here, and an entry in [`CHECKS`].

mod caminos;
mod closed;
mod equation;
mod levels;
mod live;
mod load;
mod outcome;
mod packets;
mod published;
mod simgrid;

pub use outcome::{Bar, Outcome};

use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args;

use super::refuse;
use super::turns::on_all_processors;
use crate::causes::{with_causes, without_panic};
use crate::machine;
use crate::plan::Effort;
use crate::progress::Progress;
use crate::report::{Fields, Report};
use crate::sim::{Happening, Network, Ticks};
use crate::table::Table;

// Not a doc comment, which would replace the text of the command.
#[derive(Args)]
pub struct Options {
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub json: bool,

    /// Longer comparisons as well, which take up to an hour.
    #[arg(long)]
    full: bool,

    /// Only comparisons with these words in their names, such as simgrid [default: all].
    #[arg(value_name = "NAME")]
    names: Vec<String>,
}

/// All comparisons, in the order of the table: the longest first, so that processors end together.
const CHECKS: &[Check] = &[
    levels::BACK_PRESSURE,
    levels::CHUNKS,
    closed::LINK_MODEL,
    packets::IDLE,
    packets::SATURATION,
    packets::POISSON,
    packets::LITTLE,
    packets::WINDOW,
    packets::SAFETY,
    packets::MODES,
    packets::PHANTOM,
    closed::IDLE,
    closed::MAKESPAN,
    closed::INCAST,
    closed::TORNADO,
    closed::QUEUE,
    simgrid::PERMUTATION,
    caminos::UNIFORM,
    live::LIVE,
    published::FARTHEST,
    packets::PUBLISHED,
    equation::EQUATION_2,
    equation::EQUATION_16_MIB,
    published::FIGURE_6,
];

/// A comparison that runs on one thread.
pub struct Check {
    /// Name on the command line.
    pub name: &'static str,
    /// Whether only `--full` includes the comparison.
    pub is_long: bool,
    /// Compares. An error, such as a missing program, counts as a bar that is missed.
    pub run: fn(Effort) -> Result<Vec<Outcome>>,
}

/// Why a comparison with a program that few have was left out, which is no failure.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Skipped(String);

/// A finished check.
struct Done {
    name: &'static str,
    outcomes: Result<Vec<Outcome>>,
    seconds: f64,
}

/// Runs the comparisons.
///
/// # Errors
/// No comparison has one of the chosen names, with exit status 2.
pub fn measure(options: &Options, progress: &Progress) -> Result<Report> {
    let start = Instant::now();
    let effort = if options.full {
        Effort::Full
    } else {
        Effort::Default
    };
    let checks = chosen(&options.names, options.full);
    let checks = checks.or_else(|unknown| refuse(unknown.to_string()))?;
    progress.expect(checks.len());
    let done = run(&checks, effort, progress)?;
    Ok(report(effort, start, &done))
}

fn chosen(names: &[String], is_full: bool) -> Result<Vec<&'static Check>> {
    let known: Vec<&str> = CHECKS.iter().map(|check| check.name).collect();
    for name in names {
        let is_known = known.iter().any(|known| known.contains(name.as_str()));
        ensure!(
            is_known,
            "no comparison has the name {name:?}; there are: {}",
            known.join(" ")
        );
    }
    let is_chosen = |check: &&Check| match names {
        [] => is_full || !check.is_long,
        names => names.iter().any(|name| check.name.contains(name.as_str())),
    };
    Ok(CHECKS.iter().filter(is_chosen).collect())
}

/// Runs checks on all processors; results are in the order of `checks`.
fn run(checks: &[&'static Check], effort: Effort, progress: &Progress) -> Result<Vec<Done>> {
    on_all_processors(checks, |check| {
        let start = Instant::now();
        let outcomes = without_panic("the check", || (check.run)(effort));
        progress.step(check.name);
        Ok(Done {
            name: check.name,
            outcomes,
            seconds: start.elapsed().as_secs_f64(),
        })
    })
}

fn report(effort: Effort, start: Instant, done: &[Done]) -> Report {
    let mut report = Report::new(effort, start, Fields::default());
    let heads = [
        "", "against", "what", "expected", "measured", "error", "bar",
    ];
    let mut table = Table::new(3, &heads);
    let (mut fields, mut missed) = (Vec::new(), Vec::new());
    for Done { name, outcomes, .. } in done {
        let outcomes = outcomes.as_deref().unwrap_or_default();
        for outcome in outcomes {
            fields.push(outcome.fields());
            table.row(outcome.cells());
            if !outcome.holds() {
                missed.push(format!("{name}: {}", outcome.what));
            }
        }
    }
    for Done { name, outcomes, .. } in done {
        let Err(error) = outcomes else { continue };
        let (why, is_skipped) = (with_causes(error), error.is::<Skipped>());
        let verdict = if is_skipped { "SKIPPED" } else { "NOT RUN" };
        table.row([verdict, name, &why, "-", "-", "-", "-"]);
        fields.push(not_run(name, &why, is_skipped));
        if !is_skipped {
            missed.push(format!("{name} did not run"));
        }
    }
    report.list("rows", fields);
    report.list("checks", done.iter().map(Done::fields).collect());
    report.text = format!(
        "{}, {:.0} s\n\n{table}",
        machine::describe(),
        start.elapsed().as_secs_f64()
    );
    report.failure = (!missed.is_empty()).then(|| format!("bars missed: {}", missed.join("; ")));
    report
}

/// Time at which the last message is delivered, when nothing else is sent.
fn last_delivery(network: &mut impl Network) -> Ticks {
    let mut last = 0;
    while let Some(happening) = network.next() {
        if let Happening::Delivered(_) = happening {
            last = network.now();
        }
    }
    last
}

/// A row of a comparison that did not run.
fn not_run(name: &str, why: &str, is_skipped: bool) -> Fields {
    let none = None::<f64>;
    Fields::default()
        .with("against", name)
        .with("what", why)
        .with("bar", None::<&str>)
        .with("expected", none)
        .with("measured", none)
        .with("error", none)
        .with("holds", (!is_skipped).then_some(false))
}

impl Done {
    fn fields(&self) -> Fields {
        Fields::default()
            .with("name", self.name)
            .with("elapsed_s", self.seconds)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_missed_bar_and_a_check_that_cannot_run_are_named_failures() {
        let done = |name, outcomes| Done {
            name,
            outcomes,
            seconds: 0.5,
        };
        let good = Outcome::example(Bar::Within(0.02), 2.0, 2.01);
        let report_of = |done: &[Done]| report(Effort::Default, Instant::now(), done);
        let held = report_of(&[done("latency", Ok(vec![good.clone()]))]);
        assert_eq!(held.failure, None);
        let missed = report_of(&[
            done("other", Err(anyhow::anyhow!("apt install it"))),
            done(
                "latency",
                Ok(vec![good, Outcome::example(Bar::AtMost, 1.0, 2.0)]),
            ),
        ]);
        let failure = "bars missed: latency: latency in us; other did not run";
        assert_eq!(missed.failure.as_deref(), Some(failure));
        let json: Value = json!(missed);
        assert_eq!(json["rows"].as_array().map(Vec::len), Some(3));
        assert_eq!(json["rows"][1]["error"], 1.0);
        let why = (&json["rows"][2]["what"], &json["rows"][2]["holds"]);
        assert_eq!(why, (&json!("apt install it"), &json!(false)));
        let skipped = report_of(&[done("rare", Err(Skipped("no program".into()).into()))]);
        assert_eq!(skipped.failure, None);
        assert_eq!(json!(skipped)["rows"][0]["holds"], Value::Null);
        assert!(skipped.text.contains("SKIPPED"), "{}", skipped.text);
        let line = missed.text.lines().find(|line| line.starts_with("NOT RUN"));
        assert!(
            line.is_some_and(|line| line.contains("apt install it")),
            "{}",
            missed.text
        );
    }

    #[test]
    fn a_check_that_panics_has_not_run() {
        const PANICS: Check = Check {
            name: "panics",
            is_long: false,
            // Without the message of the panic hook.
            run: |_| std::panic::resume_unwind(Box::new("odd")),
        };
        let done = run(&[&PANICS], Effort::Default, &Progress::new()).unwrap();
        let failure = report(Effort::Default, Instant::now(), &done).failure;
        assert_eq!(failure.as_deref(), Some("bars missed: panics did not run"));
        let error = done[0].outcomes.as_ref().unwrap_err();
        assert_eq!(error.to_string(), "the check panicked: odd");
    }

    #[test]
    fn names_choose_and_unknown_ones_are_refused_with_those_there_are() {
        assert_eq!(chosen(&["farthest".into()], false).unwrap().len(), 1);
        let refused = chosen(&["x9".into()], false).map(|_| ()).unwrap_err();
        assert!(refused.to_string().contains("farthest"), "{refused}");
    }
}
