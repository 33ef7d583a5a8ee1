//! Verdicts on findings. An interval or a margin decides, never a difference of any size.

use crate::stats::{Estimate, estimate, quotient};

/// Seed of bootstraps.
const SEED: u64 = 25;

/// Whether a finding of the paper is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    Yes,
    No,
    /// The figures allow both.
    Undecided,
}

impl Found {
    /// Whether a figure is above a limit with its whole interval.
    pub fn above(figure: Option<Estimate>, limit: f64) -> Self {
        match figure.map(|figure| figure.interval) {
            Some(interval) if interval.low > limit => Found::Yes,
            Some(interval) if interval.high < limit => Found::No,
            _ => Found::Undecided,
        }
    }

    /// Whether a figure is below a limit with its whole interval.
    pub fn below(figure: Option<Estimate>, limit: f64) -> Self {
        match Self::above(figure, limit) {
            Found::Yes => Found::No,
            Found::No => Found::Yes,
            Found::Undecided => Found::Undecided,
        }
    }

    /// Found from `yes` on, not found up to `no`.
    pub fn from_to(figure: f64, no: f64, yes: f64) -> Self {
        match figure {
            figure if figure >= yes => Found::Yes,
            figure if figure <= no => Found::No,
            _ => Found::Undecided,
        }
    }

    /// Whether both parts of a finding are there.
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Found::No, _) | (_, Found::No) => Found::No,
            (Found::Yes, Found::Yes) => Found::Yes,
            _ => Found::Undecided,
        }
    }

    /// The verdict in words.
    pub fn name(self) -> &'static str {
        match self {
            Found::Yes => "found",
            Found::No => "not found",
            Found::Undecided => "undecided",
        }
    }
}

/// Ratio of a figure of two lists of rounds.
pub fn ratio(over: &[f64], under: &[f64], of: impl Fn(&[f64]) -> Option<f64>) -> Option<Estimate> {
    compare(over, under, |over, under| quotient(of(over), of(under)))
}

/// A figure of two lists of rounds, with its interval.
pub fn compare(
    one: &[f64],
    other: &[f64],
    of: impl Fn(&[f64], &[f64]) -> Option<f64>,
) -> Option<Estimate> {
    let rounds: Vec<_> = one.iter().copied().zip(other.iter().copied()).collect();
    estimate(&rounds, SEED, |rounds| {
        let (one, other): (Vec<f64>, Vec<f64>) = rounds.iter().copied().unzip();
        of(&one, &other)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::median;

    #[test]
    fn a_difference_within_its_interval_decides_nothing() {
        let under: Vec<f64> = (0..20).map(|round| 100.0 + f64::from(round % 5)).collect();
        for (factor, is_above) in [
            (1.5, Found::Yes),
            (0.5, Found::No),
            (1.001, Found::Undecided),
        ] {
            let over: Vec<f64> = under.iter().rev().map(|value| value * factor).collect();
            let found = Found::above(ratio(&over, &under, median), 1.0);
            assert_eq!(found, is_above, "{factor}");
        }
        assert_eq!(Found::above(None, 1.0), Found::Undecided);
    }

    #[test]
    fn both_parts_are_needed() {
        assert_eq!(Found::Yes.and(Found::Undecided), Found::Undecided);
        assert_eq!(Found::Undecided.and(Found::No), Found::No);
        let shares = [0.2, 0.07, 0.04].map(|share| Found::from_to(share, 0.05, 0.1));
        assert_eq!(shares, [Found::Yes, Found::Undecided, Found::No]);
    }
}
