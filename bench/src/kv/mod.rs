//! The command `kv`: the store beside memcached.
//!
//! * [`plan`]: the measurements; [`bed`]: the servers and their clients, in two nodes.
//! * [`report`], [`targets`]: rows, tables and targets.
//! * [`hits`]: hit rates on traces with more keys than memory.

pub mod bed;
pub mod hits;
pub mod plan;
pub mod report;
pub mod targets;

use std::time::{Duration, Instant};

use clap::Args;

use self::bed::Bed;
use self::plan::{Measurement, Words};
use self::report::{Mixes, Run};
use crate::cluster::ClusterError;
use crate::plan::{Common, Effort};
use crate::progress::Progress;
use crate::report::{Report, name};
use crate::runner::Runner;
use crate::worker::mix::Mix;

#[derive(Args, Clone, Debug)]
pub struct Options {
    #[command(flatten)]
    pub common: Common,

    /// Measure only rows with all these words, such as set/1024/hot or rdma/get/64; repeatable.
    ///
    /// A row's words are its path, operation, bytes, set and load, as in the table.
    #[arg(long, value_name = "WORD/...")]
    rows: Vec<Words>,

    /// Number of rounds of every measurement.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,

    /// Compare hit rates instead, on traces with more keys than memory.
    ///
    /// Each server has 64 MiB. Takes some minutes, with --quick one or two.
    #[arg(long, conflicts_with_all = ["rows", "rounds", "unbound"])]
    mix: bool,

    /// Leave the processors of client and server to the scheduler.
    ///
    /// Without this they share one processor over sockets with one request under way.
    #[arg(long)]
    unbound: bool,
}

/// Measures all rows, the chosen ones, or hit rates; nothing is left behind.
pub fn measure(options: &Options, progress: &Progress) -> Result<Report, ClusterError> {
    let start = Instant::now();
    let (effort, rows) = (options.common.effort(), &options.rows);
    if options.mix {
        return hits::measure(effort, progress);
    }
    let contests = plan::contests(rows);
    let rounds = options.rounds.unwrap_or(plan::rounds(effort));
    let mixes: &[Mix] = if rows.is_empty() { &Mix::ALL } else { &[] };
    let turns = mixes.len() * plan::MIX_CLIENTS.len() * plan::MIX_PATHS.len();
    let in_parts: u32 = contests.iter().flatten().map(plan::parts).sum();
    progress.expect(rounds as usize * (turns + in_parts as usize));
    progress.say("starting the servers");
    let mut bed = Bed::prepare(!options.unbound)?;
    let mut memory = Vec::new();
    if rows.is_empty() {
        // First, before the servers' memory has grown.
        progress.say("storing many small values");
        for path in plan::SERVERS {
            memory.push((path, bed.memory_per_item(path)?));
        }
    }
    let mut runner = Runner::new(progress);
    for contest in contests {
        hold(&mut bed, contest, effort, rounds, &mut runner)?;
    }
    let mut measured = Mixes::default();
    for mix in mixes {
        carry_out(&mut bed, *mix, effort, rounds, progress, &mut measured)?;
    }
    let run = Run {
        effort,
        start,
        rounds,
        memcached: bed.memcached_version()?,
        shared_processor: bed.shares_processor(),
        mixes: measured,
        memory,
    };
    progress.say("cleaning up");
    drop(bed);
    Ok(run.report(&runner.finish()))
}

/// Holds a contest. Rounds have parts, and only some measurements take a turn in every part.
fn hold(
    bed: &mut Bed,
    mut contest: Vec<Measurement>,
    effort: Effort,
    rounds: u32,
    runner: &mut Runner<'_, Measurement>,
) -> Result<(), ClusterError> {
    runner.progress.say("storing the values");
    bed.fill(&contest)?;
    for part in 0..rounds * plan::PARTS {
        let part = part % plan::PARTS;
        let has_turn = |row: &&Measurement| part < plan::parts(row);
        let mut turns: Vec<Measurement> = contest.iter().filter(has_turn).copied().collect();
        runner.contest(&mut turns, 1..=1, Duration::MAX, |measurement| {
            let time = plan::slice(effort, measurement) / plan::parts(measurement);
            bed.measure(measurement, time)
        })?;
        // Otherwise the first measurement would always find the machine in the same state.
        contest.reverse();
    }
    bed.empty(&contest)
}

fn carry_out(
    bed: &mut Bed,
    mix: Mix,
    effort: Effort,
    rounds: u32,
    progress: &Progress,
    mixes: &mut Mixes,
) -> Result<(), ClusterError> {
    progress.say("storing the values");
    bed.fill_mix(mix)?;
    let mut paths = plan::MIX_PATHS;
    for _ in 0..rounds {
        for clients in plan::MIX_CLIENTS {
            for path in paths {
                progress.step(format!("{}, {clients} clients", name(mix)));
                let mixed = bed.mix(path, mix, clients, plan::mix_slice(effort));
                let mixed = mixed.map_err(|error| error.at(name(mix)))?;
                mixes.add(mix, path, mixed);
            }
        }
        paths.reverse();
    }
    bed.empty_mix(mix)
}
