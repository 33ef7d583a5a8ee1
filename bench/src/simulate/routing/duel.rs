//! A policy of a stranger against application-aware routing.

use std::fmt;

use anyhow::{Context, Result, ensure};
use toroid_fabric::routes::policy::Policy;

use super::contender::Contender;
use super::experiment::Measured;
use super::plan;
use super::rows;
use crate::report::Row;
use crate::simulate::turns::on_all_processors;
use crate::stats::{Estimate, of_ratio};
use crate::table::{self, Table};

/// Seed of allocations and bootstraps.
const SEED: u64 = 1;

/// Times of a policy beside those of `auto` and of both static modes.
#[derive(Debug)]
pub struct Duel {
    name: String,
    rows: Vec<Row>,
    cases: Vec<Case>,
}

#[derive(Debug)]
struct Case {
    name: String,
    /// Time over that of auto, with its interval.
    ratio: Estimate,
}

/// Lets a policy and `auto` send the same programs, in turns, on a simulated dragonfly beside noisy
/// neighbours. Each rank has a policy of its own, made by `make`.
///
/// # Errors
/// A policy or a constructor that panics, by name; the name of a built-in policy.
pub fn against_auto<P: Policy + 'static>(
    name: &str,
    make: impl Fn() -> P + Send + Sync + 'static,
) -> Result<Duel> {
    let mut contenders = Contender::of_paper();
    let taken = contenders.iter().map(Contender::name);
    let taken: Vec<String> = taken.map(Into::into).collect();
    ensure!(
        !taken.iter().any(|taken| taken == name),
        "the policy name {name:?} is taken: use another one than {}",
        taken.join(", ")
    );
    contenders.push(Contender::new(name, make));
    let measured = on_all_processors(&plan::of_duel(SEED, &contenders), |case| case.run())?;
    let case = |measured: &Measured| {
        Some(Case {
            name: format!(
                "{} {}",
                measured.experiment.workload, measured.experiment.placement
            ),
            ratio: ratio(measured, name)?,
        })
    };
    let cases: Option<Vec<Case>> = measured.iter().map(case).collect();
    let rows = measured.iter().map(rows::of).collect::<Result<Vec<_>>>()?;
    Ok(Duel {
        name: name.into(),
        rows: rows.concat(),
        cases: cases.context("a case without iterations")?,
    })
}

fn ratio(measured: &Measured, name: &str) -> Option<Estimate> {
    let [own, auto] = [name, Contender::AUTO].map(|name| measured.of(name));
    let times = own?.times.iter().copied().zip(auto?.times.iter().copied());
    of_ratio(&times.collect::<Vec<_>>(), SEED)
}

impl Duel {
    /// Geometric mean over all cases of the time over that of `auto`.
    pub fn ratio(&self) -> f64 {
        let logarithms = self.cases.iter().map(|case| case.ratio.value.ln());
        (logarithms.sum::<f64>() / self.cases.len() as f64).exp()
    }

    /// The interval of [`Duel::ratio`]: those of independent cases add up as squares.
    fn interval(&self) -> [f64; 2] {
        let half = |case: &Case| (case.ratio.interval.high / case.ratio.interval.low).ln() / 2.0;
        let squares: f64 = self.cases.iter().map(|case| half(case).powi(2)).sum();
        let factor = (squares.sqrt() / self.cases.len() as f64).exp();
        [self.ratio() / factor, self.ratio() * factor]
    }

    /// Whether the policy takes less time than `auto`, with the whole interval of 95 %.
    pub fn beats_auto(&self) -> bool {
        self.interval()[1] < 1.0
    }
}

impl fmt::Display for Duel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", rows::table(&self.rows))?;
        let mut table = Table::new(1, &["case", "time over auto's", "from", "to"]);
        for Case { name, ratio } in &self.cases {
            let figures = [ratio.value, ratio.interval.low, ratio.interval.high];
            let figures = figures.map(|figure| table::decimals(Some(figure), 3));
            table.row([vec![name.clone()], figures.into()].concat());
        }
        let faster = self
            .cases
            .iter()
            .filter(|case| case.ratio.interval.high < 1.0)
            .count();
        let slower = self
            .cases
            .iter()
            .filter(|case| case.ratio.interval.low > 1.0)
            .count();
        let [low, high] = self.interval();
        let verdict = match () {
            () if self.beats_auto() => "beats auto",
            () if low > 1.0 => "loses to auto",
            () => "and auto: no difference",
        };
        write!(
            f,
            "{table}\n{} {verdict}: {:.3} ({low:.3} to {high:.3}) of auto's time (geometric mean of {} \
             cases); faster in {faster}, slower in {slower}",
            self.name,
            self.ratio(),
            self.cases.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use toroid_fabric::routes::policy::Fixed;

    use super::*;
    use crate::stats::Interval;

    fn duel(cases: &[[f64; 3]]) -> Duel {
        let case = |&[low, value, high]: &[f64; 3]| Case {
            name: "a case".into(),
            ratio: Estimate {
                value,
                interval: Interval { low, high },
            },
        };
        Duel {
            name: "new".into(),
            rows: Vec::new(),
            cases: cases.iter().map(case).collect(),
        }
    }

    #[test]
    fn an_interval_with_1_is_no_difference() {
        for (case, verdict) in [
            ([0.8, 0.9, 0.95], "new beats auto: 0.900"),
            ([0.9, 0.99, 1.05], "new and auto: no difference: 0.990"),
            ([1.1, 1.2, 1.3], "new loses to auto: 1.200"),
        ] {
            let text = duel(&[case; 2]).to_string();
            assert!(text.contains(verdict), "{text}");
        }
    }

    #[test]
    fn a_name_of_a_built_in_policy_is_refused() {
        let error = against_auto("auto", || Fixed::DEFAULT).unwrap_err();
        let text =
            "the policy name \"auto\" is taken: use another one than default, high-bias, auto";
        assert_eq!(error.to_string(), text);
    }
}
