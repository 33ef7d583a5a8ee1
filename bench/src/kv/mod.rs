//! The command `kv`: the store beside memcached, with one client of each kind.
//!
//! * [`plan`]: what is measured; [`bed`]: the servers and their clients, in two nodes;
//!   [`client`]: what runs in them.
//! * [`report`]: what comes out.

pub mod bed;
pub mod client;
pub mod plan;
pub mod report;

use std::time::Instant;

use self::bed::Bed;
use self::plan::Measurement;
use self::report::{Config, Report, Rounds};
use crate::cluster::ClusterError;
use crate::machine::Machine;
use crate::plan::Effort;
use crate::progress::Progress;

/// Measures everything.
///
/// # Errors
/// [`ClusterError`]; nothing is left behind.
pub fn measure(effort: Effort, progress: &mut Progress) -> Result<Report, ClusterError> {
    let start = Instant::now();
    let (hot, cold) = (plan::hot(), plan::cold());
    let rounds = plan::rounds(effort);
    let count = |contests: &[Vec<Measurement>]| contests.iter().map(Vec::len).sum::<usize>();
    progress.expect(rounds * (count(&hot) + count(&cold)) as u32);
    progress.say("starting the servers");
    let mut bed = Bed::prepare()?;
    let mut measured = Rounds::default();
    for contests in [&hot, &cold] {
        for contest in contests {
            progress.say("storing the values");
            let mut contest = contest.clone();
            bed.fill(&contest)?;
            for _ in 0..rounds {
                for measurement in &contest {
                    progress.step(&measurement.to_string());
                    let sample = bed.measure(measurement, plan::slice(effort))?;
                    measured.add(*measurement, sample);
                }
                // Who is always first would always meet the machine in the same state.
                contest.reverse();
            }
            bed.empty(&contest)?;
        }
    }
    let memcached = bed.memcached_version()?;
    progress.say("cleaning up");
    drop(bed);
    let config = Config {
        effort,
        rounds,
        memcached,
        threads: bed::THREADS,
        machine: Machine::this(),
        elapsed_s: start.elapsed().as_secs_f64(),
    };
    Ok(Report::of(config, &measured))
}
