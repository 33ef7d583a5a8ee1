//! The command `tear-storm`: values that describe themselves are overwritten, resized, deleted and
//! evicted while others read them out of the server's memory, and each one that is read is checked.
//!
//! Other storms have the index grow, and flush all keys again and again: then no key may be missed, or
//! be found after another that went with it is gone.
//!
//! The program starts an agent of its own with one node for the server, one for the writer and one for
//! each reader. Exit status: 0 all values were right, 1 some were not, 2 bad usage or a failure.

mod storm;
mod writer;

use std::process::ExitCode;
use std::time::Instant;

use bench::cluster::{Cluster, Process};
use bench::roles;
use clap::Parser;
use serde_json::json;
use storm::{Kind, Part, Tally, Task};
use tests::checks::{self, Result, store_config, with_variant};
use toroid_fabric::Torus;
use toroid_model::link::LinkSpec;

/// The hidden argument of writers and readers; a [`Task`] as JSON follows.
const STORM: &str = "__tear-storm";

/// Values that each reader reads before it reports.
const ROUND: u64 = 200_000;

/// The domain of all.
const DOMAIN: &str = "storm";

/// The node of the server.
const SERVER: &str = "0,0,0";

/// Read values that describe themselves while they are overwritten, resized, deleted and evicted.
#[derive(Parser)]
#[command(name = "tear-storm", version)]
struct Cli {
    /// The changes meanwhile.
    #[arg(long, value_enum, default_value_t = Kind::Changes)]
    storm: Kind,
    /// Values to read and check, by all readers together.
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    gets: u64,
    /// Nodes that read.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=64))]
    clients: u16,
    /// Keys.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    keys: u32,
    /// The server's memory for items, in MiB; for changes less than the keys need, so that it evicts.
    #[arg(long, value_name = "MIB", default_value_t = 16, value_parser = clap::value_parser!(u64).range(2..=65_536))]
    memory: u64,
    /// Where random numbers start.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Properties of the links between the nodes, such as "latency=20us rate=1Gbit".
    #[arg(long, value_name = "PROPERTIES", default_value = "")]
    link: LinkSpec,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    /// A check of the protocol to leave out.
    #[cfg(feature = "unsafe-variants")]
    #[arg(long, value_name = "WHAT", require_equals = true, value_parser = toroid_kv::variants::NAMES)]
    without: Option<String>,
}

fn main() -> ExitCode {
    checks::main(
        "tear-storm",
        &[(STORM, storm::serve)],
        || run(&Cli::parse()),
    )
}

/// Whether all values were right.
fn run(cli: &Cli) -> Result<bool> {
    let start = Instant::now();
    let mut cluster = Cluster::start(Torus::new(cli.clients + 2, 1, 1)?, None)?;
    checks::create_domain(&mut cluster, DOMAIN, cli.link)?;
    let config = store_config(DOMAIN, cli.memory << 20)?;
    let server = cluster.spawn(SERVER, &with_variant(&[roles::STORE, &config]))?;
    let port = cluster.answer(&server)?;
    let mut spawn = |node: u16, part: Part| {
        let task = Task {
            domain: DOMAIN.into(),
            server: SERVER.into(),
            port,
            memory: cli.memory << 20,
            storm: cli.storm,
            keys: cli.keys,
            seed: cli.seed.wrapping_add(node.into()),
            part,
        };
        let task = serde_json::to_string(&task)?;
        let arguments = with_variant(&[STORM, &task]);
        Result::Ok(cluster.spawn(&format!("{node},0,0"), &arguments)?)
    };
    // A writer that flushes speaks memcached's protocol within the server's node.
    let writer = u16::from(cli.storm != Kind::Flushes);
    let mut writer = spawn(writer, Part::Write)?;
    let readers = (0..cli.clients).map(|n| spawn(n + 2, Part::Read));
    let mut readers = readers.collect::<Result<Vec<Process>>>()?;
    let mut all = Tally::default();
    while all.found < cli.gets {
        let left = (cli.gets - all.found).div_ceil(cli.clients.into());
        let tallies: Vec<Tally> = cluster.ask_all(&mut readers, &left.min(ROUND))?;
        tallies.iter().for_each(|tally| all.add(tally));
    }
    let written: Tally = cluster.ask(&mut writer, &0)?;
    all.add(&written);
    checks::took_links(&mut cluster, DOMAIN, cli.link, all.found)?;
    report(cli, &all, start.elapsed().as_secs_f64())?;
    Ok(all.wrong == 0)
}

fn report(cli: &Cli, all: &Tally, seconds: f64) -> Result<()> {
    if cli.json {
        let mut result = serde_json::to_value(all)?;
        result["seconds"] = json!(seconds);
        println!("{result}");
        return Ok(());
    }
    println!(
        "{} wrong of {} values read; {} gets found nothing\n{} sets, {} deletes, {} reads of the server's memory, \
         {} gets that the server answered, {seconds:.0} s",
        all.wrong, all.found, all.missed, all.sets, all.deletes, all.reads, all.asked
    );
    if let Some(example) = &all.example {
        println!("for example: {example}");
    }
    Ok(())
}
