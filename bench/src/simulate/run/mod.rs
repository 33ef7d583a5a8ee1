//! `simulate run`: a live program, with its checked result, on a fabric that is not here.

mod shown;

use std::str::FromStr;
use std::time::Instant;

use anyhow::Result;
use clap::Args;
use toroid_fabric::NodeId;
use toroid_fabric::routes::policy::{Fixed, Policy, Recorded, Report as Traffic, SelectRouting};
use toroid_fabric::routes::{Mode, ParseModeError};

use super::fabric::{Fabric, Level};
use super::placement::Placement;
use super::ranks::{self, Costs, Job};
use super::refuse;
use crate::causes::without_panic;
use crate::plan::Common;
use crate::progress::Progress;
use crate::report::{Fields, Report};
use crate::sim::chunks::{DEFAULT_CHUNK, MAX_CHUNK};
use crate::sim::{Busiest, Network, TICKS};
use crate::worker::programs::rank::{Meter, Usage};
use crate::worker::programs::task::{Name, Task};

// Not a doc comment, which would replace the text of the command.
#[derive(Args)]
pub struct Options {
    #[command(flatten)]
    pub common: Common,

    /// The program.
    #[arg(value_name = "PROGRAM")]
    program: Name,

    /// Fabric: aries (dragonfly:5), bgp (torus:8x8x8), torus:XxYxZ with the costs of bgp,
    /// dragonfly:GROUPS or dragonfly:GROUPSxCHASSISxROUTERSxNODES with the costs of aries.
    #[arg(long, value_name = "FABRIC", default_value = "aries")]
    fabric: Fabric,

    /// Number of nodes, each with a rank.
    #[arg(long, value_name = "N", default_value_t = 64)]
    nodes: u32,

    /// Detail of the network.
    #[arg(long, value_name = "LEVEL", default_value = "chunks")]
    level: Level,

    /// Bytes of a chunk, at the level of chunks [default: 4096].
    #[arg(long, value_name = "BYTES",
        value_parser = clap::value_parser!(u64).range(1..=MAX_CHUNK))]
    chunk: Option<u64>,

    /// Routing mode: default (adaptive0, in an alltoall adaptive1), auto (with --level packets), or
    /// one of adaptive0, adaptive1, adaptive2, adaptive3, min-hash, nmin-hash, in-order.
    #[arg(long, value_name = "MODE", default_value = "default")]
    routing: Routing,

    /// Nodes of the ranks: compact, spread, random, or numbers such as 0,4,8.
    #[arg(long, value_name = "PLACEMENT", default_value = "compact")]
    placement: Placement,

    /// Seed of placements and routes.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Nanoseconds of a rank's processor for an operation of the program.
    #[arg(long, value_name = "NS", default_value_t = 1.0, value_parser = nanoseconds)]
    operation_ns: f64,

    /// Nanoseconds of a rank's processor for each packet that it sends or receives.
    #[arg(long, value_name = "NS", default_value_t = 0.0, value_parser = nanoseconds)]
    overhead_ns: f64,
}

/// How modes are chosen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Routing {
    Default,
    Auto,
    Mode(Mode),
}

impl Routing {
    /// The policy of a rank.
    pub fn policy(self) -> Box<dyn Policy> {
        match self {
            Routing::Default => Box::new(Fixed::DEFAULT),
            Routing::Auto => Box::new(SelectRouting::default()),
            Routing::Mode(mode) => Box::new(Fixed::new(mode)),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Routing::Default => "default",
            Routing::Auto => "auto",
            Routing::Mode(mode) => mode.name(),
        }
    }
}

impl FromStr for Routing {
    type Err = ParseModeError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "default" => Ok(Routing::Default),
            "auto" => Ok(Routing::Auto),
            mode => Ok(Routing::Mode(mode.parse()?)),
        }
    }
}

fn nanoseconds(text: &str) -> Result<f64, String> {
    let value: Option<f64> = text.parse().ok();
    let value = value.filter(|ns| (0.0..=1e9).contains(ns));
    value.ok_or_else(|| "write nanoseconds from 0 to 1e9".to_owned())
}

/// A finished run.
struct Done {
    usages: Vec<Usage>,
    traffic: Traffic,
    network: Box<dyn Network>,
    real_s: f64,
}

/// Simulates; the result of the program is checked as in its live form.
///
/// # Errors
/// Options that do not fit together, with exit status 2; a program that fails or waits for ever.
pub fn measure(options: &Options, progress: &Progress) -> Result<Report> {
    let effort = options.common.effort();
    check(options)?;
    let task = Task::new(options.program, effort);
    let nodes = nodes(options, &task)?;
    progress.say(format!("{task} on {} nodes", nodes.len()));
    let start = Instant::now();
    let done = without_panic("the simulation", || run(options, &task, &nodes))?;
    let mut report = Report::new(effort, start, Fields::default());
    let fields = shown::fields(options, &task, &done);
    report.list("rows", vec![fields]);
    report.text = shown::text(options, &task, &done).to_string();
    Ok(report)
}

/// Refuses options without effect.
fn check(options: &Options) -> Result<()> {
    match (options.level, options.routing, options.chunk) {
        (Level::Chunks, Routing::Auto, _) => refuse(
            "auto decides by stalled cycles, which chunks do not have: add --level packets".into(),
        ),
        (Level::Packets, _, Some(_)) => {
            refuse("--chunk has no effect on --level packets: leave one of both out".into())
        }
        _ => Ok(()),
    }
}

