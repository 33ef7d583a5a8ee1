//! The report of `link`.

use std::time::Instant;

use super::plan::{self, Carrier, Key, Knob, LATE, Mtu, Op};
use crate::machine;
use crate::plan::Effort;
use crate::report::{Fields, Report, Row};
use crate::samples::{Samples, Series};
use crate::stats::{self, Estimate, median};
use crate::table::{self, Table};
use crate::target::Bound::AtMost;
use crate::target::{self, Target};

/// Figures of a round.
pub mod figure {
    /// The setting, in the unit of [`MEASURED`].
    pub const SET: &str = "set";
    /// The same operation without a model; of two knobs, with the measured one alone; of none,
    /// without the model's code; of the routing `off`, without a choice of routes.
    pub const BASE: &str = "base";
    /// Nanoseconds, or bytes per second.
    pub const MEASURED: &str = "measured";
    /// Median lateness of transfers in nanoseconds.
    pub const LATE_P50: &str = "late_p50_ns";
    /// 99th percentile.
    pub const LATE_P99: &str = "late_p99_ns";
    /// Share of transfers later than both 1 us and 1 % of their time.
    pub const LATE_SHARE: &str = "late_share";
    /// Share of a processor spent on waiting.
    pub const CPU: &str = "cpu";
}

/// Largest error of a latency in nanoseconds, and as a share.
const ERROR_NS: f64 = 100.0;
const ERROR: f64 = 0.01;

/// Largest error of rates between plain interfaces, and largest effect of the other knob.
const PLAIN_ERROR: f64 = 0.02;
const EFFECT: f64 = 0.02;

/// Largest median lateness of frames in nanoseconds.
const LATENESS_NS: f64 = 2000.0;

/// Longest choice of a route, and longest look at counters, in nanoseconds.
const DECISION_NS: f64 = 100.0;
const COUNTERS_NS: f64 = 20.0;

/// Draws of intervals.
const SEED: u64 = 1;

/// The result of a measurement over its rounds.
struct Found<'a> {
    key: Key,
    series: &'a Series,
    /// Rounds with few late transfers.
    counted: Vec<&'a Samples>,
    /// In the unit of the measurement; `None` without a round.
    measured: Option<Estimate>,
    base: Option<f64>,
    set: Option<f64>,
}

impl<'a> Found<'a> {
    fn of(key: Key, series: &'a Series) -> Self {
        let rounds = series.rounds();
        let is_late = |round: &Samples| round.figure(figure::LATE_SHARE) > Some(LATE);
        let counted: Vec<&Samples> = rounds.iter().filter(|round| !is_late(round)).collect();
        // Without a round that counts, the figures of all are shown.
        let shown = if counted.is_empty() {
            rounds.iter().collect()
        } else {
            counted.clone()
        };
        let of = |name| -> Vec<f64> {
            let rounds = shown.iter();
            rounds.filter_map(|round| round.figure(name)).collect()
        };
        let base = median(&of(figure::BASE));
        let measured = match key.knob {
            Knob::Latency | Knob::Spin | Knob::Rate | Knob::Routing => {
                stats::estimate(&of(figure::MEASURED), SEED, median)
            }
            Knob::Both | Knob::Off | Knob::RoutingOff => base.and_then(|base| {
                let pair = |round: &&Samples| {
                    let [measured, base] = [figure::MEASURED, figure::BASE];
                    Some((round.figure(measured)?, round.figure(base)?))
                };
                let pairs: Vec<_> = shown.iter().filter_map(pair).collect();
                let ratio = stats::of_ratio(&pairs, SEED)?;
                Some(Estimate {
                    value: ratio.value * base,
                    interval: ratio.interval.map(|end| end * base),
                })
            }),
        };
        Found {
            key,
            series,
            measured,
            base,
            set: median(&of(figure::SET)),
            counted,
        }
    }

