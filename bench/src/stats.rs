//! Samples and what is made of them: exact percentiles of all samples, and medians over rounds.

use serde::{Deserialize, Serialize};

/// What one measurement gave in one round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Slice {
    /// Operations per sample: a sample is the mean of so many.
    pub batch: u32,
    /// Time of one operation in nanoseconds, for each sample; empty for streams.
    pub samples_ns: Vec<f64>,
    /// Operations counted.
    pub ops: u64,
    /// Payload bytes of these operations, in one direction.
    pub bytes: u64,
    /// The time that they took in nanoseconds, without preparation and checks.
    pub elapsed_ns: u64,
    /// Operations that failed or gave wrong bytes.
    pub errors: u64,
}

impl Slice {
    /// Adds what was measured next in the same way, as if it had been one measurement.
    pub fn extend(&mut self, next: &Slice) {
        self.batch = next.batch;
        self.samples_ns.extend(&next.samples_ns);
        self.ops += next.ops;
        self.bytes += next.bytes;
        self.elapsed_ns += next.elapsed_ns;
        self.errors += next.errors;
    }
}

/// All rounds of one measurement.
#[derive(Clone, Debug, Default)]
pub struct Series {
    samples_ns: Vec<f64>,
    ops_per_s: Vec<f64>,
    bytes_per_s: Vec<f64>,
    batch: Option<u32>,
    errors: u64,
}

impl Series {
    /// Adds a round.
    pub fn add(&mut self, slice: &Slice) {
        self.samples_ns.extend(&slice.samples_ns);
        self.batch = Some(slice.batch);
        self.errors += slice.errors;
        if slice.elapsed_ns > 0 {
            let seconds = slice.elapsed_ns as f64 / 1e9;
            self.ops_per_s.push(slice.ops as f64 / seconds);
            self.bytes_per_s.push(slice.bytes as f64 / seconds);
        }
    }

    /// Operations per sample, the same in every round; `None` before the first.
    pub fn batch(&self) -> Option<u32> {
        self.batch
    }

    /// Operations that failed or gave wrong bytes, in all rounds.
    pub fn errors(&self) -> u64 {
        self.errors
    }

    /// Samples of time in all rounds; for a stream, its rounds.
    pub fn samples(&self) -> u64 {
        match self.samples_ns.len() {
            0 => self.ops_per_s.len() as u64,
            samples => samples as u64,
        }
    }

    /// The time of an operation in nanoseconds that the fraction `q` of all samples do not
    /// exceed; `None` for streams.
    pub fn quantile_ns(&self, q: f64) -> Option<f64> {
        quantile(&self.samples_ns, q)
    }

    /// Operations per second: the median over rounds.
    pub fn ops_per_s(&self) -> Option<f64> {
        median(&self.ops_per_s)
    }

    /// Payload bytes per second: the median over rounds.
    pub fn bytes_per_s(&self) -> Option<f64> {
        median(&self.bytes_per_s)
    }
}

/// The smallest of `values` that at least the fraction `q` of them do not exceed (nearest rank).
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let rank = (q * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.saturating_sub(1)).copied()
}

/// The middle of `values`, or the mean of the two middle ones.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    match sorted.len() % 2 {
        0 => Some((sorted[sorted.len() / 2 - 1] + upper) / 2.0),
        _ => Some(upper),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples_by_nearest_rank() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(quantile(&values, 0.5), Some(50.0));
        assert_eq!(quantile(&values, 0.99), Some(99.0));
        assert_eq!(quantile(&values, 1.0), Some(100.0));
        assert_eq!(quantile(&[7.0], 0.5), Some(7.0));
        assert_eq!(quantile(&[], 0.5), None);
    }

    #[test]
    fn throughput_is_the_median_over_rounds() {
        let mut series = Series::default();
        for (ops, errors) in [(10, 0), (1000, 1), (30, 2)] {
            series.add(&Slice {
                batch: 1,
                ops,
                bytes: 8 * ops,
                elapsed_ns: 1_000_000_000,
                errors,
                ..Slice::default()
            });
        }
        assert_eq!(series.ops_per_s(), Some(30.0));
        assert_eq!(series.bytes_per_s(), Some(240.0));
        assert_eq!((series.errors(), series.samples()), (3, 3));
        assert_eq!(series.quantile_ns(0.5), None);
        assert_eq!(median(&[1.0, 3.0]), Some(2.0));
    }

    #[test]
    fn a_round_in_which_nothing_happened_counts_its_errors_only() {
        let mut series = Series::default();
        series.add(&Slice {
            errors: 5,
            ..Slice::default()
        });
        assert_eq!(series.errors(), 5);
        assert_eq!(series.ops_per_s(), None);
    }
}
