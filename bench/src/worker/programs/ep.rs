//! EP of NPB: pairs of Gaussian deviates, counted by annuli. Only the sums are communicated.

use std::ops::Range;

use anyhow::{Result, ensure};

use super::collectives::allreduce;
use super::grid::part;
use super::npb::{Class, Random, is_near};
use super::rank::{Meter, Rank, Usage};

const SEED: u64 = 271_828_183;

/// Square annuli in which pairs are counted.
const ANNULI: usize = 10;

/// Sums of both deviates, and counts of pairs.
#[derive(Clone, Debug, PartialEq)]
struct Sums {
    x: f64,
    y: f64,
    counts: [u64; ANNULI],
}

impl Class {
    /// Binary logarithm of the pairs, the published sums, and the counts of the annuli with pairs.
    fn ep(self) -> (u32, [f64; 2], [u64; 6]) {
        match self {
            Class::S => (
                24,
                [-3.24783465203474e3, -6.958407078382297e3],
                [6_140_517, 5_865_300, 1_100_361, 68_546, 1648, 17],
            ),
            Class::W => (
                25,
                [-2.863319731645753e3, -6.320053679109499e3],
                [12_281_576, 11_729_692, 2_202_726, 137_368, 3371, 36],
            ),
        }
    }
}

pub fn run<R: Rank>(ranks: &mut Meter<'_, R>, class: Class) -> Result<Usage> {
    let (log2, [x, y], counts) = class.ep();
    let (sums, usage) = ranks.measure(|ranks| sums_of_all(ranks, 1 << log2))?;
    let is_right = is_near(sums.x, x, 1e-8) && is_near(sums.y, y, 1e-8);
    ensure!(
        is_right,
        "the sums are {} and {} instead of {x} and {y}",
        sums.x,
        sums.y
    );
    let (inner, outer) = sums.counts.split_at(counts.len());
    let is_right = inner == counts && outer.iter().all(|count| *count == 0);
    ensure!(
        is_right,
        "the counts are {:?} instead of {counts:?}",
        sums.counts
    );
    Ok(usage)
}

fn sums_of_all(ranks: &mut impl Rank, pairs: usize) -> Result<Sums> {
    let own = part(pairs, ranks.ranks(), ranks.rank());
    ranks.compute(30 * own.len());
    let mut sums = sums(own);
    let mut deviates = [sums.x, sums.y];
    allreduce(ranks, &mut deviates, |a, b| a + b)?;
    [sums.x, sums.y] = deviates;
    allreduce(ranks, &mut sums.counts, |a, b| a + b)?;
    Ok(sums)
}

fn sums(pairs: Range<usize>) -> Sums {
    let mut random = Random::new(SEED, 2 * pairs.start as u64);
    let mut sums = Sums {
        x: 0.0,
        y: 0.0,
        counts: [0; ANNULI],
    };
    for _ in pairs {
        let (x, y) = (2.0 * random.next() - 1.0, 2.0 * random.next() - 1.0);
        let square = x * x + y * y;
        if square <= 1.0 {
            let factor = (-2.0 * square.ln() / square).sqrt();
            let (x, y) = (x * factor, y * factor);
            sums.counts[x.abs().max(y.abs()) as usize] += 1;
            sums.x += x;
            sums.y += y;
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::ranks::uniform;

    #[test]
    fn the_sums_do_not_depend_on_the_number_of_ranks() {
        let whole = sums(0..10_000);
        let kept = whole.counts.iter().sum::<u64>() as f64 / 10_000.0;
        assert!((kept - std::f64::consts::FRAC_PI_4).abs() < 0.01, "{kept}");
        for found in uniform::run(3, move |rank| sums_of_all(rank, 10_000)) {
            let found = found.unwrap();
            assert_eq!(found.counts, whole.counts);
            assert!(is_near(found.x, whole.x, 1e-12) && is_near(found.y, whole.y, 1e-12));
        }
    }
}
