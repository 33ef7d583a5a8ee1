//! Where a client has seen items: a bounded cache from the hash of a key to a placement.
//!
//! Entries are hints: a reader checks the item's whole key, so nothing here needs to be right,
//! only quick. Two entries share a cache line, a hash has two lines to choose from, and the
//! first usually holds it: one line is touched per get. The table doubles when both are full,
//! up to its bound; then an older entry gives way.

use crate::layout::{Placement, Slot, SlotWord};

/// A cache of placements.
#[derive(Debug)]
pub struct Places {
    lines: Vec<Pair>,
    limit_log2: u32,
    victim: usize,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Pair([Entry; 2]);

/// Vacant when `word` is 0.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    hash: u64,
    word: u64,
    generation: u64,
    slot: u32,
    len: u32,
}

impl Places {
    const FIRST_LOG2: u32 = 6;

    /// An empty cache that grows to 2^`limit_log2` lines of 64 bytes, two places each.
    pub fn new(limit_log2: u32) -> Self {
        let limit_log2 = limit_log2.clamp(Self::FIRST_LOG2, 40);
        Places {
            lines: vec![Pair::default(); 1 << Self::FIRST_LOG2],
            limit_log2,
            victim: 0,
        }
    }

    /// Where the key with this hash was last seen.
    pub fn find(&self, hash: u64) -> Option<Placement> {
        let entry = self
            .lines_of(hash)
            .into_iter()
            .flat_map(|line| &self.lines[line].0);
        let mut entry = entry.filter(|entry| entry.hash == hash && entry.word != 0);
        entry.next().map(|entry| Placement {
            slot: Slot(entry.slot),
            word: SlotWord(entry.word),
            generation: entry.generation,
            len: entry.len,
        })
    }

    /// Remembers where a key was seen.
    pub fn insert(&mut self, hash: u64, placement: Placement) {
        let entry = Entry {
            hash,
            word: placement.word.0,
            generation: placement.generation,
            slot: placement.slot.0,
            len: placement.len,
        };
        while !self.try_insert(entry) {
            if self.lines.len() >= 1 << self.limit_log2 {
                self.victim = self.victim.wrapping_add(1);
                let line = self.lines_of(hash)[self.victim >> 1 & 1];
                self.lines[line].0[self.victim & 1] = entry;
                return;
            }
            self.grow();
        }
    }

    /// Forgets a key.
    pub fn remove(&mut self, hash: u64) {
        for line in self.lines_of(hash) {
            for entry in &mut self.lines[line].0 {
                if entry.hash == hash {
                    *entry = Entry::default();
                }
            }
        }
    }

    fn try_insert(&mut self, entry: Entry) -> bool {
        let lines = self.lines_of(entry.hash);
        let usable: [fn(&Entry, u64) -> bool; 2] =
            [|old, hash| old.hash == hash, |old, _| old.word == 0];
        for usable in usable {
            for line in lines {
                let mut old = self.lines[line].0.iter_mut();
                if let Some(old) = old.find(|old| usable(old, entry.hash)) {
                    *old = entry;
                    return true;
                }
            }
        }
        false
    }

    fn grow(&mut self) {
        let doubled = vec![Pair::default(); self.lines.len() * 2];
        let old = std::mem::replace(&mut self.lines, doubled);
        for entry in old
            .iter()
            .flat_map(|pair| pair.0)
            .filter(|entry| entry.word != 0)
        {
            // What finds no room even so was a hint, and is lost.
            self.try_insert(entry);
        }
    }

    /// Bits that chose neither bucket nor tag, as far as there are any.
    fn lines_of(&self, hash: u64) -> [usize; 2] {
        let mask = self.lines.len() - 1;
        [
            hash.rotate_right(20) as usize & mask,
            hash.rotate_right(43) as usize & mask,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::hash;

    fn placement(n: u32) -> Placement {
        let word = SlotWord(u64::from(n) + 1);
        Placement {
            slot: Slot(n),
            word,
            generation: u64::from(n),
            len: n,
        }
    }

    fn key(n: u32) -> u64 {
        hash(0, &n.to_le_bytes())
    }

    #[test]
    fn most_places_are_kept_up_to_the_bound() {
        let mut places = Places::new(10);
        for n in 0..1500 {
            places.insert(key(n), placement(n));
        }
        let found = (0..1500)
            .filter(|&n| places.find(key(n)) == Some(placement(n)))
            .count();
        // Any seed gives from 1380 to 1410.
        assert!(found > 1350, "{found}");
        for n in 0..100_000 {
            places.insert(key(n), placement(n));
            assert_eq!(places.find(key(n)), Some(placement(n)));
        }
        assert_eq!(places.lines.len(), 1 << 10);
    }

    #[test]
    fn the_newest_place_counts_and_removal_forgets() {
        let mut places = Places::new(10);
        places.insert(5, placement(1));
        places.insert(5, placement(2));
        assert_eq!(places.find(5), Some(placement(2)));
        places.remove(5);
        assert_eq!(places.find(5), None);
    }
}
