//! Statistics of samples and rounds: quantiles, and confidence intervals of medians by the percentile
//! bootstrap (Efron, 1979).
//!
//! The unit of an interval is a round: rounds are drawn with replacement, and figures of one round
//! stay together, because the machine may be slower in some rounds for all measurements.

use serde::{Serialize, Serializer};

/// Draws of a bootstrap.
const DRAWS: usize = 2000;

/// Confidence of intervals.
const LEVEL: f64 = 0.95;

/// A confidence interval of 95 %, in JSON a list of both ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// The lower end.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

impl Interval {
    /// The interval between the images of both ends under a rising function.
    pub fn map(self, of: impl Fn(f64) -> f64) -> Self {
        Interval {
            low: of(self.low),
            high: of(self.high),
        }
    }
}

impl Serialize for Interval {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        [self.low, self.high].serialize(to)
    }
}

/// An estimate with its interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The value over all rounds.
    pub value: f64,
    /// The interval over draws of rounds.
    pub interval: Interval,
}

/// Ratio of the medians of two values per round, given as (over, under); `None` without rounds or
/// if the median below is not positive.
pub fn of_ratio(rounds: &[(f64, f64)], seed: u64) -> Option<Estimate> {
    estimate(rounds, seed, |rounds| {
        let (over, under): (Vec<f64>, Vec<f64>) = rounds.iter().copied().unzip();
        quotient(median(&over), median(&under))
    })
}

/// The value of `of` over all rounds, and its interval over draws of as many rounds; `None` if `of`
/// has no value, as without rounds.
pub fn estimate<T: Copy>(
    rounds: &[T],
    seed: u64,
    of: impl Fn(&[T]) -> Option<f64>,
) -> Option<Estimate> {
    let value = of(rounds)?;
    let mut random = fastrand::Rng::with_seed(seed);
    let draw = |_| {
        let drawn: Vec<T> = rounds
            .iter()
            .map(|_| rounds[random.usize(..rounds.len())])
            .collect();
        of(&drawn)
    };
    let drawn: Vec<f64> = (0..DRAWS).filter_map(draw).collect();
    let tail = (1.0 - LEVEL) / 2.0;
    let interval = Interval {
        low: quantile(&drawn, tail)?,
        high: quantile(&drawn, 1.0 - tail)?,
    };
    Some(Estimate { value, interval })
}

/// Quantile `q` of `values` by linear interpolation between the two nearest: type 7 of Hyndman and
/// Fan (1996), the default of R and NumPy. `None` without values.
pub fn quantile(values: &[f64], q: f64) -> Option<f64> {
    let last = values.len().checked_sub(1)?;
    let place = q.clamp(0.0, 1.0) * last as f64;
    let mut sorted = values.to_vec();
    let (_, &mut lower, above) = sorted.select_nth_unstable_by(place as usize, f64::total_cmp);
    let upper = above.iter().copied().min_by(f64::total_cmp);
    Some(upper.map_or(lower, |upper| lower + place.fract() * (upper - lower)))
}

/// Median of `values`: the middle one, or the mean of the two middle ones.
pub fn median(values: &[f64]) -> Option<f64> {
    quantile(values, 0.5)
}

/// `over / under`; `None` if a figure is missing or `under` is not positive.
pub fn quotient(over: Option<f64>, under: Option<f64>) -> Option<f64> {
    Some(over? / under.filter(|&under| under > 0.0)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `quantile(x, c(0, .1, .25, .5, .9, 1))` of R, by its formula: the value at 1 + 5 q.
    #[test]
    fn quantiles_are_those_of_type_7() {
        let values = [15.0, 20.0, 35.0, 40.0, 50.0, 3.0];
        let found = [0.0, 0.1, 0.25, 0.5, 0.9, 1.0].map(|q| quantile(&values, q).unwrap());
        assert_eq!(found, [3.0, 9.0, 16.25, 27.5, 45.0, 50.0]);
        assert_eq!(quantile(&[7.0], 0.99), Some(7.0));
        assert_eq!(quantile(&[], 0.5), None);
        assert_eq!(median(&[1.0, 3.0]), Some(2.0));
        assert_eq!(median(&[9.0, 1.0, 3.0]), Some(3.0));
    }

    /// A drawn median is at most the k-th of n values if half of the draws are: a binomial
    /// distribution. So the ends of the interval are known, the first value with more than 2.5 %:
    /// 5.8 % for the 1st of 5; 1.0 and 10.8 % for the 1st and 2nd of 7; 0.7 and 5.1 % for the 2nd
    /// and 3rd of 11.
    #[test]
    fn the_ends_are_those_of_the_exact_distribution() {
        for (count, low) in [(1, 1), (3, 1), (5, 1), (7, 2), (11, 3)] {
            let rounds: Vec<f64> = (1..=count).rev().map(f64::from).collect();
            for seed in 0..20 {
                let found = estimate(&rounds, seed, median).unwrap();
                assert_eq!(found.value, f64::from(count + 1) / 2.0);
                let high = count + 1 - low;
                assert_eq!(
                    [found.interval.low, found.interval.high],
                    [f64::from(low), f64::from(high)],
                    "{count} rounds, seed {seed}"
                );
            }
        }
    }

    #[test]
    fn a_seed_gives_one_result() {
        let rounds: Vec<(f64, f64)> = (0..12)
            .map(|n| (f64::from(n * n % 13) + 20.0, f64::from(n * 5 % 7) + 10.0))
            .collect();
        let found = of_ratio(&rounds, 7).unwrap();
        let golden = [found.value, found.interval.low, found.interval.high];
        assert_eq!(
            golden.map(|value| (value * 1e4).round()),
            [20385.0, 15484.0, 26364.0]
        );
        assert_eq!(of_ratio(&rounds, 7), Some(found));
    }

    #[test]
    fn a_slow_round_of_both_changes_no_ratio() {
        let rounds = [1.0, 1.0, 9.0, 1.0, 1.0, 7.0, 1.0].map(|slow| (2.0 * slow, slow));
        let found = of_ratio(&rounds, 0).unwrap();
        let both = Interval {
            low: 2.0,
            high: 2.0,
        };
        assert_eq!((found.value, found.interval), (2.0, both));
    }

    #[test]
    fn the_interval_holds_the_true_ratio_as_often_as_it_says() {
        let holds = |seed: &u64| {
            let mut random = fastrand::Rng::with_seed(*seed);
            // Triangular noise of 10 %.
            let mut noisy = |mean: f64| mean * (0.9 + 0.1 * (random.f64() + random.f64()));
            let rounds: Vec<(f64, f64)> = (0..15).map(|_| (noisy(1.05), noisy(1.0))).collect();
            let interval = of_ratio(&rounds, *seed).unwrap().interval;
            interval.low <= 1.05 && 1.05 <= interval.high
        };
        let held = (0..400).filter(holds).count();
        assert!((365..=396).contains(&held), "{held} of 400");
    }

    #[test]
    fn nothing_measured_is_no_estimate() {
        assert_eq!(estimate(&[], 0, median), None);
        assert_eq!(of_ratio(&[(1.0, 0.0)], 0), None);
    }
}
