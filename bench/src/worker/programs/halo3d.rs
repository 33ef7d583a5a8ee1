//! Exchanges with all neighbours in three dimensions: Jacobi's iteration of a heat equation, as
//! halo3d of the motifs of SST's ember.

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::grid::{Field, Layout, SerialPart, check_against_serial, factors};
use super::rank::{Meter, Rank, Usage};

/// Weight of each neighbour.
const WEIGHT: f64 = 0.1;

/// Operations at a point in an iteration.
const OPERATIONS: usize = 8;

/// The block of each rank, and the number of iterations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Size {
    /// Points of a rank along each axis.
    pub points: usize,
    pub iterations: usize,
}

impl Size {
    /// Operations of all ranks together.
    pub fn operations(&self, ranks: usize) -> usize {
        ranks * self.points.pow(3) * self.iterations * OPERATIONS
    }
}

pub fn run<R: Rank>(
    ranks: &mut Meter<'_, R>,
    size: &Size,
    serial: &mut SerialPart,
) -> Result<Usage> {
    let by_axis: [usize; 3] = factors(ranks.ranks());
    let layout = Layout {
        points: by_axis.map(|ranks| ranks * size.points),
        ranks: by_axis,
        is_periodic: false,
    };
    let start = start(&layout, ranks.rank());
    let (field, usage) = ranks.measure(|ranks| solve(ranks, &layout, start, size.iterations))?;
    check_against_serial(ranks, &layout, &field, serial, |alone, layout| {
        solve(alone, layout, self::start(layout, 0), size.iterations)
    })?;
    Ok(usage)
}

/// A field whose points all differ.
fn start(layout: &Layout, rank: usize) -> Field<f64> {
    let mut field = Field::new(layout, rank);
    field.fill(&layout.part(rank), |[x, y, z]| {
        (x as f64 + 0.1).sin() + (2.0 * y as f64).cos() + (3 * z) as f64
    });
    field
}

fn solve(
    ranks: &mut impl Rank,
    layout: &Layout,
    mut field: Field<f64>,
    iterations: usize,
) -> Result<Field<f64>> {
    let [_, y, z] = field.strides();
    let mut next = field.clone();
    for _ in 0..iterations {
        field.refresh(ranks, layout)?;
        let values = &field.values;
        for at in field.own() {
            let around = values[at - 1]
                + values[at + 1]
                + values[at - y]
                + values[at + y]
                + values[at - z]
                + values[at + z];
            next.values[at] = (1.0 - 6.0 * WEIGHT) * values[at] + WEIGHT * around;
        }
        ranks.compute(OPERATIONS * field.own().count());
        std::mem::swap(&mut field, &mut next);
    }
    Ok(field)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::ranks::uniform;

    #[test]
    fn the_field_is_that_of_one_rank() {
        let size = Size {
            points: 3,
            iterations: 5,
        };
        for ranks in [1, 5, 8, 12] {
            let found = uniform::run(ranks, move |rank| {
                run(&mut Meter::new(rank), &size, &mut None)
            });
            assert!(found.iter().all(Result::is_ok), "{found:?}");
        }
    }

    #[test]
    fn a_point_gives_to_its_neighbours_alone() {
        let layout = Layout {
            points: [4, 2, 2],
            ranks: [2, 1, 1],
            is_periodic: false,
        };
        let found = uniform::run(2, move |rank| {
            let mut field = Field::new(&layout, rank.rank());
            field.fill(&layout.part(rank.rank()), |place| {
                f64::from(u8::from(place == [1, 0, 0]))
            });
            let field = solve(rank, &layout, field, 1)?;
            Ok(field.own().map(|at| field.values[at]).collect::<Vec<f64>>())
        });
        let kept = 1.0 - 6.0 * WEIGHT;
        let right = [
            [WEIGHT, kept, 0.0, WEIGHT, 0.0, WEIGHT, 0.0, 0.0],
            [WEIGHT, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
        ];
        for (found, right) in found.into_iter().map(Result::unwrap).zip(right) {
            assert_eq!(found, right);
        }
    }
}
