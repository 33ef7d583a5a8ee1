//! The summary of a list of values.

use serde::Serialize;
use statrs::distribution::{Binomial, DiscreteCDF};

use super::{Interval, quantile};

/// Longest whisker, in distances between the quartiles (Tukey, 1977).
const WHISKER: f64 = 1.5;

/// Median and spread of a list of values.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The middle.
    pub median: f64,
    /// The interval of 95 % of the median, whatever the distribution: between two of the values.
    /// `None` for fewer than six, which no such interval has.
    pub ci: Option<Interval>,
    /// The first and the third quartile.
    pub quartiles: Interval,
    /// The outermost values within 1.5 distances of the quartiles.
    pub whiskers: Interval,
    /// Number of values beyond the whiskers.
    pub outliers: usize,
    /// Quartile coefficient of dispersion: the distance of the quartiles over their sum.
    pub qcd: f64,
    /// The values.
    pub rounds: Vec<f64>,
}

impl Summary {
    /// The summary of positive `values`; `None` without values.
    pub fn of(values: &[f64]) -> Option<Self> {
        let at = |q| quantile(values, q);
        let quartiles = Interval {
            low: at(0.25)?,
            high: at(0.75)?,
        };
        let reach = WHISKER * (quartiles.high - quartiles.low);
        let inside =
            |value: &&f64| (quartiles.low - reach..=quartiles.high + reach).contains(*value);
        let inside = values.iter().filter(inside);
        Some(Summary {
            median: at(0.5)?,
            ci: interval(values),
            quartiles,
            whiskers: Interval {
                low: inside.clone().copied().reduce(f64::min)?,
                high: inside.clone().copied().reduce(f64::max)?,
            },
            outliers: values.len() - inside.count(),
            qcd: (quartiles.high - quartiles.low) / (quartiles.high + quartiles.low),
            rounds: values.into(),
        })
    }
}

/// The interval of the median between the k-th values from both ends, where k is
/// `qbinom(0.025, n, 0.5)` of R (Conover, 1971).
fn interval(values: &[f64]) -> Option<Interval> {
    let below = Binomial::new(0.5, values.len() as u64).ok()?;
    let rank = below.inverse_cdf((1.0 - super::LEVEL) / 2.0) as usize;
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    Some(Interval {
        low: *sorted.get(rank.checked_sub(1)?)?,
        high: *sorted.get(values.len() - rank)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By R: `quantile(x)`, and from it the fences -3.5 and 14.5.
    #[test]
    fn a_summary_has_quartiles_whiskers_and_dispersion() {
        let found = Summary::of(&[100.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0]).unwrap();
        let ends = |interval: Interval| [interval.low, interval.high];
        assert_eq!(found.median, 5.5);
        assert_eq!(ends(found.quartiles), [3.25, 7.75]);
        assert_eq!(ends(found.whiskers), [1.0, 9.0]);
        assert_eq!((found.outliers, found.qcd), (1, 4.5 / 11.0));
        assert_eq!(found.ci.map(ends), Some([2.0, 9.0]));
        assert_eq!(Summary::of(&[]), None);
    }

    /// `qbinom(0.025, n, 0.5)` of R for n of 5, 6, 8, 9, 20, 25, 50 and 100.
    #[test]
    fn intervals_of_medians_are_between_the_values_of_the_binomial_distribution() {
        let lows = [
            (6, 1),
            (8, 1),
            (9, 2),
            (20, 6),
            (25, 8),
            (50, 18),
            (100, 40),
        ];
        for (count, low) in lows {
            let values: Vec<f64> = (1..=count).map(f64::from).collect();
            let found = interval(&values).unwrap();
            let high = count + 1 - low;
            assert_eq!([found.low, found.high], [f64::from(low), f64::from(high)]);
        }
        assert_eq!(interval(&[1.0, 2.0, 3.0, 4.0, 5.0]), None);
    }
}
