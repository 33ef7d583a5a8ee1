//! Published mixes of gets and sets: the frequency of keys, and the sizes of values.
//!
//! * YCSB A, B and C (Cooper et al., SoCC 2010): records of 1,000 bytes, half, a twentieth or none
//!   of the operations are updates, keys by a Zipf distribution of exponent 0.99.
//! * A mix like Facebook's ETC pool (Atikoglu et al., SIGMETRICS 2012): value sizes by the paper's
//!   generalized Pareto distribution, key sizes by its generalized extreme value distribution,
//!   thirty gets to a set. Popularity is that of YCSB, because the paper has none.

use serde::{Deserialize, Serialize};

use super::pattern::{HEADER, mix};

/// Keys of a mix.
pub const KEYS: u64 = 100_000;

/// Exponent of the Zipf distribution of keys.
const ZIPF: f64 = 0.99;

/// Bytes of a record of YCSB: ten fields of a hundred.
const RECORD: usize = 1000;

/// Bytes of the longest value of ETC; one in ten thousand would be longer.
const LONGEST: usize = 64 << 10;

/// Bytes of the shortest and longest key.
const KEY_BYTES: [f64; 2] = [16.0, 200.0];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mix {
    /// Half gets, half sets.
    YcsbA,
    /// One set in twenty.
    YcsbB,
    /// Gets alone.
    YcsbC,
    /// Small values of many sizes, one set in thirty-one.
    Etc,
}

impl Mix {
    pub const ALL: [Mix; 4] = [Mix::YcsbA, Mix::YcsbB, Mix::YcsbC, Mix::Etc];

    /// The share of operations that are sets.
    pub fn sets(self) -> f64 {
        match self {
            Mix::YcsbA => 0.5,
            Mix::YcsbB => 0.05,
            Mix::YcsbC => 0.0,
            Mix::Etc => 1.0 / 31.0,
        }
    }

    /// Bytes of a key's value, the same each time.
    pub fn value_len(self, key: u64) -> usize {
        match self {
            Mix::Etc => {
                let (scale, shape) = (214.476, 0.348_238);
                let len = scale * ((1.0 - even(key, 1)).powf(-shape) - 1.0) / shape;
                (len as usize).clamp(HEADER, LONGEST)
            }
            _ => RECORD,
        }
    }

    /// Writes a key's name over `name`.
    pub fn name(self, key: u64, name: &mut Vec<u8>) {
        use std::io::Write;
        name.clear();
        // Writing to a vector does not fail.
        let _ = match self {
            Mix::Etc => write!(name, "etc{key:0width$x}", width = name_len(key) - 3),
            _ => write!(name, "user{key:019}"),
        };
    }
}

/// Bytes of a key of ETC.
fn name_len(key: u64) -> usize {
    let (location, scale, shape) = (30.7984, 8.20449, 0.078688);
    let len = location + scale * ((-even(key, 2).ln()).powf(-shape) - 1.0) / shape;
    let [least, most] = KEY_BYTES;
    len.clamp(least, most) as usize
}

/// A uniform number above 0 and below 1, a function of the arguments.
fn even(key: u64, of: u64) -> f64 {
    ((mix(key ^ mix(of)) >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

/// Draws keys by a Zipf distribution (Gray et al., SIGMOD 1994), scattered as in YCSB, so that
/// popular keys are no neighbours.
#[derive(Debug)]
pub struct Keys {
    random: fastrand::Rng,
    zeta: f64,
    alpha: f64,
    eta: f64,
}

impl Keys {
    /// A sequence determined by `seed`.
    pub fn new(seed: u64) -> Self {
        let zeta_of = |count: u64| (1..=count).map(|n| (n as f64).powf(-ZIPF)).sum::<f64>();
        let zeta = zeta_of(KEYS);
        let tail = (2.0 / KEYS as f64).powf(1.0 - ZIPF);
        Keys {
            random: fastrand::Rng::with_seed(seed),
            zeta,
            alpha: 1.0 / (1.0 - ZIPF),
            eta: (1.0 - tail) / (1.0 - zeta_of(2) / zeta),
        }
    }

    /// The next key.
    pub fn draw(&mut self) -> u64 {
        mix(self.rank()) % KEYS
    }

    /// True with probability `share`.
    pub fn chance(&mut self, share: f64) -> bool {
        self.fraction() < share
    }

    fn rank(&mut self) -> u64 {
        let fraction = self.fraction();
        let at = fraction * self.zeta;
        if at < 1.0 {
            return 0;
        }
        if at < 1.0 + 0.5f64.powf(ZIPF) {
            return 1;
        }
        let rank = KEYS as f64 * (self.eta * fraction - self.eta + 1.0).powf(self.alpha);
        (rank as u64).min(KEYS - 1)
    }

    fn fraction(&mut self) -> f64 {
        self.random.f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_keys_are_most_popular() {
        let mut keys = Keys::new(1);
        let (mut first, mut tenth) = (0, 0);
        for _ in 0..100_000 {
            let rank = keys.rank();
            assert!(rank < KEYS);
            first += u32::from(rank == 0);
            tenth += u32::from(rank < KEYS / 10);
        }
        // 1 / zeta, and zeta of a tenth / zeta.
        assert!((7_300..8_600).contains(&first), "{first}");
        assert!((78_000..84_000).contains(&tenth), "{tenth}");
    }

    #[test]
    fn mean_sizes_match_the_paper() {
        let mean =
            |of: fn(u64) -> usize| (0..KEYS).map(|key| of(key) as f64).sum::<f64>() / KEYS as f64;
        // scale / (1 - shape), and location + scale (gamma(1 - shape) - 1) / shape.
        let values = mean(|key| Mix::Etc.value_len(key));
        assert!((300.0..360.0).contains(&values), "{values}");
        let names = mean(name_len);
        assert!((34.0..38.0).contains(&names), "{names}");
    }

    #[test]
    fn keys_have_distinct_names() {
        let mut name = Vec::new();
        for mix in Mix::ALL {
            let mut all = std::collections::HashSet::new();
            for key in 0..KEYS {
                mix.name(key, &mut name);
                assert!(all.insert(name.clone()) && name.len() <= 250);
            }
        }
    }
}
