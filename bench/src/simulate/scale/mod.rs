//! The command `simulate scale`: gets of a store on tori of growing size.
//!
//! The experiment of Figure 6 of Appavoo et al., 2010 ("Providing a cloud network infrastructure on a
//! supercomputer"): half of the nodes are memcached servers, the others clients that get items one
//! after another by RDMA. [`run`] simulates one torus, [`placement`] chooses the nodes.

pub mod placement;
pub mod run;

use std::thread;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Args;

pub use self::placement::Placement;
use self::run::{Case, Measured};
use super::refuse;
use super::turns::on_all_processors;
use crate::machine;
use crate::memory;
use crate::plan::{Effort, or_all};
use crate::progress::Progress;
use crate::report::{self, COUNT, Fields, Report, Row, SHARE, Show, TEXT};
use crate::sim::chunks::{DEFAULT_CHUNK, MAX_CHUNK};
use crate::table;

// Not a doc comment, which would replace the text of the command.
#[derive(Args)]
pub struct Options {
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub json: bool,

    /// Only tori of up to 4,096 nodes (2 s).
    #[arg(long)]
    quick: bool,

    /// Nodes of each torus, powers of two [default: 2 to 65536, every third].
    #[arg(long, value_name = "N", value_delimiter = ',')]
    nodes: Vec<u32>,

    /// Bytes of an item [default: 1024 and 65536].
    #[arg(long, value_name = "BYTES", value_delimiter = ',')]
    bytes: Vec<u64>,

    /// Where servers are, and which one a client asks [default: random and nearest].
    #[arg(long, value_name = "PLACEMENT", value_delimiter = ',')]
    placement: Vec<Placement>,

    /// Gets of each client, one after another.
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    gets: u32,

    /// Bytes of a chunk, the fidelity: up to 65536, whole messages [default: 4096; above 4,096 nodes
    /// 65536].
    #[arg(long, value_name = "BYTES")]
    chunk: Option<u64>,

