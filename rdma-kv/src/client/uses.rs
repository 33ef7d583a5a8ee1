//! What a client read and the server has not seen.
//!
//! The server needs to know which items are wanted, to keep them, and how many gets there were. A
//! client tells it in batches, which nobody waits for: all gets and hits are counted, and one hit of
//! four says where the item was. Should a batch be lost, an item may leave earlier than it should.

use crate::protocol::layout::{Slot, SlotWord};
use crate::protocol::messages::{PackedUse, SAMPLED, Use};

/// Gets until a report is due. Each wakes the server, which costs more than to read a report.
const GETS: u32 = 4096;

/// Items in a report: about as many as are told of so many gets, if they are all of other items.
pub const CAPACITY: usize = 1024;

/// The counts and entries of the next report.
#[derive(Debug, Default)]
pub struct Uses {
    /// Gets, of which so many were hits.
    gets: u32,
    hits: u32,
    /// Random bits for the sample.
    random: u64,
    entries: Vec<PackedUse>,
    /// Where slots are among the entries, by their lowest bits: a few keys that are read all the time
    /// take one entry each.
    told: Told,
}

#[derive(Debug)]
struct Told([u16; CAPACITY]);

impl Default for Told {
    fn default() -> Self {
        Told([0; CAPACITY])
    }
}

impl Uses {
    /// A get without a result.
    pub fn miss(&mut self) {
        self.gets += 1;
    }

    /// A get of the item in this slot.
    pub fn hit(&mut self, slot: Slot, word: SlotWord) {
        self.gets += 1;
        self.hits += 1;
        // Knuth's linear congruential generator for MMIX; its highest bits are the best.
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        if self.random > u64::MAX / u64::from(SAMPLED) {
            return;
        }
        let told = &mut self.told.0[slot.0 as usize % CAPACITY];
        let mut this = Use {
            slot,
            times: 1,
            word,
        };
        if let Some(entry) = self.entries.get_mut(usize::from(*told)) {
            let before = Use::unpack(entry);
            if before.slot == slot {
                this.times = before.times + 1;
                *entry = this.pack();
                return;
            }
        }
        *told = self.entries.len() as u16;
        self.entries.push(this.pack());
    }

    /// Whether it is time to report.
    pub fn is_due(&self) -> bool {
        self.gets >= GETS || self.entries.len() >= CAPACITY
    }

    /// Whether there is nothing to report.
    pub fn is_empty(&self) -> bool {
        self.gets == 0
    }

    /// Gives gets, hits and entries to `report`, and begins anew.
    pub fn report<T>(&mut self, report: impl FnOnce(u32, u32, &[PackedUse]) -> T) -> T {
        let reported = report(self.gets, self.hits, &self.entries);
        (self.gets, self.hits) = (0, 0);
        // What is told of entries that are no more leads to none, or to one of another slot.
        self.entries.clear();
        reported
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_gets_count_and_a_key_takes_one_place() {
        let mut uses = Uses::default();
        for round in 0..3 {
            for n in 0..GETS / 2 {
                assert!(!uses.is_due());
                uses.hit(Slot(8 + n % 4), SlotWord(5 + round));
                uses.miss();
            }
            assert!(uses.is_due());
            uses.report(|gets, hits, entries| {
                assert_eq!((gets, hits), (GETS, GETS / 2));
                let entries: Vec<Use> = entries.iter().map(Use::unpack).collect();
                let mut slots: Vec<u32> = entries.iter().map(|entry| entry.slot.0).collect();
                slots.sort();
                assert_eq!(slots, [8, 9, 10, 11]);
                assert!(
                    entries
                        .iter()
                        .all(|entry| entry.word == SlotWord(5 + round))
                );
                let times: u32 = entries.iter().map(|entry| entry.times).sum();
                assert!((GETS / 10..GETS / 6).contains(&times), "{times}");
            });
        }
        for n in 0.. {
            uses.hit(Slot(n), SlotWord(5));
            if uses.is_due() {
                assert!((3800..=4096).contains(&(n + 1)), "due after {n}");
                break;
            }
        }
    }
}
