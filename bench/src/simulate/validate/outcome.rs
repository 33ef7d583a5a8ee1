//! A compared figure and its bar.

use crate::report::Fields;
use crate::table;

/// Result of a comparison.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What the simulator is compared with.
    pub against: &'static str,
    /// The compared figure, with its unit.
    pub what: String,
    pub bar: Bar,
    /// Expected figure; the limit itself for [`Bar::AtMost`] and [`Bar::AtLeast`].
    pub expected: f64,
    pub measured: f64,
}

/// Largest difference between expected and measured figures.
#[derive(Clone, Copy, Debug)]
pub enum Bar {
    /// A share of the expected figure.
    Within(f64),
    /// The measured figure is below by at most this share of the expected one, and never above.
    Below(f64),
    /// The expected figure is the largest one allowed.
    AtMost,
    /// The expected figure is the smallest one allowed.
    AtLeast,
}

impl Outcome {
    /// Difference as a share of the expected figure; of 0 itself, the measured figure.
    fn error(&self) -> f64 {
        match self.expected {
            0.0 => self.measured,
            expected => self.measured / expected - 1.0,
        }
    }

    pub fn holds(&self) -> bool {
        match self.bar {
            Bar::Within(share) => self.error().abs() <= share,
            Bar::Below(share) => (-share..=0.0).contains(&self.error()),
            Bar::AtMost => self.measured <= self.expected,
            Bar::AtLeast => self.measured >= self.expected,
        }
    }

    fn bar(&self) -> String {
        match self.bar {
            Bar::Within(share) if share < 1e-6 => "equal".into(),
            Bar::Within(share) => format!("{} %", percents(share)),
            Bar::Below(share) => format!("-{} to 0 %", percents(share)),
            Bar::AtMost => "at most".into(),
            Bar::AtLeast => "at least".into(),
        }
    }

    pub fn fields(&self) -> Fields {
        Fields::default()
            .with("against", self.against)
            .with("what", &self.what)
            .with("bar", self.bar())
            .with("expected", self.expected)
            .with("measured", self.measured)
            .with("error", self.error())
            .with("holds", self.holds())
    }

    /// The row of the table.
    pub fn cells(&self) -> [String; 7] {
        let verdict = if self.holds() { "holds" } else { "MISSED" };
        [
            verdict.into(),
            self.against.into(),
            self.what.clone(),
            figure(self.expected),
            figure(self.measured),
            format!("{:+.2} %", self.error() * 100.0),
            self.bar(),
        ]
    }
}

/// Percents with at most one decimal.
fn percents(share: f64) -> f64 {
    (share * 1000.0).round() / 10.0
}

fn figure(value: f64) -> String {
    if value != 0.0 && value.abs() < 1.0 {
        format!("{value:.4}")
    } else {
        table::digits(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Outcome {
        pub fn example(bar: Bar, expected: f64, measured: f64) -> Outcome {
            Outcome {
                against: "closed form",
                what: "latency in us".into(),
                bar,
                expected,
                measured,
            }
        }
    }

    #[test]
    fn bars_are_shares_or_limits() {
        for (bar, measured, holds) in [
            (Bar::Within(0.02), 1.0199, true),
            (Bar::Within(0.02), 0.97, false),
            (Bar::Below(0.25), 1.0, true),
            (Bar::Below(0.25), 1.01, false),
            (Bar::Below(0.25), 0.76, true),
            (Bar::Below(0.25), 0.74, false),
            (Bar::AtMost, 1.0, true),
            (Bar::AtMost, 1.1, false),
            (Bar::AtLeast, 1.0, true),
            (Bar::AtLeast, 0.9, false),
            (Bar::Within(0.02), f64::NAN, false),
        ] {
            assert_eq!(
                Outcome::example(bar, 1.0, measured).holds(),
                holds,
                "{bar:?} {measured}"
            );
        }
    }
}
