//! The command `simulate-control`: the control of changes of simulated clusters, on virtual time.

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use toroid_agent::simulation::{self, MAX_HOSTS, Mutant, Run};

use crate::plan::Effort;
use crate::progress::Progress;
use crate::report::{Fields, Report};

// Not a doc comment, which would replace the text of the command.
#[derive(Args)]
pub struct Options {
    /// The first seed.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Number of seeds. The story of a single one is always told.
    #[arg(long, value_name = "N", default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,

    /// Hosts of each cluster, of which one is the leader [default: 3 to 6, by the seed].
    #[arg(long, value_name = "N",
        value_parser = clap::value_parser!(u16).range(2..=MAX_HOSTS as i64))]
    hosts: Option<u16>,

    /// Break this rule, to see the check that finds it.
    #[arg(long, value_name = "RULE", value_parser = mutant())]
    mutant: Option<Mutant>,

    /// Print one JSON object instead of text.
    #[arg(long)]
    pub json: bool,
}

fn mutant() -> impl clap::builder::TypedValueParser<Value = Mutant> {
    let names = Mutant::ALL.map(|(name, _)| name);
    PossibleValuesParser::new(names).try_map(|name| {
        let named = Mutant::ALL.iter().find(|(known, _)| *known == name);
        named.map(|(_, mutant)| *mutant).ok_or("unknown rule")
    })
}

/// Runs all seeds, on all processors. The seed of the first violation is told.
pub fn measure(options: &Options, progress: &Progress) -> Report {
    let start = Instant::now();
    let hosts = options.hosts.map(usize::from);
    if options.seeds == 1 {
        let run = simulation::run(options.seed, hosts, options.mutant);
        return report(options, start, run.replies, Some((options.seed, run)));
    }
    progress.expect(STEPS as usize);
    let next = AtomicU64::new(0);
    let work = || {
        let (mut replies, mut broken) = (0, Vec::new());
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= options.seeds {
                return (replies, broken);
            }
            let seed = options.seed.wrapping_add(n);
            let run = simulation::check(seed, hosts, options.mutant);
            replies += run.replies;
            if run.broken.is_some() {
                broken.push((n, seed, run));
                next.store(options.seeds, Ordering::Relaxed);
            }
            if (n + 1).is_multiple_of(options.seeds.div_ceil(STEPS)) {
                progress.step("seeds");
            }
        }
    };
    let processors = thread::available_parallelism().map_or(1, usize::from);
    let ended: Vec<_> = thread::scope(|scope| {
        let workers: Vec<_> = (0..processors).map(|_| scope.spawn(work)).collect();
        let joined = workers.into_iter().map(|its| its.join());
        let result = |its: thread::Result<_>| its.unwrap_or_else(|panic| resume_unwind(panic));
        joined.map(result).collect()
    });
    let replies = ended.iter().map(|(replies, _)| replies).sum();
    let broken = ended.into_iter().flat_map(|(_, broken)| broken);
    let first = broken.min_by_key(|(n, ..)| *n);
    report(
        options,
        start,
        replies,
        first.map(|(_, seed, run)| (seed, run)),
    )
}

/// Steps of the progress bar.
const STEPS: u64 = 50;

fn report(options: &Options, start: Instant, replies: usize, told: Option<(u64, Run)>) -> Report {
    let broken = told.as_ref().and_then(|(seed, run)| {
        let broken = run.broken.as_ref()?;
        Some(format!("seed {seed}: {broken}"))
    });
    let story = told.as_ref().map(|(_, run)| run.story.as_str());
    let mut report = Report::flat(Effort::Default, start, Fields::default());
    report.fields(
        Fields::default()
            .with("seed", options.seed)
            .with("seeds", options.seeds)
            .with("hosts", options.hosts)
            .with("replies", replies)
            .with("broken", &broken)
            .with("story", story),
    );
    let result = match &broken {
        Some(broken) => broken.clone(),
        None => format!(
            "seeds {}, changes answered {replies}, violations 0",
            options.seeds
        ),
    };
    report.text = format!("{}{result}\n", story.unwrap_or_default());
    report.failure = broken;
    report
}