    /// The value that the result should have.
    fn due(&self) -> Option<f64> {
        match self.key.knob {
            Knob::Latency | Knob::Rate => self.set,
            Knob::Spin => Some(self.base? + self.key.operations() * self.set?),
            Knob::Both | Knob::Off | Knob::RoutingOff => self.base,
            Knob::Routing => None,
        }
    }

    /// The deviation from the due value, as a share of it.
    fn error(&self) -> Option<f64> {
        Some(self.measured?.value / self.due()? - 1.0)
    }

    /// Median over the counted rounds, over all if none counts.
    fn median(&self, name: &str) -> Option<f64> {
        let counted: Vec<f64> = self.counted.iter().filter_map(|r| r.figure(name)).collect();
        median(&counted).or_else(|| self.series.median(|round| round.figure(name)))
    }

    fn row(&self) -> Row {
        let of = if self.key.is_time() {
            "p50_ns"
        } else {
            "bytes_per_s"
        };
        Row::of(self.series)
            .rounds(of, self.series.figures(figure::MEASURED))
            .label("path", self.key.carrier)
            .label("knob", self.key.knob)
            .label("case", self.key.name())
            .figure("set", self.set)
            .figure("base", self.base)
            .figure("measured", self.measured.map(|found| found.value))
            .figure("ci", self.measured.map(|found| found.interval))
            .figure("error", self.error())
            .figure(figure::LATE_P50, self.median(figure::LATE_P50))
            .figure(figure::LATE_P99, self.median(figure::LATE_P99))
            .figure(figure::LATE_SHARE, self.median(figure::LATE_SHARE))
            .figure(figure::CPU, self.median(figure::CPU))
    }

    /// Description of the row in the same place of the list.
    fn case(&self) -> Fields {
        let rounds = self.series.rounds().len();
        Fields::default()
            .with("case", self.key.to_string())
            .with("rounds", self.counted.len())
            .with("late_rounds", rounds - self.counted.len())
    }

    fn target(&self) -> Option<Target> {
        let counts = |value: Option<f64>| value.filter(|_| !self.counted.is_empty());
        let error = counts(self.error().map(f64::abs));
        let share = |bound: f64, found: Option<f64>| (bound, found, table::percent as fn(_) -> _);
        let (bound, found, show) = match (self.key.carrier, self.key.knob, self.key.op) {
            (Carrier::Tbf, ..) => return None,
            (_, Knob::Latency, Op::Frame) => {
                let late = counts(self.median(figure::LATE_P50));
                (LATENESS_NS, late, table::time as fn(_) -> _)
            }
            (_, Knob::Latency | Knob::Spin, _) => {
                let due = self.due().unwrap_or_default();
                let bound = ERROR_NS.max(ERROR * due);
                (
                    bound,
                    error.map(|error| error * due),
                    table::time as fn(_) -> _,
                )
            }
            (_, Knob::Rate, Op::Stream(_, Mtu::Plain)) => share(PLAIN_ERROR, error),
            (_, Knob::Rate, _) => share(ERROR, error),
            (_, Knob::Both, _) => share(EFFECT, error),
            (_, Knob::Routing, op) => {
                let bound = if op == Op::Counters {
                    COUNTERS_NS
                } else {
                    DECISION_NS
                };
                let measured = counts(self.measured.map(|found| found.value));
                (bound, measured, table::time as fn(_) -> _)
            }
            (_, Knob::Off | Knob::RoutingOff, _) => {
                let furthest = self.measured.zip(self.base).map(|(found, base)| {
                    let ratio = found.interval.map(|end| end / base - 1.0);
                    ratio.low.abs().max(ratio.high.abs())
                });
                share(ERROR, counts(furthest))
            }
        };
        let set = match self.key.knob {
            Knob::Latency | Knob::Spin | Knob::Rate => format!(", {}", self.show(self.set)),
            _ => String::new(),
        };
        let off = match self.key.op {
            Op::Frame => "late by the driver's record, median",
            _ if self.key.knob.is_off() => "effect, end of the interval",
            _ if self.key.knob == Knob::Routing => "median",
            _ => "error",
        };
        let what = format!("{}{set}: {off}", self.key);
        Some(Target::new(AtMost(bound), what, found).shown(show))
    }

