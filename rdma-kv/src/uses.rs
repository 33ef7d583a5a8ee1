//! What a client read and the server has not seen.
//!
//! The server needs to know which items are wanted, to keep them, and how many gets there were. A
//! client tells it in batches, which nobody waits for: all gets and hits are counted, and one hit of
//! four says where the item was. Should a batch be lost, an item may leave earlier than it should.

use crate::control::{UsedPlace, pack_used};
use crate::layout::{Slot, SlotWord};

/// Gets until a report is due.
const GETS: u32 = 4096;

/// Items in a report.
pub const PLACES: usize = 256;

/// One hit of so many, at random, says where the item was: it costs the server a look at the item.
/// Were it each fourth, it would be the same keys again and again of some that are read in turn.
const SAMPLED: u64 = 4;

/// The counts and places of the next report.
#[derive(Debug, Default)]
pub struct Uses {
    /// Gets, of which so many were hits.
    gets: u32,
    hits: u32,
    /// Random bits for the sample.
    random: u64,
    places: Vec<UsedPlace>,
    /// Slots that are among the places, by their lowest bits: a few keys that are read all the time
    /// are told once.
    told: Told,
}

#[derive(Debug)]
struct Told([Slot; PLACES]);

impl Default for Told {
    fn default() -> Self {
        Told([Slot(0); PLACES])
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
        if self.random > u64::MAX / SAMPLED {
            return;
        }
        let told = &mut self.told.0[slot.0 as usize % PLACES];
        if *told != slot {
            *told = slot;
            self.places.push(pack_used(slot, word));
        }
    }

    /// Whether it is time to report.
    pub fn is_due(&self) -> bool {
        self.gets >= GETS || self.places.len() >= PLACES
    }

    /// Whether there is nothing to report.
    pub fn is_empty(&self) -> bool {
        self.gets == 0
    }

    /// Gives gets, hits and places to `report`, and begins anew.
    pub fn report<T>(&mut self, report: impl FnOnce(u32, u32, &[UsedPlace]) -> T) -> T {
        let reported = report(self.gets, self.hits, &self.places);
        (self.gets, self.hits) = (0, 0);
        self.places.clear();
        self.told = Told::default();
        reported
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::unpack_used;

    #[test]
    fn all_gets_count_and_a_key_is_told_once() {
        let mut uses = Uses::default();
        for n in 0..GETS / 2 {
            assert!(!uses.is_due());
            uses.hit(Slot(8 + n % 4), SlotWord(5));
            uses.miss();
        }
        assert!(uses.is_due());
        uses.report(|gets, hits, places| {
            assert_eq!((gets, hits), (GETS, GETS / 2));
            let slots = places.iter().map(|place| unpack_used(place).0.0);
            let mut slots: Vec<u32> = slots.collect();
            slots.sort();
            assert_eq!(slots, [8, 9, 10, 11]);
        });
        for n in 0.. {
            uses.hit(Slot(n), SlotWord(5));
            if uses.is_due() {
                assert!((900..1200).contains(&n), "due after {n}");
                break;
            }
        }
    }
}
