//! The command `programs`: [parallel programs](crate::worker::programs) with checked results.
//!
//! [`bed`] has live ranks, [`report`] the rows and tables.

pub mod bed;
mod report;

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use clap::Args;

use self::bed::Bed;
use self::report::Measured;
use crate::micro::bed::Path;
use crate::plan::{Common, Effort};
use crate::progress::Progress;
use crate::report::Report;
use crate::runner::Runner;
use crate::worker::programs::task::{MOST_RANKS, Name, Task};

// Not a doc comment, which would replace the text of the command.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    pub common: Common,

    /// Run only these programs [default: all].
    #[arg(value_name = "NAME")]
    names: Vec<Name>,

    /// Number of ranks. More ranks than processors sleep while they wait.
    #[arg(long, value_name = "N", default_value_t = 4,
        value_parser = clap::value_parser!(u8).range(1..=MOST_RANKS as i64))]
    ranks: u8,

    /// Measure only these paths [default: all; verbs if there is an RDMA device].
    #[arg(long, value_name = "PATH", value_delimiter = ',')]
    path: Vec<Path>,
}

/// Runs everything; nothing is left behind.
pub fn measure(options: &Options, progress: &Progress) -> Result<Report> {
    let start = Instant::now();
    let (effort, ranks) = (options.common.effort(), usize::from(options.ranks));
    let names = chosen(&options.names, ranks)?;
    let (paths, left_out) = Path::chosen(&options.path, &[])?;
    let mut measured: Vec<Measured> = Vec::new();
    for path in paths {
        progress.say(format!("starting {ranks} ranks for {path}"));
        let mut bed = Bed::prepare(path, ranks)?;
        let tasks = names.iter().map(|name| Task::new(*name, effort));
        let mut tasks: Vec<Task> = tasks.collect();
        progress.expect(tasks.len() * rounds(effort) as usize);
        let mut runner = Runner::new(progress);
        runner.contest(&mut tasks, rounds(effort), limit(effort), |task| {
            bed.measure(task)
        })?;
        measured.push((path, runner.finish()));
    }
    let mut report = report::report(effort, start, ranks, &measured);
    if let Some(reason) = left_out {
        report.text += &format!("\n{reason}\n");
    }
    Ok(report)
}

/// The chosen programs, each once, if so many ranks can run them.
fn chosen(names: &[Name], ranks: usize) -> Result<Vec<Name>> {
    let is_chosen = |name: &Name| names.is_empty() || names.contains(name);
    let (chosen, others): (Vec<Name>, Vec<Name>) = Name::ALL.into_iter().partition(is_chosen);
    let Some(name) = chosen.iter().find(|name| !name.runs_on(ranks)) else {
        return Ok(chosen);
    };
    let possible = (1..=MOST_RANKS).filter(|ranks| name.runs_on(*ranks));
    let possible: Vec<String> = possible.map(|ranks| ranks.to_string()).collect();
    let mut able: Vec<Name> = chosen.iter().chain(&others).copied().collect();
    able.retain(|name| name.runs_on(ranks));
    let able: Vec<String> = able.iter().map(Name::to_string).collect();
    bail!(
        "{name} does not run on {ranks} ranks; choose --ranks of {}, or name programs that do: {}",
        possible.join(", "),
        able.join(" ")
    );
}

/// Number of rounds if time allows.
fn rounds(effort: Effort) -> u32 {
    effort.quick_or(5, 9)
}

/// Time of all rounds of a path.
fn limit(effort: Effort) -> Duration {
    Duration::from_secs(effort.quick_or(10, 60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_cannot_run_are_refused_with_numbers_and_programs_that_can() {
        assert_eq!(chosen(&[], 4).unwrap(), Name::ALL);
        let names = [Name::Sweep3d, Name::Ep, Name::Ep];
        assert_eq!(chosen(&names, 7).unwrap(), [Name::Ep, Name::Sweep3d]);
        let refusal = |names: &[Name], ranks| chosen(names, ranks).unwrap_err().to_string();
        assert_eq!(
            refusal(&[], 3),
            "cg does not run on 3 ranks; choose --ranks of 1, 2, 4, 8, 16, or name programs that \
             do: ep is lu gups ping-pong alltoall allreduce barrier broadcast halo3d sweep3d"
        );
        assert!(refusal(&[Name::Mg], 16).contains("--ranks of 1, 2, 4, 8, or name"));
        assert!(refusal(&[Name::PingPong], 1).contains("--ranks of 2, 3, 4,"));
    }
}
