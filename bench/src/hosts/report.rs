//! The report of `hosts`.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use super::bed::Load;
use super::failover::{Failover, Fault};
use super::fence::{FENCE, Fenced};
use super::paths::{Op, Path, Paths};
use super::rack::Absence;
use crate::machine;
use crate::plan::Effort;
use crate::report::{self, Fields, Report, Row, Show, TEXT, TIME};
use crate::samples::{Samples, Series};
use crate::table::{Table, decimals, mebibytes, time};
use crate::target::Bound::{AtLeast, AtMost};
use crate::target::{self, Target};

/// Bytes of memory that a leader of 1,000 hosts may have.
const MEMORY: f64 = (512 << 20) as f64;

/// Time that a fenced shrink may take beside the fence.
const BESIDE_FENCE: Duration = Duration::from_millis(600);

pub struct Run {
    pub start: Instant,
    pub effort: Effort,
    /// Unchanged domains beside.
    pub domains: u32,
    pub changes: Vec<Change>,
    /// Processor time of a follower's agent for one change.
    pub follower_cpu: Option<Duration>,
    /// Bytes of memory of the leader's agent with the most hosts.
    pub leader_memory: Option<u64>,
    pub load: Option<Load>,
    pub failover: Result<Failover, Absence>,
    pub fenced: Result<Fenced, Absence>,
    pub paths: Result<Paths, Absence>,
    /// Programs beside the paths, and whether they are there.
    pub rivals: Vec<(Path, Result<(), Absence>)>,
}

/// Times to make a domain of two followers' nodes.
pub struct Change {
    hosts: usize,
    /// Whether followers are agents.
    real: bool,
    /// Whether another follower is slow.
    slow: bool,
    samples: Samples,
}

impl Change {
    fn row(&self) -> Row {
        let series = Series::from(self.samples.clone());
        Row::of(&series)
            .label("hosts", self.hosts)
            .label("real", self.real)
            .label("slow", self.slow)
            .figure("p50_ns", series.quantile_ns(0.5))
            .figure("p99_ns", series.quantile_ns(0.99))
    }
}

/// The 99th percentile by nearest rank: of less than 100 samples the longest.
fn p99(samples: &Samples) -> Option<f64> {
    let mut sorted = samples.samples_ns.clone();
    sorted.sort_by(f64::total_cmp);
    let rank = (sorted.len() * 99).div_ceil(100);
    sorted.get(rank.checked_sub(1)?).copied()
}

impl Run {
    /// A run that has measured nothing yet.
    pub fn new(start: Instant, effort: Effort, domains: u32) -> Self {
        Run {
            start,
            effort,
            domains,
            changes: Vec::new(),
            follower_cpu: None,
            leader_memory: None,
            load: None,
            failover: Ok(Failover::default()),
            fenced: Ok(Fenced::default()),
            paths: Ok(Paths(Vec::new())),
            rivals: Vec::new(),
        }
    }

    pub fn add(&mut self, real: bool, slow: bool, hosts: usize, samples: Samples) {
        self.changes.push(Change {
            hosts,
            real,
            slow,
            samples,
        });
    }

    /// Programs beside the paths that are there.
    pub fn present_rivals(&self) -> impl Iterator<Item = Path> {
        let rivals = self.rivals.iter();
        rivals.filter_map(|(rival, is_there)| is_there.is_ok().then_some(*rival))
    }

    pub fn report(&self) -> Report {
        let rows: Vec<Row> = self.changes.iter().map(Change::row).collect();
        let paths = self.paths.as_ref().ok();
        let path_rows = paths.map(Paths::rows).unwrap_or_default();
        let mut report = Report::new(self.effort, self.start, Fields::default());
        let hosts = self.changes.iter().map(|change| change.hosts).max();
        report.fields(
            Fields::default()
                .with("hosts", hosts)
                .with("domains", self.domains),
        );
        report.rows("change", &rows);
        self.add_failover(&mut report);
        self.add_fenced(&mut report);
        let cpu_ns = self.follower_cpu.map(|time| time.as_nanos() as f64);
        report.fields(
            Fields::default()
                .with("follower_cpu_ns", cpu_ns)
                .with("coordinator_rss_bytes", self.leader_memory),
        );
        let none = Paths(Vec::new());
        report.fields(paths.unwrap_or(&none).ratios());
        report.rows("paths", &path_rows);
        if let Some(load) = &self.load {
            let fields = load_fields(load);
            report.samples("load", fields.clone(), load.samples.clone().into());
            report.object("load", fields);
        }
        let targets = self.targets(&rows, cpu_ns);
        report.targets(&targets);
        report.text = self.text(&rows, &path_rows, cpu_ns, &targets);
        for (what, reason) in self.absences() {
            let reason = anyhow::anyhow!("{what}: {reason}");
            report.note(&reason);
        }
        report.failure = self.leak();
        report
    }

