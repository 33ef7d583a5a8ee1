//! The command `ether`: a domain's Ethernet beside a bare userspace relay (the limit) and kernel
//! veth.
//!
//! * [`plan`]: the measurements in contests.
//! * [`bed`]: the nodes, all paths between them, and one measurement; [`search`] finds a rate.
//! * [`report`]: rows, targets and tables.

pub mod bed;
pub mod plan;
pub mod report;
pub mod search;

use std::time::{Duration, Instant};

use self::bed::Bed;
use crate::cluster::ClusterError;
use crate::plan::Effort;
use crate::progress::Progress;
use crate::report::Report;
use crate::runner::Runner;

/// Measures everything; nothing is left behind.
pub fn measure(effort: Effort, progress: &Progress) -> Result<Report, ClusterError> {
    let start = Instant::now();
    progress.say("starting nodes and the paths between them");
    let mut bed = Bed::prepare()?;
    let (mut contests, rounds) = (plan::contests(), plan::rounds(effort));
    progress.expect(rounds as usize * contests.iter().map(Vec::len).sum::<usize>());
    let mut runner = Runner::new(progress);
    for _ in 0..rounds {
        for contest in &mut contests {
            runner.contest(contest, 1..=1, Duration::MAX, |key| {
                bed.measure(key, plan::slice(effort, key.test))
            })?;
        }
    }
    let congestion_control = bed.congestion_control()?;
    progress.say("cleaning up");
    drop(bed);
    Ok(report::report(
        effort,
        start,
        &congestion_control,
        &runner.finish(),
    ))
}
