//! The report of `domains`.

use std::fmt::Write;
use std::time::Instant;

use serde::Serialize;

use super::cycles::Outcome;
use crate::machine;
use crate::memory;
use crate::plan::Effort;
use crate::report::{self, Fields, MEBIBYTES, PERCENT, Report, Row, Show, TEXT, TIME};
use crate::samples::{Samples, Series};
use crate::stats::quantile;
use crate::table::{mebibytes, percent, time};
use crate::target::Bound::AtMost;
use crate::target::{self, Target};

/// Memory exported by a member in a scenario.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Export {
    /// No memory.
    #[default]
    None,
    /// The owner writes, other members read.
    Ro,
    /// All members write.
    Rw,
}

pub struct Run {
    pub start: Instant,
    pub effort: Effort,
    pub rootless: bool,
    /// The directory of the agents' data.
    pub data: String,
    /// Times of synchronous writes of 4 KiB to that directory's disk, in nanoseconds.
    pub syncs_ns: Vec<f64>,
    pub outcomes: Vec<Outcome>,
    /// Absent if only rows of shrinks and growths were chosen.
    pub rest: Option<Rest>,
}

/// Measurements besides shrinks and growths.
pub struct Rest {
    /// Domains of all nodes.
    pub scale: Vec<Row>,
    /// Many idle domains.
    pub idle: Row,
    pub beside: Beside,
}

/// An unchanged domain beside many that change.
pub struct Beside {
    pub rows: Vec<Row>,
    pub domains: u32,
    pub changes_per_s: f64,
}

/// One round with these samples.
pub fn series(samples_ns: &[f64]) -> Series {
    Series::from(Samples {
        batch: 1,
        ops: samples_ns.len() as u64,
        samples_ns: samples_ns.into(),
        ..Samples::default()
    })
}

impl Run {
    fn sum(&self, of: fn(&Outcome) -> u64) -> u64 {
        self.outcomes.iter().map(of).sum()
    }

    fn quantile(&self, of: fn(&Outcome) -> &[f64], q: f64) -> f64 {
        let all: Vec<f64> = self.outcomes.iter().flat_map(of).copied().collect();
        quantile(&all, q).unwrap_or_default()
    }

    pub fn report(&self) -> Report {
        let outcomes = self.outcomes.iter();
        let rows = outcomes.map(|outcome| (outcome.shrink.clone(), outcome.grow.clone()));
        let (shrinks, grows): (Vec<Row>, Vec<Row>) = rows.unzip();
        let huge_pages = memory::huge_pages().unwrap_or_else(|| "unknown".into());
        let config = Fields::default()
            .with("provider", "shm")
            .with("rootless", self.rootless)
            .with("data", &self.data)
            .with("huge_pages", &huge_pages);
        let mut report = Report::new(self.effort, self.start, config);
        report.rows("shrink", &shrinks);
        report.rows("grow", &grows);
        for outcome in &self.outcomes {
            for (what, samples_ns) in &outcome.others {
                let labels = Fields::default()
                    .with("what", what)
                    .with("members", outcome.members);
                report.samples("others", labels, series(samples_ns));
            }
        }
        let sync = |q| quantile(&self.syncs_ns, q).unwrap_or_default();
        let read = [
            self.quantile(|outcome| &outcome.reads_ns[0], 0.5),
            self.quantile(|outcome| &outcome.reads_ns[1], 0.5),
        ];
        let in_flight_ns = self.quantile(|outcome| &outcome.in_flight_ns, 0.99);
        let busy_sync = self.quantile(|outcome| &outcome.syncs_ns, 0.99);
        let leaked_bytes = self.sum(|outcome| outcome.leaked_bytes);
        let leaked_frames = self.sum(|outcome| outcome.leaked_frames);
        let stayers_failed = self.sum(|outcome| outcome.failed);
        report.fields(
            Fields::default()
                .with("inflight_failed_p99_ns", in_flight_ns)
                .with("leaked_bytes", leaked_bytes)
                .with("leaked_frames", leaked_frames)
                .with("cycles", self.sum(|outcome| outcome.cycles))
                .with("stayers_failed", stayers_failed)
                .with("read_p50_before_ns", read[0])
                .with("read_p50_after_ns", read[1])
                .with("fdatasync_p50_ns", sync(0.5))
                .with("fdatasync_p99_ns", sync(0.99))
                .with("fdatasync_busy_p99_ns", busy_sync),
        );
        report.errors += leaked_bytes + leaked_frames + stayers_failed;
        let mut text = format!(
            "Domains on this machine ({}{}). Shared memory stands in for RDMA.\n\
             Huge pages for it: {huge_pages}. Directory in {}, where 4 KiB take {} to reach the disk,\n\
             {} at p99, and {} at p99 while members work.\n",
            machine::describe(),
            if self.rootless { ", rootless" } else { "" },
            self.data,
            time(Some(sync(0.5))),
            time(Some(sync(0.99))),
            time(Some(busy_sync)),
        );
        text += &changes("One leaves", &shrinks);
        text += &changes("It comes back", &grows);
        if let Some(rest) = &self.rest {
            report.rows("scale", &rest.scale);
            report.object("idle", rest.idle.fields());
            report.fields(
                Fields::default()
                    .with("busy_domains", rest.beside.domains)
                    .with("busy_changes_per_s", rest.beside.changes_per_s),
            );
            report.rows("bystander", &rest.beside.rows);
            text += &rest.render();
        }
        let mut targets = self.shrink_targets(&shrinks, in_flight_ns);
        for (what, count) in [
            ("Bytes after the return", leaked_bytes),
            ("Frames and packets after the return", leaked_frames),
            ("Failed operations of remaining members", stayers_failed),
        ] {
            targets.push(Target::new(AtMost(0.0), what, Some(count as f64)));
        }
        let change = (read[0] > 0.0).then(|| (read[1] / read[0] - 1.0).abs());
        let what = "Change of a one-sided read after shrinks";
        targets.push(Target::new(AtMost(0.05), what, change).shown(percent));
        targets.extend(self.other_targets());
        report.targets(&targets);
        // Writing to a string does not fail.
        let elapsed = self.start.elapsed().as_secs_f64();
        let _ = writeln!(
            text,
            "\n{}\n{elapsed:.0} s in all.",
            target::render(&targets)
        );
        report.text = text;
        report
    }

