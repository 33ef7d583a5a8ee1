//! The command `noise congest`: how much slower a domain is beside traffic of another domain, after
//! GPCNeT (Chunduri et al., 2019, "GPCNeT: Designing a Benchmark Suite for Inducing and Measuring
//! Contention in HPC Networks").
//!
//! A domain bounds who talks, not who is slowed: victim and congestors are members of different
//! domains, on nodes of their own, and share the links between the nodes and this machine. [`plan`]
//! has the measurements, [`bed`] nodes and processes, [`report`] impacts and tables.

mod bed;
mod plan;
mod report;

use std::time::{Duration, Instant};

use clap::Args;
use toroid_agent::read_profile;
use toroid_model::link::FabricProfile;

use self::bed::Bed;
use self::plan::{Path, Pattern};
use crate::cluster::ClusterError;
use crate::plan::Common;
use crate::progress::Progress;
use crate::report::Report;
use crate::runner::Runner;

/// Rounds of a quick run, and of a usual one.
const ROUNDS: [u32; 2] = [7, 15];

/// No round begins after this time.
const LIMITS: [Duration; 2] = [Duration::from_secs(40), Duration::from_secs(240)];

// Not a doc comment, which would replace the text of the command.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    pub common: Common,

    /// Traffic beside [default: all].
    #[arg(long, value_enum, value_name = "PATTERN", value_delimiter = ',')]
    pattern: Vec<Pattern>,

    /// Path of the victim and of the traffic beside [default: both].
    #[arg(long, value_enum, value_name = "PATH", value_delimiter = ',')]
    path: Vec<Path>,

    /// Emulate a torus, whose links both domains share: bgp, or a file as for `toroid up --fabric`
    /// [default: this machine itself].
    #[arg(long, value_name = "bgp|FILE", value_parser = read_profile)]
    pub fabric: Option<FabricProfile>,
}

/// Measures everything; nothing is left behind.
pub fn measure(options: &Options, progress: &Progress) -> Result<Report, ClusterError> {
    let start = Instant::now();
    let effort = options.common.effort();
    let mut keys = plan::keys(&options.path, &options.pattern);
    let rounds = effort.quick_or(ROUNDS[0], ROUNDS[1]);
    progress.expect(rounds as usize * keys.len());
    progress.say("starting the nodes");
    let mut bed = Bed::prepare(
        options.fabric.as_ref(),
        &plan::wanted(&options.path),
        effort,
    )?;
    let mut runner = Runner::new(progress);
    let limit = effort.quick_or(LIMITS[0], LIMITS[1]);
    let left = limit.saturating_sub(start.elapsed());
    runner.contest(&mut keys, 1..=rounds, left, |key| bed.measure(key))?;
    let isolated = std::mem::take(&mut bed.isolated);
    progress.say("cleaning up");
    drop(bed);
    let run = report::Run {
        start,
        effort,
        fabric: options.fabric.clone(),
    };
    Ok(run.report(&runner.finish(), &isolated))
}
