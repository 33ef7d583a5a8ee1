//! Equation 2 of the routing paper against simulated times.

use anyhow::{Context, Result};

use super::{Bar, Check, Outcome};
use crate::plan::Effort;
use crate::simulate::routing::equation::{Comparison, OfSize, over_sizes};
use crate::simulate::routing::placement::Placement;
use crate::table;

/// Equation 2 on allocations of four distances, with the paper's correlation as the bar (De Sensi et
/// al., 2019, section 2.4), and without the means of the distances, where only noise is left to
/// explain. The long form has allocations between groups alone as well, on a noisy fabric with 4
/// global links for each pair of groups, and on a calm one with 12.
pub const EQUATION_2: Check = Check {
    name: "equation-2",
    is_long: false,
    run: equation_2,
};

/// Equation 2 up to the paper's largest messages. A fifth of the allocations takes 12 minutes.
pub const EQUATION_16_MIB: Check = Check {
    name: "equation-16-mib",
    is_long: true,
    run: equation_16_mib,
};

/// Mean correlation of the paper.
const PAPER: f64 = 0.79;

/// Correlation that two figures without relation exceed in 2.5 % of all comparisons of
/// [`ALLOCATIONS`]. Distance explains nothing here, so the paper's figure is no bar.
const CHANCE: f64 = 0.31;

const ALLOCATIONS: usize = 40;

/// The same for comparisons of [`FEW_ALLOCATIONS`].
const CHANCE_OF_FEW: f64 = 0.71;

const FEW_ALLOCATIONS: usize = 8;

/// Largest ratio of predicted and simulated times. The paper has no figure.
const FACTOR: f64 = 2.0;

/// Lengths of the usual comparison, of the long one, and of that on few allocations.
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
const LARGE_SIZES: &[usize] = &[4 << 20, 16 << 20];

fn equation_2(effort: Effort) -> Result<Vec<Outcome>> {
    let is_long = matches!(effort, Effort::Full);
    let compare = |global_links, placements| {
        let comparison = Comparison {
            global_links,
            allocations: ALLOCATIONS,
            placements,
            sizes: if is_long { ALL_SIZES } else { SIZES },
            rounds: if is_long { 8 } else { 3 },
            seed: 1,
        };
        comparison.run()
    };
    let all = compare(4, &Placement::ALL)?;
    let mut outcomes = vec![
        of_sizes(&all, "4 global links", PAPER, |size| size.correlation)?,
        of_sizes(&all, "4 global links, noise alone", CHANCE, |size| {
            size.of_noise
        })?,
    ];
    if is_long {
        for (links, what) in [
            (4, "4 global links, groups"),
            (12, "12 global links, groups"),
        ] {
            let groups = compare(links, &[Placement::Groups])?;
            outcomes.push(of_sizes(&groups, what, CHANCE, |size| size.correlation)?);
        }
    }
    outcomes.extend(all.iter().flat_map(bias));
    Ok(outcomes)
}

fn equation_16_mib(_: Effort) -> Result<Vec<Outcome>> {
    let comparison = Comparison {
        global_links: 4,
        allocations: FEW_ALLOCATIONS,
        placements: &Placement::ALL,
        sizes: LARGE_SIZES,
        rounds: 2,
        seed: 1,
    };
    let sizes = comparison.run()?;
    let what = format!("4 global links, {FEW_ALLOCATIONS} allocations");
    let correlation = of_sizes(&sizes, &what, CHANCE_OF_FEW, |size| size.correlation)?;
    let biases = sizes.iter().flat_map(bias);
    Ok(std::iter::once(correlation).chain(biases).collect())
}

fn of_sizes(
    sizes: &[OfSize],
    what: &str,
    least: f64,
    of: fn(&OfSize) -> Option<f64>,
) -> Result<Outcome> {
    let (Some(first), Some(last)) = (sizes.first(), sizes.last()) else {
        anyhow::bail!("no sizes");
    };
    let [first, last] = [first, last].map(|size| table::size(size.bytes));
    Ok(Outcome {
        against: "Equation 2",
        what: format!("correlation, {what}, {first} to {last}"),
        bar: Bar::AtLeast,
        expected: least,
        measured: over_sizes(sizes, of).context("no sizes")?,
    })
}

/// Predicted over simulated time, with the correlation of the size.
fn bias(size: &OfSize) -> [Outcome; 2] {
    [(Bar::AtLeast, 1.0 / FACTOR), (Bar::AtMost, FACTOR)].map(|(bar, limit)| Outcome {
        against: "Equation 2",
        what: format!("bias, 4 global links, {size}"),
        bar,
        expected: limit,
        measured: size.bias,
    })
}
