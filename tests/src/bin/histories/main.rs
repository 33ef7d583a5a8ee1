//! The command `histories`: clients get, set, delete and flush a few keys at the same time, by RDMA and
//! by memcached's protocol; now and then one of them is killed, or the server is, and started again. Of
//! each short time it is recorded what was asked and answered, and when, and there must be an order
//! of the operations, each at some moment between its beginning and its end, that explains all answers.
//!
//! It starts an agent of its own. Exit status: 0 all histories have such an order, 1 some have not,
//! 2 bad usage or a failure.

mod checker;
mod client;
mod history;
mod keeper;
mod text;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use bench::cluster::{Cluster, Process};
use bench::roles;
use clap::Parser;
use nix::time::{ClockId, clock_gettime};
use tests::random::Random;
use tests::variants::with_what_is_left_out;
use toroid_fabric::Torus;

use checker::is_linearizable;
use history::Call;
use keeper::{Answer, Kill, Order, Part};

type Error = Box<dyn std::error::Error>;

/// The hidden argument of processes in nodes; their [`Part`] as JSON follows.
const KEEP: &str = "__histories-keep";

/// The same of the processes that these start, and kill.
const CLIENT: &str = "__histories-client";

/// The domain of all.
const DOMAIN: &str = "histories";

/// Where the server is.
const SERVER: &str = "0,0,0";

/// Clients by RDMA; there is one more by memcached's protocol.
const CLIENTS: u8 = 3;

/// In so many histories, one client is killed; in so many, the server.
const KILL_EVERY: u32 = 10;
const RESTART_EVERY: u32 = 50;

/// Somebody is killed within this time.
const KILL_WITHIN_US: usize = 400;

/// All begin at the same time, so long after they were told.
const NOTICE: Duration = Duration::from_micros(300);

/// Record what clients of a store do at the same time, and check that one order explains it.
#[derive(Parser)]
#[command(name = "histories", version)]
struct Cli {
    /// Histories to record.
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..1 << 24))]
    count: u32,
    /// Where random numbers start.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// What of the protocol is left out.
    #[cfg(feature = "unsafe-variants")]
    #[arg(long, value_name = "WHAT", require_equals = true, value_parser = toroid_kv::variants::NAMES)]
    without: Option<String>,
}

fn main() -> ExitCode {
    if let Some(status) = roles::run_if_asked() {
        return status;
    }
    let result = match std::env::args().nth(1).as_deref() {
        Some(KEEP) => keeper::obey().map(|()| true),
        Some(CLIENT) => client::obey().map(|()| true),
        _ => run(&Cli::parse()),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("histories: {error}");
            ExitCode::from(2)
        }
    }
}

/// Nanoseconds of a clock that all processes share.
fn now_ns() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap_or(Duration::ZERO.into());
    Duration::from(time).as_nanos() as u64
}

/// What happened so far.
#[derive(Default)]
struct Counts {
    wrong: u32,
    calls: usize,
    /// Calls that another one overlapped.
    overlapped: usize,
    killed: u32,
    restarts: u32,
}

/// Whether all histories were right.
fn run(cli: &Cli) -> Result<bool, Error> {
    let start = Instant::now();
    let mut stage = Stage::set(cli.seed)?;
    let mut counts = Counts::default();
    for number in 0..cli.count {
        let calls = stage.record(number, &mut counts)?;
        counts.calls += calls.len();
        counts.overlapped += history::overlapped(&calls);
        if !is_linearizable(&calls) {
            counts.wrong += 1;
            eprintln!(
                "no order explains history {number}:\n{}",
                history::told(&calls)
            );
        }
    }
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

/// The server and its clients, each below a process that answers for it.
struct Stage {
    /// The server's, then those of the clients.
    keepers: Vec<Process>,
    cluster: Cluster,
    port: u16,
    random: Random,
}

impl Stage {
    fn set(seed: u64) -> Result<Self, Error> {
        let mut cluster = Cluster::start(Torus::new(u16::from(CLIENTS) + 1, 1, 1)?, None)?;
        cluster.create_domain(DOMAIN)?;
        let mut parts = vec![(0, Part::Server), (0, Part::Text)];
        parts.extend((1..=CLIENTS).map(|number| (number, Part::Rdma { number })));
        let mut keepers = Vec::new();
        let mut port = 0;
        for (node, part) in parts {
            let keeper = cluster.spawn(
                &format!("{node},0,0"),
                &with_what_is_left_out(&[KEEP, &serde_json::to_string(&part)?]),
            )?;
            // The server is there before its clients.
            port = cluster.answer::<Answer>(&keeper)?.port.unwrap_or(port);
            keepers.push(keeper);
        }
        Ok(Stage {
            keepers,
            cluster,
            port,
            random: Random(seed),
        })
    }

    /// What all of them did in a short time, from known values on.
    fn record(&mut self, number: u32, counts: &mut Counts) -> Result<Vec<Call>, Error> {
        let mut answers = self.ask(&Order::Prepare { history: number })?;
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
        let order = Order::Act {
            history: number,
            seed: self.random.number(),
            start_ns: now_ns() + NOTICE.as_nanos() as u64,
            port: self.port,
            kill,
        };
        answers.extend(self.ask(&order)?);
        let mut calls = Vec::new();
        for answer in answers {
            // Some notice only in the next one that the server was killed.
            let restarted = number.is_multiple_of(RESTART_EVERY) && number > 0 || restart;
            if let Some(failure) = answer.failures.first().filter(|_| !restarted) {
                return Err(format!("history {number}: {failure}").into());
            }
            self.port = answer.port.unwrap_or(self.port);
            calls.extend(answer.calls);
        }
        Ok(calls)
    }

    fn ask(&mut self, order: &Order) -> Result<Vec<Answer>, Error> {
        Ok(self.cluster.ask_all(&mut self.keepers, order)?)
    }
}