    /// Seed of places and of choices among servers.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// Tori without an option.
const NODES: [u32; 7] = [2, 8, 64, 512, 4096, 32_768, 65_536];

/// Sizes of items in the paper.
const BYTES: [u64; 2] = [1024, 65_536];

/// Largest torus whose messages are cut by default. Chunks of 4 KiB take 13 times the events of whole
/// messages of 64 KiB. Whole messages were 1 to 3 % off in a prototype of 64 and 512 nodes; on larger
/// tori the error is not known.
const MOST_CUT: u32 = 4096;

/// Largest item.
const MAX_BYTES: u64 = 1 << 20;

const COLUMNS: [(&str, &str, Show); 8] = [
    ("placement", "placement", TEXT),
    ("bytes", "bytes", TEXT),
    ("nodes", "nodes", TEXT),
    ("MB/s a client", "mb_per_s", MEGABYTES),
    ("of 2 nodes", "normalised", SHARE),
    ("busiest link", "busiest_link", SHARE),
    ("chunk", "chunk", TEXT),
    ("events", "events", COUNT),
];

const MEGABYTES: Show = |row, name| table::decimals(row.known(name), 1);

/// Simulates all tori.
///
/// # Errors
/// A number of nodes that is no power of two or too large, an item or a chunk of a wrong size, with
/// exit status 2; too little memory.
pub fn measure(options: &Options, progress: &Progress) -> Result<Report> {
    let start = Instant::now();
    let mut cases = cases(options).or_else(|wrong| refuse(wrong.to_string()))?;
    // The largest first: the processors then end together.
    cases.sort_by_key(|case| std::cmp::Reverse(case.weight()));
    progress.expect(cases.len());
    let mut measured = run_all(&cases, progress)?;
    measured.sort_by_key(|(case, _)| (case.placement, case.bytes, case.nodes));
    Ok(report(options, start, &measured))
}

/// The cases of the command line, each with the one that its throughput is divided by.
fn cases(options: &Options) -> Result<Vec<Case>> {
    let nodes = or_all(&options.nodes, &NODES);
    let most = if options.quick { MOST_CUT } else { u32::MAX };
    let mut cases = Vec::new();
    for nodes in nodes.into_iter().filter(|nodes| *nodes <= most) {
        for bytes in or_all(&options.bytes, &BYTES) {
            ensure!(
                (1..=MAX_BYTES).contains(&bytes),
                "an item has from 1 to {MAX_BYTES} bytes, as in memcached, not {bytes}"
            );
            for placement in or_all(&options.placement, &Placement::DEFAULT) {
                let cut = if nodes > MOST_CUT {
                    MAX_CHUNK
                } else {
                    DEFAULT_CHUNK
                };
                cases.push(Case {
                    nodes,
                    bytes,
                    placement,
                    gets: options.gets,
                    chunk: options.chunk.unwrap_or(cut),
                    seed: options.seed,
                });
            }
        }
    }
    ensure!(
        !cases.is_empty(),
        "no torus is left: --quick leaves out all of --nodes"
    );
    cases.iter().try_for_each(Case::check)?;
    Ok(cases)
}

/// Runs the cases on all processors.
fn run_all(cases: &[Case], progress: &Progress) -> Result<Vec<(Case, Measured)>> {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let memory = memory::available().unwrap_or(u64::MAX) / threads as u64;
    on_all_processors(cases, |case| {
        let measured = case.run(memory).with_context(|| case.to_string())?;
        progress.step(case);
        Ok((*case, measured))
    })
}

fn report(options: &Options, start: Instant, measured: &[(Case, Measured)]) -> Report {
    let effort = if options.quick {
        Effort::Quick
    } else {
        Effort::Default
    };
    let rows: Vec<Row> = measured
        .iter()
        .map(|(case, measured)| row(case, measured))
        .collect();
    let config = Fields::default()
        .with("profile", "bgp")
        .with("gets", options.gets)
        .with("seed", options.seed);
    let mut report = Report::new(effort, start, config);
    report.list("rows", rows.iter().map(Row::fields).collect());
    let events: u64 = measured.iter().map(|(_, measured)| measured.events).sum();
    report.text = format!(
        "{}, {:.0} s, {events} events\nsimulated: shapes, not absolute figures\n\n{}",
        machine::describe(),
        start.elapsed().as_secs_f64(),
        report::table(&rows, 1, &COLUMNS),
    );
    report
}

fn row(case: &Case, measured: &Measured) -> Row {
    Row::default()
        .label("nodes", case.nodes)
        .figure("clients", case.nodes / 2)
        .figure("servers", case.nodes / 2)
        .label("bytes", case.bytes)
        .label("placement", case.placement)
        .figure("mb_per_s", measured.mb_per_s)
        .figure("normalised", measured.normalised)
        .figure("busiest_link", measured.busiest_link)
        .figure("chunk", case.chunk)
        .figure("events", measured.events)
        .figure("elapsed_s", measured.elapsed_s)
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

    fn parse(line: &str) -> Result<Options> {
        let words = std::iter::once("scale").chain(line.split_whitespace());
        Ok(Line::try_parse_from(words)?.options)
    }

    #[test]
    fn rows_have_the_fields_of_the_figure_and_fall_at_random_only() {
        let options = parse("--nodes 2,8,64 --bytes 1024").unwrap();
        let json = json!(measure(&options, &Progress::new()).unwrap());
        let rows = json["rows"].as_array().unwrap();
        let mut names: Vec<&str> = rows[0]
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        names.sort_unstable();
        let expected = [
            "busiest_link",
            "bytes",
            "chunk",
            "clients",
            "elapsed_s",
            "events",
            "mb_per_s",
            "nodes",
            "normalised",
            "placement",
            "servers",
        ];
        assert_eq!(names, expected);
        let normalised = |placement: &str| -> Vec<f64> {
            let rows = rows.iter().filter(|row| row["placement"] == placement);
            rows.map(|row| row["normalised"].as_f64().unwrap())
                .collect()
        };
        let random = normalised("random");
        assert!(
            (random[0] - 1.0).abs() < 1e-9 && random.is_sorted_by(|a, b| a > b),
            "{random:?}"
        );
        assert!(
            normalised("nearest")
                .iter()
                .all(|value| (0.99..=1.01).contains(value))
        );
        assert!(json["config"]["seed"] == 1 && json["notes"] == Value::Null);
    }

    #[test]
    fn the_same_seed_gives_the_same_figures() {
        let run = |seed| {
            let line = format!("--nodes 64 --bytes 4096 --placement random --seed {seed}");
            let json = json!(measure(&parse(&line).unwrap(), &Progress::new()).unwrap());
            (
                json["rows"][0]["mb_per_s"].clone(),
                json["rows"][0]["events"].clone(),
            )
        };
        assert_eq!(run(3), run(3));
        assert_ne!(run(3), run(4));
    }

    #[test]
    fn wrong_input_is_named_with_its_remedy() {
        for (line, wanted) in [
            ("--nodes 0", "a torus of 0 nodes"),
            ("--nodes 1", "power of two"),
            ("--nodes 48", "power of two"),
            ("--nodes 33554432", "at most 16777216"),
            ("--bytes 0", "from 1 to 1048576 bytes"),
            ("--chunk 0", "a chunk has from 1 to 65536 bytes"),
            ("--chunk 65537", "a chunk has from 1 to 65536 bytes"),
            ("--quick --nodes 65536", "no torus is left"),
            ("--placement far", "random, compact or nearest"),
            ("--gets 0", "1.."),
        ] {
            let error = parse(line).and_then(|options| measure(&options, &Progress::new()));
            let error = error.map(|_| ()).unwrap_err();
            assert!(error.to_string().contains(wanted), "{line}: {error}");
            let usage = error.downcast_ref::<clap::Error>().unwrap();
            assert_eq!(usage.exit_code(), 2, "{line}");
        }
    }
}
