//! The command `fabric`: messages beside those of libfabric, and one-sided operations.
//!
//! * [`plan`]: what is measured; [`bed`]: two nodes; [`member`]: what runs there.
//! * [`messages`]: to and fro, and in one direction; [`atomics`]; [`libfabric`], by its own program.
//! * [`report`]: what comes out.

pub mod atomics;
pub mod bed;
pub mod libfabric;
pub mod member;
pub mod messages;
pub mod plan;
pub mod report;

use std::time::{Duration, Instant};

use self::bed::Bed;
use self::plan::Measurement;
use self::report::{Config, Report, Row};
use crate::cluster::ClusterError;
use crate::machine::Machine;
use crate::plan::Effort;
use crate::progress::Progress;
use crate::stats::{Series, Slice};

/// Measures everything.
///
/// # Errors
/// [`ClusterError`]; nothing is left behind.
pub fn measure(effort: Effort, progress: &mut Progress) -> Result<Report, ClusterError> {
    let start = Instant::now();
    let contests = plan::contests(effort);
    let rounds = plan::rounds(effort);
    progress.expect(rounds * contests.iter().map(Vec::len).sum::<usize>() as u32);
    progress.say("starting two nodes");
    let mut bed = Bed::prepare()?;
    let mut rows = Vec::new();
    // What one contest leaves of its time is for those that follow.
    for (left, contest) in (1..=contests.len() as u32).rev().zip(contests) {
        let time = plan::limit(effort).saturating_sub(start.elapsed()) / left;
        rows.extend(hold(&mut bed, contest, rounds, time, progress)?);
    }
    let libfabric = bed.libfabric().to_owned();
    progress.say("cleaning up");
    drop(bed);
    let config = Config {
        effort,
        rounds,
        libfabric,
        machine: Machine::this(),
        elapsed_s: start.elapsed().as_secs_f64(),
    };
    Ok(Report::of(config, rows))
}

/// Holds a contest, for so long or until each has had its rounds.
fn hold(
    bed: &mut Bed,
    contest: Vec<Measurement>,
    rounds: u32,
    time: Duration,
    progress: &mut Progress,
) -> Result<Vec<Row>, ClusterError> {
    let start = Instant::now();
    let turn = time / (rounds * contest.len() as u32);
    let mut messages = plan::messages(contest[0].bytes);
    let mut measured = Vec::new();
    for measurement in contest {
        let mut series = Series::default();
        series.add(&Slice {
            errors: bed.check(&measurement)?,
            ..Slice::default()
        });
        if measurement.op.is_two_sided() {
            // Not counted but for its errors: only to learn how many all have time for.
            let trial = bed.measure(&measurement, messages / plan::TRIAL);
            let trial = trial.map_err(|error| error.at(measurement))?;
            messages = messages.min(plan::messages_in(turn, &trial));
            series.add(&Slice {
                errors: trial.errors,
                ..Slice::default()
            });
        }
        measured.push((measurement, series));
    }
    let mut order: Vec<usize> = (0..measured.len()).collect();
    for _ in 0..rounds {
        for &at in &order {
            let (measurement, series) = &mut measured[at];
            progress.step(&measurement.to_string());
            let slice = bed.measure(measurement, messages);
            series.add(&slice.map_err(|error| error.at(*measurement))?);
        }
        // Who is always first would always meet the machine in the same state.
        order.reverse();
        if start.elapsed() > time {
            break;
        }
    }
    let rows = measured
        .iter()
        .map(|(measurement, series)| Row::of(measurement, series));
    Ok(rows.collect())
}
