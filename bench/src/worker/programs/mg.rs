//! MG of NPB: a Poisson equation on a periodic grid by V-cycles of a multigrid method.

use anyhow::{Result, ensure};

use super::collectives::sum;
use super::grid::{Field, Layout, factors};
use super::npb::{Class, Random, SEED, is_near};
use super::rank::{Meter, Rank, Usage};

/// The most ranks: one point for each on the coarsest grid of 2 x 2 x 2.
pub const MOST_RANKS: usize = 8;

const CYCLES: usize = 4;

/// Charges of either sign.
const CHARGES: usize = 10;

/// Weights of a point, and of its neighbours by face, edge and corner: the operator, the smoother
/// and the restriction.
type Weights = [f64; 4];
const OPERATOR: Weights = [-8.0 / 3.0, 0.0, 1.0 / 6.0, 1.0 / 12.0];
const SMOOTHER: Weights = [-3.0 / 8.0, 1.0 / 32.0, -1.0 / 64.0, 0.0];
const RESTRICTION: Weights = [1.0 / 2.0, 1.0 / 4.0, 1.0 / 8.0, 1.0 / 16.0];

/// Operations of a stencil at a point.
const OPERATIONS: usize = 30;

impl Class {
    /// Binary logarithm of the points along an axis, and the published norm of the residual.
    fn mg(self) -> (u32, f64) {
        match self {
            Class::S => (5, 0.5307707005734e-4),
            Class::W => (7, 0.6467329375339e-5),
        }
    }
}

/// The solution and the residual on a grid.
struct Level {
    layout: Layout,
    u: Field<f64>,
    r: Field<f64>,
}

pub fn run<R: Rank>(ranks: &mut Meter<'_, R>, class: Class) -> Result<Usage> {
    let (log2, published) = class.mg();
    let mut levels: Vec<Level> = (1..=log2)
        .map(|log2| Level::new(ranks, 1 << log2))
        .collect();
    let charges = charges(ranks, &levels[levels.len() - 1])?;
    let (norms, usage) = ranks.measure(|ranks| solve(ranks, &mut levels, &charges))?;
    let norm = norms[CYCLES];
    ensure!(
        norms.is_sorted_by(|a, b| a > b),
        "the residual does not fall: {norms:?}"
    );
    ensure!(
        is_near(norm, published, 1e-8),
        "the norm of the residual is {norm:e} instead of {published:e}"
    );
    Ok(usage)
}

impl Level {
    fn new(ranks: &impl Rank, points: usize) -> Self {
        let layout = Layout {
            points: [points; 3],
            ranks: factors(ranks.ranks()),
            is_periodic: true,
        };
        let field = Field::new(&layout, ranks.rank());
        Level {
            u: field.clone(),
            r: field,
            layout,
        }
    }

    /// Subtracts the operator's result from the residual.
    fn subtract(&mut self, ranks: &mut impl Rank) -> Result<()> {
        let strides = self.u.strides();
        for at in self.r.own() {
            self.r.values[at] -= stencil(&self.u.values, at, strides, OPERATOR);
        }
        ranks.compute(OPERATIONS * self.r.own().count());
        self.r.refresh(ranks, &self.layout)
    }

    /// Adds the smoother's result to the solution.
    fn smooth(&mut self, ranks: &mut impl Rank) -> Result<()> {
        let strides = self.u.strides();
        for at in self.u.own() {
            self.u.values[at] += stencil(&self.r.values, at, strides, SMOOTHER);
        }
        ranks.compute(OPERATIONS * self.u.own().count());
        self.u.refresh(ranks, &self.layout)
    }

    /// Takes the residual from the next finer grid, whose points with even indices are those of this
    /// one.
    fn restrict(&mut self, ranks: &mut impl Rank, finer: &Level) -> Result<()> {
        let strides = finer.r.strides();
        let [x, y, z] = self.r.points;
        for (z, y) in (1..=z).flat_map(|z| (1..=y).map(move |y| (z, y))) {
            for x in 1..=x {
                let at = finer.r.index([2 * x, 2 * y, 2 * z]);
                let value = stencil(&finer.r.values, at, strides, RESTRICTION);
                let here = self.r.index([x, y, z]);
                self.r.values[here] = value;
            }
        }
        ranks.compute(OPERATIONS * self.r.own().count());
        self.r.refresh(ranks, &self.layout)
    }

