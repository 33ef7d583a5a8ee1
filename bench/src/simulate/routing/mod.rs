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

use self::contender::Contender;
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

    /// Also run auto with hysteresis, as auto-hysteresis. It changes its mode only if the other one is
    /// faster by this share of the predicted time, such as 0.1.
    #[arg(long, value_name = "SHARE", value_parser = hysteresis)]
    hysteresis: Option<f64>,

    /// Seed of allocations, networks and neighbours. Results of two seeds are not comparable.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

impl Options {
    pub fn is_json(&self) -> bool {
        self.common.json
    }

    fn contenders(&self) -> Result<Vec<Contender>> {
        let mut contenders = Contender::of_paper();
        if let Some(hysteresis) = self.hysteresis {
            contenders.push(Contender::auto_with(hysteresis)?);
        }
        Ok(contenders)
    }
}

fn hysteresis(text: &str) -> Result<f64, String> {
    let not_a_number = |_| format!("\"{text}\" is no share: write a number from 0 to below 1");
    let hysteresis = text.parse().map_err(not_a_number)?;
    let checked = Contender::auto_with(hysteresis).map(|_| hysteresis);
    checked.map_err(|error| error.to_string())
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
    let contenders = options.contenders()?;
    let experiments = plan::experiments(effort, options.seed, &contenders, &chosen);
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
        .with("hysteresis", options.hysteresis)
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn names(line: &str) -> Result<Vec<String>, String> {
        let words = "command ".to_owned() + line;
        let line = Line::try_parse_from(words.split_whitespace());
        let line = line.map_err(|error| error.to_string())?;
        let contenders = line.options.contenders().unwrap();
        Ok(contenders.iter().map(|its| its.name().into()).collect())
    }

    #[test]
    fn hysteresis_runs_beside_the_contenders_of_the_paper() {
        let paper = ["default", "high-bias", "auto"];
        assert_eq!(names("").unwrap(), paper);
        let all = [&paper[..], &["auto-hysteresis"]].concat();
        assert_eq!(names("--hysteresis 0.1").unwrap(), all);
        for wrong in ["1", "-0.1", "much", "nan"] {
            let error = names(&format!("--hysteresis={wrong}")).unwrap_err();
            assert!(error.contains("from 0 to below 1"), "{error}");
        }
    }
}
