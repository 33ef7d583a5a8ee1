//! The command `programs`: [parallel programs](crate::worker::programs) with checked results.
//!
//! [`bed`] has live ranks, [`report`] the rows and tables.

pub mod bed;
mod report;

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
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

    /// RDMA devices of the path verbs, which ranks use in turns [default: the first].
    #[arg(long, value_name = "DEVICE", value_delimiter = ',')]
    device: Vec<String>,
}

/// Runs everything; nothing is left behind.
pub fn measure(options: &Options, progress: &Progress) -> Result<Report> {
    let start = Instant::now();
    let (effort, ranks) = (options.common.effort(), usize::from(options.ranks));
    let tasks = chosen(&options.names, ranks, effort)?;
    let devices = options.device.len();
    ensure!(
        devices <= ranks,
        "--device has {devices} names for {ranks} ranks: leave out those that no rank uses"
    );
    let (paths, left_out) = Path::chosen(&options.path, &options.device)?;
    let mut measured: Vec<Measured> = Vec::new();
    for path in paths {
        progress.say(format!("starting {ranks} ranks for {path}"));
        let mut bed = Bed::prepare(path, &options.device, ranks)?;
        progress.expect(tasks.len() * rounds(effort) as usize);
        let mut runner = Runner::new(progress);
        let (mut tasks, rounds) = (tasks.clone(), FEWEST_ROUNDS..=rounds(effort));
        runner.contest(&mut tasks, rounds, limit(effort), |task| bed.measure(task))?;
        measured.push((path, runner.finish()));
    }
    let mut report = report::report(effort, start, ranks, &measured);
    if let Some(reason) = left_out {
        report.note(&reason);
    }
    Ok(report)
}

/// The chosen programs, each once, if so many ranks can run them.
fn chosen(names: &[Name], ranks: usize, effort: Effort) -> Result<Vec<Task>> {
    let all = Name::ALL.map(|name| Task::new(name, effort));
    let is_chosen = |task: &Task| names.is_empty() || names.contains(&task.name());
    let (chosen, others): (Vec<Task>, Vec<Task>) = all.into_iter().partition(is_chosen);
    let Some(task) = chosen.iter().find(|task| !task.runs_on(ranks)) else {
        return Ok(chosen);
    };
    let possible = (1..=MOST_RANKS).filter(|ranks| task.runs_on(*ranks));
    let possible: Vec<String> = possible.map(|ranks| ranks.to_string()).collect();
    let able = chosen.iter().chain(&others);
    let able = able.filter(|task| task.runs_on(ranks));
    let able: Vec<String> = able.map(|task| task.name().to_string()).collect();
    bail!(
        "{} does not run on {ranks} ranks; choose --ranks of {}, or name programs that do: {}",
        task.name(),
        possible.join(", "),
        able.join(" ")
    );
}

/// Rounds of each program, however slow it is: fewer have no spread to compare.
const FEWEST_ROUNDS: u32 = 3;

/// Number of rounds if time allows.
fn rounds(effort: Effort) -> u32 {
    effort.quick_or(5, 9)
}

/// Time after which a path begins no further round, except the least number of them.
fn limit(effort: Effort) -> Duration {
    Duration::from_secs(effort.quick_or(10, 60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_that_cannot_run_are_refused_with_numbers_and_programs_that_can() {
        let able = |names: &[Name], ranks| -> Vec<Name> {
            let tasks = chosen(names, ranks, Effort::Quick).unwrap();
            tasks.iter().map(Task::name).collect()
        };
        assert_eq!(able(&[], 4), Name::ALL);
        let names = [Name::Sweep3d, Name::Ep, Name::Ep];
        assert_eq!(able(&names, 7), [Name::Ep, Name::Sweep3d]);
        let refusal = |names: &[Name], ranks| {
            let refused = chosen(names, ranks, Effort::Quick);
            refused.unwrap_err().to_string()
        };
        assert_eq!(
            refusal(&[], 3),
            "cg does not run on 3 ranks; choose --ranks of 1, 2, 4, 8, 16, or name programs that \
             do: ep is lu gups ping-pong alltoall allreduce barrier broadcast halo3d sweep3d"
        );
        assert!(refusal(&[Name::Mg], 16).contains("--ranks of 1, 2, 4, 8, or name"));
        assert!(refusal(&[Name::PingPong], 1).contains("--ranks of 2, 3, 4,"));
    }
}
