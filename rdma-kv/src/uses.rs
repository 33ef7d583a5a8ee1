//! What a client read and the server has not seen.
//!
//! The server needs to know which items are wanted, to keep them, and how many gets there were. A
//! client tells it in batches, which nobody waits for: all gets and hits are counted, and one hit of
//! four says where the item was. Should a batch be lost, an item may leave earlier than it should.

use crate::control::{Use, UsedPlace};
use crate::layout::{Slot, SlotWord};

/// Gets until a report is due. Each wakes the server, which costs more than to read a report.
const GETS: u32 = 4096;

/// Items in a report: about as many as are told of so many gets, if they are all of other items.
pub const PLACES: usize = 1024;

/// One hit of so many, at random, says where the item was: it costs the server a look at the item.
/// Were it each fourth, it would be the same keys again and again of some that are read in turn.
pub const SAMPLED: u32 = 4;

/// The counts and places of the next report.
#[derive(Debug, Default)]
pub struct Uses {
    /// Gets, of which so many were hits.
    gets: u32,
    hits: u32,
    /// Random bits for the sample.
    random: u64,
    places: Vec<UsedPlace>,
    /// Where slots are among the places, by their lowest bits: a few keys that are read all the time
    /// take one place each.
    told: Told,
}

#[derive(Debug)]
struct Told([u16; PLACES]);

impl Default for Told {
    fn default() -> Self {
        Told([0; PLACES])
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
        let told = &mut self.told.0[slot.0 as usize % PLACES];
        let mut this = Use {
            slot,
            times: 1,
            word,
        };
        if let Some(place) = self.places.get_mut(usize::from(*told)) {
            let before = Use::unpack(place);
            if before.slot == slot {
                this.times = before.times + 1;
                *place = this.pack();
                return;
            }
        }
        *told = self.places.len() as u16;
        self.places.push(this.pack());
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
        // What is told of places that are no more leads to none, or to one of another slot.
        self.places.clear();
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
            uses.report(|gets, hits, places| {
                assert_eq!((gets, hits), (GETS, GETS / 2));
                let places: Vec<Use> = places.iter().map(Use::unpack).collect();
                let mut slots: Vec<u32> = places.iter().map(|place| place.slot.0).collect();
                slots.sort();
                assert_eq!(slots, [8, 9, 10, 11]);
                assert!(places.iter().all(|place| place.word == SlotWord(5 + round)));
                let times: u32 = places.iter().map(|place| place.times).sum();
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
