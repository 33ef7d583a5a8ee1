//! CG of NPB: the smallest eigenvalue of a sparse matrix by inverse iteration, each with 25 steps of
//! conjugate gradients.
//!
//! The matrix is divided among rows and columns of ranks. Each product is summed along a row of
//! ranks and transposed.

use std::ops::Range;

use anyhow::{Result, ensure};

use super::collectives::{Group, allreduce, exchange, sum};
use super::grid::{factors, part};
use super::npb::{Class, Random, SEED, is_near};
use super::rank::{Meter, Rank, Usage};
use super::values::{decode, encode};

const ITERATIONS: usize = 15;
const STEPS: usize = 25;

/// Lower bound of the eigenvalues before the shift.
const CONDITION: f64 = 0.1;

/// The largest residual of a solution. That of NPB is about 1e-13.
const RESIDUAL: f64 = 1e-10;

#[derive(Clone, Copy)]
struct Problem {
    rows: usize,
    /// Nonzero values of a generating vector.
    nonzeros: usize,
    shift: f64,
    /// The published result.
    zeta: f64,
}

impl Class {
    fn cg(self) -> Problem {
        match self {
            Class::S => Problem {
                rows: 1400,
                nonzeros: 7,
                shift: 10.0,
                zeta: 8.5971775078648,
            },
            Class::W => Problem {
                rows: 7000,
                nonzeros: 8,
                shift: 12.0,
                zeta: 10.362595087124,
            },
        }
    }
}

pub fn run<R: Rank>(ranks: &mut Meter<'_, R>, class: Class) -> Result<Usage> {
    let problem = class.cg();
    let share = Share::new(&problem, ranks.rank(), ranks.ranks());
    let ((zeta, residual), usage) =
        ranks.measure(|ranks| inverse_iteration(ranks, &problem, &share))?;
    let published = problem.zeta;
    ensure!(residual < RESIDUAL, "the residual is {residual}");
    ensure!(
        is_near(zeta, published, 1e-10),
        "zeta is {zeta} instead of {published}"
    );
    Ok(usage)
}

/// A rank's part of the matrix and its place.
struct Share {
    /// Nonzero values of each row, by column from the part's first on.
    rows: Vec<Vec<(usize, f64)>>,
    columns: usize,
    /// Numbers of the ranks with the same rows.
    row_group: Vec<usize>,
    /// The rank whose rows contain this rank's columns, and the other way round.
    transposed: usize,
    /// The columns of the transposed rank among the own rows.
    passed: Range<usize>,
}

impl Share {
    fn new(problem: &Problem, rank: usize, ranks: usize) -> Self {
        let [across, down] = factors::<2>(ranks);
        // Once or twice as many columns of ranks as rows.
        let halves = across / down;
        let (row, column) = (rank / across, rank % across);
        let rows = part(problem.rows, down, row);
        let half = |of: Range<usize>, half| {
            let part = part(of.len(), halves, half);
            of.start + part.start..of.start + part.end
        };
        let columns = half(part(problem.rows, down, column / halves), column % halves);
        let passed = half(0..rows.len(), column % halves);
        Share {
            rows: matrix(problem, &rows, &columns),
            columns: columns.len(),
            row_group: (0..across).map(|column| row * across + column).collect(),
            transposed: column / halves * across + halves * row + column % halves,
            passed,
        }
    }

    /// The product with a vector, of which each rank has its columns.
    fn times<R: Rank>(&self, ranks: &mut R, vector: &[f64]) -> Result<Vec<f64>> {
        let of_row = |row: &Vec<(usize, f64)>| -> f64 {
            row.iter()
                .map(|(column, value)| value * vector[*column])
                .sum()
        };
        let mut product: Vec<f64> = self.rows.iter().map(of_row).collect();
        ranks.compute(2 * self.rows.iter().map(Vec::len).sum::<usize>());
        self.sum(ranks, &mut product)?;
        let message = encode(&product[self.passed.clone()]);
        let bytes = self.columns * size_of::<f64>();
        let received = exchange(ranks, self.transposed, &message, bytes)?;
        Ok(decode(&received).collect())
    }

    fn sum<R: Rank>(&self, ranks: &mut R, values: &mut [f64]) -> Result<()> {
        allreduce(
            &mut Group::new(ranks, self.row_group.clone())?,
            values,
            |a, b| a + b,
        )
    }

    fn dot<R: Rank>(&self, ranks: &mut R, a: &[f64], b: &[f64]) -> Result<f64> {
        let own = a.iter().zip(b).map(|(a, b)| a * b).sum();
        ranks.compute(2 * a.len());
        sum(&mut Group::new(ranks, self.row_group.clone())?, own)
    }
}

