//! The command `kv`: the store beside memcached, with one client of each kind.
//!
//! * [`plan`]: what is measured; [`mix`]: mixes that others have published; [`bed`]: the servers and
//!   their clients, in two nodes.
//! * What runs there: [`client`], and in it [`crowd`] and [`mixed`]; [`processor`]: where.
//! * [`hits`]: hit rates on [`traces`], where there are more keys than memory.
//! * [`report`], [`mixes`], [`targets`]: what comes out.

pub mod bed;
pub mod client;
pub mod crowd;
pub mod hits;
pub mod mix;
pub mod mixed;
pub mod mixes;
pub mod plan;
pub mod processor;
pub mod report;
pub mod targets;
pub mod traces;

use std::time::Instant;

use self::bed::Bed;
use self::mix::Mix;
use self::plan::{Measurement, Path, Words};
use self::report::{Config, Report, Rounds};
use crate::cluster::ClusterError;
use crate::machine::Machine;
use crate::plan::Effort;
use crate::progress::Progress;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Options {
    /// For how long.
    pub effort: Effort,
    /// Only these rows, without mixes and memory; all if there are none.
    pub rows: Vec<Words>,
    /// How often, if not as the effort says.
    pub rounds: Option<u32>,
    /// Whether the scheduler says where both ends of a connection are, also if they work in turns.
    pub unbound: bool,
}

/// Measures everything, or the rows that were chosen.
///
/// # Errors
/// [`ClusterError`]; nothing is left behind.
pub fn measure(options: &Options, progress: &mut Progress) -> Result<Report, ClusterError> {
    let start = Instant::now();
    let effort = options.effort;
    let contests = plan::contests(&options.rows);
    let rounds = options.rounds.unwrap_or(plan::rounds(effort));
    let mixes: &[Mix] = if options.rows.is_empty() {
        &Mix::ALL
    } else {
        &[]
    };
    let turns = mixes.len() * plan::MIX_CLIENTS.len() * plan::MIX_PATHS.len();
    let in_parts = contests.iter().flatten().map(plan::parts);
    let turns = turns + in_parts.sum::<u32>() as usize;
    progress.expect(rounds * turns as u32);
    progress.say("starting the servers");
    let mut bed = Bed::prepare(!options.unbound)?;
    let mut run = Run {
        effort,
        rounds,
        progress,
        measured: Rounds::default(),
    };
    if options.rows.is_empty() {
        // First, while no server has memory from before.
        run.count_memory(&mut bed)?;
    }
    for contest in contests {
        run.contest(&mut bed, contest)?;
    }
    for mix in mixes {
        run.mix(&mut bed, *mix)?;
    }
    let Run { measured, .. } = run;
    let memcached = bed.memcached_version()?;
    progress.say("cleaning up");
    let shared_processor = bed.shares_processor();
    drop(bed);
    let config = Config {
        effort,
        rounds,
        memcached,
        threads: bed::THREADS,
        shared_processor,
        machine: Machine::this(),
        elapsed_s: start.elapsed().as_secs_f64(),
    };
    Ok(Report::of(config, &measured))
}

/// What a run has, and has found so far.
struct Run<'a> {
    effort: Effort,
    rounds: u32,
    progress: &'a mut Progress,
    measured: Rounds,
}

impl Run<'_> {
    fn count_memory(&mut self, bed: &mut Bed) -> Result<(), ClusterError> {
        self.progress.say("storing many small values");
        for path in [Path::ToroidTcp, Path::MemcachedTcp] {
            let bytes_per_item = bed.memory_per_item(path)?;
            self.measured.add_memory(path, bytes_per_item);
        }
        Ok(())
    }

    fn contest(
        &mut self,
        bed: &mut Bed,
        mut contest: Vec<Measurement>,
    ) -> Result<(), ClusterError> {
        self.progress.say("storing the values");
        bed.fill(&contest)?;
        for part in 0..self.rounds * plan::PARTS {
            let part = part % plan::PARTS;
            let has_turn = |row: &&Measurement| part < plan::parts(row);
            for measurement in contest.iter().filter(has_turn) {
                self.progress.step(&measurement.to_string());
                let slice = plan::slice(self.effort, measurement) / plan::parts(measurement);
                let sample = bed.measure(measurement, slice);
                let sample = sample.map_err(|error| error.at(measurement))?;
                self.measured.add(*measurement, sample);
            }
            // Who is always first would always meet the machine in the same state.
            contest.reverse();
        }
        bed.empty(&contest)
    }

    fn mix(&mut self, bed: &mut Bed, mix: Mix) -> Result<(), ClusterError> {
        self.progress.say("storing the values");
        bed.fill_mix(mix)?;
        let mut paths = plan::MIX_PATHS;
        for _ in 0..self.rounds {
            for clients in plan::MIX_CLIENTS {
                for path in paths {
                    self.progress.step(&format!("{mix}, {clients} clients"));
                    let mixed = bed.mix(path, mix, clients, plan::mix_slice(self.effort));
                    let mixed = mixed.map_err(|error| error.at(mix))?;
                    self.measured.add_mix(mix, path, &mixed);
                }
            }
            paths.reverse();
        }
        bed.empty_mix(mix)
    }
}
