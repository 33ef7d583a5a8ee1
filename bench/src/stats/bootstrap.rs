//! Intervals by the percentile bootstrap (Efron, 1979).
//!
//! The unit is a round: rounds are drawn with replacement, and figures of one round stay together,
//! because the machine may be slower in some rounds for all measurements.

use super::{Interval, LEVEL, median, quantile, quotient};

/// Draws of a bootstrap.
const DRAWS: usize = 2000;

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

/// Ratio of the medians of two lists of rounds that do not belong together; `None` if one is empty
/// or the median below is not positive.
pub fn of_unpaired_ratio(over: &[f64], under: &[f64], seed: u64) -> Option<Estimate> {
    let value = quotient(median(over), median(under))?;
    let mut random = fastrand::Rng::with_seed(seed);
    spread(value, || {
        let [over, under] = [over, under].map(|rounds| median(&drawn(rounds, &mut random)));
        quotient(over, under)
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
    spread(value, || of(&drawn(rounds, &mut random)))
}

/// As many rounds, drawn with replacement.
fn drawn<T: Copy>(rounds: &[T], random: &mut fastrand::Rng) -> Vec<T> {
    let draw = |_| rounds[random.usize(..rounds.len())];
    (0..rounds.len()).map(draw).collect()
}

/// The percentile interval of values that `draw` returns.
fn spread(value: f64, mut draw: impl FnMut() -> Option<f64>) -> Option<Estimate> {
    let drawn: Vec<f64> = (0..DRAWS).filter_map(|_| draw()).collect();
    let tail = (1.0 - LEVEL) / 2.0;
    let interval = Interval {
        low: quantile(&drawn, tail)?,
        high: quantile(&drawn, 1.0 - tail)?,
    };
    Some(Estimate { value, interval })
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// The ends are those of the exact distribution: of three values the largest is the median of a
    /// draw with 7 in 27, so both extremes meet with 6.7 %, more than 2.5 %.
    #[test]
    fn rounds_that_do_not_belong_together_are_drawn_apart() {
        let (over, under) = ([2.0, 8.0, 4.0], [2.0, 1.0, 4.0]);
        let found = of_unpaired_ratio(&over, &under, 3).unwrap();
        let interval = Interval {
            low: 0.5,
            high: 8.0,
        };
        assert_eq!((found.value, found.interval), (2.0, interval));
        assert_eq!(of_unpaired_ratio(&over, &under, 3), Some(found));
        let pairs: Vec<(f64, f64)> = [2.0, 4.0, 8.0].map(|slow| (2.0 * slow, slow)).into();
        assert_eq!(of_ratio(&pairs, 3).unwrap().interval.high, 2.0);
        assert_eq!(of_unpaired_ratio(&[], &under, 3), None);
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
