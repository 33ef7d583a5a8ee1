//! The command `hosts`: what a change of membership costs among many hosts.
//!
//! * [`control`]: the command `simulate-control`.
//! * [`bed`]: a leader, followers with agents, and hollow followers.
//! * [`report`]: rows, targets and tables.

mod bed;
pub mod control;
mod report;

use std::time::{Duration, Instant};

use self::bed::Bed;
use self::report::Run;
use crate::cluster::ClusterError;
use crate::plan::Effort;
use crate::progress::Progress;
use crate::report::Report;

/// Time that a slow host takes to confirm a change.
const SLOW: Duration = Duration::from_secs(1);

/// Hosts among which one is slow.
const AMONG: usize = 16;

/// The amount of work.
struct Plan {
    /// Hosts with agents, one row each.
    real: &'static [usize],
    /// Hosts of which all but the leader are hollow, one row each.
    hollow: &'static [usize],
    domains: u32,
    changes: usize,
    /// Changes with the most hosts, each of which takes long.
    changes_among_most: usize,
    changes_beside_slow: usize,
}

impl Plan {
    fn of(effort: Effort) -> Self {
        Plan {
            real: effort.quick_or(&[8], &[8, 64]),
            hollow: &[8, 64, 256, 1000],
            domains: effort.quick_or(200, 2000),
            changes: effort.quick_or(60, 300),
            changes_among_most: effort.quick_or(20, 300),
            changes_beside_slow: effort.quick_or(5, 20),
        }
    }
}

/// Measures everything. Nothing is left behind.
pub fn measure(effort: Effort, progress: &Progress) -> Result<Report, ClusterError> {
    let (start, plan) = (Instant::now(), Plan::of(effort));
    progress.expect(plan.real.len() + plan.hollow.len() + 1);
    let mut run = Run {
        start,
        effort,
        domains: plan.domains,
        changes: Vec::new(),
        follower_cpu: None,
        leader_memory: None,
    };
    progress.say("hosts with agents");
    let mut bed = Bed::start(plan.domains)?;
    for &hosts in plan.real {
        bed.add_real(hosts)?;
        let before = bed.followers_cpu()?;
        run.add(true, false, hosts, bed.changes(plan.changes, hosts)?);
        let used = bed.followers_cpu()?.saturating_sub(before);
        // Each domain is made and removed.
        let changes = 2 * plan.changes * bed.real_followers();
        run.follower_cpu = Some(used.div_f64(changes as f64));
        progress.step("hollow hosts");
    }
    drop(bed);
    let mut bed = Bed::start(plan.domains)?;
    for &hosts in plan.hollow {
        bed.add_hollow(hosts, Duration::ZERO)?;
        let changes = match plan.hollow.last() {
            Some(most) if hosts == *most => plan.changes_among_most,
            _ => plan.changes,
        };
        run.add(false, false, hosts, bed.changes(changes, hosts)?);
        progress.step("hollow hosts");
    }
    run.leader_memory = bed.leader_memory();
    drop(bed);
    let mut bed = Bed::start(plan.domains)?;
    bed.add_hollow(AMONG - 1, Duration::ZERO)?;
    bed.add_hollow(AMONG, SLOW)?;
    let samples = bed.changes(plan.changes_beside_slow, AMONG - 1)?;
    run.add(false, true, AMONG, samples);
    Ok(run.report())
}
