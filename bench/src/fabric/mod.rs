//! The command `fabric`: messages beside those of libfabric, and one-sided operations.
//!
//! [`plan`] has the measurements, [`bed`] two nodes, [`report`] rows, targets and tables.

pub mod bed;
pub mod plan;
pub mod report;

use std::time::{Duration, Instant};

use self::bed::Bed;
use self::plan::Measurement;
use crate::cluster::ClusterError;
use crate::plan::Effort;
use crate::progress::Progress;
use crate::report::Report;
use crate::runner::Runner;
use crate::samples::Samples;

/// Measures everything; nothing is left behind.
pub fn measure(effort: Effort, progress: &Progress) -> Result<Report, ClusterError> {
    let start = Instant::now();
    let contests = plan::contests(effort);
    let rounds = plan::rounds(effort);
    progress.expect(rounds as usize * contests.iter().map(Vec::len).sum::<usize>());
    progress.say("starting two nodes");
    let mut bed = Bed::prepare()?;
    let mut runner = Runner::new(progress);
    // Time left by one contest goes to the contests after it.
    for (left, mut contest) in (1..=contests.len() as u32).rev().zip(contests) {
        let time = plan::limit(effort).saturating_sub(start.elapsed()) / left;
        hold(&mut bed, &mut contest, rounds, time, &mut runner)?;
    }
    let libfabric = bed.libfabric.clone();
    progress.say("cleaning up");
    drop(bed);
    Ok(report::report(effort, start, &libfabric, &runner.finish()))
}

/// Holds a contest for `rounds` rounds, or until `time` is over.
fn hold(
    bed: &mut Bed,
    contest: &mut [Measurement],
    rounds: u32,
    time: Duration,
    runner: &mut Runner<'_, Measurement>,
) -> Result<(), ClusterError> {
    let start = Instant::now();
    let turn = time / (rounds * contest.len() as u32);
    let mut messages = plan::messages(contest[0].bytes);
    for measurement in contest.iter() {
        let mut errors = bed.check(measurement)?;
        if measurement.op.is_two_sided() {
            // Of the trial only errors count; its duration gives the number of messages of all.
            let trial = bed.measure(measurement, messages / plan::TRIAL);
            let trial = trial.map_err(|error| error.at(measurement))?;
            messages = messages.min(plan::messages_in(turn, &trial));
            errors += trial.errors;
        }
        runner.add(measurement, Samples::errors(errors));
    }
    let left = time.saturating_sub(start.elapsed());
    runner.contest(contest, 1..=rounds, left, |measurement| {
        bed.measure(measurement, messages)
    })
}
