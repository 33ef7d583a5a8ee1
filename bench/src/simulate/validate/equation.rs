//! Equation 2 of the routing paper against simulated times.

use anyhow::{Context, Result};

use super::{Bar, Check, Outcome};
use crate::plan::Effort;
use crate::simulate::routing::equation::{Comparison, OfSize, correlation};
use crate::simulate::routing::placement::Placement;

/// Equation 2 on allocations of four distances, with the paper's correlation as the bar (De Sensi et
/// al., 2019, section 2.4); and between groups alone, where only noise is left to explain, on a noisy
/// fabric with 4 global links for each pair of groups, and on a calm one with 12.
pub const EQUATION_2: Check = Check {
    name: "equation-2",
    is_long: false,
    run: equation_2,
};

/// Mean correlation of the paper.
const PAPER: f64 = 0.79;

const ALLOCATIONS: usize = 40;

/// Lengths of the usual comparison, and of the long one. Longer ones take hours.
const SIZES: &[usize] = &[128, 1 << 10, 4 << 10, 16 << 10];
const ALL_SIZES: &[usize] = &[
    128,
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    128 << 10,
    256 << 10,
    1 << 20,
];

fn equation_2(effort: Effort) -> Result<Vec<Outcome>> {
    let is_long = matches!(effort, Effort::Full);
    let compare = |global_links, placements, allocations| {
        let comparison = Comparison {
            global_links,
            allocations,
            placements,
            sizes: if is_long { ALL_SIZES } else { SIZES },
            rounds: if is_long { 8 } else { 4 },
            seed: 1,
        };
        comparison.run()
    };
    let few = if is_long {
        ALLOCATIONS
    } else {
        ALLOCATIONS / 2
    };
    let all = compare(4, &Placement::ALL, ALLOCATIONS)?;
    let [noisy, calm] = [4, 12].map(|links| compare(links, &[Placement::Groups], few));
    let mut outcomes = vec![
        of_all(&all, "correlation, 4 global links", PAPER)?,
        // Distance explains nothing here, so the paper's figure is no bar.
        of_all(&noisy?, "correlation, 4 global links, groups alone", 0.0)?,
        of_all(&calm?, "correlation, 12 global links, groups alone", 0.0)?,
    ];
    outcomes.extend(all.iter().map(bias));
    Ok(outcomes)
}

fn of_all(sizes: &[OfSize], what: &str, least: f64) -> Result<Outcome> {
    Ok(Outcome {
        against: "Equation 2",
        what: what.into(),
        bar: Bar::AtLeast,
        expected: least,
        measured: correlation(sizes).context("no size has a correlation")?,
    })
}

/// Predicted over simulated time, with the correlation of the size. The paper has no figure: the
/// bar is a factor of 2.
fn bias(size: &OfSize) -> Outcome {
    Outcome {
        against: "Equation 2",
        what: format!("bias, 4 global links, {size}"),
        bar: Bar::Within(1.0),
        expected: 1.0,
        measured: size.bias,
    }
}