    fn shrink_targets(&self, shrinks: &[Row], in_flight_ns: f64) -> Vec<Target> {
        let worst = |wanted: fn(f64, f64) -> bool, figure: &str| {
            let members = |row: &Row| row.number("members").unwrap_or_default();
            let bytes = |row: &Row| row.number("registered_bytes").unwrap_or_default();
            let rows = shrinks
                .iter()
                .filter(|row| wanted(members(row), bytes(row)));
            rows.filter_map(|row| row.number(figure)).reduce(f64::max)
        };
        let small = worst(|members, bytes| members <= 8.0 && bytes == 0.0, "p99_ns");
        let large = worst(|members, _| members > 8.0, "p99_ns");
        let with_memory = worst(|_, bytes| bytes > 0.0, "p99_ns");
        let pause = worst(|_, bytes| bytes > 0.0, "pause_p99_ns");
        let in_flight = Some(in_flight_ns).filter(|time| *time > 0.0);
        [
            (5.0, "Shrink p99, 2 and 8 members", small),
            (50.0, "Shrink p99, 512 members", large),
            (
                20.0,
                "Shrink p99, 8 members with memory registered",
                with_memory,
            ),
            (10.0, "Pause of remaining members, p99", pause),
            (50.0, "Operations in flight failed after", in_flight),
        ]
        .map(|(ms, what, found)| Target::new(AtMost(ms * 1e6), what, found).shown(time))
        .into()
    }

    fn other_targets(&self) -> [Target; 4] {
        let scale = |ethernet: bool| {
            let rows = self.rest.iter().flat_map(|rest| &rest.scale);
            let rows = rows.filter(|row| *row.get("ethernet") == ethernet);
            rows.flat_map(|row| ["create_ns", "rm_ns", "down_ns"].map(|figure| row.number(figure)))
                .flatten()
                .reduce(f64::max)
        };
        let idle = |figure| self.rest.as_ref()?.idle.number(figure);
        let (cpu, memory) = (idle("cpu_share"), idle("pss_bytes"));
        let most = (512 << 20) as f64;
        let what = "Create, rm and down of 512 members";
        [
            Target::new(AtMost(2e9), what, scale(true)).shown(time),
            Target::new(AtMost(1e9), "The same without Ethernet", scale(false)).shown(time),
            Target::new(AtMost(0.02), "Idle domains, processor", cpu).shown(percent),
            Target::new(AtMost(most), "Idle domains, memory", memory).shown(mebibytes),
        ]
    }
}

/// Table of shrinks or growths.
fn changes(title: &str, rows: &[Row]) -> String {
    let columns: [(&str, &str, Show); 9] = [
        (title, "members", |row, name| {
            format!("{} members", row.text(name))
        }),
        ("registered", "export", |row, name| {
            match row.text(name).as_str() {
                "none" => "nothing".into(),
                export => format!("{} {export}", MEBIBYTES(row, "registered_bytes")),
            }
        }),
        ("p50", "p50_ns", TIME),
        ("p99", "p99_ns", TIME),
        ("pause p50", "pause_p50_ns", TIME),
        ("pause p99", "pause_p99_ns", TIME),
        ("without", "pause_before_p99_ns", TIME),
        ("extra", "extra_bytes", MEBIBYTES),
        ("times", "cycles", TEXT),
    ];
    format!("\n{}", report::table(rows, 2, &columns))
}

