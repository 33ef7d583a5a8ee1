//! The report for people: both paths side by side, the ratio between them, and the paper's.

use std::fmt::Write;

use crate::files::BLOCK;
use crate::network::Transport;
use crate::plan::{COLD_BYTES, LONG_WRITE, MESSAGES, PIPELINE, Path, VALUES, WorkingSet};
use crate::report::{Config, Report, Wanted};
use crate::rows::{Op, Row};
use crate::targets;

const LABEL: usize = 18;
const COLUMN: usize = 11;

/// What is written to it, as text.
pub fn text(write: impl FnOnce(&mut String) -> std::fmt::Result) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut text);
    text
}

/// Renders a report.
pub fn render(report: &Report) -> String {
    let mut table = Table {
        report,
        text: String::new(),
    };
    table.introduction();
    table.latencies();
    table.streams();
    table.one_sided();
    table.store(WorkingSet::Hot);
    table.store(WorkingSet::Cold);
    table.files();
    table.targets();
    table.text
}

/// How many times faster the torus' RDMA is than its Ethernet, by latency, from the paper's
/// Figure 4.
fn paper_latency_ratio(bytes: usize) -> Option<f64> {
    match bytes {
        200 => Some(33.4 / 1.7),
        1000 => Some(40.7 / 5.3),
        _ => None,
    }
}

/// How many times faster memcached's get is by RDMA, from the paper's Figure 5.
fn paper_get_ratio(bytes: usize) -> Option<f64> {
    match bytes {
        1024 => Some(9.7),
        65_536 => Some(2.2),
        _ => None,
    }
}

struct Table<'a> {
    report: &'a Report,
    text: String,
}

