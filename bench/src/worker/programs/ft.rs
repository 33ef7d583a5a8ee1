//! FT of NPB: the heat equation by Fourier transforms in three dimensions.
//!
//! Each rank has planes of z, and in the transformed space planes of y: a transform ends with a
//! transposition between all ranks.

use std::f64::consts::PI;

use anyhow::{Result, ensure};

use super::collectives::{allreduce, alltoall};
use super::grid::part;
use super::npb::{Class, Random, SEED, is_near};
use super::rank::{Meter, Rank, Usage};
use super::values::{decode, encode};

/// Real and imaginary part.
type Complex = [f64; 2];

const ITERATIONS: usize = 6;
const DIFFUSION: f64 = 1e-6;

/// Terms of a checksum.
const SAMPLED: usize = 1024;

struct Problem {
    /// Points in x, y and z.
    sizes: [usize; 3],
    checksums: [Complex; ITERATIONS],
}

impl Class {
    fn ft(self) -> Problem {
        match self {
            Class::S => Problem {
                sizes: [64, 64, 64],
                checksums: [
                    [554.6087004964, 484.5363331978],
                    [554.6385409189, 486.5304269511],
                    [554.6148406171, 488.3910722336],
                    [554.5423607415, 490.1273169046],
                    [554.4255039624, 491.7475857993],
                    [554.2683411902, 493.2597244941],
                ],
            },
            Class::W => Problem {
                sizes: [128, 128, 32],
                checksums: [
                    [567.3612178944, 529.3246849175],
                    [563.1436885271, 528.2149986629],
                    [559.4024089970, 527.0996558037],
                    [556.0698047020, 526.0027904925],
                    [553.0898991250, 524.9400845633],
                    [550.4159734538, 523.9212247086],
                ],
            },
        }
    }
}

/// Whether each rank has the same number of planes of z, and of y.
pub fn runs_on(class: Class, ranks: usize) -> bool {
    let [_, y, z] = class.ft().sizes;
    ranks.is_power_of_two() && ranks <= y.min(z)
}

pub fn run<R: Rank>(ranks: &mut Meter<'_, R>, class: Class) -> Result<Usage> {
    let problem = class.ft();
    let slabs = Slabs::new(problem.sizes, ranks);
    let start = slabs.initial();
    let (checksums, usage) = ranks.measure(|ranks| evolve(ranks, &slabs, start))?;
    let pairs = checksums.iter().zip(&problem.checksums).enumerate();
    for (iteration, (found, published)) in pairs {
        let is_right = (0..2).all(|part| is_near(found[part], published[part], 1e-12));
        ensure!(
            is_right,
            "checksum {} is {found:?} instead of {published:?}",
            iteration + 1
        );
    }
    Ok(usage)
}

/// The planes of a rank.
struct Slabs {
    sizes: [usize; 3],
    rank: usize,
    ranks: usize,
    /// Roots of unity for x, y and z.
    roots: [Vec<Complex>; 3],
}

impl Slabs {
    fn new(sizes: [usize; 3], ranks: &impl Rank) -> Self {
        let root = |of: usize| {
            move |n: usize| {
                let angle = 2.0 * PI * n as f64 / of as f64;
                [angle.cos(), angle.sin()]
            }
        };
        Slabs {
            sizes,
            rank: ranks.rank(),
            ranks: ranks.ranks(),
            roots: sizes.map(|size| (0..size / 2).map(root(size)).collect()),
        }
    }

    /// Number of planes of z and of y of each rank.
    fn planes(&self) -> [usize; 2] {
        [self.sizes[2] / self.ranks, self.sizes[1] / self.ranks]
    }

    /// Random values.
    fn initial(&self) -> Vec<Complex> {
        let [x, y, _] = self.sizes;
        let count = x * y * self.planes()[0];
        let mut random = Random::new(SEED, 2 * (count * self.rank) as u64);
        (0..count).map(|_| [random.next(), random.next()]).collect()
    }

    /// Damping of each frequency in an iteration, at the places of transformed values.
    fn damping(&self) -> Vec<f64> {
        let square = |n: usize, size: usize| {
            let frequency = ((n + size / 2) % size) as f64 - (size / 2) as f64;
            frequency * frequency
        };
        let [x_size, y_size, z_size] = self.sizes;
        let mut damping = Vec::new();
        for y in part(y_size, self.ranks, self.rank) {
            for x in 0..x_size {
                let plane = square(x, x_size) + square(y, y_size);
                let of = |z| (-4.0 * DIFFUSION * PI * PI * (plane + square(z, z_size))).exp();
                damping.extend((0..z_size).map(of));
            }
        }
        damping
    }

