//! The difference between two lists of values, tested without trust in a normal distribution.
//!
//! Means are trimmed and variances winsorized (Yuen, 1974), a fifth at each end: rounds in which the
//! machine did other work change neither. Tests by ranks cannot decide between many rows of few
//! rounds: two lists of seven never give a smaller p-value than 0.0006.

use statrs::distribution::{ContinuousCDF, StudentsT};

/// An estimate of a location or of a difference of locations, with its standard error.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Location {
    mean: f64,
    error: f64,
    /// Degrees of freedom of Student's distribution.
    freedom: f64,
}

impl Location {
    /// The trimmed mean of `values`; `None` for fewer than two.
    pub fn of(values: &[f64]) -> Option<Self> {
        let count = values.len();
        let trimmed = count / 5;
        let kept = (count - 2 * trimmed) as f64;
        if count < 2 {
            return None;
        }
        let mut sorted = values.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let mean = sorted[trimmed..count - trimmed].iter().sum::<f64>() / kept;
        let [low, high] = [sorted[trimmed], sorted[count - 1 - trimmed]];
        let winsorized = sorted.iter().map(|value| value.clamp(low, high));
        let middle = winsorized.clone().sum::<f64>() / count as f64;
        let squares: f64 = winsorized.map(|value| (value - middle).powi(2)).sum();
        Some(Location {
            mean,
            error: (squares / (kept * (kept - 1.0))).sqrt(),
            freedom: kept - 1.0,
        })
    }

    /// The difference to an independent location (Welch, 1947).
    pub fn minus(self, other: Location) -> Self {
        let [ours, theirs] = [self.error.powi(2), other.error.powi(2)];
        let weights = ours.powi(2) / self.freedom + theirs.powi(2) / other.freedom;
        let freedom = (ours + theirs).powi(2) / weights;
        Location {
            mean: self.mean - other.mean,
            error: (ours + theirs).sqrt(),
            // Without any error no weight is left.
            freedom: if freedom.is_finite() { freedom } else { 1.0 },
        }
    }

    /// The two-sided p-value of the hypothesis that the value is within `margin` of 0.
    pub fn beyond(self, margin: f64) -> f64 {
        let above = self.upper_tail(self.mean - margin);
        let below = self.upper_tail(-self.mean - margin);
        (2.0 * above.min(below)).min(1.0)
    }

    /// The p-value of the hypothesis that the value is farther than `margin` from 0: the larger of
    /// two one-sided ones (Schuirmann, 1987).
    pub fn within(self, margin: f64) -> f64 {
        let above = self.upper_tail(margin - self.mean);
        let below = self.upper_tail(margin + self.mean);
        above.max(below)
    }

    /// The probability of a value at least `distance` above the hypothesis.
    fn upper_tail(self, distance: f64) -> f64 {
        if self.error <= 0.0 {
            return if distance > 0.0 { 0.0 } else { 1.0 };
        }
        let student = StudentsT::new(0.0, 1.0, self.freedom);
        student.map_or(1.0, |student| student.sf(distance / self.error))
    }
}

/// p-values corrected for their number: by a decision at `level`, one of them or more is wrong with
/// at most that probability (Holm, 1979).
pub fn holm(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let (mut corrected, mut largest) = (vec![1.0; values.len()], 0.0_f64);
    for (rank, at) in order.into_iter().enumerate() {
        let left = (values.len() - rank) as f64;
        largest = largest.max((left * values[at]).min(1.0));
        corrected[at] = largest;
    }
    corrected
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rounded(value: f64) -> f64 {
        (value * 1e6).round() / 1e6
    }

    /// By hand: of 1, 2, 3, 4, 10 the trimmed mean is 3; winsorized (2, 2, 3, 4, 4) the squares are
    /// 4, so the error is (4 / (3 * 2))^.5. The difference of 3 is 2.598076 errors, with 4 degrees of
    /// freedom, for which Student's distribution has a closed form. `ttest_ind(..., trim=.2,
    /// equal_var=False)` of SciPy 1.17 agrees.
    #[test]
    fn a_difference_is_that_of_yuens_test() {
        let [low, high] = [[1.0, 10.0, 3.0, 4.0, 2.0], [4.0, 5.0, 20.0, 7.0, 6.0]];
        let [low, high] = [low, high].map(|values| Location::of(&values).unwrap());
        assert_eq!((low.mean, rounded(low.error)), (3.0, 0.816497));
        let difference = high.minus(low);
        assert_eq!((difference.mean, rounded(difference.freedom)), (3.0, 4.0));
        let closed = |t: f64| {
            let wide = 1.0 + t * t / 4.0;
            0.5 - 0.375 * t / wide.sqrt() * (1.0 - t * t / 12.0 / wide)
        };
        let t = 3.0 / (4.0_f64 / 3.0).sqrt();
        assert_eq!(rounded(difference.beyond(0.0)), rounded(2.0 * closed(t)));
        assert_eq!(rounded(difference.beyond(0.0)), 0.060170);
        // Two thirds of the difference are a margin: a third of the errors is left.
        assert_eq!(
            rounded(difference.beyond(2.0)),
            rounded(2.0 * closed(t / 3.0))
        );
        assert_eq!(rounded(difference.within(6.0)), rounded(closed(t)));
        assert_eq!(difference.beyond(4.0), 1.0);
    }

    /// `qt(0.975, n - 1)` of R: 12.706205 for 2 values, 4.302653 for 3.
    #[test]
    fn without_outliers_it_is_students_test() {
        for (values, quantile) in [
            (vec![-1.0, 1.0], 12.706_205),
            (vec![-1.0, 1.0, 0.0], 4.302_653),
        ] {
            let count = values.len() as f64;
            let found = Location::of(&values).unwrap();
            let error = (2.0 / (count * (count - 1.0))).sqrt();
            let shifted = Location {
                mean: quantile * error,
                ..found
            };
            assert_eq!(rounded(shifted.beyond(0.0)), 0.05);
        }
    }

    #[test]
    fn values_without_spread_are_certain() {
        let of = |value| Location::of(&[value; 3]).unwrap();
        let difference = of(2.0).minus(of(1.0));
        assert_eq!((difference.beyond(0.5), difference.within(0.5)), (0.0, 1.0));
        assert_eq!((difference.beyond(2.0), difference.within(2.0)), (1.0, 0.0));
        assert_eq!(Location::of(&[1.0]), None);
    }

    /// `p.adjust(c(.01, .04, .03, .005), "holm")` of R.
    #[test]
    fn p_values_are_corrected_as_by_r() {
        let found = holm(&[0.01, 0.04, 0.03, 0.005]);
        assert_eq!(
            found.into_iter().map(rounded).collect::<Vec<_>>(),
            [0.03, 0.06, 0.06, 0.02]
        );
        assert_eq!(holm(&[0.6, 0.7]), [1.0, 1.0]);
        assert_eq!(holm(&[]), [0.0; 0]);
    }
}
