//! Location cache: a bounded map from the hash of a key to the location of its item.
//!
//! Entries are hints: a reader checks the whole key of the item, so an entry may be wrong. Two
//! entries share a cache line. A hash has two lines to choose from, and its entry is usually in the
//! first: a get touches one line. The table doubles when both lines are full, up to its bound; then
//! an older entry is replaced.
//!
//! An entry also counts how often its item was replaced between two gets. An entry that was
//! replaced more often than not is contended: it is cheaper to read its slot before the item. While
//! most gets meet replaced items, all entries count as contended, so that no get takes more reads
//! than one that reads the slot first.

use crate::protocol::layout::{Location, Slot, SlotWord};

/// The cache.
#[derive(Debug)]
pub struct LocationCache {
    lines: Vec<Pair>,
    limit_log2: u32,
    victim: usize,
    /// Share of recent gets that met a replaced item, in units of 1/[`LocationCache::ALL`].
    contention: u32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Pair([Entry; 2]);

/// An entry; vacant when `word` is 0.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    hash: u64,
    word: u64,
    /// Generation, then [`Entry::REPLACED_BITS`] bits with the count of replacements.
    generation: u64,
    slot: u32,
    len: u32,
}

/// A cached location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The location.
    pub location: Location,
    /// Whether most gets met a replaced item, here or in all entries.
    pub is_contended: bool,
}

impl Entry {
    const REPLACED_BITS: u32 = 2;
    const REPLACED_MOST: u64 = (1 << Self::REPLACED_BITS) - 1;

    /// Replacements from which an entry is contended.
    const CONTENDED: u64 = 2;

    fn new(hash: u64, location: Location) -> Self {
        Entry {
            hash,
            word: location.word.0,
            generation: location.generation << Self::REPLACED_BITS,
            slot: location.slot.0,
            len: location.len,
        }
    }

    fn location(&self) -> Location {
        Location {
            slot: Slot(self.slot),
            word: SlotWord(self.word),
            generation: self.generation >> Self::REPLACED_BITS,
            len: self.len,
        }
    }

    fn replaced(&self) -> u64 {
        self.generation & Self::REPLACED_MOST
    }

    fn set_replaced(&mut self, replaced: u64) {
        let replaced = replaced.min(Self::REPLACED_MOST);
        self.generation = self.generation & !Self::REPLACED_MOST | replaced;
    }

    /// Replaces an entry by a newer one of the same key; returns whether another client had
    /// replaced the item. An entry that was removed before does not count.
    fn renew(&mut self, mut newer: Entry) -> bool {
        let was_replaced = self.word != 0 && self.word != newer.word;
        newer.set_replaced(self.replaced() + u64::from(was_replaced));
        *self = newer;
        was_replaced
    }
}

impl LocationCache {
    const FIRST_LOG2: u32 = 6;

    /// Unit of `contention`. Each get counts for 1/128.
    const ALL: u32 = 1 << 16;
    const SHARE_LOG2: u32 = 7;

    /// An empty cache that grows to 2^`limit_log2` lines of 64 bytes, two locations each.
    pub fn new(limit_log2: u32) -> Self {
        let limit_log2 = limit_log2.clamp(Self::FIRST_LOG2, 40);
        LocationCache {
            lines: vec![Pair::default(); 1 << Self::FIRST_LOG2],
            limit_log2,
            victim: 0,
            contention: 0,
        }
    }

    /// The cached location of the key with this hash.
    pub fn peek(&self, hash: u64) -> Option<Location> {
        self.entry(hash).map(Entry::location)
    }

    /// The cached location for a get, with its contention.
    pub fn get(&mut self, hash: u64) -> Option<Hit> {
        let entry = *self.entry(hash)?;
        let most_change = self.contention > Self::ALL / 2;
        self.contention -= self.contention >> Self::SHARE_LOG2;
        Some(Hit {
            location: entry.location(),
            is_contended: entry.replaced() >= Entry::CONTENDED || most_change,
        })
    }

    fn entry(&self, hash: u64) -> Option<&Entry> {
        let entry = self
            .lines_of(hash)
            .into_iter()
            .flat_map(|line| &self.lines[line].0);
        let mut entry = entry.filter(|entry| entry.hash == hash && entry.word != 0);
        entry.next()
    }

