//! Samples of a measurement, and figures of them: quantiles, and medians over rounds.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::stats::{median, quantile, quotient};

/// Samples of one measurement in one round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Samples {
    /// Operations per sample; a sample is their mean.
    pub batch: u32,
    /// Time per operation in nanoseconds, one for each sample; empty for streams.
    pub samples_ns: Vec<f64>,
    /// Operations counted.
    pub ops: u64,
    /// Payload bytes of these operations, in one direction.
    pub bytes: u64,
    /// Duration of these operations in nanoseconds, without preparation and checks.
    pub elapsed_ns: u64,
    /// Operations that failed or gave wrong bytes.
    pub errors: u64,
    /// Further figures of this round, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<Cow<'static, str>, f64>,
}

impl Samples {
    /// No samples, only errors.
    pub fn errors(errors: u64) -> Self {
        Samples {
            errors,
            ..Samples::default()
        }
    }

    /// Adds a figure, if there is a value.
    pub fn with(mut self, name: &'static str, value: impl Into<Option<f64>>) -> Self {
        if let Some(value) = value.into() {
            self.figures.insert(name.into(), value);
        }
        self
    }

    pub fn figure(&self, name: &str) -> Option<f64> {
        self.figures.get(name).copied()
    }

    /// Counts one operation, and takes its duration as a sample if `is_sampled`.
    pub fn record(&mut self, took: Duration, bytes: usize, is_sampled: bool) {
        if is_sampled {
            self.samples_ns.push(took.as_nanos() as f64);
        }
        self.batch = 1;
        self.ops += 1;
        self.bytes += bytes as u64;
        self.elapsed_ns += took.as_nanos() as u64;
    }

    /// Adds samples of the same measurement to this round.
    pub fn extend(&mut self, next: &Samples) {
        self.batch = next.batch;
        self.samples_ns.extend(&next.samples_ns);
        self.ops += next.ops;
        self.bytes += next.bytes;
        self.elapsed_ns += next.elapsed_ns;
        self.errors += next.errors;
        for (name, value) in &next.figures {
            *self.figures.entry(name.clone()).or_default() += value;
        }
    }

    /// Quantile `q` of the time per operation, in nanoseconds.
    pub fn quantile_ns(&self, q: f64) -> Option<f64> {
        quantile(&self.samples_ns, q)
    }

    /// Operations per second; `None` if nothing was timed.
    pub fn ops_per_s(&self) -> Option<f64> {
        self.per_second(self.ops)
    }

    /// Payload bytes per second; `None` if nothing was timed.
    pub fn bytes_per_s(&self) -> Option<f64> {
        self.per_second(self.bytes)
    }

    fn per_second(&self, count: u64) -> Option<f64> {
        (self.elapsed_ns > 0).then(|| count as f64 * 1e9 / self.elapsed_ns as f64)
    }
}

/// Parts of a measurement in a single round.
const PARTS: usize = 10;

/// All rounds of one measurement.
#[derive(Clone, Debug, Default)]
pub struct Series {
    rounds: Vec<Samples>,
}

impl From<Samples> for Series {
    fn from(samples: Samples) -> Self {
        let rounds = vec![samples];
        Series { rounds }
    }
}

impl Series {
    pub fn add(&mut self, round: Samples) {
        self.rounds.push(round);
    }

    pub fn rounds(&self) -> &[Samples] {
        &self.rounds
    }

    /// Operations per sample, equal in all rounds; `None` before the first round.
    pub fn batch(&self) -> Option<u32> {
        Some(self.rounds.last()?.batch)
    }

    /// Failed or wrong operations of all rounds.
    pub fn errors(&self) -> u64 {
        self.rounds.iter().map(|round| round.errors).sum()
    }

    /// Number of time samples; of a stream, number of rounds.
    pub fn count(&self) -> u64 {
        let rounds = self.rounds.iter();
        match rounds.map(|round| round.samples_ns.len()).sum::<usize>() {
            0 => self.values(Samples::ops_per_s).len() as u64,
            samples => samples as u64,
        }
    }

    /// Quantile `q` of the time per operation over all rounds, in nanoseconds; `None` for streams.
    pub fn quantile_ns(&self, q: f64) -> Option<f64> {
        let all: Vec<f64> = self
            .rounds
            .iter()
            .flat_map(|r| &r.samples_ns)
            .copied()
            .collect();
        quantile(&all, q)
    }

    /// Operations per second, median over rounds.
    pub fn ops_per_s(&self) -> Option<f64> {
        self.median(Samples::ops_per_s)
    }

    /// Payload bytes per second, median over rounds.
    pub fn bytes_per_s(&self) -> Option<f64> {
        self.median(Samples::bytes_per_s)
    }

    /// Payload bytes per second of each round.
    pub fn rates(&self) -> Vec<f64> {
        self.values(Samples::bytes_per_s)
    }

    /// Median over rounds of a value of each round.
    pub fn median(&self, of: impl Fn(&Samples) -> Option<f64>) -> Option<f64> {
        median(&self.values(of))
    }

