//! Equation 2 of the routing paper against simulated times.

use anyhow::{Context, Result};

use super::{Bar, Check, Outcome};
use crate::plan::Effort;
use crate::simulate::routing::equation::{Comparison, OfSize, correlation};

/// Equation 2 on a noisy fabric, with 4 global links for each pair of groups, and on a calm one,
/// with 12. The paper's correlation is the bar on the former (De Sensi et al., 2019, section 2.4).
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
    let compare = |global_links, allocations| {
        let comparison = Comparison {
            global_links,
            allocations,
            sizes: if is_long { ALL_SIZES } else { SIZES },
            rounds: if is_long { 8 } else { 4 },
            seed: 1,
        };
        comparison.run()
    };
    let noisy = compare(4, ALLOCATIONS)?;
    let calm = compare(
        12,
        if is_long {
            ALLOCATIONS
        } else {
            ALLOCATIONS / 2
        },
    )?;
    let mut outcomes = vec![
        of_all(&noisy, "correlation, 4 global links", PAPER)?,
        // There is little to explain, so the paper's figure is no bar.
        of_all(&calm, "correlation, 12 global links (calm)", 0.0)?,
    ];
    outcomes.extend(noisy.iter().map(bias));
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
