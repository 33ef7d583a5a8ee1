//! Fields of values in three dimensions, divided among ranks.

use std::ops::Range;

use anyhow::{Result, ensure};

use super::collectives::{Group, exchange, scatter, tally};
use super::rank::Rank;
use super::values::{Value, decode, encode};

/// Numbers as equal as possible with this product, the largest first.
pub fn factors<const N: usize>(product: usize) -> [usize; N] {
    let (mut primes, mut rest) = (Vec::new(), product);
    for prime in 2..=product {
        while rest % prime == 0 {
            primes.push(prime);
            rest /= prime;
        }
    }
    let mut factors = [1; N];
    for prime in primes.into_iter().rev() {
        if let Some(least) = factors.iter_mut().min() {
            *least *= prime;
        }
    }
    factors.sort_by(|a, b| b.cmp(a));
    factors
}

/// Part `number` of `len` elements in parts of nearly equal length.
pub fn part(len: usize, parts: usize, number: usize) -> Range<usize> {
    len * number / parts..len * (number + 1) / parts
}

/// A grid of points, divided among a grid of ranks.
#[derive(Clone, Debug)]
pub struct Layout {
    /// Points along each axis.
    pub points: [usize; 3],
    /// Ranks along each axis.
    pub ranks: [usize; 3],
    /// Whether the first and the last points are neighbours.
    pub is_periodic: bool,
}

impl Layout {
    /// The place of a rank.
    fn place(&self, rank: usize) -> [usize; 3] {
        let [x, y, _] = self.ranks;
        [rank % x, rank / x % y, rank / (x * y)]
    }

    /// The points of a rank along each axis.
    pub fn part(&self, rank: usize) -> [Range<usize>; 3] {
        let place = self.place(rank);
        [0, 1, 2].map(|axis| part(self.points[axis], self.ranks[axis], place[axis]))
    }

    /// The neighbour of a rank up or down an axis.
    fn neighbour(&self, rank: usize, axis: usize, up: bool) -> Option<usize> {
        let (mut place, count) = (self.place(rank), self.ranks[axis]);
        let at = place[axis];
        let is_outside = if up { at + 1 == count } else { at == 0 };
        if is_outside && !self.is_periodic {
            return None;
        }
        place[axis] = (at + if up { 1 } else { count - 1 }) % count;
        Some(place[0] + self.ranks[0] * (place[1] + self.ranks[1] * place[2]))
    }

    /// Points of a rank.
    fn volume(&self, rank: usize) -> usize {
        self.part(rank).iter().map(ExactSizeIterator::len).product()
    }
}

/// The values at the points of a rank, with one layer of points of its neighbours around.
#[derive(Clone, Debug)]
pub struct Field<T> {
    /// Own points along each axis. Their indices begin at 1.
    pub points: [usize; 3],
    pub values: Vec<T>,
}

impl<T: Value + Default> Field<T> {
    /// A field of zeros.
    pub fn new(layout: &Layout, rank: usize) -> Self {
        let points = layout.part(rank).map(|part| part.len());
        let count = points.iter().map(|points| points + 2).product();
        let values = vec![T::default(); count];
        Field { points, values }
    }

    /// Distance of neighbours along each axis.
    pub fn strides(&self) -> [usize; 3] {
        let [x, y, _] = self.points;
        [1, x + 2, (x + 2) * (y + 2)]
    }

    pub fn index(&self, at: [usize; 3]) -> usize {
        let strides = self.strides();
        (0..3).map(|axis| at[axis] * strides[axis]).sum()
    }

    /// Indices of all own points, the first axis first.
    pub fn own(&self) -> impl Iterator<Item = usize> + use<T> {
        let ([x, y, z], strides) = (self.points, self.strides());
        let rows = (1..=z).flat_map(move |z| (1..=y).map(move |y| y * strides[1] + z * strides[2]));
        rows.flat_map(move |row| row + 1..=row + x)
    }

    /// Sets each own point by its place in the whole grid.
    pub fn fill(&mut self, part: &[Range<usize>; 3], of: impl Fn([usize; 3]) -> T) {
        let [x, y, z] = part.clone();
        let places = z.flat_map(|z| {
            let (x, y) = (x.clone(), y.clone());
            y.flat_map(move |y| x.clone().map(move |x| [x, y, z]))
        });
        for (index, place) in self.own().zip(places) {
            self.values[index] = of(place);
        }
    }

    /// Values of some own points, by their places from 0.
    fn inside(&self, part: &[Range<usize>; 3]) -> Vec<T> {
        let [x, y, z] = part.clone();
        let rows = z.flat_map(|z| y.clone().map(move |y| [x.start + 1, y + 1, z + 1]));
        let rows = rows.map(|first| &self.values[self.index(first)..][..x.len()]);
        rows.flatten().copied().collect()
    }

    /// Values of the own points.
    fn inner(&self) -> Vec<T> {
        self.inside(&self.points.map(|points| 0..points))
    }

