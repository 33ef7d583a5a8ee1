//! Heavy hitters: the keys that are used most, by a SpaceSaving sketch of fixed size (Metwally et al.,
//! ICDT 2005).
//!
//! A key maps to one of [`SETS`] sets of [`WAYS`] counters. A key without a counter takes over the least
//! counter of its set, with its count, and notes that count as its error. So a key with more than one in
//! eight of the uses of its set always has a counter, and no reported rate is above the true one. Each
//! second all counters decay by an eighth: in the long run a counter stands at eight times the uses per
//! second.

const SETS: usize = 64;
const WAYS: usize = 8;

/// Weight of a use: a multiple of eight, so that small counts survive rounding.
const ONE: u64 = 256;

/// Seconds of uses that a counter holds in the long run.
const SECONDS: u64 = 8;

/// Largest value of a counter.
const LIMIT: u64 = 1 << 50;

/// The sketch.
#[derive(Debug)]
pub(crate) struct HeavyHitters(Box<[Set; SETS]>);

#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Set {
    hashes: [u64; WAYS],
    uses: [u64; WAYS],
    /// Part of `uses` that may be another key's.
    errors: [u64; WAYS],
}

/// A key, by its hash, and its rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HeavyHitter {
    pub(crate) hash: u64,
    /// Lower bound of its uses per 1,000 seconds.
    pub(crate) per_ks: u64,
}

impl Default for HeavyHitters {
    fn default() -> Self {
        HeavyHitters(Box::new([Set::default(); SETS]))
    }
}

impl HeavyHitters {
    /// Counts `times` uses of the key with this hash.
    pub(crate) fn add(&mut self, hash: u64, times: u32) {
        let set = &mut self.0[hash as usize >> 7 & (SETS - 1)];
        let more = u64::from(times) * ONE;
        let own = set.hashes.iter().position(|of| *of == hash);
        let at = own.unwrap_or_else(|| set.take_over(hash));
        set.uses[at] = (set.uses[at] + more).min(LIMIT);
    }

    /// Decays all counters. Called once a second.
    pub(crate) fn decay(&mut self) {
        for set in self.0.iter_mut() {
            let counters = set.uses.iter_mut().chain(&mut set.errors);
            counters.for_each(|counter| *counter -= counter.div_ceil(SECONDS));
        }
    }

    /// Keys with a rate above 0, the most used first.
    pub(crate) fn most(&self) -> Vec<HeavyHitter> {
        let counters = self.0.iter().flat_map(|set| {
            let uses = set.uses.iter().zip(&set.errors);
            set.hashes.iter().zip(uses)
        });
        let used = counters.map(|(hash, (uses, errors))| HeavyHitter {
            hash: *hash,
            per_ks: (uses - errors.min(uses)) / SECONDS * 1000 / ONE,
        });
        let mut used: Vec<HeavyHitter> = used.filter(|used| used.per_ks > 0).collect();
        used.sort_by_key(|used| std::cmp::Reverse(used.per_ks));
        used
    }
}

impl Set {
    fn take_over(&mut self, hash: u64) -> usize {
        let least = (0..WAYS).min_by_key(|at| self.uses[*at]).unwrap_or(0);
        self.hashes[least] = hash;
        self.errors[least] = self.uses[least];
        least
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::hash::hash;

    /// One in a hundred uses, among more keys than there are counters.
    #[test]
    fn heavy_hitters_are_found_among_many() {
        let mut heavy_hitters = HeavyHitters::default();
        let key = |n: u32| hash(3, &n.to_le_bytes());
        for second in 0..60 {
            for n in 0..10_000u32 {
                heavy_hitters.add(key(if n % 100 == 0 { 1 } else { second * 10_000 + n }), 1);
                if n % 400 == 0 {
                    heavy_hitters.add(key(2), 2);
                }
            }
            heavy_hitters.decay();
        }
        let most = heavy_hitters.most();
        assert_eq!([most[0].hash, most[1].hash], [key(1), key(2)]);
        // Of 100 and 50 each second, counted after a decay.
        let rates = [most[0].per_ks, most[1].per_ks];
        assert!((80_000..=100_000).contains(&rates[0]), "{rates:?}");
        assert!((30_000..=50_000).contains(&rates[1]), "{rates:?}");
        assert!(
            most[2..].iter().all(|rest| rest.per_ks < 5_000),
            "{:?}",
            most[2]
        );
    }

    #[test]
    fn counters_decay_to_zero_and_do_not_overflow() {
        let mut heavy_hitters = HeavyHitters::default();
        for _ in 0..100 {
            heavy_hitters.add(1, u32::MAX);
        }
        assert_eq!(heavy_hitters.most().len(), 1);
        for _ in 0..1000 {
            heavy_hitters.decay();
        }
        assert_eq!(heavy_hitters.most(), []);
    }
}
