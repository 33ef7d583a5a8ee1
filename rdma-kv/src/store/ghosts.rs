//! Ghosts: keys that were evicted not long ago, by a few bits of their hashes.
//!
//! A key that is stored again while its ghost is here left too early. Its item goes straight to the
//! main queue, and the queue that it was evicted from gets a larger share of the memory, as in ARC
//! (Megiddo and Modha, FAST 2003): a working set that moves needs a long young queue, and one that
//! stays needs a short one.
//!
//! The table is set-associative and has a fixed size: a [`SHARE`]th of the memory for items, allocated
//! beside that memory like the index. An entry expires when as many more keys were evicted as there
//! are items. So the ghosts are the keys that a store of twice the memory would have kept. Another
//! key has the same bits once in some ten thousand lookups, which only puts an item into the other
//! queue.

use crate::store::segments::Queue;

/// Bytes for items per byte of the table.
const SHARE: u64 = 128;

/// Entries of a set: half a cache line.
const WAYS: usize = 8;

/// Generations that pass while the table is filled once; the age of an entry.
const GENERATIONS: u64 = 1 << 12;

/// Bits of an entry: hash, queue and generation.
const FINGERPRINT: u32 = 0xffff_0000;
const MAIN: u32 = 1 << 15;
const GENERATION: u32 = MAIN - 1;

/// The table of evicted keys.
#[derive(Debug)]
pub(crate) struct Ghosts {
    /// Entries, 0 if vacant. Allocated at the first eviction.
    sets: Vec<[u32; WAYS]>,
    count: usize,
    /// Keys that were added so far.
    added: u64,
    /// Approximate number of ghosts of each queue.
    of: [u64; 2],
}

/// A key that was evicted too early.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Ghost {
    /// The queue that it was evicted from.
    pub(crate) queue: Queue,
    /// Ghosts of the other queue per ghost of this one; at least 1.
    pub(crate) weight: f64,
}

impl Ghosts {
    /// Greatest weight of a ghost.
    const WEIGHT_MAX: f64 = 64.0;

    /// The table for a store with this many bytes for items.
    pub(crate) fn new(memory: u64) -> Self {
        let set = size_of::<[u32; WAYS]>() as u64;
        Ghosts {
            sets: Vec::new(),
            count: (memory / SHARE / set).max(1) as usize,
            added: 0,
            of: [0; 2],
        }
    }

    /// Notes an eviction from a queue.
    pub(crate) fn add(&mut self, hash: u64, queue: Queue) {
        if self.sets.is_empty() {
            self.sets = vec![[0; WAYS]; self.count];
        }
        self.added += 1;
        self.of[queue as usize] += 1;
        if self.of.iter().sum::<u64>() > self.capacity() {
            self.of = self.of.map(|of| of / 2);
        }
        let now = self.generation();
        let (at, fingerprint) = self.place(hash);
        let set = &mut self.sets[at];
        let age = |entry: u32| match entry {
            0 => u32::MAX,
            entry => now.wrapping_sub(entry) & GENERATION,
        };
        let is_it = |entry: &u32| *entry & FINGERPRINT == fingerprint;
        let oldest = (0..WAYS).max_by_key(|way| age(set[*way])).unwrap_or(0);
        let way = set.iter().position(is_it).unwrap_or(oldest);
        set[way] = fingerprint | if queue == Queue::Main { MAIN } else { 0 } | now;
    }

    /// Removes and returns the ghost of a key that is stored, in a store of `items` items.
    pub(crate) fn take(&mut self, hash: u64, items: u64) -> Option<Ghost> {
        let (at, fingerprint) = self.place(hash);
        let now = self.generation();
        let entry = self
            .sets
            .get_mut(at)?
            .iter_mut()
            .find(|entry| **entry & FINGERPRINT == fingerprint)?;
        let found = std::mem::take(entry);
        let age = now.wrapping_sub(found) & GENERATION;
        if u64::from(age) * self.grain() > items {
            return None;
        }
        let [queue, other] = match found & MAIN {
            0 => [Queue::Young, Queue::Main],
            _ => [Queue::Main, Queue::Young],
        };
        let [own, others] = [queue, other].map(|queue| self.of[queue as usize].max(1));
        self.of[queue as usize] = own - 1;
        let weight = (others as f64 / own as f64).clamp(1.0, Self::WEIGHT_MAX);
        Some(Ghost { queue, weight })
    }

    /// Removes all ghosts.
    pub(crate) fn clear(&mut self) {
        self.sets = Vec::new();
        self.of = [0; 2];
    }

    /// Entries of the table.
    fn capacity(&self) -> u64 {
        (self.count * WAYS) as u64
    }

    /// Keys that are added per generation.
    fn grain(&self) -> u64 {
        self.capacity().div_ceil(GENERATIONS)
    }

    fn generation(&self) -> u32 {
        (self.added / self.grain()) as u32 & GENERATION
    }

    /// The set of a key, and its fingerprint there, which is never 0.
    fn place(&self, hash: u64) -> (usize, u32) {
        let at = (u128::from(hash) * self.count as u128) >> 64;
        let fingerprint = (hash as u32) << 16;
        (at as usize, fingerprint.max(1 << 16))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::hash::hash;

    const KEYS: u64 = 8192;

    fn key(n: u64) -> u64 {
        hash(5, &n.to_le_bytes())
    }

    /// Of a table with room for 8,192 keys.
    fn ghosts() -> Ghosts {
        Ghosts::new(KEYS * 4 * SHARE)
    }

    #[test]
    fn an_evicted_key_has_a_ghost_until_it_is_stored_again() {
        let mut ghosts = ghosts();
        assert_eq!(ghosts.take(key(1), KEYS), None);
        ghosts.add(key(1), Queue::Young);
        ghosts.add(key(2), Queue::Main);
        let found = [1, 2, 3].map(|n| ghosts.take(key(n), KEYS).map(|ghost| ghost.queue));
        assert_eq!(found, [Some(Queue::Young), Some(Queue::Main), None]);
        assert_eq!(ghosts.take(key(1), KEYS), None);
        ghosts.add(key(1), Queue::Young);
        ghosts.clear();
        assert_eq!(ghosts.take(key(1), KEYS), None);
    }

    #[test]
    fn ghosts_are_as_many_as_items_and_the_newest() {
        let mut ghosts = ghosts();
        (0..10 * KEYS).for_each(|n| ghosts.add(key(n), Queue::Young));
        let mut found = |keys: std::ops::Range<u64>, items| {
            keys.filter(|n| ghosts.take(key(*n), items).is_some())
                .count()
        };
        // Those of sets with more than eight of them are gone.
        let newest = found(9 * KEYS + KEYS / 2..10 * KEYS, KEYS);
        assert!(newest > 3_900, "{newest}");
        let older = found(9 * KEYS..9 * KEYS + KEYS / 2, KEYS / 2);
        assert!(older < 10, "{older}");
        let oldest = found(0..8 * KEYS, KEYS);
        assert!(oldest < 1_000, "{oldest}");
    }

    #[test]
    fn rare_ghosts_weigh_more() {
        let mut ghosts = ghosts();
        (0..1_000).for_each(|n| ghosts.add(key(n), Queue::Young));
        (1_000..1_100).for_each(|n| ghosts.add(key(n), Queue::Main));
        let weight = |ghosts: &mut Ghosts, n| ghosts.take(key(n), KEYS).unwrap().weight;
        assert_eq!([5, 1_005].map(|n| weight(&mut ghosts, n)), [1.0, 9.99]);
    }
}