/// The nodes of the ranks.
fn nodes(options: &Options, task: &Task) -> Result<Vec<NodeId>> {
    let ranks = options.nodes as usize;
    let placed = options
        .placement
        .nodes(ranks, options.fabric.nodes(), options.seed);
    let placed = placed.or_else(|error| refuse(error.to_string()))?;
    if !task.runs_on(ranks) {
        let possible = (1..ranks).rev().find(|ranks| task.runs_on(*ranks));
        let instead = possible.map_or(String::new(), |ranks| format!(": choose --nodes {ranks}"));
        return refuse(format!("{task} does not run on {ranks} ranks{instead}"));
    }
    Ok(placed)
}

fn run(options: &Options, task: &Task, nodes: &[NodeId]) -> Result<Done> {
    let Options {
        level, chunk, seed, ..
    } = options;
    let chunk = chunk.unwrap_or(DEFAULT_CHUNK);
    let mut network = options.fabric.build(*level, chunk, *seed)?;
    let policy = |_: &NodeId| Recorded::new(options.routing.policy());
    let mut policies: Vec<_> = nodes.iter().map(policy).collect();
    let overhead = (options.overhead_ns * TICKS as f64) as u64;
    let job = Job {
        network: &mut *network,
        nodes,
        domain: 0,
        costs: Costs {
            send: overhead,
            receive: overhead,
            operation: options.operation_ns * TICKS as f64,
            ..Costs::default()
        },
        policies: &mut policies,
        beside: None,
    };
    let (start, task) = (Instant::now(), *task);
    let results = ranks::run(job, move |rank| task.run(&mut Meter::new(rank), &mut None))?;
    let mut traffic = Traffic::default();
    policies
        .iter()
        .for_each(|policy| traffic.add(policy.report()));
    Ok(Done {
        usages: results.into_iter().collect::<Result<_>>()?,
        traffic,
        network,
        real_s: start.elapsed().as_secs_f64(),
    })
}

impl Done {
    fn sum(&self, of: impl Fn(&Usage) -> u64) -> u64 {
        self.usages.iter().map(of).sum()
    }

    /// Time of the slowest rank.
    fn elapsed_ns(&self) -> u64 {
        let times = self.usages.iter().map(|usage| usage.elapsed_ns);
        times.max().unwrap_or_default()
    }

    /// Share of the time in sends and receives; 0 if no time passes.
    fn communication(&self) -> f64 {
        let elapsed = self.sum(|usage| usage.elapsed_ns).max(1);
        self.sum(|usage| usage.communication_ns) as f64 / elapsed as f64
    }

    /// The link with the most work, if any has carried bytes.
    fn busiest(&self) -> Option<Busiest> {
        self.network.busiest().filter(|link| link.bytes > 0)
    }

    /// Modes with their bytes, headers of the message layer included, if any.
    fn modes(&self) -> impl Iterator<Item = (Mode, u64)> {
        let bytes = |mode| (mode, self.traffic.bytes_of(mode));
        let modes = Mode::ALL.into_iter().map(bytes);
        modes.filter(|(_, bytes)| *bytes > 0)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use serde_json::{Value, json};

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn measured(line: &str) -> Result<Value> {
        let words = ["run"].into_iter().chain(line.split(' '));
        let line = Line::try_parse_from(words)?;
        let report = measure(&line.options, &Progress::new())?;
        Ok(json!(report)["rows"][0].clone())
    }

    #[test]
    fn a_program_runs_at_both_levels_in_the_same_time_each_time() {
        for level in ["chunks", "packets --routing auto"] {
            let line = format!("barrier --quick --nodes 8 --fabric torus:2x2x2 --level {level}");
            let [first, again] = [0; 2].map(|_| measured(&line).unwrap());
            assert_eq!(first["messages"], 200 * 8 * 3);
            assert_eq!(first["elapsed_ns"], again["elapsed_ns"]);
            assert!(
                first["elapsed_ns"].as_u64() > Some(200 * 3 * 800),
                "{first}"
            );
        }
    }

    #[test]
    fn a_rank_alone_sends_nothing_and_has_figures() {
        let words = "run barrier --quick --nodes 1 --fabric torus:2x2x2".split(' ');
        let Line { options } = Line::try_parse_from(words).unwrap();
        let report = measure(&options, &Progress::new()).unwrap();
        let row = &json!(report)["rows"][0];
        assert_eq!(
            (&row["messages"], &row["communication"]),
            (&json!(0), &json!(0.0))
        );
        assert_eq!(row["busiest_link"], Value::Null);
        assert!(
            report.text.contains("default: no messages"),
            "{}",
            report.text
        );
        assert!(!report.text.contains("NaN"), "{}", report.text);
    }

    #[test]
    fn what_does_not_fit_is_an_error_of_the_command_line() {
        for (line, error) in [
            (
                "cg --nodes 6",
                "cg (class W) does not run on 6 ranks: choose --nodes 4",
            ),
            (
                "ep --nodes 513 --fabric bgp",
                "513 ranks do not fit into a fabric of 512",
            ),
            (
                "ep --nodes 2 --placement 1,1",
                "the placement has node 1 twice",
            ),
            ("ep --fabric torus:0x1x1", "a network has no size of 0"),
            ("ep --fabric ring:4", "\"ring:4\" is no network"),
            ("ep --routing best", "\"best\" is no routing mode"),
            (
                "ep --routing auto",
                "auto decides by stalled cycles, which chunks do not have: add --level packets",
            ),
            (
                "ep --level packets --chunk 64",
                "--chunk has no effect on --level packets",
            ),
            ("ep --operation-ns -1", "unexpected argument"),
        ] {
            let refused = measured(line).unwrap_err();
            let refused = refused.downcast_ref::<clap::Error>().unwrap();
            assert!(refused.to_string().contains(error), "{refused}");
            assert_eq!(refused.exit_code(), 2);
        }
    }
}
