//! The report of `compare`: rows, targets, and the text around the [tables](super::tables).

use std::collections::HashMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Instant;

use toroid_model::refusal::Refusal;

use super::plan::{Op, Test, VALUES};
use super::tables::{Rows, copy, file, one_sided, socket, value};
use super::{CLIENT, Files, SERVER, TORUS};
use crate::machine;
use crate::plan::{COLD_BYTES, Effort, HOT_BYTES, LONG_WRITE, PIPELINE, Path, WorkingSet};
use crate::report::{self, Fields, Report, Row, number, tenths};
use crate::samples::Series;
use crate::stats::quotient;
use crate::table::{size, time};
use crate::target::Bound::{AtLeast, AtMost};
use crate::target::{self, Target};
use crate::worker::network::Transport;
use crate::worker::store::KeySet;

pub struct Run {
    pub start: Instant,
    pub dir: PathBuf,
    pub effort: Effort,
    /// Reason and remedy if Ethernet is between userspace stacks.
    pub no_taps: Option<Refusal>,
    pub rootless: bool,
    pub mtus: HashMap<Path, u32>,
    /// The cold working set of each value size, smaller than [`COLD_BYTES`] if memory or time was
    /// short.
    pub cold_sets: Vec<KeySet>,
    pub files: Files,
}

impl Run {
    pub fn report(&self, measured: &[(Test, Series)]) -> Report {
        let mut rows = report::rows_of(measured, |test, series| {
            self.row(section(test), test, series)
        });
        rows.extend(self.files.samples.iter().map(|((path, op), samples)| {
            let test = Test::file(*path, *op);
            self.row("files", &test, &samples.clone().into())
        }));
        let mut report = Report::new(self.effort, self.start, self.config());
        report.rows("rows", &rows);
        let targets = targets(&rows);
        report.targets(&targets);
        // Writing to a string does not fail.
        let mut text = String::new();
        let _ = self.render(&rows, &targets, report.errors, &mut text);
        report.text = text;
        report
    }

    fn config(&self) -> Fields {
        let smallest = self.cold_sets.iter().map(KeySet::total).min();
        Fields::default()
            .with("provider", "shm")
            .with(
                "ethernet",
                if self.no_taps.is_some() {
                    "stack"
                } else {
                    "tap"
                },
            )
            .with("no_taps", &self.no_taps)
            .with("torus", TORUS)
            .with("server", SERVER)
            .with("client", CLIENT)
            .with("mtu", self.mtu(Path::Ethernet))
            .with("rootless", self.rootless)
            .with("rounds", self.effort.rounds())
            .with("hot_bytes", HOT_BYTES)
            .with("cold_bytes", smallest.unwrap_or(0))
            .with("cold_sets", &self.cold_sets)
            .with("pipeline", PIPELINE)
            .with("dir", &self.dir)
            .with("files", &self.files.tally)
    }

    fn mtu(&self, path: Path) -> Option<u32> {
        self.mtus.get(&path).copied()
    }

    fn row(&self, section: &str, test: &Test, series: &Series) -> Row {
        row(section, test, series, self.mtu(test.path))
    }