    fn add_failover(&self, report: &mut Report) {
        let failover = self.failover.as_ref();
        let p99 = |fault| p99(failover.ok()?.of(fault));
        let fields = Fields::default()
            .with("coordinator_kill_p99_ns", p99(Fault::Kill))
            .with("handover_p99_ns", p99(Fault::HandOver))
            .with("etcd_leader_p99_ns", p99(Fault::EtcdLeader));
        let why = failover.err().map(ToString::to_string);
        report.object(
            "failover",
            match why {
                Some(why) => fields.with("why", why),
                None => fields,
            },
        );
        let rounds = failover.ok().map(|failover| failover.of(Fault::Kill).ops);
        report.fields(Fields::default().with("failover_rounds", rounds));
        for fault in Fault::ALL {
            if let Ok(failover) = failover {
                let labels = Fields::default().with("fault", fault.text());
                report.samples("failover", labels, failover.of(fault).clone().into());
            }
        }
    }

    fn add_fenced(&self, report: &mut Report) {
        let fenced = self.fenced.as_ref().ok();
        let without = fenced.map(|fenced| {
            Fields::default()
                .with("leaked_bytes", fenced.without.bytes)
                .with("leaked_frames", fenced.without.frames)
        });
        report.fields(
            Fields::default()
                .with(
                    "fenced_shrink_p99_ns",
                    fenced.and_then(|fenced| p99(&fenced.shrinks)),
                )
                .with("fenced_shrinks", fenced.map(|fenced| fenced.shrinks.ops))
                .with("leaked_bytes", fenced.map(|fenced| fenced.leaks.bytes))
                .with("leaked_frames", fenced.map(|fenced| fenced.leaks.frames))
                .with("without_fence", without),
        );
        if let Some(fenced) = fenced {
            let rounds = fenced.shrinks.clone().into();
            report.samples("fenced_shrinks", Fields::default(), rounds);
        }
    }

    /// Parts that were not measured, and why.
    fn absences(&self) -> Vec<(&'static str, &Absence)> {
        let failover = self.failover.as_ref().err();
        let fenced = self.fenced.as_ref().err();
        let paths = self.paths.as_ref().err();
        let all = [
            ("failover is not measured", failover),
            ("fences are not measured", fenced),
            ("paths between two hosts are not measured", paths),
        ];
        let rivals = self.rivals.iter();
        let rivals = rivals.map(|(_, is_there)| {
            let what = "a program to compare with is not measured";
            (what, is_there.as_ref().err())
        });
        all.into_iter()
            .chain(rivals)
            .filter_map(|(what, absence)| Some((what, absence?)))
            .collect()
    }

    /// A failure of the promise of a fence.
    fn leak(&self) -> Option<String> {
        let leaks = self.fenced.as_ref().ok()?.leaks;
        (leaks != Default::default()).then(|| {
            format!(
                "{} bytes and {} frames of a former member arrived after the return of its shrink",
                leaks.bytes, leaks.frames
            )
        })
    }

    fn text(&self, rows: &[Row], paths: &[Row], cpu_ns: Option<f64>, targets: &[Target]) -> String {
        let columns: [(&str, &str, Show); 5] = [
            ("Two hosts get a domain, among", "hosts", TEXT),
            ("followers", "real", |row, name| {
                let kind = if *row.get(name) == true {
                    "agents"
                } else {
                    "hollow"
                };
                kind.into()
            }),
            ("another is slow", "slow", TEXT),
            ("p50", "p50_ns", TIME),
            ("p99", "p99_ns", TIME),
        ];
        let mut text = format!(
            "Hosts on this machine ({}), beside {} domains that do not change.\n\n{}\n\
             A follower's agent uses {} of a processor for a change, the leader has {}.\n\n",
            machine::describe(),
            self.domains,
            report::table(rows, 3, &columns),
            time(cpu_ns),
            mebibytes(self.leader_memory.map(|bytes| bytes as f64)),
        );
        // Writing to a string does not fail.
        if let Some(load) = &self.load {
            let _ = writeln!(text, "{}", load_text(load));
        }
        if let Ok(failover) = &self.failover {
            let _ = writeln!(text, "{}", failover_table(failover));
        }
        if let Ok(fenced) = &self.fenced {
            let _ = writeln!(text, "{}", fenced_text(fenced));
        }
        if !paths.is_empty() {
            let _ = writeln!(text, "{}", Paths::table(paths));
        }
        let _ = write!(
            text,
            "{}\n{:.0} s in all.\n",
            target::render(targets),
            self.start.elapsed().as_secs_f64()
        );
        text
    }

