//! A wavefront program in the shape of NPB's LU: symmetric successive over-relaxation of a system
//! with five unknowns at each point.
//!
//! Each rank has columns of points. A sweep goes plane by plane from corner to corner, and passes
//! the edge of each plane on: very many short messages. With 62 points along each axis (class A
//! without its boundary), four ranks and numbers of four bytes, a message has 31 x 5 x 4 = 620 B, and
//! a rank sends 2 x 62 x 250 = 31,000 of them, as in Kutlug's thesis. The system is not NPB's.

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};

use super::collectives::sum;
use super::grid::{Field, Layout, SerialPart, Wave, check_against_serial, factors};
use super::rank::{Meter, Rank, Usage};
use crate::worker::pattern::mix;

const UNKNOWNS: usize = 5;

type Vector = [f32; UNKNOWNS];

/// The diagonal block: `DIAGONAL` times the identity, plus `COUPLING` in all places.
const DIAGONAL: f32 = 7.0;
const COUPLING: f32 = 0.1;

/// The factor of over-relaxation.
const RELAXATION: f32 = 1.2;

/// Operations of a sweep at a point.
const OPERATIONS: usize = 30;

/// The grid and the number of iterations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Size {
    /// Points along each axis.
    pub points: usize,
    pub iterations: usize,
}

struct System {
    layout: Layout,
    right: Field<Vector>,
    u: Field<Vector>,
}

/// Whether each rank has a column of points.
pub fn runs_on(size: &Size, ranks: usize) -> bool {
    factors::<2>(ranks)
        .iter()
        .all(|ranks| *ranks <= size.points)
}

impl Size {
    /// Operations of all ranks together.
    pub fn operations(&self) -> usize {
        // The residual has two stencils of a sweep.
        let each = 2 * OPERATIONS + 2 * OPERATIONS + 2 * UNKNOWNS;
        self.points.pow(3) * self.iterations * each
    }
}

pub fn run<R: Rank>(
    ranks: &mut Meter<'_, R>,
    size: &Size,
    serial: &mut SerialPart,
) -> Result<Usage> {
    let [x, y] = factors(ranks.ranks());
    let layout = Layout {
        points: [size.points; 3],
        ranks: [x, y, 1],
        is_periodic: false,
    };
    let mut system = System::new(layout.clone(), ranks.rank());
    let before = system.norm(ranks)?;
    let ((), usage) = ranks.measure(|ranks| system.solve(ranks, size.iterations))?;
    let after = system.norm(ranks)?;
    ensure!(
        after < before / 2.0,
        "the residual does not fall: {before}, then {after}"
    );
    check_against_serial(ranks, &layout, &system.u, serial, |alone, layout| {
        let mut system = System::new(layout.clone(), 0);
        system.solve(alone, size.iterations)?;
        Ok(system.u)
    })?;
    Ok(usage)
}

impl System {
    fn new(layout: Layout, rank: usize) -> Self {
        let mut right = Field::new(&layout, rank);
        let points = layout.points[0];
        right.fill(&layout.part(rank), |[x, y, z]| {
            let first = UNKNOWNS * (x + points * (y + points * z));
            // The upper bits, as a number below 1.
            std::array::from_fn(|n| (mix((first + n) as u64) >> 40) as f32 / (1 << 24) as f32)
        });
        System {
            u: Field::new(&layout, rank),
            right,
            layout,
        }
    }

    fn solve(&mut self, ranks: &mut impl Rank, iterations: usize) -> Result<()> {
        let mut change = Field::new(&self.layout, ranks.rank());
        for _ in 0..iterations {
            let residual = self.residual(ranks)?;
            let [_, y, z] = residual.strides();
            self.wave(true)
                .pass(ranks, &self.layout, &mut change, |change, at| {
                    let before = neighbours(change, [at - z, at - y, at - 1]);
                    let right = add(residual.values[at], RELAXATION, before);
                    change.values[at] = divide(right);
                })?;
            self.wave(false)
                .pass(ranks, &self.layout, &mut change, |change, at| {
                    let after = neighbours(change, [at + z, at + y, at + 1]);
                    change.values[at] = add(change.values[at], RELAXATION, divide(after));
                })?;
            let scale = RELAXATION * (2.0 - RELAXATION);
            for at in self.u.own() {
                self.u.values[at] = add(self.u.values[at], scale, change.values[at]);
            }
            ranks.compute(2 * UNKNOWNS * self.u.own().count());
        }
        Ok(())
    }

