//! Which keys are used most: a sketch of fixed size, fed by all that is got, wherever.
//!
//! A key belongs to one of [`SETS`] sets of [`WAYS`] counters. One that has none takes over the
//! least of its set, with what that counted, and notes how much of it was not its own (space-saving: Metwally et
//! al., ICDT 2005). So none with more than one in eight of what its set sees is missed, and
//! none is told to be used more than it was. Each second all counters lose an eighth, so that in
//! the long run one stands at eight times the uses per second.

const SETS: usize = 64;
const WAYS: usize = 8;

/// A use, so that little uses do not vanish with the eighths.
const ONE: u64 = 256;

/// A counter of so many seconds' uses.
const SECONDS: u64 = 8;

/// The most that a counter holds.
const LIMIT: u64 = 1 << 50;

/// How often keys are used.
#[derive(Debug)]
pub(crate) struct Hot(Box<[Set; SETS]>);

#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Set {
    hashes: [u64; WAYS],
    uses: [u64; WAYS],
    /// Of these, what was another key's.
    others: [u64; WAYS],
}

/// A key by its hash, and how often it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Used {
    pub(crate) hash: u64,
    /// In thousandths of a use per second, at least.
    pub(crate) per_ks: u64,
}

impl Default for Hot {
    fn default() -> Self {
        Hot(Box::new([Set::default(); SETS]))
    }
}

impl Hot {
    /// The key with this hash was used so often.
    pub(crate) fn add(&mut self, hash: u64, times: u32) {
        let set = &mut self.0[hash as usize >> 7 & (SETS - 1)];
        let more = u64::from(times) * ONE;
        let own = set.hashes.iter().position(|of| *of == hash);
        let at = own.unwrap_or_else(|| set.take_over(hash));
        set.uses[at] = (set.uses[at] + more).min(LIMIT);
    }

    /// A second has passed.
    pub(crate) fn fade(&mut self) {
        for set in self.0.iter_mut() {
            let counters = set.uses.iter_mut().chain(&mut set.others);
            counters.for_each(|counter| *counter -= counter.div_ceil(SECONDS));
        }
    }

    /// All keys that have a counter and are known to have been used, the most used first.
    pub(crate) fn most(&self) -> Vec<Used> {
        let counters = self.0.iter().flat_map(|set| {
            let uses = set.uses.iter().zip(&set.others);
            set.hashes.iter().zip(uses)
        });
        let used = counters.map(|(hash, (uses, others))| Used {
            hash: *hash,
            per_ks: (uses - others.min(uses)) / SECONDS * 1000 / ONE,
        });
        let mut used: Vec<Used> = used.filter(|used| used.per_ks > 0).collect();
        used.sort_by_key(|used| std::cmp::Reverse(used.per_ks));
        used
    }
}

impl Set {
    fn take_over(&mut self, hash: u64) -> usize {
        let least = (0..WAYS).min_by_key(|at| self.uses[*at]).unwrap_or(0);
        self.hashes[least] = hash;
        self.others[least] = self.uses[least];
        least
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::hash;

    /// One in a hundred uses, among more keys than there are counters.
    #[test]
    fn what_is_hot_is_found_among_many() {
        let mut hot = Hot::default();
        let key = |n: u32| hash(3, &n.to_le_bytes());
        for second in 0..60 {
            for n in 0..10_000u32 {
                hot.add(key(if n % 100 == 0 { 1 } else { second * 10_000 + n }), 1);
                if n % 400 == 0 {
                    hot.add(key(2), 2);
                }
            }
            hot.fade();
        }
        let most = hot.most();
        assert_eq!([most[0].hash, most[1].hash], [key(1), key(2)]);
        // Of 100 and 50 each second, counted after a fade.
        let rates = [most[0].per_ks, most[1].per_ks];
        assert!((80_000..=100_000).contains(&rates[0]), "{rates:?}");
        assert!((30_000..=50_000).contains(&rates[1]), "{rates:?}");
        assert!(
            most[2..].iter().all(|other| other.per_ks < 5_000),
            "{:?}",
            most[2]
        );
    }

    #[test]
    fn what_is_over_is_forgotten_and_nothing_overflows() {
        let mut hot = Hot::default();
        for _ in 0..100 {
            hot.add(1, u32::MAX);
        }
        assert_eq!(hot.most().len(), 1);
        for _ in 0..1000 {
            hot.fade();
        }
        assert_eq!(hot.most(), []);
    }
}