impl Table<'_> {
    fn introduction(&mut self) {
        let config = &self.report.config;
        let text = format!(
            "Two nodes of one domain, {} and {}, in a {} torus on this machine \
             ({}{}).\n\
             Shared memory stands in for RDMA: these are the costs of the software, not of a \
             network adapter.\n\
             {}: MTU {}. Medians of {} rounds, paths in turn. Paper: Blue Gene/P, \
             Figures 4 and 5.\n\
             RDMA/Eth.: speed of RDMA over that of Ethernet, for latencies, too: 200x is 200 \
             times faster.\n",
            config.client,
            config.server,
            config.torus,
            config.machine,
            if config.rootless { ", rootless" } else { "" },
            match config.no_taps {
                None => "Interfaces",
                Some(_) => "No interfaces; Ethernet is between stacks in the processes (smoltcp)",
            },
            config.mtu,
            config.rounds,
        );
        self.text.push_str(&text);
        if let Some(no_taps) = &config.no_taps {
            self.text.push_str(&format!("No TAPs: {no_taps}.\n"));
        }
    }

    fn latencies(&mut self) {
        self.head(
            "Latency (p50)",
            &[
                "Ethernet",
                "RDMA",
                "RDMA/Eth.",
                "paper",
                "loopback",
                "veth",
                "memcpy",
            ],
        );
        for proto in [Transport::Tcp, Transport::Udp] {
            for bytes in MESSAGES {
                let socket = |path| self.socket(path, Op::Pingpong, proto, bytes);
                let ethernet = p50(socket(Path::Ethernet));
                let rdma = p50(self.one(Op::Read, bytes, 1));
                let paper = paper_latency_ratio(bytes).filter(|_| proto == Transport::Tcp);
                let cells = [
                    time(ethernet),
                    time(rdma),
                    times(ratio(ethernet, rdma)),
                    times(paper),
                    time(p50(socket(Path::Loopback))),
                    time(p50(socket(Path::Veth))),
                    time(p50(self.copy(bytes, WorkingSet::Hot))),
                ];
                self.line(&format!("{} {}", transport(proto), size(bytes)), &cells);
            }
        }
        self.note("Half a round trip; RDMA: one read of the peer's memory.");
    }

    fn streams(&mut self) {
        self.head(
            "Stream",
            &[
                "Ethernet",
                "RDMA",
                "RDMA/Eth.",
                "paper",
                "loopback",
                "veth",
                "memcpy",
            ],
        );
        let tcp = MESSAGES.into_iter().chain([LONG_WRITE]);
        let tcp = tcp.map(|bytes| (Transport::Tcp, bytes));
        let udp = MESSAGES.map(|bytes| (Transport::Udp, bytes));
        for (proto, bytes) in tcp.chain(udp) {
            let socket = |path| self.socket(path, Op::Stream, proto, bytes);
            let ethernet = rate_of(socket(Path::Ethernet));
            let rdma = rate_of(self.one(Op::Read, bytes, PIPELINE));
            let cells = [
                rate(ethernet),
                rate(rdma),
                times(ratio(rdma, ethernet)),
                times(None),
                rate(rate_of(socket(Path::Loopback))),
                rate(rate_of(socket(Path::Veth))),
                rate(rate_of(self.copy(bytes, WorkingSet::Hot))),
            ];
            self.line(&format!("{} {}", transport(proto), size(bytes)), &cells);
        }
        self.note(&format!(
            "UDP: what was received; RDMA: {PIPELINE} reads in flight. The paper has no RDMA stream."
        ));
    }

    fn one_sided(&mut self) {
        self.head(
            "One-sided",
            &[
                "read p50",
                "p99",
                "pipelined",
                "write p50",
                "p99",
                "pipelined",
            ],
        );
        for bytes in MESSAGES.into_iter().chain([LONG_WRITE]) {
            let cells: Vec<String> = [Op::Read, Op::Write]
                .into_iter()
                .flat_map(|op| {
                    let single = self.one(op, bytes, 1);
                    let p99 = single.and_then(|row| row.p99_ns);
                    let pipelined = rate_of(self.one(op, bytes, PIPELINE));
                    [time(p50(single)), time(p99), rate(pipelined)]
                })
                .collect();
            self.line(&size(bytes), &cells);
        }
    }

    fn store(&mut self, set: WorkingSet) {
        let title = match set {
            WorkingSet::Hot => "Store, hot (p50)",
            WorkingSet::Cold => "Store, cold (p50)",
        };
        self.head(
            title,
            &[
                "Ethernet",
                "RDMA",
                "RDMA/Eth.",
                "paper",
                "veth",
                "memcpy",
                "RDMA p99",
            ],
        );
        for op in [Op::Get, Op::Set] {
            for bytes in VALUES {
                let row = |path| self.value(path, op, bytes, Some(set));
                let (ethernet, rdma) = (p50(row(Path::Ethernet)), p50(row(Path::Rdma)));
                let paper = paper_get_ratio(bytes).filter(|_| op == Op::Get);
                let cells = [
                    time(ethernet),
                    time(rdma),
                    times(ratio(ethernet, rdma)),
                    times(paper),
                    time(p50(row(Path::Veth))),
                    time(p50(self.copy(bytes, set))),
                    time(row(Path::Rdma).and_then(|row| row.p99_ns)),
                ];
                let name = if op == Op::Get { "get" } else { "set" };
                self.line(&format!("{name} {}", size(bytes)), &cells);
            }
        }
        if set == WorkingSet::Cold {
            let sets = cold_sets(&self.report.config);
            self.note(&format!("Uniform random over {sets}."));
            self.note("Get by RDMA with cached places.");
        }
    }

    fn files(&mut self) {
        self.head("Files", &["Ethernet", "", "RDMA", "", "RDMA/Eth."]);
        for op in [Op::Set, Op::Get] {
            let row = |path| self.value(path, op, BLOCK, None);
            let (ethernet, rdma) = (row(Path::Ethernet), row(Path::Rdma));
            let cells = [
                per_second(ethernet),
                rate(rate_of(ethernet)),
                per_second(rdma),
                rate(rate_of(rdma)),
                times(ratio(rate_of(rdma), rate_of(ethernet))),
            ];
            let name = if op == Op::Get { "read back" } else { "store" };
            self.line(name, &cells);
        }
        self.tally();
    }

    fn tally(&mut self) {
        let (config, tally) = (&self.report.config, &self.report.config.files);
        let wrong = [Path::Ethernet, Path::Rdma]
            .map(|path| self.value(path, Op::Get, BLOCK, None))
            .map(|row| row.map(|row| row.errors));
        let verdict = match wrong {
            [Some(0), Some(0)] => "every byte came back over both paths".to_owned(),
            [Some(by_ethernet), Some(by_rdma)] => {
                format!("{} BLOCKS DID NOT COME BACK", by_ethernet + by_rdma)
            }
            _ => "not measured".to_owned(),
        };
        let mut note = format!(
            "{} files under {}, {} blocks, {:.1} MB: {verdict}.",
            tally.files,
            config.dir.display(),
            tally.blocks,
            tally.bytes as f64 / 1e6
        );
        if tally.limited {
            note.push_str(" The input was cut short: the time allowed no more.");
        }
        if tally.unreadable > 0 {
            note.push_str(&format!(" {} could not be read.", tally.unreadable));
        }
        if tally.caches > 0 {
            note.push_str(&format!(
                " Left out: {} marked with CACHEDIR.TAG.",
                tally.caches
            ));
        }
        self.note(&note);
    }

    fn targets(&mut self) {
        self.text.push_str("\nTargets\n");
        for target in targets::all(self.report) {
            let verdict = match target.met {
                Some(true) => "pass",
                Some(false) => "FAIL",
                None => "not measured",
            };
            // Writing to a string does not fail.
            let _ = writeln!(
                self.text,
                "  {verdict:<5} {}: {} (wanted: {})",
                target.what, target.found, target.wanted
            );
        }
        let errors = self.report.errors();
        let elapsed = self.report.config.elapsed_s;
        let _ = writeln!(self.text, "\n{errors} errors. {elapsed:.1} s.");
    }

    fn socket(&self, path: Path, op: Op, proto: Transport, bytes: usize) -> Option<&Row> {
        self.report.row(&Wanted {
            path,
            op,
            proto: Some(proto),
            bytes,
            depth: None,
            set: None,
        })
    }

    fn one(&self, op: Op, bytes: usize, depth: u32) -> Option<&Row> {
        self.report.row(&Wanted {
            path: Path::Rdma,
            op,
            proto: None,
            bytes,
            depth: Some(depth),
            set: Some(WorkingSet::Hot),
        })
    }

    fn copy(&self, bytes: usize, set: WorkingSet) -> Option<&Row> {
        self.value(Path::Memcpy, Op::Copy, bytes, Some(set))
    }

    fn value(&self, path: Path, op: Op, bytes: usize, set: Option<WorkingSet>) -> Option<&Row> {
        self.report.row(&Wanted {
            path,
            op,
            proto: None,
            bytes,
            depth: None,
            set,
        })
    }

    fn head(&mut self, title: &str, columns: &[&str]) {
        self.text.push('\n');
        let columns: Vec<String> = columns.iter().map(|&column| column.into()).collect();
        self.row(title, &columns);
    }

    fn line(&mut self, label: &str, cells: &[String]) {
        self.row(&format!("  {label}"), cells);
    }

    fn row(&mut self, label: &str, cells: &[String]) {
        let mut line = format!("{label:<LABEL$}");
        for cell in cells {
            // Writing to a string does not fail.
            let _ = write!(line, "{cell:>COLUMN$}");
        }
        self.text.push_str(line.trim_end());
        self.text.push('\n');
    }

    fn note(&mut self, text: &str) {
        self.text.push_str("  ");
        self.text.push_str(text);
        self.text.push('\n');
    }
}