    fn targets(&self, rows: &[Row], cpu_ns: Option<f64>) -> Vec<Target> {
        let p50 = |hosts: usize, slow: bool| {
            let labels = serde_json::json!({"hosts": hosts, "real": false, "slow": slow});
            report::number(rows, &labels, "p50_ns")
        };
        let ratio = p50(256, false).zip(p50(8, false));
        let ratio = ratio.map(|(many, few)| many / few);
        let failover = |fault| p99(self.failover.as_ref().ok()?.of(fault));
        let fenced = self.fenced.as_ref().ok();
        let path = |op, over, under| self.paths.as_ref().ok()?.ratio(op, over, under);
        let at_most = |most: f64, what: &str, found| Target::new(AtMost(most), what, found);
        let fence = Duration::from_secs(FENCE.into()) + BESIDE_FENCE;
        let mut targets = vec![
            at_most(2.0, "Change among 256 hosts, of that among 8", ratio),
            at_most(1e6, "A follower's processor time", cpu_ns).shown(time),
            at_most(1e8, "Beside a slow host", p50(super::AMONG, true)).shown(time),
            at_most(6e9, "Coordinator killed, p99", failover(Fault::Kill)).shown(time),
            at_most(
                5e8,
                "Coordinator hands over, p99",
                failover(Fault::HandOver),
            )
            .shown(time),
            at_most(
                3e9,
                "Leader of etcd killed, p99",
                failover(Fault::EtcdLeader),
            )
            .shown(time),
            at_most(
                fence.as_nanos() as f64,
                "Shrink with a fence of 2 s, p99",
                fenced.and_then(|fenced| p99(&fenced.shrinks)),
            )
            .shown(time),
            Target::new(
                AtLeast(0.6),
                "TCP stream encrypted, of that in the clear",
                path(Op::Stream, Path::Encrypted, Path::Clear),
            ),
            at_most(
                1.05,
                "Read of 64 B encrypted, of that in the clear",
                path(Op::Read, Path::Encrypted, Path::Clear),
            ),
            at_most(
                1.15,
                "Read of 64 B in the clear, of a round trip of libfabric",
                path(Op::Read, Path::Clear, Path::Libfabric),
            ),
            at_most(
                1.15,
                "Get of 1 KiB in the clear, of one of memcached",
                path(Op::Get, Path::Clear, Path::Memcached),
            ),
        ];
        if let Some(load) = &self.load {
            let memory = load.memory.map(|bytes| bytes as f64);
            let cores = |value| decimals(value, 2);
            targets.extend([
                at_most(1e8, "Change under load, p99", p99(&load.samples)).shown(time),
                at_most(1.0, "Cores of the leader under load", Some(cores_of(load))).shown(cores),
                at_most(MEMORY, "Memory of the leader under load", memory).shown(mebibytes),
            ]);
        }
        targets
    }
}

/// Cores that the leader used.
fn cores_of(load: &Load) -> f64 {
    load.used.as_secs_f64() / load.elapsed.as_secs_f64()
}

fn load_fields(load: &Load) -> Fields {
    let per_s = load.samples.ops as f64 / load.elapsed.as_secs_f64();
    Fields::default()
        .with("hosts", load.hosts)
        .with("domains", load.domains)
        .with("changes_per_s", per_s)
        .with("p50_ns", load.samples.quantile_ns(0.5))
        .with("p99_ns", p99(&load.samples))
        .with("coordinator_cores", cores_of(load))
        .with("coordinator_rss_bytes", load.memory)
}

fn load_text(load: &Load) -> String {
    format!(
        "Among {} hosts with {} domains, {:.0} changes per second: p50 {}, p99 {}. The leader uses \
         {:.2} cores and has {}.\n",
        load.hosts,
        load.domains,
        load.samples.ops as f64 / load.elapsed.as_secs_f64(),
        time(load.samples.quantile_ns(0.5)),
        time(p99(&load.samples)),
        cores_of(load),
        mebibytes(load.memory.map(|bytes| bytes as f64)),
    )
}

fn failover_table(failover: &Failover) -> Table {
    let mut table = Table::new(1, &["Next change after", "rounds", "p50", "p99"]);
    for fault in Fault::ALL {
        let samples = failover.of(fault);
        table.row([
            fault.text().into(),
            samples.ops.to_string(),
            time(samples.quantile_ns(0.5)),
            time(p99(samples)),
        ]);
    }
    table
}

