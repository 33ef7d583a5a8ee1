//! Statistics of samples and rounds.
//!
//! * This module: means, quantiles and intervals.
//! * [`summary`]: median, quartiles, whiskers and dispersion of a list of values.
//! * [`bootstrap`]: intervals of medians and of their ratios.
//! * [`location`]: tests of differences, and their correction where there are many.

mod bootstrap;
mod location;
mod summary;

use serde::{Serialize, Serializer};

pub use bootstrap::{Estimate, estimate, of_ratio, of_unpaired_ratio};
pub use location::{Location, holm};
pub use summary::Summary;

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

/// Arithmetic mean of `values`; `None` without values.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
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
        assert_eq!([mean(&[1.0, 3.0, 8.0]), mean(&[])], [Some(4.0), None]);
        assert_eq!(median(&[1.0, 3.0]), Some(2.0));
        assert_eq!(median(&[9.0, 1.0, 3.0]), Some(3.0));
    }
}
