//! The command `simulate routing`: routing modes and policies on a dragonfly beside noisy
//! neighbours, as in De Sensi, Di Girolamo and Hoefler (SC 2019).
//!
//! * [`workload`], [`placement`], [`neighbours`]: the programs, the allocations, other tenants.
//! * [`contender`], [`experiment`]: modes and policies, in turns on one fixed allocation.
//! * [`plan`], [`rows`], [`findings`]: the experiments of the command, their statistics, and the
//!   findings of the paper, each found, not found or undecided.
//! * [`equation`]: predicted against simulated times.
//! * [`duel`]: a policy of a stranger against auto.
//!
//! Times of different allocations are not compared: `normalised` has the median of the default mode
//! on the same allocation below.
//!
//! One finding is not here: between two routers of a chassis, 16 KiB take longer than between
//! chassis. The former have one link, the latter three, and a single message fills both.

pub mod contender;
pub mod duel;
pub mod equation;
pub mod experiment;
mod findings;
mod idle;
mod neighbours;
pub mod placement;
mod plan;
mod rows;
mod verdict;
pub mod workload;

use std::time::Instant;

use anyhow::Result;
use clap::Args;

use super::refuse;
use super::turns::on_all_processors;
use crate::plan::Common;
use crate::progress::Progress;
use crate::report::{Fields, Report};

// Not a doc comment, which would replace the text of the command.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    common: Common,

    /// Only workloads with one of these words in their names, such as alltoall [default: all].
    #[arg(long, value_name = "NAME")]
    workload: Vec<String>,

    /// Only these placements [default: all].
    #[arg(long)]
    placement: Vec<placement::Placement>,

    /// Seed of allocations, networks and neighbours. Results of two seeds are not comparable.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Options {
    pub fn is_json(&self) -> bool {
        self.common.json
    }
}

/// Runs all experiments on all processors.
///
/// # Errors
/// No workload has a chosen name, with exit status 2; an experiment that stops.
pub fn measure(options: &Options, progress: &Progress) -> Result<Report> {
    let start = Instant::now();
    let effort = options.common.effort();
    let chosen = plan::Chosen {
        workloads: &options.workload,
        placements: &options.placement,
    };
    let experiments = plan::experiments(effort, options.seed, &chosen);
    let experiments = experiments.or_else(|none| refuse(none.to_string()))?;
    progress.expect(experiments.len());
    let measured = on_all_processors(&experiments, |experiment| {
        progress.step(experiment.workload);
        experiment.run()
    })?;
    let rows = measured
        .iter()
        .map(rows::of)
        .collect::<Result<Vec<_>>>()?
        .concat();
    let mut findings = findings::all(&measured);
    findings.push(idle::finding(options.seed)?);
    let events: u64 = measured.iter().map(|measured| measured.events).sum();
    let seconds = start.elapsed().as_secs_f64();
    let config = Fields::default()
        .with("seed", options.seed)
        .with("events", events)
        .with("events_per_s", events as f64 / seconds);
    let mut report = Report::new(effort, start, config);
    report.text = format!(
        "{}\n{}\n{events} events in {seconds:.0} s; times normalised to the median of the default \
         mode on the same allocation\n",
        rows::table(&rows),
        findings::text(&findings),
    );
    report.rows("rows", &rows);
    report.list(
        "findings",
        findings.iter().map(findings::Finding::fields).collect(),
    );
    Ok(report)
}