impl Rest {
    fn render(&self) -> String {
        let scale: [(&str, &str, Show); 6] = [
            ("A domain of all nodes", "members", |row, name| {
                let with = if *row.get("ethernet") == true {
                    ""
                } else {
                    ", no Ethernet"
                };
                format!("{} nodes{with}", row.text(name))
            }),
            ("up", "up_ns", TIME),
            ("create", "create_ns", TIME),
            ("rm", "rm_ns", TIME),
            ("create again", "create_again_ns", TIME),
            ("down", "down_ns", TIME),
        ];
        let idle: [(&str, &str, Show); 6] = [
            ("Idle domains", "domains", TEXT),
            ("members", "members", TEXT),
            ("nodes", "nodes", TEXT),
            ("create", "create_ns", TIME),
            ("of a core", "cpu_share", PERCENT),
            ("memory", "pss_bytes", MEBIBYTES),
        ];
        let Beside {
            rows,
            domains,
            changes_per_s,
        } = &self.beside;
        let title =
            format!("Beside {domains} domains that change {changes_per_s:.0} times a second");
        let beside: [(&str, &str, Show); 5] = [
            (&title, "op", TEXT),
            ("quiet p50", "quiet_p50_ns", TIME),
            ("quiet p99", "quiet_p99_ns", TIME),
            ("busy p50", "busy_p50_ns", TIME),
            ("busy p99", "busy_p99_ns", TIME),
        ];
        let scale = report::table(&self.scale, 1, &scale);
        let idle = report::table(std::slice::from_ref(&self.idle), 0, &idle);
        format!("\n{scale}\n{idle}\n{}", report::table(rows, 1, &beside))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::cycles::Scenario;
    use super::super::scale;
    use super::*;

    fn run() -> Run {
        let scenario = Scenario {
            members: 8,
            export: Export::None,
            bytes: 0,
            cycles: 3,
        };
        let outcome = Outcome {
            shrink: scenario.row(&[4e6; 3], &[1.0; 3]),
            grow: scenario.row(&[4e6; 3], &[1.0; 3]),
            leaked_bytes: 8,
            leaked_frames: 1,
            cycles: 3,
            reads_ns: [vec![100.0], vec![106.0]],
            ..Outcome::default()
        };
        let of = |ethernet| scale::row(512, ethernet, [1e9, 1e9, 1e9, 1e9, 1.5e9]);
        Run {
            start: Instant::now(),
            effort: Effort::Quick,
            rootless: false,
            data: "/tmp".into(),
            syncs_ns: Vec::new(),
            outcomes: vec![outcome],
            rest: Some(Rest {
                scale: vec![of(true), of(false)],
                idle: scale::idle_row([1, 16, 64], 0.0, 0.0, 0),
                beside: Beside {
                    rows: Vec::new(),
                    domains: 1,
                    changes_per_s: 0.0,
                },
            }),
        }
    }

    #[test]
    fn json_has_the_documented_keys() {
        let json = json!(run().report());
        let keys = "inflight_failed_p99_ns leaked_bytes leaked_frames cycles read_p50_before_ns \
                    read_p50_after_ns fdatasync_p50_ns";
        for key in keys.split(' ') {
            assert!(json[key].is_number(), "{key}");
        }
        for change in ["shrink", "grow"] {
            let row = &json[change][0];
            assert_eq!(row["export"], Value::from("none"));
            let keys = "members registered_bytes p50_ns p99_ns pause_p99_ns";
            for key in keys.split(' ') {
                assert!(row[key].is_number(), "{change}: {key}");
            }
        }
    }

    #[test]
    fn leaks_after_the_return_are_errors_and_miss_targets() {
        let report = run().report();
        assert_eq!(report.errors, 9);
        let json = json!(report);
        let found = |what: &str| {
            let mut targets = json["targets"].as_array().unwrap().iter();
            targets
                .find(|target| target["what"].as_str().unwrap().contains(what))
                .unwrap()
        };
        let met = |what: &str| found(what)["met"] == true;
        assert!(!met("Bytes after"));
        assert!(!met("Frames and packets"));
        assert!(met("2 and 8 members"));
        let large = found("512 members");
        assert!(large["found"].is_null(), "it was not measured");
        assert!(!met("Change of a one-sided read"));
        assert!(met("Create, rm and down"));
        assert!(!met("without Ethernet"));
        assert!(report.text.contains("MISSED") && report.text.contains("not measured"));
    }
}