    fn render(
        &self,
        rows: &[Row],
        targets: &[Target],
        errors: u64,
        to: &mut String,
    ) -> std::fmt::Result {
        writeln!(
            to,
            "Two nodes of one domain, {CLIENT} and {SERVER}, in a {} torus on this machine \
             ({}{}).\n\
             Shared memory stands in for RDMA: these are the costs of the software, not of a \
             network adapter.\n\
             {}: MTU {}. Medians of {} rounds, paths in turn.\n\
             RDMA/Eth.: speed of RDMA over that of Ethernet, for latencies, too. Paper: Blue Gene/P, \
             Figures 4 and 5.",
            TORUS,
            machine::describe(),
            if self.rootless { ", rootless" } else { "" },
            match self.no_taps {
                None => "Interfaces",
                Some(_) => "No interfaces; Ethernet is between stacks in the processes (smoltcp)",
            },
            self.mtu(Path::Ethernet).unwrap_or_default(),
            self.effort.rounds(),
        )?;
        if let Some(no_taps) = &self.no_taps {
            writeln!(to, "No TAPs: {no_taps}.")?;
        }
        let rows = Rows(rows);
        writeln!(to, "\n{}", rows.latencies())?;
        writeln!(
            to,
            "Half a round trip; RDMA: one read of the peer's memory.\n"
        )?;
        writeln!(to, "{}", rows.streams())?;
        writeln!(
            to,
            "UDP: received datagrams; RDMA: {PIPELINE} reads in flight. The paper has no RDMA \
             stream.\n"
        )?;
        writeln!(to, "{}", rows.one_sided())?;
        for set in [WorkingSet::Hot, WorkingSet::Cold] {
            writeln!(to, "{}", rows.store(set))?;
        }
        writeln!(
            to,
            "Uniform random over {}. Get by RDMA with cached locations.\n",
            self.cold()
        )?;
        writeln!(to, "{}", rows.files())?;
        writeln!(to, "{}\n", self.input(rows))?;
        write!(to, "{}", target::render(targets))?;
        let elapsed = self.start.elapsed().as_secs_f64();
        writeln!(to, "\n{errors} errors. {elapsed:.1} s.")
    }

    /// Text on the cold working sets, with every size if one set is not whole.
    fn cold(&self) -> String {
        if self.cold_sets.iter().all(|set| set.total() >= COLD_BYTES) {
            return format!("{} MiB of values", COLD_BYTES >> 20);
        }
        let of = |set: &KeySet| format!("{} MiB of {}", set.total() >> 20, size(set.bytes));
        let sets: Vec<String> = self.cold_sets.iter().map(of).collect();
        format!(
            "{} values (memory or time allowed no more)",
            sets.join(", ")
        )
    }

    /// Text on the real input and its verification.
    fn input(&self, rows: Rows<'_>) -> String {
        let tally = &self.files.tally;
        let wrong =
            [Path::Ethernet, Path::Rdma].map(|path| number(rows.0, &file(path, Op::Get), "errors"));
        let verdict = match wrong {
            [Some(0.0), Some(0.0)] => "every byte came back over both paths".to_owned(),
            [Some(by_ethernet), Some(by_rdma)] => {
                format!("{} BLOCKS DID NOT COME BACK", by_ethernet + by_rdma)
            }
            _ => "not measured".to_owned(),
        };
        let mut note = format!(
            "{} files under {}, {} blocks, {:.1} MB: {verdict}.",
            tally.files,
            self.dir.display(),
            tally.blocks,
            tally.bytes as f64 / 1e6
        );
        if tally.limited {
            note += " The input was cut short: the time allowed no more.";
        }
        if tally.unreadable > 0 {
            note += &format!(" {} could not be read.", tally.unreadable);
        }
        if tally.caches > 0 {
            note += &format!(" Left out: {} marked with CACHEDIR.TAG.", tally.caches);
        }
        note
    }
}

/// The row of a measurement; `mtu` is that of the interfaces.
pub fn row(section: &str, test: &Test, series: &Series, mtu: Option<u32>) -> Row {
    let batch = series.batch().filter(|_| test.op != Op::Stream);
    // A rate of round trips is no throughput.
    let bytes_per_s = series.bytes_per_s().filter(|_| test.op != Op::Pingpong);
    Row::of(series)
        .label("section", section)
        .label("path", test.path)
        .label("op", test.op)
        .label("proto", test.proto)
        .label("bytes", test.bytes)
        .label("depth", test.depth)
        .label("set", test.set)
        .label("mtu", mtu)
        .figure("batch", batch)
        .figure("ops_per_s", tenths(series.ops_per_s()))
        .figure("bytes_per_s", tenths(bytes_per_s))
        .figure("p50_ns", tenths(series.quantile_ns(0.5)))
        .figure("p99_ns", tenths(series.quantile_ns(0.99)))
        .figure("samples", series.count())
        .figure("errors", series.errors())
}

