//! Rows of measured times: base, changed, and the difference with its interval.

use super::plan::Case;
use crate::report::Fields;
use crate::samples::Series;
use crate::stats::{Estimate, estimate, median};
use crate::worker::micro::script::Script;

/// Seed of the intervals, the same in all runs.
const SEED: u64 = 4;

/// Measured times of scripts.
pub type Times = [(Script, Series)];

/// A measured row.
#[derive(Clone, Debug)]
pub struct Row {
    pub case: Case,
    /// Base and changed of each round, in nanoseconds.
    rounds: Vec<(f64, f64)>,
}

impl Row {
    /// The row of a case over all rounds.
    pub fn of(case: &Case, times: &Times) -> Self {
        Self::between(case, times, times)
    }

    /// The row of a case whose base was measured on another path.
    pub fn between(case: &Case, base: &Times, changed: &Times) -> Self {
        let of_round = |round: usize| {
            let time = |times: &Times, wanted: &Script| {
                let (_, series) = times.iter().find(|(script, _)| script == wanted)?;
                median(&series.rounds().get(round)?.samples_ns)
            };
            let base = case.base.value(|script| time(base, script))?;
            Some((base, case.changed.value(|script| time(changed, script))?))
        };
        Row {
            case: case.clone(),
            rounds: (0..).map_while(of_round).collect(),
        }
    }

    pub fn base(&self) -> Option<f64> {
        median(&self.of_rounds(|(base, _)| *base))
    }

    pub fn changed(&self) -> Option<f64> {
        median(&self.of_rounds(|(_, changed)| *changed))
    }

    /// The difference of both medians.
    pub fn cost(&self) -> Option<Estimate> {
        estimate(&self.rounds, SEED, |rounds| {
            let (base, changed): (Vec<f64>, Vec<f64>) = rounds.iter().copied().unzip();
            Some(median(&changed)? - median(&base)?)
        })
    }

    /// Bytes per second, of a row whose time is that of a message.
    pub fn rate(&self) -> Option<f64> {
        Some(self.case.bytes as f64 * 1e9 / self.changed().filter(|&time| time > 0.0)?)
    }

    fn of_rounds(&self, of: impl Fn(&(f64, f64)) -> f64) -> Vec<f64> {
        self.rounds.iter().map(of).collect()
    }

    /// Labels and figures, as in JSON.
    pub fn fields(&self, path: &str, preset: Option<&str>) -> Fields {
        let labels = Fields::default()
            .with("layer", self.case.layer())
            .with("test", self.case.test)
            .with("path", path)
            .with("preset", preset)
            .with("bytes", self.case.bytes)
            .with("x", self.case.x);
        let figures = labels.clone();
        figures
            .with("base_ns", self.base())
            .with("p50_ns", self.changed())
            .with("cost_ns", self.cost().map(|cost| cost.value))
            .with("ci", self.cost().map(|cost| cost.interval))
            .compared(&labels, "p50_ns", self.of_rounds(|(_, changed)| *changed))
    }
}

/// The message size with half of the highest rate, in bytes, between the two sizes around it.
pub fn half_peak(rows: &[Row]) -> Option<f64> {
    let bandwidth = rows.iter().filter(|row| row.case.test == "bandwidth");
    let points: Option<Vec<(f64, f64)>> = bandwidth
        .map(|row| Some((row.case.bytes as f64, row.rate()?)))
        .collect();
    let points = points?;
    let half = points.iter().map(|(_, rate)| *rate).reduce(f64::max)? / 2.0;
    let above = points.iter().position(|(_, rate)| *rate >= half)?;
    let (bytes, rate) = points[above];
    let Some((below, slower)) = above.checked_sub(1).map(|below| points[below]) else {
        return Some(bytes);
    };
    Some(below + (bytes - below) * (half - slower) / (rate - slower))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::micro::plan::Formula;
    use crate::samples::Samples;
    use crate::worker::micro::script::Pattern;

    fn series(rounds: &[&[f64]]) -> Series {
        let mut series = Series::default();
        for round in rounds {
            series.add(Samples {
                samples_ns: round.to_vec(),
                ..Samples::default()
            });
        }
        series
    }

    fn row(test: &'static str, bytes: usize, times: &Times) -> Row {
        let [base, changed] = [0, 1].map(|at| Formula::from(times[at].0));
        let case = Case {
            test,
            bytes,
            x: 0,
            base,
            changed,
        };
        Row::of(&case, times)
    }

    #[test]
    fn a_cost_is_the_difference_of_medians_over_rounds() {
        let scripts = [4, 8].map(|bytes| Script::new(Pattern::PingPong, bytes));
        let times = [
            (
                scripts[0],
                series(&[&[10.0, 11.0, 900.0], &[12.0], &[10.0]]),
            ),
            (scripts[1], series(&[&[20.0], &[22.0], &[21.0]])),
        ];
        let row = row("latency", 8, &times);
        let cost = row.cost().unwrap();
        assert_eq!((row.base(), row.changed()), (Some(11.0), Some(21.0)));
        assert_eq!(cost.value, 10.0);
        assert!(cost.interval.low >= 9.0 && cost.interval.high <= 12.0);
        let json = serde_json::json!(row.fields("shm", None));
        assert_eq!(json["rounds"], serde_json::json!([20.0, 22.0, 21.0]));
    }

    #[test]
    fn half_of_the_peak_lies_between_two_sizes() {
        let row = |bytes: usize, rate: f64| {
            let script = |bytes| Script::new(Pattern::PingPong, bytes);
            let time = bytes as f64 * 1e9 / rate;
            let times = [
                (script(0), series(&[&[1.0]])),
                (script(bytes), series(&[&[time]])),
            ];
            row("bandwidth", bytes, &times)
        };
        let rows = [row(100, 1e6), row(200, 4e6), row(400, 8e6), row(800, 10e6)];
        let half = half_peak(&rows).unwrap();
        assert!((half - 250.0).abs() < 1e-6, "{half}");
        assert_eq!(half_peak(&rows[3..]), Some(800.0));
        assert_eq!(half_peak(&[]), None);
    }
}
