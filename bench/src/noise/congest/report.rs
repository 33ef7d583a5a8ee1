//! The report of `noise congest`: how many times longer the victim's operations take.

use std::time::Instant;

use toroid_model::link::FabricProfile;

use super::plan::{CONGESTORS, DEPTH, Key, OPERATION, VICTIMS, pause};
use crate::machine;
use crate::plan::Effort;
use crate::report::{Fields, RATE, Report, Row, Show, TEXT, TIME, table};
use crate::samples::{Samples, Series};
use crate::stats::{self, Estimate, median};
use crate::table::digits;

/// Figures of a round.
pub mod figure {
    /// Mean time of an operation without other traffic, in nanoseconds, and its 99th percentile.
    pub const ISOLATED_MEAN: &str = "isolated_mean_ns";
    pub const ISOLATED_P99: &str = "isolated_p99_ns";
    /// The same beside the pattern.
    pub const MEAN: &str = "mean_ns";
    pub const P99: &str = "p99_ns";
    /// Rate of the pattern itself.
    pub const CONGESTOR: &str = "congestor_bytes_per_s";
    /// Share of the victim's transfers later than both 1 us and 1 % of their time.
    pub const LATE_SHARE: &str = "late_share";
}

/// Rounds with a larger share of late transfers do not count: the machine was late, not the model.
const LATE: f64 = 0.01;

/// Fewest rounds that count without the late ones, and fewest pairs with an interval.
const FEWEST_ROUNDS: usize = 5;

/// Fewest samples of a round with a 99th percentile.
pub const FEWEST: usize = 100;

/// Draws of intervals.
const SEED: u64 = 1;

/// Conditions of a run.
pub struct Run {
    pub start: Instant,
    pub effort: Effort,
    /// The emulated torus.
    pub fabric: Option<FabricProfile>,
}

/// The result of a measurement over its rounds.
struct Found<'a> {
    key: Key,
    series: &'a Series,
    /// Rounds that count: those without many late transfers, or all if these are too few.
    counted: Vec<&'a Samples>,
    /// Rounds with many late transfers, and whether they count.
    late_rounds: usize,
    late_rounds_count: bool,
}

impl<'a> Found<'a> {
    fn of(key: Key, series: &'a Series) -> Self {
        let rounds = series.rounds();
        let is_late = |round: &Samples| round.figure(figure::LATE_SHARE) > Some(LATE);
        let good: Vec<&Samples> = rounds.iter().filter(|round| !is_late(round)).collect();
        let late_rounds = rounds.len() - good.len();
        let late_rounds_count = late_rounds > 0 && good.len() < FEWEST_ROUNDS;
        Found {
            key,
            series,
            late_rounds,
            late_rounds_count,
            counted: if late_rounds_count {
                rounds.iter().collect()
            } else {
                good
            },
        }
    }

    fn median(&self, name: &str) -> Option<f64> {
        let values = self.counted.iter().filter_map(|round| round.figure(name));
        median(&values.collect::<Vec<f64>>())
    }

    /// How many times longer operations take, by pairs of the same round, and the number of pairs.
    fn impact(&self, beside: &str, isolated: &str) -> (Option<Estimate>, usize) {
        let rounds = self.counted.iter();
        let pairs =
            rounds.filter_map(|round| Some((round.figure(beside)?, round.figure(isolated)?)));
        let pairs: Vec<_> = pairs.collect();
        (stats::of_ratio(&pairs, SEED), pairs.len())
    }

    fn row(&self) -> Row {
        let (mean, mean_rounds) = self.impact(figure::MEAN, figure::ISOLATED_MEAN);
        let (p99, p99_rounds) = self.impact(figure::P99, figure::ISOLATED_P99);
        let interval = |of: Option<Estimate>, rounds: usize| {
            let known = of.filter(|_| rounds >= FEWEST_ROUNDS);
            known.map(|found| found.interval)
        };
        let of_rounds = self.series.rounds().iter().filter_map(|round| {
            let isolated = round.figure(figure::ISOLATED_MEAN);
            stats::quotient(round.figure(figure::MEAN), isolated)
        });
        let row = Row::of(self.series)
            .rounds("mean_impact", of_rounds.collect())
            .label("test", self.key.test)
            .label("path", self.key.path)
            .label("bytes", self.key.test.bytes())
            .label("pattern", self.key.beside())
            .figure("mean_impact", mean.map(|found| found.value))
            .figure("mean_ci", interval(mean, mean_rounds))
            .figure("p99_impact", p99.map(|found| found.value))
            .figure("p99_ci", interval(p99, p99_rounds))
            .figure("p99_rounds", p99_rounds);
        let figures = [
            figure::ISOLATED_MEAN,
            figure::MEAN,
            figure::ISOLATED_P99,
            figure::P99,
            figure::CONGESTOR,
            figure::LATE_SHARE,
        ];
        let row = figures
            .into_iter()
            .fold(row, |row, name| row.figure(name, self.median(name)));
        row.figure("batch", self.series.batch())
            .figure("samples", self.series.count())
            .figure("counted_rounds", self.counted.len())
            .figure("late_rounds", self.late_rounds)
            .figure("late_rounds_count", self.late_rounds_count)
    }
}