    /// Indices of the plane `at` of an axis, with the layer around.
    fn plane(&self, axis: usize, at: usize) -> impl Iterator<Item = usize> + use<T> {
        let strides = self.strides();
        let [a, b] = [[1, 2], [0, 2], [0, 1]][axis];
        let [a_count, b_count] = [a, b].map(|axis| self.points[axis] + 2);
        let start = at * strides[axis];
        let rows = (0..b_count).map(move |n| start + n * strides[b]);
        rows.flat_map(move |row| (0..a_count).map(move |n| row + n * strides[a]))
    }

    /// Receives the layer around from all neighbours, and sends them the outermost own points.
    pub fn refresh(&mut self, ranks: &mut impl Rank, layout: &Layout) -> Result<()> {
        let rank = ranks.rank();
        for axis in 0..3 {
            let last = self.points[axis];
            if layout.is_periodic && layout.ranks[axis] == 1 {
                self.copy_plane(axis, last, 0);
                self.copy_plane(axis, 1, last + 1);
                continue;
            }
            // First between the ranks 0 and 1, 2 and 3, and so on, then between the other pairs.
            for phase in 0..2 {
                let up = layout.place(rank)[axis] % 2 == phase;
                let (own, around) = if up { (last, last + 1) } else { (1, 0) };
                if let Some(peer) = layout.neighbour(rank, axis, up) {
                    let message = self.message(self.plane(axis, own));
                    let received = exchange(ranks, peer, &message, message.len())?;
                    self.put(self.plane(axis, around), &received);
                }
            }
        }
        Ok(())
    }

    fn copy_plane(&mut self, axis: usize, from: usize, to: usize) {
        for (from, to) in self.plane(axis, from).zip(self.plane(axis, to)) {
            self.values[to] = self.values[from];
        }
    }

    fn message(&self, indices: impl Iterator<Item = usize>) -> Vec<u8> {
        let values: Vec<T> = indices.map(|index| self.values[index]).collect();
        encode(&values)
    }

    fn put(&mut self, indices: impl Iterator<Item = usize>, message: &[u8]) {
        for (index, value) in indices.zip(decode(message)) {
            self.values[index] = value;
        }
    }

    /// Indices of the own points of some planes of the last axis, at `at` of another axis.
    fn wall(
        &self,
        axis: usize,
        at: usize,
        planes: Range<usize>,
    ) -> impl Iterator<Item = usize> + use<T> {
        let (strides, other) = (self.strides(), 1 - axis);
        let (start, count) = (at * strides[axis], self.points[other]);
        let rows = planes.map(move |plane| start + plane * strides[2]);
        rows.flat_map(move |row| (1..=count).map(move |n| row + n * strides[other]))
    }
}

/// A wave through the whole grid from one of its corners, in blocks of planes of the last axis,
/// which the ranks pass on along the other two.
#[derive(Clone, Copy, Debug)]
pub struct Wave {
    /// Whether the wave goes up each axis.
    pub up: [bool; 3],
    /// Planes of a block.
    pub depth: usize,
    /// Operations at a point.
    pub operations: usize,
}

impl Wave {
    /// Calls `relax` with each own point, after all points before it in the wave: those of other
    /// ranks are in the layer around the own points.
    pub fn pass<T: Value + Default>(
        &self,
        ranks: &mut impl Rank,
        layout: &Layout,
        field: &mut Field<T>,
        mut relax: impl FnMut(&mut Field<T>, usize),
    ) -> Result<()> {
        let (rank, points, up) = (ranks.rank(), field.points, self.up);
        let strides = field.strides();
        let steps = [0, 1, 2].map(|axis| match up[axis] {
            true => strides[axis],
            false => strides[axis].wrapping_neg(),
        });
        let mut received = Vec::new();
        let blocks = points[2].div_ceil(self.depth);
        for number in 0..blocks {
            let block = if up[2] { number } else { blocks - 1 - number };
            let planes = 1 + block * self.depth..1 + points[2].min((block + 1) * self.depth);
            for axis in 0..2 {
                if let Some(from) = layout.neighbour(rank, axis, !up[axis]) {
                    let around = if up[axis] { 0 } else { points[axis] + 1 };
                    let bytes = planes.len() * points[1 - axis] * size_of::<T>();
                    ranks.receive(Some(from), bytes, &mut received)?;
                    field.put(field.wall(axis, around, planes.clone()), &received);
                }
            }
            let ends = [
                (1, points[0]),
                (1, points[1]),
                (planes.start, planes.end - 1),
            ];
            let first = [0, 1, 2].map(|axis| if up[axis] { ends[axis].0 } else { ends[axis].1 });
            let mut plane = field.index(first);
            for _ in planes.clone() {
                let mut row = plane;
                for _ in 0..points[1] {
                    let mut at = row;
                    for _ in 0..points[0] {
                        relax(field, at);
                        at = at.wrapping_add(steps[0]);
                    }
                    row = row.wrapping_add(steps[1]);
                }
                plane = plane.wrapping_add(steps[2]);
            }
            ranks.compute(planes.len() * points[0] * points[1] * self.operations);
            for axis in 0..2 {
                if let Some(to) = layout.neighbour(rank, axis, up[axis]) {
                    let own = if up[axis] { points[axis] } else { 1 };
                    ranks.send(to, &field.message(field.wall(axis, own, planes.clone())))?;
                }
            }
        }
        Ok(())
    }
}

