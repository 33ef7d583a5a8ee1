//! The report of `kv`.

use std::time::Instant;

use super::bed::THREADS;
use super::plan::{Measurement, Op, SMALL};
use super::targets;
use crate::machine;
use crate::plan::{Effort, Path};
use crate::report::{self, COUNT, Fields, RATIO, Report, Row, SHARE, Show, TEXT, TIME};
use crate::samples::{Samples, Series, entry};
use crate::stats::median;
use crate::table::decimals;
use crate::target;
use crate::worker::mix::Mix;
use crate::worker::mixed::Mixed;

/// The conditions of a run, and measurements besides those of the plan.
pub struct Run {
    pub effort: Effort,
    pub start: Instant,
    pub rounds: u32,
    /// Version of Debian's memcached.
    pub memcached: String,
    /// Whether client and server shared a processor over sockets with one request in flight.
    pub shared_processor: bool,
    pub mixes: Mixes,
    /// Growth of a server's process in bytes per item of [`SMALL`].
    pub memory: Vec<(Path, Option<f64>)>,
}

impl Run {
    pub fn report(&self, measured: &[(Measurement, Series)]) -> Report {
        let rows = report::rows_of(measured, row);
        let mixes = self.mixes.0.iter().map(|(key, rounds)| rounds.row(*key));
        let mixes: Vec<Row> = mixes.collect();
        let memory = self.memory.iter().map(|(path, bytes_per_item)| {
            Row::default()
                .label("path", path)
                .label("bytes", SMALL.bytes)
                .label("items", SMALL.keys)
                .figure("bytes_per_item", bytes_per_item)
        });
        let memory: Vec<Row> = memory.collect();
        let targets = targets::all(&rows, &mixes, &memory);
        let config = Fields::default()
            .with("rounds", self.rounds)
            .with("memcached", &self.memcached)
            .with("threads", THREADS)
            .with("shared_processor", self.shared_processor);
        let mut report = Report::new(self.effort, self.start, config);
        report.rows("rows", &rows);
        report.rows("mixes", &mixes);
        for (row, (_, MixRounds { sets, .. })) in mixes.iter().zip(&self.mixes.0) {
            report.errors += sets.errors();
            report.samples("mixes", row.labels().with("op", "set"), sets.clone());
        }
        report.rows("memory", &memory);
        report.targets(&targets);
        // Rows that were not chosen have no figures.
        let found = targets.iter().filter(|target| target.found.is_some());
        let mut text = self.introduction();
        text += &format!("\n{}", report::table(&rows, 3, &COLUMNS));
        if !mixes.is_empty() {
            text += &format!("\n{}", report::table(&mixes, 2, &MIX_COLUMNS));
            text += &format!("\n{}", memory_lines(&memory));
        }
        report.text = format!("{text}\n{}", target::render(found));
        report
    }

    fn introduction(&self) -> String {
        let in_turns = if self.shared_processor {
            "on one processor"
        } else {
            "wherever the system puts them"
        };
        format!(
            "{}\nServers of {THREADS} threads, memcached {}; load: clients x requests of each under way \
             x keys of a request; {} rounds, {:.0} s\n\
             Over sockets, with one request under way, client and server ran {in_turns}.\n",
            machine::describe(),
            self.memcached,
            self.rounds,
            self.start.elapsed().as_secs_f64(),
        )
    }
}

/// Figures of one round. The rounds of compared rows correspond by position.
fn figures_of(samples: &Samples) -> Fields {
    Fields::default()
        .with("ops_per_s", samples.ops_per_s())
        .with("p50_ns", samples.quantile_ns(0.5))
        .with("p99_ns", samples.quantile_ns(0.99))
        .with(
            "server_cpu_ns_per_op",
            samples.figure("server_cpu_ns_per_op"),
        )
}

fn row(key: &Measurement, series: &Series) -> Row {
    let gets = series.sum("gets");
    let reads_per_get = series.sum("reads") / gets;
    let rounds: Vec<Fields> = series.rounds().iter().map(figures_of).collect();
    Row::of(series)
        .label("path", key.path)
        .label("op", key.op)
        .label("bytes", key.bytes)
        .label("set", key.set)
        .label("clients", key.load.clients)
        .label("pipeline", key.load.pipeline)
        .label("keys_per_request", key.load.keys)
        .figure("batch", series.batch())
        .figure("ops_per_s", series.ops_per_s())
        .figure("p50_ns", series.quantile_ns(0.5))
        .figure("p99_ns", series.quantile_ns(0.99))
        .figure("p999_ns", series.quantile_ns(0.999))
        .figure(
            "server_cpu_ns_per_op",
            series.median(|round| round.figure("server_cpu_ns_per_op")),
        )
        .figure(
            "reads_per_get",
            (gets > 0.0 && key.op != Op::Set).then_some(reads_per_get),
        )
        .figure("errors", series.errors())
        .figure("figures_of_rounds", rounds)
}