    /// A value in the unit of the measurement, as text.
    fn show(&self, value: Option<f64>) -> String {
        match self.key.op {
            _ if self.key.is_time() => table::time(value),
            Op::Stream(..) => value.map_or("-".into(), |value| {
                format!("{} Mbit/s", table::digits(value * 8.0 / 1e6))
            }),
            _ => table::rate(value),
        }
    }

    fn cells(&self) -> [String; 11] {
        let interval = self.measured.map_or("-".into(), |found| {
            let [low, high] = [found.interval.low, found.interval.high];
            format!("{} to {}", self.show(Some(low)), self.show(Some(high)))
        });
        let rounds = match self.series.rounds().len() - self.counted.len() {
            0 => self.counted.len().to_string(),
            late => format!("{} + {late} late", self.counted.len()),
        };
        [
            self.key.to_string(),
            self.show(self.set),
            self.show(self.base),
            self.show(self.measured.map(|found| found.value)),
            interval,
            table::percent(self.error()),
            table::time(self.median(figure::LATE_P50)),
            table::time(self.median(figure::LATE_P99)),
            table::percent(self.median(figure::LATE_SHARE)),
            table::percent(self.median(figure::CPU)),
            rounds,
        ]
    }
}

const HEADS: [&str; 11] = [
    "",
    "set",
    "base",
    "measured",
    "interval of 95 %",
    "error",
    "late p50",
    "p99",
    "share",
    "CPU",
    "rounds",
];