    /// Adds the solution of the next coarser grid, also to the points around.
    fn interpolate(&mut self, ranks: &mut impl Rank, coarser: &Level) {
        let strides = coarser.u.strides();
        let [x, y, z] = self.u.points;
        for (z, y) in (0..z + 2).flat_map(|z| (0..y + 2).map(move |y| (z, y))) {
            for x in 0..x + 2 {
                let fine = self.u.index([x, y, z]);
                let low = coarser.u.index([x / 2, y / 2, z / 2]);
                // The two nearest points of each axis; twice the same one at an even index.
                let [dx, dy, dz] = [x % 2, y % 2 * strides[1], z % 2 * strides[2]];
                let corners = [0, dx, dy, dx + dy, dz, dx + dz, dy + dz, dx + dy + dz];
                let sum: f64 = corners
                    .iter()
                    .map(|away| coarser.u.values[low + away])
                    .sum();
                self.u.values[fine] += sum / 8.0;
            }
        }
        ranks.compute(8 * self.u.values.len());
    }

    /// The root of the mean square of the residual.
    fn norm(&self, ranks: &mut impl Rank) -> Result<f64> {
        let squares = self.r.own().map(|at| self.r.values[at] * self.r.values[at]);
        let sum: f64 = sum(ranks, squares.sum())?;
        let count: usize = self.layout.points.iter().product();
        Ok((sum / count as f64).sqrt())
    }
}

/// The norms of the residual before each cycle and after the last.
fn solve(ranks: &mut impl Rank, levels: &mut [Level], charges: &Field<f64>) -> Result<Vec<f64>> {
    let top = levels.len() - 1;
    let mut norms = Vec::new();
    levels[top].r = charges.clone();
    levels[top].subtract(ranks)?;
    norms.push(levels[top].norm(ranks)?);
    for _ in 0..CYCLES {
        cycle(ranks, levels, charges)?;
        levels[top].r = charges.clone();
        levels[top].subtract(ranks)?;
        norms.push(levels[top].norm(ranks)?);
    }
    Ok(norms)
}

/// Down to the coarsest grid and up again.
fn cycle(ranks: &mut impl Rank, levels: &mut [Level], charges: &Field<f64>) -> Result<()> {
    let top = levels.len() - 1;
    for at in (0..top).rev() {
        let (coarser, finer) = levels.split_at_mut(at + 1);
        coarser[at].restrict(ranks, &finer[0])?;
        coarser[at].u.values.fill(0.0);
    }
    levels[0].smooth(ranks)?;
    for at in 1..=top {
        let (coarser, finer) = levels.split_at_mut(at);
        finer[0].interpolate(ranks, &coarser[at - 1]);
        if at == top {
            finer[0].r = charges.clone();
        }
        finer[0].subtract(ranks)?;
        finer[0].smooth(ranks)?;
    }
    Ok(())
}

/// The weighted sum of a point and its 26 neighbours.
fn stencil(values: &[f64], at: usize, [_, y, z]: [usize; 3], weights: Weights) -> f64 {
    let line = |at: usize| (values[at], values[at - 1] + values[at + 1]);
    let (center, mut faces) = line(at);
    let (mut edges, mut corners) = (0.0, 0.0);
    for at in [at - y, at + y, at - z, at + z] {
        let (middle, ends) = line(at);
        faces += middle;
        edges += ends;
    }
    for at in [at - y - z, at + y - z, at - y + z, at + y + z] {
        let (middle, ends) = line(at);
        edges += middle;
        corners += ends;
    }
    weights[0] * center + weights[1] * faces + weights[2] * edges + weights[3] * corners
}

/// NPB's right-hand side: -1 at the points of the smallest of as many random numbers as points, +1
/// at those of the largest.
fn charges(ranks: &mut impl Rank, level: &Level) -> Result<Field<f64>> {
    let [points, ..] = level.layout.points;
    let mut random = Random::new(SEED, 0);
    let mut order: Vec<(f64, usize)> = (0..points.pow(3))
        .map(|point| (random.next(), point))
        .collect();
    order.select_nth_unstable_by(CHARGES, |a, b| a.0.total_cmp(&b.0));
    let negative: Vec<usize> = order[..CHARGES].iter().map(|(_, point)| *point).collect();
    order.select_nth_unstable_by(CHARGES, |a, b| b.0.total_cmp(&a.0));
    let positive: Vec<usize> = order[..CHARGES].iter().map(|(_, point)| *point).collect();
    let mut field = Field::new(&level.layout, ranks.rank());
    field.fill(&level.layout.part(ranks.rank()), |[x, y, z]| {
        let point = x + points * (y + points * z);
        let is_in = |of: &[usize]| f64::from(u8::from(of.contains(&point)));
        is_in(&positive) - is_in(&negative)
    });
    field.refresh(ranks, &level.layout)?;
    Ok(field)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::ranks::uniform;

    #[test]
    fn the_residual_is_the_published_one_with_one_point_per_rank_on_the_coarsest_grid() {
        for ranks in [1, 2, MOST_RANKS] {
            let found = uniform::run(ranks, move |rank| run(&mut Meter::new(rank), Class::S));
            assert!(found.iter().all(Result::is_ok), "{found:?}");
        }
    }
}
