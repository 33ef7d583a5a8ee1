//! Comparisons of the simulator with closed forms, other simulators, the live fabric and published
//! figures.
//!
//! A [`Check`] computes one or several [`Outcome`]s. Checks run on all processors. A new check is a
//! function in a file here, and an entry in [`CHECKS`].

mod closed;
mod equation;
mod levels;
mod live;
mod packets;
mod published;
mod simgrid;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use anyhow::{Result, ensure};
use clap::Args;

use crate::causes::with_causes;
use crate::machine;
use crate::plan::Effort;
use crate::progress::Progress;
use crate::report::{Fields, Report};
use crate::table::{self, Table};

// Not a doc comment, which would replace the text of the command.
#[derive(Args)]
pub struct Options {
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub json: bool,

    /// Longer comparisons as well, which take minutes.
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
    live::LIVE,
    published::FARTHEST,
    packets::PUBLISHED,
    equation::EQUATION_2,
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

/// Result of a comparison.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What the simulator is compared with.
    pub against: &'static str,
    /// The compared figure, with its unit.
    pub what: String,
    pub bar: Bar,
    /// Expected figure; the limit itself for [`Bar::AtMost`] and [`Bar::AtLeast`].
    pub expected: f64,
    pub measured: f64,
}

/// Largest difference between expected and measured figures.
#[derive(Clone, Copy, Debug)]
pub enum Bar {
    /// A share of the expected figure.
    Within(f64),
    /// The expected figure is the largest one allowed.
    AtMost,
    /// The expected figure is the smallest one allowed.
    AtLeast,
}

impl Outcome {
    /// Difference as a share of the expected figure; of 0 itself, the measured figure.
    fn error(&self) -> f64 {
        match self.expected {
            0.0 => self.measured,
            expected => self.measured / expected - 1.0,
        }
    }

    fn holds(&self) -> bool {
        match self.bar {
            Bar::Within(share) => self.error().abs() <= share,
            Bar::AtMost => self.measured <= self.expected,
            Bar::AtLeast => self.measured >= self.expected,
        }
    }

    fn bar(&self) -> String {
        match self.bar {
            Bar::Within(share) => format!("{} %", share * 100.0),
            Bar::AtMost => "at most".into(),
            Bar::AtLeast => "at least".into(),
        }
    }

    fn fields(&self) -> Fields {
        Fields::default()
            .with("against", self.against)
            .with("what", &self.what)
            .with("bar", self.bar())
            .with("expected", self.expected)
            .with("measured", self.measured)
            .with("error", self.error())
            .with("holds", self.holds())
    }
}

/// A finished check.
struct Done {
    name: &'static str,
    outcomes: Result<Vec<Outcome>>,
    seconds: f64,
}

