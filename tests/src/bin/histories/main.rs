//! The command `histories`: clients get, set, delete and flush a few keys at the same time, by RDMA and
//! by memcached's protocol; now and then one of them is killed, or the server is, and started again. Of
//! each short time the operations, answers and times are recorded, and must be linearizable.
//!
//! The program starts an agent of its own. Exit status: 0 all histories are linearizable, 1 some are not,
//! 2 bad usage or a failure.

mod client;
mod supervisor;
mod text;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use bench::cluster::{Cluster, Process};
use clap::Parser;
use tests::checks::{self, Result, now_ns, with_variant};
use tests::linearizability::history::{self, Call, KEYS};
use tests::linearizability::is_linearizable;
use tests::random::Random;
use toroid_fabric::Torus;
use toroid_model::link::LinkSpec;

use supervisor::{Kill, Part, Recording, Round};

/// The hidden argument of supervisors in nodes; their [`Part`] as JSON follows.
const SUPERVISE: &str = "__histories-supervise";

/// The hidden argument of the clients that these start, and kill; their [`Part`] as JSON follows.
const CLIENT: &str = "__histories-client";

/// The domain of all.
const DOMAIN: &str = "histories";

/// The node of the server.
const SERVER: &str = "0,0,0";

/// Clients by RDMA; there is one more by memcached's protocol.
const CLIENTS: u8 = 3;

/// One in so many histories has a client killed, and one in so many the server.
const KILL_EVERY: u32 = 10;
const RESTART_EVERY: u32 = 50;

/// The kill comes within this time of the begin.
const KILL_WITHIN_US: usize = 400;

/// All begin at the same time, so long after the request.
const NOTICE: Duration = Duration::from_micros(300);

/// Record concurrent operations on a store, and check that they are linearizable.
#[derive(Parser)]
#[command(name = "histories", version)]
struct Cli {
    /// Histories to record.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..1 << 24))]
    count: u32,
    /// Where random numbers start.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Properties of the links between the nodes, such as "latency=20us rate=1Gbit".
    #[arg(long, value_name = "PROPERTIES", default_value = "")]
    link: LinkSpec,
    /// A check of the protocol to leave out.
    #[cfg(feature = "unsafe-variants")]
    #[arg(long, value_name = "WHAT", require_equals = true, value_parser = toroid_kv::variants::NAMES)]
    without: Option<String>,
}

fn main() -> ExitCode {
    let hidden: [checks::Role; 2] = [(SUPERVISE, supervisor::serve), (CLIENT, client::serve)];
    checks::main("histories", &hidden, || run(&Cli::parse()))
}

/// Totals so far.
#[derive(Default)]
struct Counts {
    wrong: u32,
    calls: usize,
    /// Calls that overlapped another one.
    overlapped: usize,
    killed: u32,
    restarts: u32,
}

/// Whether all histories were right.
fn run(cli: &Cli) -> Result<bool> {
    let start = Instant::now();
    let mut stage = Stage::set(cli)?;
    let mut counts = Counts::default();
    for number in 0..cli.count {
        let calls = stage.record(number, &mut counts)?;
        counts.calls += calls.len();
        counts.overlapped += history::overlapped(&calls);
        if !is_linearizable(&calls) {
            counts.wrong += 1;
            eprintln!(
                "no order explains history {number}:\n{}",
                history::to_text(&calls)
            );
        }
    }
    // Each history begins with a value of each key.
    let sets = u64::from(cli.count) * u64::from(KEYS);
    checks::took_links(&mut stage.cluster, DOMAIN, cli.link, sets)?;
    let Counts {
        wrong,
        calls,
        overlapped,
        killed,
        restarts,
    } = counts;
    println!(
        "{wrong} of {} histories have no order\n{calls} operations, {overlapped} of them while others were under way; \
         {killed} clients killed, {restarts} servers killed and started again, {:.0} s",
        cli.count,
        start.elapsed().as_secs_f64()
    );
    Ok(wrong == 0)
}

/// The server and its clients, each below a supervisor.
struct Stage {
    /// That of the server first.
    supervisors: Vec<Process>,
    cluster: Cluster,
    port: u16,
    random: Random,
}

impl Stage {
    fn set(cli: &Cli) -> Result<Self> {
        let mut cluster = Cluster::start(Torus::new(u16::from(CLIENTS) + 1, 1, 1)?, None)?;
        checks::create_domain(&mut cluster, DOMAIN, cli.link)?;
        let mut parts = vec![(0, Part::Server), (0, Part::Text)];
        parts.extend((1..=CLIENTS).map(|number| (number, Part::Rdma { number })));
        let mut supervisors = Vec::new();
        let mut port = 0;
        for (node, part) in parts {
            let supervisor = cluster.spawn(
                &format!("{node},0,0"),
                &with_variant(&[SUPERVISE, &serde_json::to_string(&part)?]),
            )?;
            // The server is there before its clients.
            port = cluster
                .answer::<Recording>(&supervisor)?
                .port
                .unwrap_or(port);
            supervisors.push(supervisor);
        }
        Ok(Stage {
            supervisors,
            cluster,
            port,
            random: Random(cli.seed),
        })
    }

    /// Records one history, which begins with known values.
    fn record(&mut self, number: u32, counts: &mut Counts) -> Result<Vec<Call>> {
        let mut answers = self.ask(&Round::Prepare { history: number })?;
        let after_us = self.random.below(KILL_WITHIN_US) as u64;
        let restart = number % RESTART_EVERY == RESTART_EVERY - 1;
        let client = 1 + self.random.below(CLIENTS.into()) as u8;
        let kill = if number.is_multiple_of(KILL_EVERY) {
            Some(Kill::Client {
                number: client,
                after_us,
            })
        } else {
            restart.then_some(Kill::Server { after_us })
        };
        counts.killed += u32::from(matches!(kill, Some(Kill::Client { .. })));
        counts.restarts += u32::from(restart);
        let round = Round::Act {
            history: number,
            seed: self.random.number(),
            start_ns: now_ns() + NOTICE.as_nanos() as u64,
            port: self.port,
            kill,
        };
        answers.extend(self.ask(&round)?);
        let mut calls = Vec::new();
        for answer in answers {
            // Some clients notice only in the next history that the server was killed.
            let restarted = number.is_multiple_of(RESTART_EVERY) && number > 0 || restart;
            if let Some(failure) = answer.failures.first().filter(|_| !restarted) {
                return Err(format!("history {number}: {failure}").into());
            }
            self.port = answer.port.unwrap_or(self.port);
            calls.extend(answer.calls);
        }
        Ok(calls)
    }

    fn ask(&mut self, round: &Round) -> Result<Vec<Recording>> {
        Ok(self.cluster.ask_all(&mut self.supervisors, round)?)
    }
}