const IMPACT: Show = |row, name| {
    let Some(impact) = row.known(name) else {
        return "-".into();
    };
    let interval = match row.get(interval_of(name)).as_array() {
        Some(ends) => {
            let ends = ends.iter().filter_map(|end| Some(digits(end.as_f64()?)));
            format!(" ({})", ends.collect::<Vec<_>>().join(" to "))
        }
        None => String::new(),
    };
    let rounds = match name {
        "p99_impact" if row.get("p99_rounds") != row.get("counted_rounds") => {
            format!(" of {}", row.text("p99_rounds"))
        }
        _ => String::new(),
    };
    format!("{}x{interval}{rounds}", digits(impact))
};

const ROUNDS: Show = |row, name| match row.known("late_rounds") {
    Some(late) if row.get("late_rounds_count") == true => {
        format!("{} with {late} late", row.text(name))
    }
    Some(late) if late > 0.0 => format!("{} + {late} late", row.text(name)),
    _ => row.text(name),
};

fn interval_of(impact: &str) -> &'static str {
    if impact == "mean_impact" {
        "mean_ci"
    } else {
        "p99_ci"
    }
}

impl Run {
    pub fn report(&self, measured: &[(Key, Series)], isolated: &[(Key, Series)]) -> Report {
        let found = measured.iter().map(|(key, series)| Found::of(*key, series));
        let rows: Vec<Row> = found.map(|found| found.row()).collect();
        let operations = Fields::default()
            .with("bytes", OPERATION)
            .with("depth", DEPTH)
            .with("pause_ns", pause(self.fabric.is_some()).as_nanos() as u64);
        let config = Fields::default()
            .with("fabric", &self.fabric)
            .with("operations", operations)
            .with("provider", "shm")
            .with("victims", VICTIMS)
            .with("congestors", CONGESTORS);
        let mut report = Report::new(self.effort, self.start, config);
        report.rows("rows", &rows);
        for (row, (_, series)) in rows.iter().zip(isolated) {
            report.samples("isolated", row.labels(), series.clone());
        }
        report.text = self.text(&rows);
        report
    }