    /// Notes that a contended entry was not replaced.
    pub fn decay(&mut self, hash: u64) {
        for line in self.lines_of(hash) {
            let mut entries = self.lines[line].0.iter_mut();
            if let Some(entry) = entries.find(|entry| entry.hash == hash) {
                return entry.set_replaced(entry.replaced().saturating_sub(Entry::CONTENDED));
            }
        }
    }

    /// Caches the location of a key.
    pub fn insert(&mut self, hash: u64, location: Location) {
        let entry = Entry::new(hash, location);
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

    /// Removes the location of a key.
    pub fn remove(&mut self, hash: u64) {
        for line in self.lines_of(hash) {
            for entry in &mut self.lines[line].0 {
                if entry.hash == hash {
                    entry.word = 0;
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
                    if old.hash != entry.hash {
                        *old = entry;
                    } else if old.renew(entry) {
                        let more = self.contention + (Self::ALL >> Self::SHARE_LOG2);
                        self.contention = more.min(Self::ALL);
                    }
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
            // An entry without room is a hint, and is dropped.
            self.try_insert(entry);
        }
    }

    /// The two lines of a hash, by bits that chose neither bucket nor tag.
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
    use crate::protocol::hash::hash;

    fn location(n: u32) -> Location {
        let word = SlotWord(u64::from(n) + 1);
        Location {
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
    fn most_locations_are_kept_up_to_the_bound() {
        let mut cache = LocationCache::new(10);
        for n in 0..1500 {
            cache.insert(key(n), location(n));
        }
        let found = (0..1500)
            .filter(|&n| cache.peek(key(n)) == Some(location(n)))
            .count();
        // Any seed gives from 1380 to 1410.
        assert!(found > 1350, "{found}");
        for n in 0..100_000 {
            cache.insert(key(n), location(n));
            assert_eq!(cache.peek(key(n)), Some(location(n)));
        }
        assert_eq!(cache.lines.len(), 1 << 10);
    }

    #[test]
    fn insertion_replaces_and_removal_forgets_a_location() {
        let mut cache = LocationCache::new(10);
        cache.insert(5, location(1));
        cache.insert(5, location(2));
        assert_eq!(cache.peek(5), Some(location(2)));
        cache.remove(5);
        assert_eq!(cache.peek(5), None);
    }

    #[test]
    fn all_entries_are_contended_while_most_gets_meet_replaced_items() {
        let mut cache = LocationCache::new(10);
        let get = |cache: &mut LocationCache, of: u32, is_new: bool| {
            let hit = cache.get(key(of)).unwrap();
            let word = SlotWord(hit.location.word.0 + u64::from(is_new));
            let location = Location {
                word,
                ..hit.location
            };
            cache.insert(key(of), location);
            // Undoes the contention of this entry, so that only the shared count matters.
            cache.decay(key(of));
            hit.is_contended
        };
        (0..100).for_each(|n| cache.insert(key(n), location(n)));
        let mut gets = |changes: &[u32], last: u32| -> usize {
            let contended = (0..1000).map(|n| get(&mut cache, n % 100, changes.contains(&(n % 5))));
            contended
                .skip(1000 - last as usize)
                .filter(|is| *is)
                .count()
        };
        assert_eq!(gets(&[], 1000), 0);
        assert_eq!(gets(&[1, 3], 1000), 0);
        assert_eq!(gets(&[1, 2, 3, 4], 500), 500);
        assert_eq!(gets(&[2], 500), 0);
    }

    #[test]
    fn an_entry_is_contended_while_others_replace_its_item() {
        let mut cache = LocationCache::new(10);
        let is_contended = |cache: &mut LocationCache| cache.get(5).unwrap().is_contended;
        for (n, expected) in [(1, false), (2, false), (2, false), (3, true), (4, true)] {
            cache.insert(5, location(n));
            assert_eq!(is_contended(&mut cache), expected, "{n}");
            assert_eq!(cache.peek(5), Some(location(n)));
        }
        cache.decay(5);
        assert!(!is_contended(&mut cache));
        cache.insert(5, location(5));
        assert!(is_contended(&mut cache));
        // The client's own changes do not count as replacements.
        cache.decay(5);
        for n in 10..20 {
            cache.remove(5);
            cache.insert(5, location(n));
        }
        assert!(!is_contended(&mut cache));
    }
}
