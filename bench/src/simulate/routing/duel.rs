//! A policy of a stranger against application-aware routing.

use std::fmt;

use anyhow::{Context, Result};
use toroid_fabric::routes::policy::Policy;

use super::contender::Contender;
use super::experiment::Measured;
use super::plan;
use super::rows;
use super::turns::on_all_processors;
use crate::report::Row;
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
/// A policy that panics, by name.
pub fn against_auto<P: Policy + 'static>(
    name: &str,
    make: impl Fn() -> P + Send + Sync + 'static,
) -> Result<Duel> {
    let mut contenders = Contender::of_paper();
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

    /// Whether the policy takes less time than `auto`.
    pub fn beats_auto(&self) -> bool {
        self.ratio() < 1.0
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
        let verdict = if self.beats_auto() {
            "beats"
        } else {
            "loses to"
        };
        write!(
            f,
            "{table}\n{} {verdict} auto: {:.3} of its time (geometric mean of {} cases); faster in \
             {faster}, slower in {slower}",
            self.name,
            self.ratio(),
            self.cases.len()
        )
    }
}