fn fenced_text(fenced: &Fenced) -> String {
    let killed = match fenced.kills {
        0 => String::new(),
        kills => format!(" In {kills} rounds the nodes could not be frozen, and were killed."),
    };
    format!(
        "Shrink with the leaver's host cut off and a fence of {FENCE} s: {} rounds, p50 {}, p99 {}. \
         After the returns {} bytes and {} frames arrived; without a fence {} and {}.{killed}\n",
        fenced.shrinks.ops,
        time(fenced.shrinks.quantile_ns(0.5)),
        time(p99(&fenced.shrinks)),
        fenced.leaks.bytes,
        fenced.leaks.frames,
        fenced.without.bytes,
        fenced.without.frames,
    )
}

#[cfg(test)]
mod tests {
    use std::io;

    use serde_json::{Value, json};

    use super::super::fence::Leaks;
    use super::*;

    fn run() -> Run {
        Run::new(Instant::now(), Effort::Quick, 3)
    }

    #[test]
    fn targets_compare_many_hosts_with_few() {
        let change = |hosts, slow, ms: u64| {
            let mut samples = Samples::default();
            samples.record(Duration::from_millis(ms), 0, true);
            Change {
                hosts,
                real: false,
                slow,
                samples,
            }
        };
        let run = Run {
            changes: vec![
                change(8, false, 10),
                change(256, false, 25),
                change(super::super::AMONG, true, 20),
            ],
            follower_cpu: Some(Duration::from_micros(10)),
            ..run()
        };
        let json = json!(run.report());
        let targets = json["targets"].as_array().unwrap();
        let met: Vec<&Value> = targets.iter().map(|target| &target["met"]).collect();
        assert_eq!(met[..3], [false, true, true]);
        assert_eq!((&json["hosts"], &json["domains"]), (&json!(256), &json!(3)));
        assert_eq!(json["change"][1]["p50_ns"], 25e6);
        assert_eq!(json["follower_cpu_ns"], 10e3);
    }

    #[test]
    fn parts_that_were_not_measured_are_null_and_say_why() {
        let run = Run {
            failover: Err(Absence::NoEtcd(io::ErrorKind::NotFound.into())),
            fenced: Err(Absence::NotRoot),
            paths: Err(Absence::NotRoot),
            rivals: vec![(
                Path::Libfabric,
                Err(Absence::NoRival {
                    program: "fi_pingpong",
                    package: "libfabric-bin",
                    error: io::ErrorKind::NotFound.into(),
                }),
            )],
            ..run()
        };
        let report = run.report();
        let json = json!(report);
        for key in ["coordinator_kill", "handover", "etcd_leader"] {
            assert!(json["failover"][format!("{key}_p99_ns")].is_null());
        }
        let why = json["failover"]["why"].as_str().unwrap();
        assert!(
            why.contains("install Debian's package etcd-server"),
            "{why}"
        );
        let without = Run {
            failover: Err(Absence::NotBuilt),
            ..self::run()
        };
        let why = json!(without.report())["failover"]["why"].clone();
        assert!(why.as_str().unwrap().contains("--features"), "{why}");
        for key in [
            "fenced_shrink_p99_ns",
            "leaked_bytes",
            "leaked_frames",
            "stream_ratio",
            "relay_ratio",
            "libfabric_ratio",
            "memcached_ratio",
        ] {
            assert_eq!(json.get(key), Some(&Value::Null), "{key}");
        }
        assert!(report.text.contains("fences are not measured: only root"));
        assert!(
            report
                .text
                .contains("install Debian's package libfabric-bin")
        );
        assert_eq!(json["notes"].as_array().unwrap().len(), 4);
        assert_eq!(report.failure, None);
    }

    #[test]
    fn a_leak_is_a_failure() {
        let leaks = Leaks {
            bytes: 8,
            frames: 0,
        };
        let run = Run {
            fenced: Ok(Fenced {
                leaks,
                ..Fenced::default()
            }),
            ..run()
        };
        let failure = run.report().failure.unwrap();
        assert!(failure.contains("8 bytes and 0 frames"), "{failure}");
    }

    #[test]
    fn of_few_samples_p99_is_the_longest() {
        let of = |count: u64| {
            let mut samples = Samples::default();
            for ns in 1..=count {
                samples.record(Duration::from_nanos(ns), 0, true);
            }
            p99(&samples)
        };
        assert_eq!([of(0), of(1), of(3)], [None, Some(1.0), Some(3.0)]);
        assert_eq!(
            [of(99), of(100), of(200)],
            [Some(99.0), Some(99.0), Some(198.0)]
        );
    }
}