/// The section of a measurement in reports.
pub fn section(test: &Test) -> &'static str {
    match test.op {
        Op::Copy => "baseline",
        _ if test.path == Path::Veth => "baseline",
        Op::Get | Op::Set => "store",
        _ => "network",
    }
}

fn targets(rows: &[Row]) -> Vec<Target> {
    let rows = Rows(rows);
    let cold = |path, op, bytes| value(path, op, bytes, WorkingSet::Cold);
    let get = |bytes| cold(Path::Rdma, Op::Get, bytes);
    let copied = |bytes| copy(bytes, WorkingSet::Cold);
    let stream = |path| rows.rate(&socket(path, Op::Stream, Transport::Tcp, LONG_WRITE));
    let over_veth = [WorkingSet::Hot, WorkingSet::Cold]
        .into_iter()
        .flat_map(|set| {
            let ops = [Op::Get, Op::Set].into_iter();
            let values = ops.flat_map(|op| VALUES.map(|bytes| (op, bytes)));
            values.filter_map(move |(op, bytes)| {
                let by = |path| rows.p50(&value(path, op, bytes, set));
                quotient(by(Path::Ethernet), by(Path::Veth))
            })
        });
    let get_over_copy = quotient(rows.p50(&get(1024)), rows.p50(&copied(1024)));
    let long_over_copy = quotient(rows.rate(&get(65_536)), rows.rate(&copied(65_536)));
    let read = rows.p50(&one_sided(Op::Read, 200, 1));
    let streams = quotient(stream(Path::Ethernet), stream(Path::Veth));
    let by_ethernet = rows.p50(&cold(Path::Ethernet, Op::Get, 1024));
    let over_rdma = quotient(by_ethernet, rows.p50(&get(1024)));
    let get = "RDMA get of 1 KiB, cold, over memcpy";
    let long = "RDMA get of 64 KiB, cold, bytes/s over memcpy's";
    let stream = "TCP stream of 128 KiB writes, Ethernet over veth";
    let store = "Store, Ethernet over veth, worst p50";
    let paths = "Get of 1 KiB, cold, Ethernet over RDMA";
    vec![
        Target::new(AtMost(4.0), get, get_over_copy),
        Target::new(AtLeast(0.7), long, long_over_copy),
        Target::new(AtMost(150.0), "RDMA read of 200 B, hot", read).shown(time),
        Target::new(AtLeast(0.4), stream, streams),
        Target::new(AtMost(1.5), store, over_veth.reduce(f64::max)),
        Target::new(AtLeast(50.0), paths, over_rdma),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::plan;
    use super::*;
    use crate::samples::Samples;
    use crate::worker::store::StoreOp;

    const KEYS: &str = "section path op proto bytes depth set mtu batch ops_per_s bytes_per_s p50_ns \
                        p99_ns samples errors id rounds_of rounds";

    fn run(errors: u64) -> Run {
        let mut files = Files::default();
        for path in [Path::Ethernet, Path::Rdma] {
            for op in [StoreOp::Get, StoreOp::Set] {
                files.add(path, op, Samples::errors(errors));
            }
        }
        Run {
            start: Instant::now(),
            dir: "/input".into(),
            effort: Effort::Quick,
            no_taps: None,
            rootless: true,
            mtus: HashMap::new(),
            cold_sets: Vec::new(),
            files,
        }
    }

    /// All tests, each with one operation of a duration that depends on the path only.
    fn measured() -> Vec<(Test, Series)> {
        let of = |test: Test| {
            let ns = match test.path {
                Path::Memcpy => 50,
                Path::Rdma => 100,
                Path::Loopback => 10_000,
                Path::Veth => 15_000,
                _ => 20_000,
            };
            let is_stream = test.op == Op::Stream;
            let samples = Samples {
                batch: 1,
                samples_ns: if is_stream {
                    Vec::new()
                } else {
                    vec![ns as f64]
                },
                ops: 1,
                bytes: 1000,
                elapsed_ns: ns,
                ..Samples::default()
            };
            (test, samples.into())
        };
        plan::hot()
            .into_iter()
            .chain(plan::cold(1024))
            .map(of)
            .collect()
    }

    #[test]
    fn tables_show_both_paths_their_ratio_and_the_papers_ratio() {
        let text = run(0).report(&measured()).text;
        let one_spaced = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let line = |start: &str| {
            let line = text
                .lines()
                .map(one_spaced)
                .find(|line| line.starts_with(start));
            line.unwrap_or_default()
        };
        assert_eq!(
            line("TCP 200 B"),
            "TCP 200 B 20.0 us 100 ns 200x 19.6x 10.0 us 15.0 us 50 ns"
        );
        assert_eq!(
            line("get 1 KiB"),
            "get 1 KiB 20.0 us 100 ns 200x 9.70x 15.0 us 50 ns 100 ns"
        );
        assert!(text.contains("RDMA/Eth.: speed of RDMA over that of Ethernet"));
        assert!(text.contains("Shared memory stands in for RDMA"));
        assert!(
            line("met RDMA read").contains("100 ns at most 150 ns"),
            "{text}"
        );
        assert!(text.contains("every byte came back"));
    }

    #[test]
    fn every_row_has_every_key_and_labels_of_its_own() {
        let measured = measured();
        let report = json!(run(0).report(&measured));
        let rows = report["rows"].as_array().unwrap();
        assert_eq!(rows.len(), measured.len() + 4);
        let mut labels = Vec::new();
        for row in rows {
            let keys: Vec<&str> = KEYS.split_whitespace().collect();
            let mut row = row.as_object().unwrap().clone();
            assert!(keys.iter().all(|key| row.contains_key(*key)) && row.len() == keys.len());
            row.retain(|key, _| keys[..7].contains(&key.as_str()));
            labels.push(json!(row).to_string());
        }
        labels.sort_unstable();
        labels.dedup();
        assert_eq!(labels.len(), rows.len());
        let veth = json!({"section": "baseline", "path": "veth", "op": "get", "proto": "tcp", "set": "cold"});
        let veth = veth.as_object().unwrap();
        let has = |row: &&Value| veth.iter().all(|(key, value)| row[key] == *value);
        assert_eq!(rows.iter().filter(has).count(), 1);
    }

    #[test]
    fn missing_measurements_are_dashes_without_verdict() {
        let run = Run {
            files: Files::default(),
            ..run(0)
        };
        let text = run.report(&[]).text;
        assert!(text.contains("not measured"));
        assert!(!text.contains("MISSED") && !text.contains("every byte came back"));
    }

    #[test]
    fn reduced_cold_sets_are_named() {
        let mut run = run(0);
        let text = run.report(&[]).text;
        assert!(text.contains("Uniform random over 1024 MiB of values."));
        run.cold_sets = [(1 << 30, 65_536), (1 << 29, 16_384), (1 << 28, 1024)]
            .map(|(total, bytes)| KeySet::of_total(total, bytes))
            .into();
        let text = run.report(&[]).text;
        assert!(
            text.contains("1024 MiB of 64 KiB, 512 MiB of 16 KiB, 256 MiB of 1 KiB values (memory"),
            "{text}"
        );
    }

    #[test]
    fn wrong_bytes_are_reported_as_errors() {
        let report = run(1).report(&measured());
        assert!(report.text.contains("2 BLOCKS DID NOT COME BACK"));
        assert_eq!(report.errors, 4);
    }
}