/// This rank's part of the result of a serial run, as a message; `None` before that run. All ranks of
/// a program keep it from one round to the next.
pub type SerialPart = Option<Vec<u8>>;

/// Compares the field of each rank with its part of a serial run: all values are equal, because the
/// order of operations at each point is the same. Without a part, rank 0 makes that run alone.
pub fn check_against_serial<R: Rank, T: Value + Default + PartialEq>(
    ranks: &mut R,
    layout: &Layout,
    field: &Field<T>,
    serial: &mut SerialPart,
    alone: impl FnOnce(&mut Group<'_, R>, &Layout) -> Result<Field<T>>,
) -> Result<()> {
    let part = match serial {
        Some(part) => part,
        None => serial.insert(serial_part(ranks, layout, alone)?),
    };
    let values = field.inner().into_iter().zip(decode::<T>(part));
    let wrong = values.filter(|(found, right)| found != right).count();
    let wrong = tally(ranks, wrong)?;
    ensure!(wrong == 0, "{wrong} values differ from the serial run's");
    Ok(())
}

/// Runs the program at rank 0. Returns this rank's part of the result.
fn serial_part<R: Rank, T: Value + Default>(
    ranks: &mut R,
    layout: &Layout,
    alone: impl FnOnce(&mut Group<'_, R>, &Layout) -> Result<Field<T>>,
) -> Result<Vec<u8>> {
    let mut parts = Vec::new();
    if ranks.rank() == 0 {
        let whole = Layout {
            ranks: [1; 3],
            ..layout.clone()
        };
        let serial = alone(&mut Group::new(ranks, vec![0])?, &whole)?;
        let part = |rank| encode(&serial.inside(&layout.part(rank)));
        parts = (0..ranks.ranks()).map(part).collect();
    }
    let bytes = layout.volume(ranks.rank()) * size_of::<T>();
    scatter(ranks, parts, bytes)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::rc::Rc;

    use super::*;
    use crate::simulate::ranks::uniform;

    #[test]
    fn one_serial_run_serves_all_rounds_and_a_wrong_value_of_a_later_one_is_found() {
        let layout = Layout {
            points: [5, 4, 3],
            ranks: [3, 1, 1],
            is_periodic: false,
        };
        let field = |layout: &Layout, rank| {
            let mut field = Field::new(layout, rank);
            field.fill(&layout.part(rank), |[x, y, z]| {
                (x + 10 * y + 100 * z) as f64
            });
            field
        };
        let runs = Rc::new(Cell::new(0));
        let counted = Rc::clone(&runs);
        let found = uniform::run(3, move |rank| {
            let (mut own, mut serial) = (field(&layout, rank.rank()), None);
            let mut check = |own: &Field<f64>| {
                check_against_serial(rank, &layout, own, &mut serial, |_, layout| {
                    counted.set(counted.get() + 1);
                    Ok(field(layout, 0))
                })
            };
            for _ in 0..3 {
                check(&own)?;
            }
            let last = own.own().last().unwrap();
            own.values[last] = f64::NAN;
            Ok(check(&own).unwrap_err().to_string())
        });
        for found in found.into_iter().map(Result::unwrap) {
            assert_eq!(found, "3 values differ from the serial run's");
        }
        assert_eq!(runs.get(), 1);
    }

    #[test]
    fn ranks_are_divided_as_equally_as_possible() {
        assert_eq!(factors::<2>(1), [1, 1]);
        assert_eq!(factors::<2>(8), [4, 2]);
        assert_eq!(factors::<2>(12), [4, 3]);
        assert_eq!(factors::<3>(8), [2, 2, 2]);
        assert_eq!(factors::<3>(7), [7, 1, 1]);
        let parts: Vec<_> = (0..3).map(|number| part(10, 3, number)).collect();
        assert_eq!(parts, [0..3, 3..6, 6..10]);
    }

    #[test]
    fn neighbours_are_each_others_neighbours() {
        for is_periodic in [false, true] {
            let layout = Layout {
                points: [6; 3],
                ranks: [3, 2, 1],
                is_periodic,
            };
            for (rank, axis) in (0..6).flat_map(|rank| (0..3).map(move |axis| (rank, axis))) {
                let above = layout.neighbour(rank, axis, true);
                let back = above.map(|above| layout.neighbour(above, axis, false));
                assert_eq!(back.unwrap_or(Some(rank)), Some(rank));
                assert!(above.is_some() || !is_periodic);
            }
            assert_eq!(layout.part(5), [4..6, 3..6, 0..6]);
        }
    }
}