    /// Transforms planes of z, x first, to planes of y, z first.
    fn forward(&self, ranks: &mut impl Rank, mut values: Vec<Complex>) -> Result<Vec<Complex>> {
        self.transform_planes(ranks, &mut values, 1.0);
        let [x_size, y_size, z_size] = self.sizes;
        let [z_planes, y_planes] = self.planes();
        let piece = |to| {
            let mut piece = Vec::with_capacity(values.len() / self.ranks);
            for z in 0..z_planes {
                let row = (z * y_size + to * y_planes) * x_size;
                piece.extend_from_slice(&values[row..][..y_planes * x_size]);
            }
            piece
        };
        let pieces = self.transpose(ranks, piece)?;
        let mut turned = vec![[0.0; 2]; values.len()];
        for (from, piece) in pieces.iter().enumerate() {
            for (n, value) in piece.iter().enumerate() {
                let (z, column) = (n / (y_planes * x_size), n % (y_planes * x_size));
                turned[column * z_size + from * z_planes + z] = *value;
            }
        }
        self.transform_columns(ranks, &mut turned, 1.0);
        Ok(turned)
    }

    /// The inverse of [`Slabs::forward`], without its scale.
    fn backward(&self, ranks: &mut impl Rank, mut values: Vec<Complex>) -> Result<Vec<Complex>> {
        self.transform_columns(ranks, &mut values, -1.0);
        let [x_size, y_size, z_size] = self.sizes;
        let [z_planes, y_planes] = self.planes();
        let piece = |to| {
            let mut piece = Vec::with_capacity(values.len() / self.ranks);
            for z in to * z_planes..(to + 1) * z_planes {
                piece.extend(values[z..].iter().step_by(z_size));
            }
            piece
        };
        let pieces = self.transpose(ranks, piece)?;
        let mut turned = vec![[0.0; 2]; values.len()];
        for (from, piece) in pieces.iter().enumerate() {
            for (z, rows) in piece.chunks(y_planes * x_size).enumerate() {
                let row = (z * y_size + from * y_planes) * x_size;
                turned[row..][..rows.len()].copy_from_slice(rows);
            }
        }
        self.transform_planes(ranks, &mut turned, -1.0);
        Ok(turned)
    }

    /// Exchanges pieces of equal length between all ranks.
    fn transpose(
        &self,
        ranks: &mut impl Rank,
        piece: impl Fn(usize) -> Vec<Complex>,
    ) -> Result<Vec<Vec<Complex>>> {
        let out: Vec<Vec<u8>> = (0..self.ranks).map(|to| encode(&piece(to))).collect();
        let expected: Vec<usize> = out.iter().map(Vec::len).collect();
        let received = alltoall(ranks, out, &expected)?;
        Ok(received
            .iter()
            .map(|message| decode(message).collect())
            .collect())
    }

    /// Transforms in x and y.
    fn transform_planes(&self, ranks: &mut impl Rank, values: &mut [Complex], sign: f64) {
        let [x_size, y_size, _] = self.sizes;
        charge(ranks, values.len(), x_size * y_size);
        let mut column = vec![[0.0; 2]; y_size];
        for plane in values.chunks_mut(x_size * y_size) {
            for row in plane.chunks_mut(x_size) {
                transform(row, &self.roots[0], sign);
            }
            for x in 0..x_size {
                for (value, row) in column.iter_mut().zip(plane.chunks(x_size)) {
                    *value = row[x];
                }
                transform(&mut column, &self.roots[1], sign);
                for (value, row) in column.iter().zip(plane.chunks_mut(x_size)) {
                    row[x] = *value;
                }
            }
        }
    }

    /// Transforms in z.
    fn transform_columns(&self, ranks: &mut impl Rank, values: &mut [Complex], sign: f64) {
        let z_size = self.sizes[2];
        charge(ranks, values.len(), z_size);
        for column in values.chunks_mut(z_size) {
            transform(column, &self.roots[2], sign);
        }
    }

