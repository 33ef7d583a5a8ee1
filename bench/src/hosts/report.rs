//! The report of `hosts`.

use std::time::{Duration, Instant};

use crate::machine;
use crate::plan::Effort;
use crate::report::{self, Fields, Report, Row, Show, TEXT, TIME};
use crate::samples::{Samples, Series};
use crate::table::{mebibytes, time};
use crate::target::Bound::AtMost;
use crate::target::{self, Target};

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

impl Run {
    pub fn add(&mut self, real: bool, slow: bool, hosts: usize, samples: Samples) {
        self.changes.push(Change {
            hosts,
            real,
            slow,
            samples,
        });
    }

    pub fn report(&self) -> Report {
        let rows: Vec<Row> = self.changes.iter().map(Change::row).collect();
        let hosts = self.changes.iter().map(|change| change.hosts).max();
        let mut report = Report::new(self.effort, self.start, Fields::default());
        report.fields(
            Fields::default()
                .with("hosts", hosts)
                .with("domains", self.domains),
        );
        report.rows("change", &rows);
        let cpu_ns = self.follower_cpu.map(|time| time.as_nanos() as f64);
        report.fields(
            Fields::default()
                .with("follower_cpu_ns", cpu_ns)
                .with("coordinator_rss_bytes", self.leader_memory),
        );
        let targets = self.targets(&rows, cpu_ns);
        report.targets(&targets);
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
        report.text = format!(
            "Hosts on this machine ({}), beside {} domains that do not change.\n\n{}\n\
             A follower's agent uses {} of a processor for a change, the leader has {}.\n\n{}\n\
             {:.0} s in all.\n",
            machine::describe(),
            self.domains,
            report::table(&rows, 3, &columns),
            time(cpu_ns),
            mebibytes(self.leader_memory.map(|bytes| bytes as f64)),
            target::render(&targets),
            self.start.elapsed().as_secs_f64(),
        );
        report
    }

    fn targets(&self, rows: &[Row], cpu_ns: Option<f64>) -> [Target; 3] {
        let p50 = |hosts: usize, slow: bool| {
            let labels = serde_json::json!({"hosts": hosts, "real": false, "slow": slow});
            report::number(rows, &labels, "p50_ns")
        };
        let ratio = p50(256, false).zip(p50(8, false));
        let ratio = ratio.map(|(many, few)| many / few);
        let what = "Change among 256 hosts, of that among 8";
        [
            Target::new(AtMost(2.0), what, ratio),
            Target::new(AtMost(1e6), "A follower's processor time", cpu_ns).shown(time),
            Target::new(AtMost(1e8), "Beside a slow host", p50(super::AMONG, true)).shown(time),
        ]
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
            start: Instant::now(),
            effort: Effort::Quick,
            domains: 3,
            changes: vec![
                change(8, false, 10),
                change(256, false, 25),
                change(super::super::AMONG, true, 20),
            ],
            follower_cpu: Some(Duration::from_micros(10)),
            leader_memory: None,
        };
        let json = json!(run.report());
        let targets = json["targets"].as_array().unwrap();
        let met: Vec<&serde_json::Value> = targets.iter().map(|target| &target["met"]).collect();
        assert_eq!(met, [false, true, true]);
        assert_eq!((&json["hosts"], &json["domains"]), (&json!(256), &json!(3)));
        assert_eq!(json["change"][1]["p50_ns"], 25e6);
        assert_eq!(json["follower_cpu_ns"], 10e3);
    }
}
