//! The command `noise os`: time that the host takes from a pinned process.
//!
//! [`detour`] and [`work`] compute from readings of the clock, which this module reads; [`spectrum`]
//! finds regular noise.

pub mod detour;
mod report;
mod spectrum;
mod work;

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::error::ErrorKind;
use clap::{Args, ValueEnum, value_parser};

use self::detour::{Calibration, Detours};
use self::work::{Quanta, units_of};
use super::signals::Signals;
use crate::machine;
use crate::plan::{Common, Effort};
use crate::progress::Progress;
use crate::report::Report;
use crate::samples::Samples;
use crate::worker::processor::{self, Bound};

/// The quantum of work and of time.
const QUANTUM: Duration = Duration::from_millis(1);

/// Most detours unless given.
const DETOURS: u32 = 100_000;

/// Additions of a trial before the pieces of work, and their trials.
const TRIAL: (u64, usize) = (100_000, 21);

// Not a doc comment, which would replace the text of the command.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    pub common: Common,

    /// Measure only these tests, such as ftq [default: all].
    #[arg(long, value_enum, value_name = "TEST", value_delimiter = ',')]
    test: Vec<Test>,

    /// Measure on this processor [default: the last one allowed].
    #[arg(long, value_name = "N")]
    cpu: Option<usize>,

    /// End the detours after this number [default: 100000].
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..=10_000_000))]
    detours: Option<u32>,

    /// End the detours after this time [default: 60, with --quick 5].
    #[arg(long, value_name = "SECONDS", value_parser = value_parser!(u64).range(1..=86_400))]
    seconds: Option<u64>,
}

impl Options {
    /// The wanted tests.
    ///
    /// # Errors
    /// A usage error if an option applies to none of them.
    fn tests(&self) -> Result<Vec<Test>, clap::Error> {
        let all = Test::value_variants().iter().copied();
        let is_wanted = |test: &Test| self.test.is_empty() || self.test.contains(test);
        let wanted: Vec<Test> = all.filter(is_wanted).collect();
        let ends = [
            ("--detours", self.detours.is_some()),
            ("--seconds", self.seconds.is_some()),
        ];
        match ends.into_iter().find(|(_, is_given)| *is_given) {
            Some((option, _)) if !wanted.contains(&Test::Detours) => Err(clap::Error::raw(
                ErrorKind::ArgumentConflict,
                format!(
                    "{option} applies to the test detours, which --test leaves out; \
                     add detours to --test, or remove {option}\n"
                ),
            )),
            _ => Ok(wanted),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Test {
    /// Detours of a loop.
    Detours,
    /// Times of equal pieces of work.
    Fwq,
    /// Work in equal quanta of time, and its spectrum.
    Ftq,
}

/// All measurements on a processor; `None` where not wanted.
struct Measured {
    cpu: usize,
    detours: Option<Detours>,
    work: Option<Samples>,
    quanta: Option<Quanta>,
}

/// Measures on one processor.
pub fn measure(options: &Options, progress: &Progress) -> Result<Report> {
    let start = Instant::now();
    let tests = options.tests()?;
    let signals = Signals::catch()?;
    let effort = options.common.effort();
    let cpu = options.cpu.map_or_else(processor::last, Ok)?;
    let bound = Bound::new(None, cpu).with_context(|| no_processor(cpu))?;
    progress.expect(tests.len());
    let detours = tests.contains(&Test::Detours).then(|| {
        progress.step(format!("detours on processor {cpu}"));
        let seconds = options.seconds.unwrap_or(effort.quick_or(5, 60));
        let most = options.detours.unwrap_or(DETOURS) as usize;
        detours(most, Duration::from_secs(seconds), &signals)
    });
    signals.check()?;
    let work = tests.contains(&Test::Fwq).then(|| {
        progress.step("pieces of work");
        fixed_work(pieces(effort), &signals)
    });
    let quanta = tests.contains(&Test::Ftq).then(|| {
        progress.step("quanta of time");
        fixed_time(pieces(effort), &signals)
    });
    signals.check()?;
    // The report counts the processors that this process may use.
    drop(bound);
    let measured = Measured {
        cpu,
        detours,
        work,
        quanta,
    };
    Ok(report::report(effort, start, &measured))
}

fn no_processor(cpu: usize) -> String {
    let allowed = machine::cpus_allowed().unwrap_or_default();
    format!("cannot run on processor {cpu}; name one of {allowed} with --cpu")
}

/// Number of pieces of work and of quanta of time, each of [`QUANTUM`].
fn pieces(effort: Effort) -> usize {
    effort.quick_or(2000, 10_000)
}

/// The clock, in nanoseconds from a start.
#[inline]
pub fn since(start: Instant) -> u64 {
    start.elapsed().as_nanos() as u64
}

/// The shortest gap between two readings of the clock.
pub fn shortest_gap(mut read: impl FnMut() -> u64) -> u64 {
    let mut calibration = Calibration::new(read());
    loop {
        if let Some(shortest_ns) = calibration.observe(read()) {
            return shortest_ns;
        }
    }
}

fn detours(most: usize, limit: Duration, signals: &Signals) -> Detours {
    let start = Instant::now();
    let shortest_ns = shortest_gap(|| since(start));
    let mut detours = Detours::new(shortest_ns, most, || since(start));
    let end_ns = since(start) + limit.as_nanos() as u64;
    loop {
        let now_ns = since(start);
        let is_detour = detours.observe(now_ns);
        // A signal interrupts the loop, so its arrival is a detour.
        if is_detour && (detours.are_full() || signals.arrived()) || now_ns > end_ns {
            return detours;
        }
    }
}

/// Additions that no compiler removes.
fn add(count: u64) {
    (0..count).for_each(|n| _ = black_box(n));
}

fn fixed_work(pieces: usize, signals: &Signals) -> Samples {
    let (units, trials) = TRIAL;
    let time = |units| {
        let start = Instant::now();
        add(units);
        start.elapsed()
    };
    let trials: Vec<f64> = (0..trials).map(|_| time(units).as_nanos() as f64).collect();
    let units = units_of(QUANTUM.as_nanos() as u64, units, &trials);
    let mut samples = Samples::default();
    for _ in 0..pieces {
        samples.record(time(units), 0, true);
        if signals.arrived() {
            break;
        }
    }
    samples
}

fn fixed_time(quanta: usize, signals: &Signals) -> Quanta {
    let mut quanta = Quanta::new(QUANTUM.as_nanos() as u64, quanta);
    let start = Instant::now();
    while quanta.observe(since(start)) && !signals.arrived() {}
    quanta
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    #[test]
    fn options_that_apply_to_no_test_are_refused() {
        let tests = |line: &str| Line::parse_from(line.split(' ')).options.tests();
        assert_eq!(tests("os --seconds 2").unwrap(), Test::value_variants());
        let some = tests("os --test ftq,detours --detours 3").unwrap();
        assert_eq!(some, [Test::Detours, Test::Ftq]);
        assert_eq!(tests("os --test ftq").unwrap(), [Test::Ftq]);
        for option in ["--seconds", "--detours"] {
            let refused = tests(&format!("os --test fwq,ftq {option} 3")).unwrap_err();
            let text = refused.to_string();
            assert!(text.contains(option) && text.contains("detours"), "{text}");
            assert_eq!(refused.exit_code(), 2);
        }
    }
}