/// Runs the comparisons.
///
/// # Errors
/// No comparison has one of the chosen names.
pub fn measure(options: &Options, progress: &Progress) -> Result<Report> {
    let start = Instant::now();
    let effort = if options.full {
        Effort::Full
    } else {
        Effort::Default
    };
    let checks = chosen(&options.names, options.full)?;
    progress.expect(checks.len());
    let done = run(&checks, effort, progress);
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
fn run(checks: &[&'static Check], effort: Effort, progress: &Progress) -> Vec<Done> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let work = || {
        while let Some(check) = checks.get(next.fetch_add(1, Ordering::Relaxed)) {
            let start = Instant::now();
            let finished = Done {
                name: check.name,
                outcomes: (check.run)(effort),
                seconds: start.elapsed().as_secs_f64(),
            };
            progress.step(check.name);
            done.lock()
                .unwrap_or_else(|lock| lock.into_inner())
                .push(finished);
        }
    };
    thread::scope(|scope| {
        let threads = thread::available_parallelism().map_or(1, Into::into);
        for _ in 1..threads.min(checks.len()) {
            scope.spawn(work);
        }
        work();
    });
    let mut done = done.into_inner().unwrap_or_else(|lock| lock.into_inner());
    done.sort_by_key(|done| checks.iter().position(|check| check.name == done.name));
    done
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
            table.row(cells(outcome));
            if !outcome.holds() {
                missed.push(format!("{name}: {}", outcome.what));
            }
        }
    }
    for Done { name, outcomes, .. } in done {
        let Err(error) = outcomes else { continue };
        fields.push(not_run(name, &with_causes(error)));
        table.row(["NOT RUN", name, &with_causes(error), "-", "-", "-", "-"]);
        missed.push(format!("{name} did not run"));
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

fn cells(outcome: &Outcome) -> [String; 7] {
    let verdict = if outcome.holds() { "holds" } else { "MISSED" };
    [
        verdict.into(),
        outcome.against.into(),
        outcome.what.clone(),
        figure(outcome.expected),
        figure(outcome.measured),
        format!("{:+.2} %", outcome.error() * 100.0),
        outcome.bar(),
    ]
}

/// A row of a comparison that did not run.
fn not_run(name: &str, why: &str) -> Fields {
    let none = None::<f64>;
    Fields::default()
        .with("against", name)
        .with("what", why)
        .with("bar", None::<&str>)
        .with("expected", none)
        .with("measured", none)
        .with("error", none)
        .with("holds", false)
}

fn figure(value: f64) -> String {
    if value != 0.0 && value.abs() < 1.0 {
        format!("{value:.4}")
    } else {
        table::digits(value)
    }
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

    fn outcome(bar: Bar, expected: f64, measured: f64) -> Outcome {
        Outcome {
            against: "closed form",
            what: "latency in us".into(),
            bar,
            expected,
            measured,
        }
    }

    #[test]
    fn bars_are_shares_or_limits() {
        for (bar, measured, holds) in [
            (Bar::Within(0.02), 1.0199, true),
            (Bar::Within(0.02), 0.97, false),
            (Bar::AtMost, 1.0, true),
            (Bar::AtMost, 1.1, false),
            (Bar::AtLeast, 1.0, true),
            (Bar::AtLeast, 0.9, false),
            (Bar::Within(0.02), f64::NAN, false),
        ] {
            assert_eq!(
                outcome(bar, 1.0, measured).holds(),
                holds,
                "{bar:?} {measured}"
            );
        }
    }

    #[test]
    fn a_missed_bar_and_a_check_that_cannot_run_are_named_failures() {
        let done = |name, outcomes| Done {
            name,
            outcomes,
            seconds: 0.5,
        };
        let good = outcome(Bar::Within(0.02), 2.0, 2.01);
        let report_of = |done: &[Done]| report(Effort::Default, Instant::now(), done);
        let held = report_of(&[done("latency", Ok(vec![good.clone()]))]);
        assert_eq!(held.failure, None);
        let missed = report_of(&[
            done("other", Err(anyhow::anyhow!("apt install it"))),
            done("latency", Ok(vec![good, outcome(Bar::AtMost, 1.0, 2.0)])),
        ]);
        let failure = "bars missed: latency: latency in us; other did not run";
        assert_eq!(missed.failure.as_deref(), Some(failure));
        let json: Value = json!(missed);
        assert_eq!(json["rows"].as_array().map(Vec::len), Some(3));
        assert_eq!(json["rows"][1]["error"], 1.0);
        let why = (&json["rows"][2]["what"], &json["rows"][2]["holds"]);
        assert_eq!(why, (&json!("apt install it"), &json!(false)));
        let line = missed.text.lines().find(|line| line.starts_with("NOT RUN"));
        assert!(
            line.is_some_and(|line| line.contains("apt install it")),
            "{}",
            missed.text
        );
    }

    #[test]
    fn names_choose_and_unknown_ones_are_refused_with_those_there_are() {
        assert_eq!(chosen(&["farthest".into()], false).unwrap().len(), 1);
        let refused = chosen(&["x9".into()], false).map(|_| ()).unwrap_err();
        assert!(refused.to_string().contains("farthest"), "{refused}");
    }
}