/// Says what the cold working sets are, each of them where one is not whole.
fn cold_sets(config: &Config) -> String {
    if config.cold_bytes >= COLD_BYTES {
        return format!("{} MiB of values", COLD_BYTES >> 20);
    }
    let sets: Vec<String> = config
        .cold_sets
        .iter()
        .map(|set| format!("{} MiB of {}", set.total() >> 20, size(set.bytes)))
        .collect();
    let sets = sets.join(", ");
    format!("{sets} values (memory or time allowed no more)")
}

fn p50(row: Option<&Row>) -> Option<f64> {
    row.and_then(|row| row.p50_ns)
}

fn rate_of(row: Option<&Row>) -> Option<f64> {
    row.and_then(|row| row.bytes_per_s)
}

fn ratio(over: Option<f64>, under: Option<f64>) -> Option<f64> {
    over.zip(under.filter(|&under| under > 0.0))
        .map(|(over, under)| over / under)
}

fn cell(value: Option<f64>, text: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| "-".into(), text)
}

/// Three digits or so.
fn digits(value: f64) -> String {
    match value {
        value if value < 10.0 => format!("{value:.2}"),
        value if value < 100.0 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

pub(crate) fn time(ns: Option<f64>) -> String {
    cell(ns, |ns| match ns {
        ns if ns < 1e3 => format!("{ns:.0} ns"),
        ns if ns < 1e6 => format!("{} us", digits(ns / 1e3)),
        ns => format!("{} ms", digits(ns / 1e6)),
    })
}

pub(crate) fn rate(bytes_per_s: Option<f64>) -> String {
    cell(bytes_per_s, |rate| match rate {
        rate if rate < 1e9 => format!("{} MB/s", digits(rate / 1e6)),
        rate => format!("{} GB/s", digits(rate / 1e9)),
    })
}

pub(crate) fn times(ratio: Option<f64>) -> String {
    cell(ratio, |ratio| format!("{}x", digits(ratio)))
}

fn per_second(row: Option<&Row>) -> String {
    cell(row.and_then(|row| row.ops_per_s), |ops| {
        format!("{ops:.0} /s")
    })
}

fn size(bytes: usize) -> String {
    match bytes {
        bytes if bytes.is_multiple_of(1024) => format!("{} KiB", bytes / 1024),
        bytes => format!("{bytes} B"),
    }
}

fn transport(transport: Transport) -> &'static str {
    match transport {
        Transport::Tcp => "TCP",
        Transport::Udp => "UDP",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Tally;
    use crate::machine::Machine;
    use crate::plan::{self, Effort, Test};
    use crate::rows::Mtus;
    use crate::stats::{Series, Slice};
    use crate::store::{KeySet, StoreOp};

    /// Every operation takes as many nanoseconds as its path is slow, per byte or flat.
    fn row(test: &Test, ns: u64) -> Row {
        let mut series = Series::default();
        let samples_ns = match test {
            Test::Stream { .. } => Vec::new(),
            _ => vec![ns as f64],
        };
        series.add(&Slice {
            batch: 1,
            samples_ns,
            ops: 1,
            bytes: 1000,
            elapsed_ns: ns,
            errors: 0,
        });
        Row::of_test(test, &series, Mtus::default())
    }

    fn path_of(test: &Test) -> Path {
        match *test {
            Test::RoundTrip { path, .. } | Test::Stream { path, .. } | Test::Store { path, .. } => {
                path
            }
            Test::OneSided { .. } => Path::Rdma,
            Test::Copy { .. } => Path::Memcpy,
        }
    }

    fn report() -> Report {
        let tests = plan::hot().into_iter().chain(plan::cold(1024));
        let mut rows: Vec<Row> = tests
            .map(|test| match path_of(&test) {
                Path::Memcpy => row(&test, 50),
                Path::Rdma => row(&test, 100),
                Path::Loopback => row(&test, 10_000),
                Path::Veth => row(&test, 15_000),
                Path::Ethernet => row(&test, 20_000),
            })
            .collect();
        for path in [Path::Ethernet, Path::Rdma] {
            for op in [StoreOp::Get, StoreOp::Set] {
                let series = Series::default();
                rows.push(Row::of_files(path, op, BLOCK, &series, Mtus::default()));
            }
        }
        Report {
            config: Config {
                provider: "shm",
                ethernet: "tap",
                no_taps: None,
                torus: "2x1x1".into(),
                server: "0,0,0",
                client: "1,0,0",
                mtu: 9000,
                rootless: true,
                effort: Effort::Quick,
                rounds: 3,
                hot_bytes: plan::HOT_BYTES,
                cold_bytes: plan::COLD_BYTES,
                cold_sets: Vec::new(),
                pipeline: PIPELINE,
                dir: "/input".into(),
                files: Tally::default(),
                machine: Machine {
                    version: "0",
                    cpus: 2,
                    cpu: "a processor".into(),
                    kernel: "6".into(),
                    busy: false,
                },
                elapsed_s: 1.0,
            },
            rows,
        }
    }

    #[test]
    fn both_paths_stand_beside_their_ratio_and_the_papers() {
        let text = render(&report());
        let line = |start: &str| {
            let line = text.lines().find(|line| line.starts_with(start));
            line.unwrap_or_default()
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
        };
        assert_eq!(
            line("  TCP 200 B"),
            "TCP 200 B 20.0 us 100 ns 200x 19.6x 10.0 us 15.0 us 50 ns"
        );
        assert_eq!(
            line("  get 1 KiB"),
            "get 1 KiB 20.0 us 100 ns 200x 9.70x 15.0 us 50 ns 100 ns"
        );
        assert!(text.contains("RDMA/Eth.: speed of RDMA over that of Ethernet"));
        assert!(text.contains("Shared memory stands in for RDMA"));
        assert!(text.contains("pass  RDMA read of 200 B, hot: 100 ns"));
        assert!(text.contains("every byte came back"));
        assert!(text.lines().all(|line| line.len() <= 120), "{text}");
    }

    #[test]
    fn what_was_not_measured_is_a_dash_and_no_verdict() {
        let empty = Report {
            rows: Vec::new(),
            ..report()
        };
        let text = render(&empty);
        assert!(text.contains("not measured"));
        assert!(!text.contains("FAIL"));
        assert!(!text.contains("every byte came back"));
    }

    #[test]
    fn a_cold_set_that_is_not_whole_is_named() {
        let mut report = report();
        assert!(render(&report).contains("Uniform random over 1024 MiB of values."));
        report.config.cold_bytes = 1 << 28;
        report.config.cold_sets = [(1 << 30, 65_536), (1 << 29, 16_384), (1 << 28, 1024)]
            .map(|(total, bytes)| KeySet::of_total(total, bytes))
            .into();
        let text = render(&report);
        assert!(
            text.contains("1024 MiB of 64 KiB, 512 MiB of 16 KiB, 256 MiB of 1 KiB values (memory"),
            "{text}"
        );
        assert!(text.lines().all(|line| line.len() <= 120), "{text}");
    }

    #[test]
    fn wrong_bytes_are_shouted() {
        let mut report = report();
        report.rows.iter_mut().for_each(|row| row.errors = 1);
        assert!(render(&report).contains("DID NOT COME BACK"));
    }
}