/// All rounds of all mixes, in order of first appearance.
#[derive(Default)]
pub struct Mixes(Vec<(MixKey, MixRounds)>);

/// Mix, path, and number of clients.
type MixKey = (Mix, Path, usize);

#[derive(Default)]
struct MixRounds {
    gets: Series,
    sets: Series,
    /// Rate of all clients together in each round.
    ops_per_s: Vec<f64>,
}

impl Mixes {
    /// Adds a round with the operations of each client.
    pub fn add(&mut self, mix: Mix, path: Path, clients: Vec<Mixed>) {
        let rounds = entry(&mut self.0, (mix, path, clients.len()));
        let mut ops_per_s = 0.0;
        for Mixed { gets, sets } in clients {
            let elapsed_ns = (gets.elapsed_ns + sets.elapsed_ns).max(1);
            ops_per_s += (gets.ops + sets.ops) as f64 * 1e9 / elapsed_ns as f64;
            rounds.gets.add(gets);
            rounds.sets.add(sets);
        }
        rounds.ops_per_s.push(ops_per_s);
    }
}

impl MixRounds {
    fn row(&self, (mix, path, clients): MixKey) -> Row {
        let by_reading = self.gets.sum("gets");
        let per_get = |figure| (by_reading > 0.0).then(|| self.gets.sum(figure) / by_reading);
        let all_gets: u64 = self.gets.rounds().iter().map(|round| round.ops).sum();
        let errors = self.gets.errors() + self.sets.errors();
        Row::of(&self.gets)
            .label("mix", mix)
            .label("path", path)
            .label("clients", clients)
            .rounds("ops_per_s", self.ops_per_s.clone())
            .figure("ops_per_s", median(&self.ops_per_s))
            .figure("get_p50_ns", self.gets.quantile_ns(0.5))
            .figure("get_p99_ns", self.gets.quantile_ns(0.99))
            .figure("set_p50_ns", self.sets.quantile_ns(0.5))
            .figure("set_p99_ns", self.sets.quantile_ns(0.99))
            .figure(
                "hit_ratio",
                1.0 - self.gets.sum("misses") / all_gets.max(1) as f64,
            )
            .figure("reads_per_get", per_get("reads"))
            .figure("asked_ratio", per_get("asked"))
            .figure("errors", errors)
    }
}

const COLUMNS: [(&str, &str, Show); 11] = [
    ("path", "path", TEXT),
    ("op", "op", TEXT),
    ("set", "set", TEXT),
    ("bytes", "bytes", TEXT),
    ("load", "", |row, _| load(row)),
    ("p50", "p50_ns", TIME),
    ("p99", "p99_ns", TIME),
    ("p99.9", "p999_ns", TIME),
    ("ops/s", "ops_per_s", COUNT),
    ("server/op", "server_cpu_ns_per_op", TIME),
    ("reads", "reads_per_get", RATIO),
];

const MIX_COLUMNS: [(&str, &str, Show); 11] = [
    ("mix", "mix", TEXT),
    ("path", "path", TEXT),
    ("clients", "clients", TEXT),
    ("ops/s", "ops_per_s", COUNT),
    ("get p50", "get_p50_ns", TIME),
    ("get p99", "get_p99_ns", TIME),
    ("set p50", "set_p50_ns", TIME),
    ("set p99", "set_p99_ns", TIME),
    ("hits", "hit_ratio", SHARE),
    ("reads", "reads_per_get", RATIO),
    ("asked", "asked_ratio", SHARE),
];

fn load(row: &Row) -> String {
    ["clients", "pipeline", "keys_per_request"]
        .map(|label| row.text(label))
        .join("x")
}

fn memory_lines(rows: &[Row]) -> String {
    let line = |row: &Row| {
        format!(
            "{} takes {} bytes of memory for each of {} values of {} bytes\n",
            row.text("path"),
            decimals(row.number("bytes_per_item"), 0),
            row.text("items"),
            row.text("bytes"),
        )
    };
    rows.iter().map(line).collect()
}
