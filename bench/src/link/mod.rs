//! The command `link`: how exactly the link model keeps what is set, and what the model costs.
//!
//! [`plan`] has the measurements, [`bed`] two nodes, [`hook`] the code without a model, [`torus`] two
//! nodes of an emulated torus, [`decision`] the choice of routes, [`report`] rows, targets and tables.

pub mod bed;
pub mod decision;
pub mod hook;
pub mod plan;
pub mod report;
mod torus;

use std::time::Instant;

use self::bed::Bed;
use crate::cluster::ClusterError;
use crate::plan::Effort;
use crate::progress::Progress;
use crate::report::Report;
use crate::runner::Runner;

/// Measures everything; nothing is left behind.
pub fn measure(effort: Effort, progress: &Progress) -> Result<Report, ClusterError> {
    let start = Instant::now();
    let (mut keys, rounds) = (plan::keys(effort), plan::rounds(effort));
    progress.expect(rounds as usize * keys.len());
    progress.say("starting two nodes");
    let mut bed = Bed::prepare(effort)?;
    let mut runner = Runner::new(progress);
    let left = plan::limit(effort).saturating_sub(start.elapsed());
    runner.contest(&mut keys, 1..=rounds, left, |key| bed.measure(key))?;
    let tc = bed.tc.clone();
    progress.say("cleaning up");
    drop(bed);
    Ok(report::report(effort, start, &tc, &runner.finish()))
}
