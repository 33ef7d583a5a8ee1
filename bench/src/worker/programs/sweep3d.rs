//! Wavefronts from all eight corners: the transport equation along one direction of each octant, as
//! sweep3d of the motifs of SST's ember.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::grid::{Field, Layout, SerialPart, Wave, check_against_serial, factors};
use super::rank::{Meter, Rank, Usage};

/// The direction's cosines, over the distance of points.
const COSINES: [f64; 3] = [0.7, 0.5, 0.3];

/// Octants in the order of their sweeps.
const OCTANTS: usize = 8;

/// Operations of a sweep at a point.
const OPERATIONS: usize = 10;

/// The block of each rank, and the number of iterations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Size {
    /// Points of a rank in x and y.
    pub points: usize,
    /// Planes of z, and those that a message carries.
    pub planes: usize,
    pub depth: usize,
    pub iterations: usize,
}

impl Size {
    /// Operations of all ranks together.
    pub fn operations(&self, ranks: usize) -> usize {
        let points = ranks * self.points.pow(2) * self.planes;
        points * self.iterations * OCTANTS * OPERATIONS
    }
}

pub fn run<R: Rank>(
    ranks: &mut Meter<'_, R>,
    size: &Size,
    serial: &mut SerialPart,
) -> Result<Usage> {
    let [x, y] = factors(ranks.ranks());
    let layout = Layout {
        points: [x * size.points, y * size.points, size.planes],
        ranks: [x, y, 1],
        is_periodic: false,
    };
    let (flux, usage) = ranks.measure(|ranks| solve(ranks, &layout, size))?;
    check_against_serial(ranks, &layout, &flux, serial, |alone, layout| {
        solve(alone, layout, size)
    })?;
    Ok(usage)
}

/// The flux after all iterations, each with the last flux as a source.
fn solve(ranks: &mut impl Rank, layout: &Layout, size: &Size) -> Result<Field<f64>> {
    let mut source = Field::<f64>::new(layout, ranks.rank());
    let outer: Field<f64> = {
        let mut outer = source.clone();
        outer.fill(&layout.part(ranks.rank()), |[x, y, z]| {
            1.0 + ((x + 2 * y + 3 * z) % 5) as f64
        });
        outer
    };
    let mut density = source.clone();
    let [_, y, z] = density.strides();
    let total = 1.0 + COSINES.iter().sum::<f64>();
    for _ in 0..size.iterations {
        let mut flux = Field::<f64>::new(layout, ranks.rank());
        for octant in 0..OCTANTS {
            let up = [0, 1, 2].map(|axis| octant >> axis & 1 == 0);
            let wave = Wave {
                up,
                depth: size.depth,
                operations: OPERATIONS,
            };
            let before = |at: usize, axis: usize| {
                let stride = [1, y, z][axis];
                if up[axis] { at - stride } else { at + stride }
            };
            wave.pass(
                ranks,
                layout,
                &mut density,
                |density: &mut Field<f64>, at| {
                    let flow = |axis: usize| COSINES[axis] * density.values[before(at, axis)];
                    let inflow = flow(0) + flow(1) + flow(2);
                    let value = (outer.values[at] + source.values[at] + inflow) / total;
                    density.values[at] = value;
                    flux.values[at] += value;
                },
            )?;
        }
        for at in flux.own() {
            source.values[at] = flux.values[at] / (2 * OCTANTS) as f64;
        }
    }
    Ok(source)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::ranks::uniform;

    #[test]
    fn the_flux_is_that_of_one_rank() {
        for (ranks, depth) in [(1, 1), (2, 2), (4, 3), (6, 7)] {
            let size = Size {
                points: 3,
                planes: 7,
                depth,
                iterations: 2,
            };
            let found = uniform::run(ranks, move |rank| {
                run(&mut Meter::new(rank), &size, &mut None)
            });
            assert!(found.iter().all(Result::is_ok), "{found:?}");
        }
    }

    #[test]
    fn a_single_point_has_the_source_over_all_losses() {
        let size = Size {
            points: 1,
            planes: 1,
            depth: 1,
            iterations: 1,
        };
        let found = uniform::run(1, move |rank| {
            let layout = Layout {
                points: [1; 3],
                ranks: [1; 3],
                is_periodic: false,
            };
            let field = solve(rank, &layout, &size)?;
            Ok(field.values[field.index([1; 3])])
        });
        // All octants give 1 / 2.5.
        assert!((found[0].as_ref().unwrap() - 0.2).abs() < 1e-12);
    }
}
