//! The command `hosts`: what a change of membership costs among many hosts, and what a host's end
//! or isolation does to it.
//!
//! * [`control`]: the command `simulate-control`.
//! * [`bed`]: a leader, followers with agents, and hollow followers.
//! * [`network`], [`rack`]: hosts in networks of their own, with Ethernet. On them [`failover`] with
//!   [`etcd`], [`fence`], and [`paths`] between two hosts beside a bare [`relay`] and
//!   [`rivals`].
//! * [`report`]: rows, targets and tables.

mod bed;
pub mod control;
mod etcd;
mod failover;
mod fence;
mod network;
mod paths;
mod rack;
mod relay;
mod report;
mod rivals;

use std::time::{Duration, Instant};

use self::bed::Bed;
use self::failover::Fault;
use self::paths::Path;
use self::rack::Absence;
use self::report::Run;
use crate::cluster::{ClusterError, catch_signals};
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
    /// Hosts, domains, and changes at a steady rate.
    load: Option<(usize, u32, usize)>,
    /// Rounds of each fault.
    failovers: u32,
    /// Shrinks with a fence.
    fenced: u32,
    /// Turns on each path between two hosts, and the time of each.
    turns: u32,
    slice: Duration,
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
            load: effort.quick_or(None, Some((1000, 10_000, 2000))),
            failovers: effort.quick_or(2, 10),
            fenced: effort.quick_or(2, 10),
            turns: 5,
            slice: effort.quick_or(Duration::from_millis(200), Duration::from_secs(1)),
        }
    }

    /// Steps of the progress, beside so many rivals.
    fn steps(&self, rivals: usize) -> usize {
        let rows = self.real.len() + self.hollow.len() + 1 + usize::from(self.load.is_some());
        let failovers = self.failovers as usize * Fault::ALL.len();
        let turns = self.turns as usize * paths::count(rivals);
        rows + failovers + self.fenced as usize + 1 + turns
    }
}

/// Measures everything. Nothing is left behind. The caller is the main thread.
pub fn measure(effort: Effort, progress: &Progress) -> Result<Report, ClusterError> {
    let (start, plan) = (Instant::now(), Plan::of(effort));
    let mut run = Run::new(start, effort, plan.domains);
    run.rivals = rivals::check();
    let rivals: Vec<Path> = run.present_rivals().collect();
    progress.expect(plan.steps(rivals.len()));
    catch_signals()?;
    let can_failover = rack::check().and_then(|()| rack::check_etcd());
    progress.say("three candidates and etcd");
    run.failover = among(can_failover, || failover::measure(plan.failovers, progress))?;
    progress.say("hosts in networks of their own");
    run.fenced = among(rack::check(), || fence::measure(plan.fenced, progress))?;
    run.paths = among(rack::check(), || {
        paths::measure(plan.turns, plan.slice, &rivals, progress)
    })?;
    measure_changes(&plan, &mut run, progress)?;
    if let Some((hosts, domains, changes)) = plan.load {
        progress.say("changes at a steady rate");
        let mut bed = Bed::start(domains)?;
        bed.add_hollow(hosts, Duration::ZERO)?;
        run.load = Some(bed.load(changes)?);
    }
    Ok(run.report())
}

/// Measures a part, unless something is absent.
fn among<T>(
    can: Result<(), Absence>,
    measure: impl FnOnce() -> Result<T, ClusterError>,
) -> Result<Result<T, Absence>, ClusterError> {
    match can {
        Ok(()) => measure().map(Ok),
        Err(absence) => Ok(Err(absence)),
    }
}

/// Measures changes among real and among hollow hosts, and beside a slow one.
fn measure_changes(plan: &Plan, run: &mut Run, progress: &Progress) -> Result<(), ClusterError> {
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
    progress.step("changes at a steady rate");
    Ok(())
}