    fn wave(&self, up: bool) -> Wave {
        Wave {
            up: [up; 3],
            depth: 1,
            operations: OPERATIONS,
        }
    }

    /// Of the current solution.
    fn residual(&mut self, ranks: &mut impl Rank) -> Result<Field<Vector>> {
        self.u.refresh(ranks, &self.layout)?;
        let mut residual = self.right.clone();
        let [_, y, z] = self.u.strides();
        for at in self.u.own() {
            let around = [at - 1, at + 1, at - y, at + y, at - z, at + z];
            let around = neighbours(&self.u, around);
            let own = self.u.values[at];
            let coupled = COUPLING * own.iter().sum::<f32>();
            let inner = own.map(|own| DIAGONAL * own + coupled);
            let value = add(residual.values[at], 1.0, around);
            residual.values[at] = add(value, -1.0, inner);
        }
        ranks.compute(2 * OPERATIONS * self.u.own().count());
        Ok(residual)
    }

    /// The Euclidean norm of the residual.
    fn norm(&mut self, ranks: &mut impl Rank) -> Result<f64> {
        let residual = self.residual(ranks)?;
        let squares = residual.own().flat_map(|at| residual.values[at]);
        let squares = squares.map(|value| f64::from(value) * f64::from(value));
        Ok(sum(ranks, squares.sum::<f64>())?.sqrt())
    }
}

/// `a + factor * b`
fn add(mut a: Vector, factor: f32, b: Vector) -> Vector {
    a.iter_mut().zip(b).for_each(|(a, b)| *a += factor * b);
    a
}

/// The sum of some neighbours. The last one may be a result that is not ready yet.
fn neighbours<const N: usize>(field: &Field<Vector>, at: [usize; N]) -> Vector {
    let zero = [0.0; UNKNOWNS];
    at.iter()
        .fold(zero, |sum, at| add(sum, 1.0, field.values[*at]))
}

/// Divides by the diagonal block, by the formula of Sherman and Morrison. Products with constants
/// take less time than divisions.
fn divide(vector: Vector) -> Vector {
    const SHARE: f32 = COUPLING / (DIAGONAL + UNKNOWNS as f32 * COUPLING);
    const INVERSE: f32 = 1.0 / DIAGONAL;
    let coupled = SHARE * vector.iter().sum::<f32>();
    vector.map(|value| INVERSE * (value - coupled))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::ranks::uniform;

    #[test]
    fn the_diagonal_block_is_divided_by() {
        let vector = [1.0, -2.0, 0.5, 3.0, 7.0];
        let divided = divide(vector);
        let coupled = COUPLING * divided.iter().sum::<f32>();
        for (value, divided) in vector.into_iter().zip(divided) {
            assert!((DIAGONAL * divided + coupled - value).abs() < 1e-5);
        }
    }

    #[test]
    fn the_solution_is_that_of_one_rank_and_messages_are_those_of_the_thesis() {
        let size = Size {
            points: 62,
            iterations: 2,
        };
        let found = uniform::run(4, move |rank| run(&mut Meter::new(rank), &size, &mut None));
        for usage in found.into_iter().map(Result::unwrap) {
            // In each sweep and plane either to two neighbours, or to one in both sweeps, or in one
            // sweep to none; and two faces in each iteration.
            let (short, faces) = (2 * 2 * 62, 2 * 2);
            assert_eq!(usage.messages, short + faces);
            let face = 33 * 64 * 20;
            assert_eq!(usage.bytes, short * 620 + faces * face);
        }
        let uneven = Size {
            points: 7,
            iterations: 9,
        };
        for ranks in [1, 3, 6] {
            let found = uniform::run(ranks, move |rank| {
                run(&mut Meter::new(rank), &uneven, &mut None)
            });
            assert!(found.iter().all(Result::is_ok), "{found:?}");
        }
    }
}
