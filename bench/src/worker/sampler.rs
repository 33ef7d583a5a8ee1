//! Timing of operations, one by one or in batches, for a given time.

use std::time::{Duration, Instant};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use crate::samples::Samples;

/// Operations per sample of operations shorter than [`BATCHED_BELOW`].
pub const BATCH: u32 = 64;

/// Shorter operations are batched: reading the clock costs about 20 ns.
pub const BATCHED_BELOW: Duration = Duration::from_micros(2);

/// Operations of the warm-up, and again of the trial that measures their duration.
pub const WARM_UP: u32 = 32;

/// Time and batch of a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// Time of all samples with preparation and checks.
    pub time: Duration,
    /// Operations per sample; chosen by a trial if absent.
    pub batch: Option<u32>,
}

impl Pace {
    /// A pace with a batch chosen by a trial.
    pub fn of(time: Duration) -> Self {
        Pace { time, batch: None }
    }
}

/// A repeated operation that is timed and checked.
pub trait Work {
    /// Payload bytes of one operation.
    fn bytes(&self) -> u64;

    /// Number of singly timed operations that are prepared and checked together: more than one if a
    /// pause would change the result, because a peer falls asleep.
    fn together(&self) -> u32 {
        1
    }

    /// Prepares `count` operations. Not timed.
    fn prepare(&mut self, count: u32) -> Result<()> {
        let _ = count;
        Ok(())
    }

    /// Runs prepared operation number `at`. Timed.
    fn run(&mut self, at: u32) -> Result<()>;

    /// Number of failed or wrong operations since the last check. Not timed.
    fn check(&mut self) -> Result<u64>;
}

/// Measures `work`: warms up, chooses the batch, takes samples until the time is over.
pub fn sample<W: Work>(work: &mut W, pace: Pace) -> Result<Samples> {
    let end = Instant::now() + pace.time;
    let mut samples = Samples::default();
    one_batch(work, WARM_UP, &mut samples)?;
    let trial = one_batch(work, WARM_UP, &mut samples)?;
    let is_short = trial / WARM_UP < BATCHED_BELOW;
    let batch = pace.batch.unwrap_or(if is_short { BATCH } else { 1 });
    // Of the warm-up only errors count.
    samples = Samples {
        batch,
        ..Samples::errors(samples.errors)
    };
    while samples.ops == 0 || Instant::now() < end {
        match batch {
            1 => one_by_one(work, &mut samples)?,
            batch => drop(one_batch(work, batch, &mut samples)?),
        }
    }
    samples.bytes = samples.ops * work.bytes();
    Ok(samples)
}

/// Takes one sample, the mean of `batch` operations. Returns their time.
fn one_batch<W: Work>(work: &mut W, batch: u32, samples: &mut Samples) -> Result<Duration> {
    work.prepare(batch)?;
    let start = Instant::now();
    for at in 0..batch {
        work.run(at)?;
    }
    let took = start.elapsed();
    record(samples, took, batch);
    samples.errors += work.check()?;
    Ok(took)
}

/// Takes samples of single operations.
fn one_by_one<W: Work>(work: &mut W, samples: &mut Samples) -> Result<()> {
    let count = work.together();
    work.prepare(count)?;
    for at in 0..count {
        let start = Instant::now();
        work.run(at)?;
        record(samples, start.elapsed(), 1);
    }
    samples.errors += work.check()?;
    Ok(())
}

fn record(samples: &mut Samples, took: Duration, operations: u32) {
    samples.samples_ns.push(per_operation_ns(took, operations));
    samples.ops += u64::from(operations);
    samples.elapsed_ns += took.as_nanos() as u64;
}

/// Rounded to a tenth of a nanosecond, which keeps a worker's answer short.
fn per_operation_ns(took: Duration, batch: u32) -> f64 {
    let tenths = took.as_nanos() as f64 * 10.0 / f64::from(batch);
    tenths.round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Count {
        runs: u64,
        unchecked: u64,
    }

    impl Work for Count {
        fn bytes(&self) -> u64 {
            10
        }

        fn run(&mut self, _at: u32) -> Result<()> {
            self.runs += 1;
            self.unchecked += 1;
            Ok(())
        }

        fn check(&mut self) -> Result<u64> {
            Ok(std::mem::take(&mut self.unchecked))
        }
    }

    #[test]
    fn every_operation_is_checked_and_all_but_the_warm_up_counted() {
        let mut work = Count::default();
        let pace = Pace {
            time: Duration::ZERO,
            batch: Some(5),
        };
        let samples = sample(&mut work, pace).unwrap();
        assert_eq!((samples.batch, samples.ops, samples.bytes), (5, 5, 50));
        assert_eq!(samples.samples_ns.len(), 1);
        assert_eq!(work.runs, samples.errors);
        assert_eq!(work.runs, samples.ops + 2 * u64::from(WARM_UP));
    }

    #[test]
    fn operations_without_duration_are_batched() {
        let mut work = Count::default();
        let pace = Pace::of(Duration::from_millis(1));
        // Another thread may run during a trial.
        let mut batches = (0..100).map(|_| sample(&mut work, pace).unwrap().batch);
        assert!(batches.any(|batch| batch == BATCH));
    }
}
