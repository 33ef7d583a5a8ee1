//! Terms of the NAS Parallel Benchmarks: "The NAS Parallel Benchmarks", RNR-94-007 (1994), and the
//! reference programs NPB 3.

use serde::{Deserialize, Serialize};

/// The multiplier 5^13 of the random numbers.
pub const MULTIPLIER: u64 = 1_220_703_125;

/// The seed of all programs but EP.
pub const SEED: u64 = 314_159_265;

const MASK: u64 = (1 << 46) - 1;

/// Classes of sizes, with published results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Class {
    /// The sample size.
    S,
    /// A size for workstations.
    W,
}

/// The linear congruential generator modulo 2^46.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator after `skipped` numbers.
    pub fn new(seed: u64, skipped: u64) -> Self {
        Random(times(seed, power(skipped)))
    }

    /// The next number, in (0, 1).
    pub fn next(&mut self) -> f64 {
        self.0 = times(self.0, MULTIPLIER);
        self.0 as f64 / (MASK + 1) as f64
    }
}

fn times(a: u64, b: u64) -> u64 {
    a.wrapping_mul(b) & MASK
}

/// A power of the multiplier.
fn power(mut exponent: u64) -> u64 {
    let (mut base, mut result) = (MULTIPLIER, 1);
    while exponent > 0 {
        if exponent % 2 == 1 {
            result = times(result, base);
        }
        base = times(base, base);
        exponent /= 2;
    }
    result
}

/// Whether a value is as published, within a share of it.
pub fn is_near(value: f64, published: f64, within: f64) -> bool {
    ((value - published) / published).abs() <= within
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn skipped_numbers_are_those_of_single_steps() {
        let mut single = Random::new(SEED, 0);
        for skipped in 0..200 {
            let mut skipping = Random::new(SEED, skipped);
            assert_eq!(single.next(), skipping.next(), "{skipped}");
        }
        assert!((0.0..1.0).contains(&single.next()));
    }
}