    /// Sum over rounds of a figure; 0 if no round has the figure.
    pub fn sum(&self, name: &str) -> f64 {
        self.figures(name).iter().sum()
    }

    /// Median over rounds of the quotient of two measurements in the same round, because the
    /// machine may be slower in some rounds for both.
    pub fn ratio(&self, under: &Series, of: impl Fn(&Samples) -> Option<f64>) -> Option<f64> {
        let pairs = self.rounds.iter().zip(&under.rounds);
        let each = pairs.filter_map(|(over, under)| quotient(of(over), of(under)));
        median(&each.collect::<Vec<f64>>())
    }

    /// A figure of each round, without the rounds that lack the figure.
    pub fn figures(&self, name: &str) -> Vec<f64> {
        self.values(|round| round.figure(name))
    }

    /// The medians of the rounds, and the name of their figure: the time per operation, or the rate
    /// of a stream. A single round counts as [`PARTS`] rounds: consecutive parts of its samples.
    pub fn medians(&self) -> (&'static str, Vec<f64>) {
        let timed = self.rounds.iter().filter(|round| round.ops > 0);
        let timed: Vec<&[f64]> = timed.map(|round| round.samples_ns.as_slice()).collect();
        let medians: Vec<f64> = match timed[..] {
            [all] => all
                .chunks(all.len().div_ceil(PARTS).max(1))
                .filter_map(median)
                .collect(),
            _ => timed.into_iter().filter_map(median).collect(),
        };
        let bytes_per_s = self.values(|round| round.bytes_per_s().filter(|rate| *rate > 0.0));
        if !medians.is_empty() {
            ("p50_ns", medians)
        } else if !bytes_per_s.is_empty() {
            ("bytes_per_s", bytes_per_s)
        } else {
            ("ops_per_s", self.values(Samples::ops_per_s))
        }
    }

    fn values(&self, of: impl Fn(&Samples) -> Option<f64>) -> Vec<f64> {
        self.rounds.iter().filter_map(of).collect()
    }
}

/// The value of `key` in a list in order of first appearance, added if absent.
pub fn entry<K: PartialEq, V: Default>(list: &mut Vec<(K, V)>, key: K) -> &mut V {
    let known = list.iter().position(|(known, _)| *known == key);
    let at = known.unwrap_or_else(|| {
        list.push((key, V::default()));
        list.len() - 1
    });
    &mut list[at].1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(ops: u64, errors: u64) -> Samples {
        Samples {
            batch: 1,
            ops,
            bytes: 8 * ops,
            elapsed_ns: 1_000_000_000,
            errors,
            ..Samples::default()
        }
    }

    #[test]
    fn throughput_is_the_median_over_rounds() {
        let mut series = Series::default();
        for (ops, errors) in [(10, 0), (1000, 1), (30, 2)] {
            series.add(round(ops, errors));
        }
        assert_eq!(series.ops_per_s(), Some(30.0));
        assert_eq!(series.bytes_per_s(), Some(240.0));
        assert_eq!((series.errors(), series.count()), (3, 3));
        assert_eq!(series.quantile_ns(0.5), None);
    }

    #[test]
    fn a_round_without_operations_counts_only_its_errors() {
        let series = Series::from(Samples::errors(5));
        assert_eq!((series.errors(), series.count()), (5, 0));
        assert_eq!(series.ops_per_s(), None);
    }

    #[test]
    fn medians_of_rounds_are_times_or_else_rates() {
        let mut series = Series::from(Samples::errors(1));
        assert_eq!(series.medians(), ("ops_per_s", vec![]));
        series.add(round(10, 0));
        series.add(round(20, 0));
        assert_eq!(series.medians(), ("bytes_per_s", vec![80.0, 160.0]));
        for samples_ns in [vec![1.0, 3.0, 9.0], vec![4.0, 6.0]] {
            series.add(Samples {
                samples_ns,
                ..round(3, 0)
            });
        }
        assert_eq!(series.medians(), ("p50_ns", vec![3.0, 5.0]));
    }

    #[test]
    fn a_single_round_counts_as_several() {
        let medians = |count: u32| {
            let samples = Samples {
                samples_ns: (0..count).map(f64::from).collect(),
                ..round(1, 0)
            };
            Series::from(samples).medians().1
        };
        assert_eq!(medians(3), [0.0, 1.0, 2.0]);
        let tenths: Vec<f64> = (0..10).map(|part| 5.0 * f64::from(part) + 2.0).collect();
        assert_eq!(medians(50), tenths);
        assert_eq!(medians(51).len(), 9);
    }

    #[test]
    fn ratio_is_the_median_of_the_rounds_ratios() {
        let (mut over, mut under) = (Series::default(), Series::default());
        for (fast, slow) in [(8, 10), (1, 2), (40, 50)] {
            over.add(round(fast, 0));
            under.add(round(slow, 0));
        }
        assert_eq!(over.ratio(&under, Samples::ops_per_s), Some(0.8));
        assert_eq!(over.ops_per_s(), Some(8.0));
        assert_eq!(over.ratio(&Series::default(), Samples::ops_per_s), None);
        assert_eq!(over.median(|round| round.figure("pps")), None);
    }
}
