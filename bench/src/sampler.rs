//! Timing of operations: what is timed, in what batches, and for how long.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::stats::Slice;

/// Operations in a sample when one alone would take less than [`BATCHED_BELOW`].
pub const BATCH: u32 = 64;

/// Below this the clock, which costs about 20 ns, would be seen in a sample of one operation.
pub const BATCHED_BELOW: Duration = Duration::from_micros(2);

/// Operations before the first sample: so many to warm up, and as many again to try how long
/// they take.
const WARM_UP: u32 = 32;

/// For how long and in what batches an operation is measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// The time for all samples with their preparation and checks, in microseconds.
    pub time_us: u64,
    /// Operations per sample; decided by a trial when absent.
    pub batch: Option<u32>,
}

impl Pace {
    /// The time for all samples.
    pub fn time(&self) -> Duration {
        Duration::from_micros(self.time_us)
    }
}

/// An operation to measure.
pub trait Work {
    /// What ends the measurement; an operation that fails but leaves the next one possible is
    /// counted by [`Work::check`] instead.
    type Error;

    /// Payload bytes of one operation.
    fn bytes(&self) -> u64;

    /// How many operations that are timed one by one are prepared and checked together. More
    /// than one where a pause would change what is measured, because a peer falls asleep.
    fn together(&self) -> u32 {
        1
    }

    /// Makes ready for `count` operations. Not timed.
    ///
    /// # Errors
    /// What ends the measurement.
    fn prepare(&mut self, count: u32) -> Result<(), Self::Error> {
        let _ = count;
        Ok(())
    }

    /// The operation, number `at` of those prepared. Timed.
    ///
    /// # Errors
    /// What ends the measurement.
    fn run(&mut self, at: u32) -> Result<(), Self::Error>;

    /// How many of the operations since the last check failed or gave wrong bytes. Not timed.
    ///
    /// # Errors
    /// What ends the measurement.
    fn check(&mut self) -> Result<u64, Self::Error>;
}

/// Measures `work`: warms up, decides the batch, takes samples until the time is over.
///
/// # Errors
/// The work's.
pub fn sample<W: Work>(work: &mut W, pace: Pace) -> Result<Slice, W::Error> {
    let end = Instant::now() + pace.time();
    let mut slice = Slice::default();
    one_batch(work, WARM_UP, &mut slice)?;
    let trial = one_batch(work, WARM_UP, &mut slice)?;
    let batch = pace.batch.unwrap_or(if trial / WARM_UP < BATCHED_BELOW {
        BATCH
    } else {
        1
    });
    // Of the warm-up nothing but its errors counts.
    slice = Slice {
        batch,
        errors: slice.errors,
        ..Slice::default()
    };
    while slice.ops == 0 || Instant::now() < end {
        match batch {
            1 => one_by_one(work, &mut slice)?,
            batch => drop(one_batch(work, batch, &mut slice)?),
        }
    }
    slice.bytes = slice.ops * work.bytes();
    Ok(slice)
}

/// Takes one sample, the mean of `batch` operations.
fn one_batch<W: Work>(work: &mut W, batch: u32, slice: &mut Slice) -> Result<Duration, W::Error> {
    work.prepare(batch)?;
    let start = Instant::now();
    for at in 0..batch {
        work.run(at)?;
    }
    let took = start.elapsed();
    record(slice, took, batch);
    slice.errors += work.check()?;
    Ok(took)
}

/// Takes a sample of each of some operations.
fn one_by_one<W: Work>(work: &mut W, slice: &mut Slice) -> Result<(), W::Error> {
    let count = work.together();
    work.prepare(count)?;
    for at in 0..count {
        let start = Instant::now();
        work.run(at)?;
        record(slice, start.elapsed(), 1);
    }
    slice.errors += work.check()?;
    Ok(())
}

fn record(slice: &mut Slice, took: Duration, operations: u32) {
    slice.samples_ns.push(per_operation_ns(took, operations));
    slice.ops += u64::from(operations);
    slice.elapsed_ns += took.as_nanos() as u64;
}

/// Rounded to a tenth of a nanosecond, which keeps a worker's answer short.
fn per_operation_ns(took: Duration, batch: u32) -> f64 {
    let tenths = took.as_nanos() as f64 * 10.0 / f64::from(batch);
    tenths.round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Count {
        runs: u64,
        unchecked: u64,
    }

    impl Work for Count {
        type Error = ();

        fn bytes(&self) -> u64 {
            10
        }

        fn run(&mut self, _at: u32) -> Result<(), ()> {
            self.runs += 1;
            self.unchecked += 1;
            Ok(())
        }

        fn check(&mut self) -> Result<u64, ()> {
            Ok(std::mem::take(&mut self.unchecked))
        }
    }

    #[test]
    fn every_operation_is_checked_and_all_but_the_warm_up_counted() {
        let mut work = Count {
            runs: 0,
            unchecked: 0,
        };
        let pace = Pace {
            time_us: 0,
            batch: Some(5),
        };
        let slice = sample(&mut work, pace).unwrap();
        assert_eq!((slice.batch, slice.ops, slice.bytes), (5, 5, 50));
        assert_eq!(slice.samples_ns.len(), 1);
        assert_eq!(work.runs, slice.errors);
        assert_eq!(work.runs, slice.ops + 2 * u64::from(WARM_UP));
    }

    #[test]
    fn operations_without_duration_are_batched() {
        let mut work = Count {
            runs: 0,
            unchecked: 0,
        };
        let pace = Pace {
            time_us: 1000,
            batch: None,
        };
        assert_eq!(sample(&mut work, pace).unwrap().batch, BATCH);
    }
}
