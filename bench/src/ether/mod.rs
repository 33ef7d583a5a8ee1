//! The command `ether`: how fast the Ethernet of a domain is, beside the least that a driver in
//! user space can be and beside the kernel's own.
//!
//! * [`plan`]: what is measured, side by side with what.
//! * [`bed`]: the nodes, every path between them, and measuring once; [`search`] finds a rate.
//! * [`series`]: what was measured in each round; [`report`] is what comes out.

pub mod bed;
pub mod plan;
pub mod report;
pub mod search;
pub mod series;

use std::time::Instant;

use self::bed::Bed;
use self::report::{Config, Report};
use self::series::Rounds;
use crate::cluster::ClusterError;
use crate::features;
use crate::machine::Machine;
use crate::plan::Effort;
use crate::progress::Progress;

/// Measures everything.
///
/// # Errors
/// [`ClusterError`]; nothing is left behind.
pub fn measure(effort: Effort, progress: &mut Progress) -> Result<Report, ClusterError> {
    let start = Instant::now();
    progress.say("starting nodes and the paths between them");
    let mut bed = Bed::prepare()?;
    let (contests, rounds) = (plan::contests(), plan::rounds(effort));
    progress.expect(rounds * contests.iter().map(Vec::len).sum::<usize>() as u32);
    let mut measured = Rounds::default();
    for round in 0..rounds {
        for contest in &contests {
            let mut contest = contest.clone();
            // Who is always first would always meet the machine in the same state.
            if round % 2 == 1 {
                contest.reverse();
            }
            for key in contest {
                progress.step(&key.to_string());
                let slice = plan::slice(effort, key.test);
                let sample = bed.measure(&key, slice.as_micros() as u64);
                let sample = sample.map_err(|error| error.at(key))?;
                measured.add(key, sample);
            }
        }
    }
    let congestion_control = bed.congestion_control()?;
    progress.say("cleaning up");
    drop(bed);
    let config = Config {
        effort,
        torus: Bed::torus(),
        congestion_control,
        relay: "two threads that block",
        veth_off: &features::OFFLOADS,
        machine: Machine::this(),
        elapsed_s: start.elapsed().as_secs_f64(),
    };
    Ok(Report::of(config, &measured))
}