    /// The sum of some values, of which this rank has its own.
    fn checksum(&self, values: &[Complex]) -> Complex {
        let [x_size, y_size, z_size] = self.sizes;
        let own = part(z_size, self.ranks, self.rank);
        let mut sum = [0.0; 2];
        for n in 1..=SAMPLED {
            let (x, y, z) = (n % x_size, 3 * n % y_size, 5 * n % z_size);
            if own.contains(&z) {
                let [real, imaginary] = values[((z - own.start) * y_size + y) * x_size + x];
                sum = [sum[0] + real, sum[1] + imaginary];
            }
        }
        sum.map(|sum| sum / (x_size * y_size * z_size) as f64)
    }
}

/// Five operations for each value and each doubling of the length.
fn charge(ranks: &mut impl Rank, values: usize, len: usize) {
    ranks.compute(5 * values * len.ilog2() as usize);
}

/// The checksums of all iterations.
fn evolve(ranks: &mut impl Rank, slabs: &Slabs, start: Vec<Complex>) -> Result<Vec<Complex>> {
    let mut frequencies = slabs.forward(ranks, start)?;
    let damping = slabs.damping();
    let mut checksums = Vec::new();
    for _ in 0..ITERATIONS {
        for (value, damping) in frequencies.iter_mut().zip(&damping) {
            *value = value.map(|part| part * damping);
        }
        ranks.compute(2 * frequencies.len());
        let values = slabs.backward(ranks, frequencies.clone())?;
        let mut checksum = slabs.checksum(&values);
        allreduce(ranks, &mut checksum, |a, b| a + b)?;
        checksums.push(checksum);
    }
    Ok(checksums)
}

/// The transform of a power of two of values, in place: bits of the indices reversed, then
/// butterflies.
fn transform(values: &mut [Complex], roots: &[Complex], sign: f64) {
    let len = values.len();
    let bits = len.ilog2();
    for n in 0..len {
        let reversed = n.reverse_bits() >> (usize::BITS - bits);
        if n < reversed {
            values.swap(n, reversed);
        }
    }
    let mut half = 1;
    while half < len {
        let stride = len / (2 * half);
        for pair in values.chunks_mut(2 * half) {
            let (lower, upper) = pair.split_at_mut(half);
            for (n, (a, b)) in lower.iter_mut().zip(upper).enumerate() {
                let [cos, sin] = roots[n * stride];
                let sin = sign * sin;
                let turned = [b[0] * cos - b[1] * sin, b[0] * sin + b[1] * cos];
                *b = [a[0] - turned[0], a[1] - turned[1]];
                *a = [a[0] + turned[0], a[1] + turned[1]];
            }
        }
        half *= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::ranks::uniform;

    #[test]
    fn checksums_are_the_published_ones() {
        for ranks in [1, 4] {
            let found = uniform::run(ranks, move |rank| run(&mut Meter::new(rank), Class::S));
            assert!(found.iter().all(Result::is_ok), "{found:?}");
        }
    }

    #[test]
    fn the_inverse_transform_returns_the_input() {
        let sizes = [8, 16, 4];
        let found = uniform::run(2, move |rank| {
            let slabs = Slabs::new(sizes, rank);
            let start = slabs.initial();
            let there = slabs.forward(rank, start.clone())?;
            Ok((start, slabs.backward(rank, there)?))
        });
        let scale = sizes.iter().product::<usize>() as f64;
        for (start, back) in found.into_iter().map(Result::unwrap) {
            for (start, back) in start.iter().zip(&back) {
                assert!((0..2).all(|part| (start[part] - back[part] / scale).abs() < 1e-12));
            }
        }
    }

    #[test]
    fn a_single_frequency_is_transformed_to_a_single_value() {
        let roots: Vec<Complex> = (0..4)
            .map(|n| (2.0 * PI * f64::from(n) / 8.0).sin_cos())
            .map(|(sin, cos)| [cos, sin])
            .collect();
        let wave = |n: i32| (2.0 * PI * 3.0 * f64::from(n) / 8.0).sin_cos();
        let mut values: Vec<Complex> = (0..8).map(wave).map(|(sin, cos)| [cos, sin]).collect();
        transform(&mut values, &roots, -1.0);
        for (n, [real, imaginary]) in values.into_iter().enumerate() {
            let right = if n == 3 { 8.0 } else { 0.0 };
            assert!(
                (real - right).abs() < 1e-12 && imaginary.abs() < 1e-12,
                "{n}"
            );
        }
    }
}