/// The eigenvalue and the last residual.
fn inverse_iteration(
    ranks: &mut impl Rank,
    problem: &Problem,
    share: &Share,
) -> Result<(f64, f64)> {
    let mut x = vec![1.0; share.columns];
    let (mut zeta, mut residual) = (0.0, 0.0);
    for _ in 0..ITERATIONS {
        let z;
        (z, residual) = solve(ranks, share, &x)?;
        zeta = problem.shift + 1.0 / share.dot(ranks, &x, &z)?;
        let norm = share.dot(ranks, &z, &z)?.sqrt();
        x = z.iter().map(|z| z / norm).collect();
    }
    Ok((zeta, residual))
}

/// The solution z of A z = x, and the norm of its residual.
fn solve(ranks: &mut impl Rank, share: &Share, x: &[f64]) -> Result<(Vec<f64>, f64)> {
    let (mut z, mut r, mut p) = (vec![0.0; x.len()], x.to_vec(), x.to_vec());
    let mut rho = share.dot(ranks, &r, &r)?;
    for _ in 0..STEPS {
        let q = share.times(ranks, &p)?;
        let alpha = rho / share.dot(ranks, &p, &q)?;
        for n in 0..z.len() {
            z[n] += alpha * p[n];
            r[n] -= alpha * q[n];
        }
        let before = rho;
        rho = share.dot(ranks, &r, &r)?;
        let beta = rho / before;
        p.iter_mut().zip(&r).for_each(|(p, r)| *p = r + beta * *p);
        ranks.compute(6 * z.len());
    }
    let product = share.times(ranks, &z)?;
    let rest: Vec<f64> = x
        .iter()
        .zip(&product)
        .map(|(x, product)| x - product)
        .collect();
    Ok((z, share.dot(ranks, &rest, &rest)?.sqrt()))
}

/// Rows and columns of NPB's matrix: a weighted sum of outer products of sparse random vectors.
fn matrix(
    problem: &Problem,
    rows: &Range<usize>,
    columns: &Range<usize>,
) -> Vec<Vec<(usize, f64)>> {
    // The reference programs draw one number first.
    let mut random = Random::new(SEED, 1);
    let mut matrix = vec![Vec::new(); rows.len()];
    let ratio = CONDITION.powf(1.0 / problem.rows as f64);
    let mut weight = 1.0;
    for number in 0..problem.rows {
        let vector = vector(problem, number, &mut random);
        for (row, left) in vector.iter().filter(|(row, _)| rows.contains(row)) {
            for (column, right) in vector.iter().filter(|(column, _)| columns.contains(column)) {
                let is_own = *row == number && *column == number;
                let diagonal = if is_own {
                    CONDITION - problem.shift
                } else {
                    0.0
                };
                let value = right * (weight * left) + diagonal;
                matrix[row - rows.start].push((column - columns.start, value));
            }
        }
        weight *= ratio;
    }
    matrix.iter_mut().for_each(merge);
    matrix
}

/// Adds up the values of the same column.
fn merge(row: &mut Vec<(usize, f64)>) {
    row.sort_by_key(|(column, _)| *column);
    row.dedup_by(|next, kept| {
        let is_same = next.0 == kept.0;
        if is_same {
            kept.1 += next.1;
        }
        is_same
    });
}

/// A sparse vector, whose value at `number` is 1/2.
fn vector(problem: &Problem, number: usize, random: &mut Random) -> Vec<(usize, f64)> {
    let scale = problem.rows.next_power_of_two() as f64;
    let mut vector: Vec<(usize, f64)> = Vec::with_capacity(problem.nonzeros + 1);
    while vector.len() < problem.nonzeros {
        let (value, place) = (random.next(), (scale * random.next()) as usize);
        if place < problem.rows && vector.iter().all(|(known, _)| *known != place) {
            vector.push((place, value));
        }
    }
    match vector.iter_mut().find(|(place, _)| *place == number) {
        Some((_, value)) => *value = 0.5,
        None => vector.push((number, 0.5)),
    }
    vector
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::ranks::uniform;

    #[test]
    fn the_eigenvalue_is_the_published_one_with_square_and_other_grids_of_ranks() {
        for ranks in [1, 2, 4, 8] {
            let found = uniform::run(ranks, move |rank| run(&mut Meter::new(rank), Class::S));
            assert!(found.iter().all(Result::is_ok), "{found:?}");
        }
    }

    #[test]
    fn parts_of_the_matrix_are_its_parts() {
        let problem = Problem {
            rows: 50,
            ..Class::S.cg()
        };
        let whole = matrix(&problem, &(0..50), &(0..50));
        let part = matrix(&problem, &(10..20), &(25..50));
        for (row, part) in part.iter().enumerate() {
            let right = whole[10 + row].iter().filter(|(column, _)| *column >= 25);
            let right: Vec<_> = right.map(|(column, value)| (column - 25, *value)).collect();
            assert_eq!(*part, right);
        }
        let is_symmetric = |(row, values): (usize, &Vec<(usize, f64)>)| {
            values.iter().all(|(column, value)| {
                let other = whole[*column].iter().find(|(other, _)| *other == row);
                other.is_some_and(|(_, other)| (other - value).abs() < 1e-12)
            })
        };
        assert!(whole.iter().enumerate().all(is_symmetric));
    }
}
