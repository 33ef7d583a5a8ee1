//! Report of one-sided gets, which the server does not see.
//!
//! The server needs the number of gets, and the used items in order to keep them. A client reports
//! in batches without a reply: all gets and hits are counted, and one hit in [`SAMPLED`] names its
//! item. If a batch is lost, an item may be evicted earlier than it should.

use fastrand::Rng;

use crate::protocol::layout::{Slot, SlotWord};
use crate::protocol::messages::{PackedUse, SAMPLED, Use};

/// Gets per report. A report wakes the server, which costs more than to read the report.
const GETS: u32 = 4096;

/// Most items of a report: about as many as so many gets name, if all are of different items.
pub const CAPACITY: usize = 1024;

/// Counts and sample of the next report.
#[derive(Debug)]
pub struct Uses {
    gets: u32,
    hits: u32,
    /// Chooses the sample.
    random: Rng,
    entries: Vec<PackedUse>,
    /// Index of a slot's entry, by the slot's lowest bits: a key that is read again and again takes one
    /// entry. An index may be stale.
    entry_of: [u16; CAPACITY],
}

impl Default for Uses {
    fn default() -> Self {
        Uses {
            gets: 0,
            hits: 0,
            random: Rng::with_seed(0),
            entries: Vec::new(),
            entry_of: [0; CAPACITY],
        }
    }
}

impl Uses {
    /// Counts a get of an absent key.
    pub fn miss(&mut self) {
        self.gets += 1;
    }

    /// Counts a get of the item in this slot.
    pub fn hit(&mut self, slot: Slot, word: SlotWord) {
        self.gets += 1;
        self.hits += 1;
        if self.random.u32(..SAMPLED) != 0 {
            return;
        }
        let index = &mut self.entry_of[slot.0 as usize % CAPACITY];
        let mut this = Use {
            slot,
            times: 1,
            word,
        };
        if let Some(entry) = self.entries.get_mut(usize::from(*index)) {
            let before = Use::unpack(entry);
            if before.slot == slot {
                this.times = before.times + 1;
                *entry = this.pack();
                return;
            }
        }
        *index = self.entries.len() as u16;
        self.entries.push(this.pack());
    }

    /// Whether a report is due.
    pub fn is_due(&self) -> bool {
        self.gets >= GETS || self.entries.len() >= CAPACITY
    }

    /// Whether there is nothing to report.
    pub fn is_empty(&self) -> bool {
        self.gets == 0
    }

    /// Gives gets, hits and entries to `report`, and begins the next report.
    pub fn report<T>(&mut self, report: impl FnOnce(u32, u32, &[PackedUse]) -> T) -> T {
        let reported = report(self.gets, self.hits, &self.entries);
        (self.gets, self.hits) = (0, 0);
        self.entries.clear();
        reported
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_gets_count_and_a_key_takes_one_entry() {
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