    fn text(&self, rows: &[Row]) -> String {
        let columns = [
            ("victim", "test", TEXT),
            ("path", "path", TEXT),
            ("beside", "pattern", TEXT),
            ("mean alone", figure::ISOLATED_MEAN, TIME),
            ("beside", figure::MEAN, TIME),
            ("impact (95 %)", "mean_impact", IMPACT),
            ("p99 alone", figure::ISOLATED_P99, TIME),
            ("beside", figure::P99, TIME),
            ("impact (95 %)", "p99_impact", IMPACT),
            ("congestors", figure::CONGESTOR, RATE),
            ("rounds", "counted_rounds", ROUNDS),
        ];
        let links = match &self.fabric {
            Some(profile) => format!("links of an emulated torus ({})", profile.name),
            None => "no model of links: this machine itself".into(),
        };
        format!(
            "A victim's domain beside the traffic of another domain, {links}.\n{}. Shared memory stands \
             in for RDMA.\nThe row `isolated` is the control: its impact is the noise of this machine.\n\n\
             {}\n{:.0} s in all.\n",
            machine::describe(),
            table(rows, 3, &columns),
            self.start.elapsed().as_secs_f64(),
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::plan::keys;
    use super::*;

    /// Rounds in which all times are longer by a factor, beside a pattern three and five times.
    fn report_of(late_shares: &[f64]) -> (Report, Value) {
        report_with_p99(late_shares, usize::MAX)
    }

    /// The same, with a 99th percentile beside a pattern in the first rounds only.
    fn report_with_p99(late_shares: &[f64], p99_rounds: usize) -> (Report, Value) {
        let of = |key: Key| {
            let [mean, p99] = if key.pattern.is_some() {
                [3.0, 5.0]
            } else {
                [1.0, 1.0]
            };
            let mut series = Series::default();
            for (round, late_share) in (1..).zip(late_shares) {
                let has_p99 = key.pattern.is_none() || round as usize <= p99_rounds;
                let slow = f64::from(round) * if *late_share > LATE { 100.0 } else { 1.0 };
                let rate = key.pattern.map(|_| 1e9);
                series.add(
                    Samples::default()
                        .with(figure::ISOLATED_MEAN, 100.0 * f64::from(round))
                        .with(figure::ISOLATED_P99, 200.0 * f64::from(round))
                        .with(figure::MEAN, 100.0 * mean * slow)
                        .with(figure::P99, has_p99.then_some(200.0 * p99 * slow))
                        .with(figure::CONGESTOR, rate)
                        .with(figure::LATE_SHARE, *late_share),
                );
            }
            (key, series)
        };
        let measured: Vec<_> = keys(&[], &[]).into_iter().map(of).collect();
        let run = Run {
            start: Instant::now(),
            effort: Effort::Quick,
            fabric: Some(FabricProfile::bgp()),
        };
        let report = run.report(&measured, &measured);
        let json = json!(report);
        (report, json)
    }

    #[test]
    fn flows_without_a_model_of_links_pause_as_the_report_says() {
        let operations = |fabric| {
            let run = Run {
                start: Instant::now(),
                effort: Effort::Quick,
                fabric,
            };
            json!(run.report(&[], &[]))["config"]["operations"].clone()
        };
        let expected = |pause_ns| json!({"bytes": 65_536, "depth": 4, "pause_ns": pause_ns});
        assert_eq!(operations(None), expected(500_000));
        assert_eq!(operations(Some(FabricProfile::bgp())), expected(0));
    }

    #[test]
    fn impact_is_the_ratio_of_times_in_the_same_rounds() {
        let (report, json) = report_of(&[0.0, 0.0, 0.005, 0.0, 0.0]);
        let rows = json["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 24);
        for row in rows {
            let [mean, p99] = if row["pattern"] == "isolated" {
                [1.0, 1.0]
            } else {
                [3.0, 5.0]
            };
            assert_eq!(row["rounds_of"], "mean_impact");
            assert_eq!(row["rounds"], json!(vec![mean; 5]), "{row}");
            assert_eq!(row["p99_impact"], p99, "{row}");
            let low = row["mean_ci"][0].as_f64().unwrap();
            assert!(
                low <= mean && row["mean_ci"][1].as_f64() >= Some(mean),
                "{row}"
            );
            assert_eq!(
                row["congestor_bytes_per_s"].is_null(),
                row["pattern"] == "isolated"
            );
        }
        assert_eq!(rows[1]["id"], "latency rdma bytes=8 all-to-all");
        // A file of the same name may have other costs.
        assert_eq!(json["config"]["fabric"], json!(FabricProfile::bgp()));
        // The lines of `--raw`: all rounds of both.
        assert_eq!(report.raw().count(), 2 * 24 * 5);
        assert!(
            report.text.contains("3.00x (3.00 to 3.00)"),
            "{}",
            report.text
        );
    }

    #[test]
    fn few_pairs_have_no_interval_and_are_counted() {
        let (report, json) = report_with_p99(&[0.0; 6], 1);
        let row = &json["rows"][1];
        assert_eq!(
            (&row["p99_impact"], &row["p99_rounds"]),
            (&json!(5.0), &json!(1))
        );
        assert_eq!(
            (&row["p99_ci"], &row["mean_ci"]),
            (&Value::Null, &json!([3.0, 3.0]))
        );
        assert!(report.text.contains("5.00x of 1 "), "{}", report.text);
        assert_eq!(json["rows"][0]["p99_rounds"], 6);
        let (report, json) = report_with_p99(&[0.0; 4], 4);
        assert_eq!(json["rows"][1]["mean_ci"], Value::Null);
        assert!(!report.text.contains("x ("), "{}", report.text);
    }

    #[test]
    fn late_rounds_are_shown_and_count_only_if_few_others_are_left() {
        let (report, json) = report_of(&[0.0, 0.5, 0.0, 0.0, 0.0, 0.0]);
        let row = &json["rows"][1];
        let rounds = ["counted_rounds", "late_rounds", "late_rounds_count"];
        assert_eq!(
            rounds.map(|name| &row[name]),
            [&json!(5), &json!(1), &json!(false)]
        );
        assert_eq!(row["mean_ci"], json!([3.0, 3.0]));
        assert_eq!(row["rounds"][1], 300.0);
        assert!(report.text.contains("5 + 1 late"), "{}", report.text);
        let (report, json) = report_of(&[0.5, 0.0, 0.5, 0.5]);
        let row = &json["rows"][1];
        assert_eq!(
            rounds.map(|name| &row[name]),
            [&json!(4), &json!(3), &json!(true)]
        );
        assert!(report.text.contains("4 with 3 late"), "{}", report.text);
        // The medians of all, 100 times as long in most.
        assert!(row["mean_impact"].as_f64() > Some(100.0), "{row}");
    }
}