pub fn report(effort: Effort, start: Instant, tc: &str, measured: &[(Key, Series)]) -> Report {
    let results: Vec<Found<'_>> = measured
        .iter()
        .map(|(key, series)| Found::of(*key, series))
        .collect();
    let rows: Vec<Row> = results.iter().map(Found::row).collect();
    let cases: Vec<Fields> = results.iter().map(Found::case).collect();
    let targets: Vec<Target> = results.iter().filter_map(Found::target).collect();
    let rounds = plan::rounds(effort);
    let config = Fields::default()
        .with("rounds", rounds)
        .with("tc", tc)
        .with("cases", cases);
    let mut report = Report::new(effort, start, config);
    report.rows("rows", &rows);
    report.targets(&targets);
    let of = |carrier: Carrier, title: &str| {
        let mut heads = HEADS;
        heads[0] = title;
        let mut table = Table::new(1, &heads);
        let rows = results.iter().filter(|one| one.key.carrier == carrier);
        rows.for_each(|one| table.row(one.cells()));
        table.to_string()
    };
    report.text = format!(
        "{}\n{rounds} rounds in turns without a model, {:.0} s; shared memory stands in for RDMA\n\n\
         {}\n{}\n{}\n{}\n{}\n{}",
        machine::describe(),
        start.elapsed().as_secs_f64(),
        of(Carrier::Rdma, "RDMA"),
        of(Carrier::Channel, "Channels"),
        of(Carrier::Ethernet, "Ethernet, between TAPs"),
        of(Carrier::Tbf, &format!("Kernel veth, {tc}")),
        of(Carrier::Router, "Routes through a torus"),
        target::render(&targets),
    );
    report
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::plan::keys;
    use super::*;

    const KEYS: [&str; 15] = [
        "path",
        "knob",
        "case",
        "id",
        "rounds_of",
        "rounds",
        "set",
        "base",
        "measured",
        "ci",
        "error",
        "late_p50_ns",
        "late_p99_ns",
        "late_share",
        "cpu",
    ];

    /// A report in which every result is `factor` times what it should be.
    fn report_of(factor: f64, late_share: f64) -> (Report, Value) {
        let of = |key: Key| {
            let mut series = Series::default();
            for round in 0..5 {
                let (set, base, due) = match (key.knob, key.op) {
                    (Knob::Latency | Knob::Rate, _) => (5e4, 100.0, 5e4),
                    (Knob::Spin, Op::Read(_)) => (5e4, 100.0, 25_100.0),
                    (Knob::Spin, _) => (5e4, 100.0, 50_100.0),
                    (Knob::Both | Knob::Off | Knob::RoutingOff, _) => (0.0, 5e4, 5e4),
                    (Knob::Routing, _) if factor == 1.0 => (0.0, 0.0, 10.0),
                    (Knob::Routing, _) => (0.0, 0.0, 1e3),
                };
                let noise = 1.0 + 1e-4 * f64::from(round - 2);
                series.add(
                    Samples::default()
                        .with(figure::SET, set)
                        .with(figure::BASE, base)
                        .with(figure::MEASURED, due * factor * noise)
                        .with(figure::LATE_P50, 5e4 * (factor - 1.0).abs())
                        .with(figure::LATE_P99, 1e4)
                        .with(figure::LATE_SHARE, late_share)
                        .with(figure::CPU, 0.1),
                );
            }
            (key, series)
        };
        let measured: Vec<_> = keys(Effort::Quick).into_iter().map(of).collect();
        let report = report(Effort::Quick, Instant::now(), "tc 6", &measured);
        let json = json!(report);
        (report, json)
    }

    fn met(json: &Value) -> Vec<&Value> {
        let targets = json["targets"].as_array().unwrap();
        targets.iter().map(|target| &target["met"]).collect()
    }

    #[test]
    fn every_row_has_exactly_the_promised_keys() {
        let (_, json) = report_of(1.0, 0.0);
        let rows = json["rows"].as_array().unwrap();
        for row in rows {
            let found: Vec<&String> = row.as_object().unwrap().keys().collect();
            assert!(KEYS.iter().all(|key| row.get(key).is_some()), "{row}");
            assert_eq!(found.len(), KEYS.len(), "{row}");
            assert_eq!(row["ci"].as_array().unwrap().len(), 2, "{row}");
        }
        let cases = json["config"]["cases"].as_array().unwrap();
        assert_eq!(cases.len(), rows.len());
        let names = |rows: &[Value], key: &str| -> std::collections::BTreeSet<String> {
            rows.iter()
                .map(|row| row[key].as_str().unwrap().into())
                .collect()
        };
        let paths = ["channel", "ethernet", "rdma", "router", "tbf"].map(String::from);
        assert_eq!(names(rows, "path"), paths.into());
        let knobs = [
            "both",
            "latency",
            "off",
            "rate",
            "routing",
            "routing_off",
            "spin",
        ];
        let knobs = knobs.map(String::from);
        assert_eq!(names(rows, "knob"), knobs.into());
        assert_eq!(names(rows, "id").len(), rows.len());
    }

    #[test]
    fn exact_results_meet_all_targets_and_wrong_ones_none() {
        let (_, exact) = report_of(1.0, 0.0);
        assert!(met(&exact).iter().all(|met| **met == true), "{exact}");
        for factor in [0.9, 1.1] {
            let (report, wrong) = report_of(factor, 0.0);
            assert!(met(&wrong).iter().all(|met| **met == false), "{wrong}");
            assert!(report.text.contains("MISSED"));
        }
    }

    #[test]
    fn late_rounds_are_shown_and_do_not_count() {
        let (report, json) = report_of(1.0, 2.0 * LATE);
        assert_eq!(json["rows"][0]["late_share"], 2.0 * LATE);
        assert_eq!(json["config"]["cases"][0]["rounds"], 0);
        assert_eq!(json["config"]["cases"][0]["late_rounds"], 5);
        assert!(json["rows"][0]["measured"].is_f64());
        for target in json["targets"].as_array().unwrap() {
            assert_eq!(
                (&target["found"], &target["met"]),
                (&Value::Null, &json!(false))
            );
        }
        assert!(report.text.contains("0 + 5 late"));
    }
}
