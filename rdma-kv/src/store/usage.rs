//! Uses of items: they decide which items stay, and which keys are used most.

use toroid_fabric::OpError;

use super::Store;
use super::heavy_hitters::HeavyHitter;
use super::item::{Item, KeyCopy, hash_of};
use crate::protocol::layout::{ItemHeader, Location, Marks, Slot, SlotWord};

impl Store {
    /// Notes a use of an item.
    ///
    /// # Errors
    /// Only for a bug of the store.
    pub fn used(&mut self, item: &mut Item) -> Result<(), OpError> {
        self.used_often(item, 1)
    }

    fn used_often(&mut self, item: &mut Item, times: u32) -> Result<(), OpError> {
        self.heavy_hitters.add(item.hash, times);
        let marks = item.header.marks.more_frequent() | Marks::FETCHED;
        let [from, to] = [item.header.marks, marks].map(Marks::frequency);
        let address = item.location.word.address();
        self.segments.note_use(address, item.room(), from, to);
        if (marks, self.clock) == (item.header.marks, item.header.accessed) {
            return Ok(());
        }
        (item.header.marks, item.header.accessed) = (marks, self.clock);
        self.store_word(item, ItemHeader::NOTES_WORD, item.header.notes_word())
    }

    /// Prefetches the memory that [`Store::used_at`] will read.
    pub fn fetch_ahead(&self, slot: Slot, word: SlotWord) {
        let item = word.address().offset();
        self.index.region().fetch_ahead(slot.offset());
        self.items.fetch_ahead(item);
        self.items.fetch_ahead(item + ItemHeader::LEN as u64);
    }

    /// Notes `times` uses of the item that was in a slot, if it still is. The arguments come
    /// from a client, and may be wrong.
    ///
    /// # Errors
    /// Only for a bug of the store.
    pub fn used_at(&mut self, slot: Slot, word: SlotWord, times: u32) -> Result<(), OpError> {
        if !self.index.has(slot, word) {
            return Ok(());
        }
        let (header, hash) = self.head(word.address())?;
        let (generation, len) = (header.generation, header.item_len() as u32);
        let location = Location {
            slot,
            word,
            generation,
            len,
        };
        let mut item = Item {
            hash,
            header,
            location,
        };
        self.used_often(&mut item, times)
    }

    /// The `limit` most used keys, each with a lower bound of its uses per 1,000 seconds.
    ///
    /// # Errors
    /// Only for a bug of the store.
    pub fn most_used(&self, limit: usize) -> Result<Vec<(Vec<u8>, u64)>, OpError> {
        let mut most = Vec::new();
        for HeavyHitter { hash, per_ks } in self.heavy_hitters.most() {
            let is_it =
                |word: SlotWord| Ok(hash_of(&self.items, self.seed, word.address())? == hash);
            if most.len() < limit
                && let Some((_, word)) = self.index.find(hash, is_it)?
            {
                let header = self.header(word.address())?;
                let mut key = KeyCopy::default();
                let key = key.read(&self.items, word.address(), &header)?;
                most.push((key.to_vec(), per_ks));
            }
        }
        Ok(most)
    }

    /// Counts one-sided gets.
    pub fn count_one_sided(&mut self, gets: u64, hits: u64) {
        self.counters.one_sided_gets += gets;
        self.counters.one_sided_hits += hits;
    }
}
