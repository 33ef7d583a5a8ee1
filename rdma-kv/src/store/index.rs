//! The server's side of the index: the only writer of its region.

use toroid_fabric::{OpError, Region};

use crate::protocol::layout::{
    Bucket, BucketLine, Buckets, ControlLine, FlushEpoch, LINE, LayoutError, Line, Slot, SlotWord,
    TableEpoch, UNIT,
};

/// Items per main bucket of seven slots from which the index grows: chains then rarely have a
/// second bucket.
const LOAD: u64 = 5;

/// Bytes of the smallest item: a header, a key and no value.
const ITEM_MIN: u64 = 3 * UNIT as u64;

/// The index. One server writes it, and clients read it.
#[derive(Debug)]
pub struct Index {
    region: Region,
    buckets: Buckets,
    /// Free overflow buckets, whose slots are empty.
    unused: Vec<Bucket>,
    /// First overflow bucket that was never used.
    fresh: Bucket,
    items: u64,
    flush: FlushEpoch,
}

/// Size of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexSize {
    /// Bytes of its region. Pages are allocated as the index grows.
    pub len: u64,
    /// Main buckets that there is room for.
    pub capacity: u64,
}

impl IndexSize {
    /// Main buckets of an empty index.
    const FIRST: u64 = 64;

    /// The index for as many items as fit into `items_len` bytes, plus a quarter for chains.
    pub fn of(items_len: u64) -> Self {
        let capacity = (items_len / ITEM_MIN / LOAD).clamp(Self::FIRST, 1 << 28);
        let overflow = capacity / 4 + Self::FIRST;
        IndexSize {
            len: (1 + capacity + overflow) * LINE as u64,
            capacity,
        }
    }
}

impl Index {
    /// Lays an empty index out in a zeroed region.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`] when the region is too small.
    pub fn new(
        region: Region,
        capacity: u64,
        boot_id: u64,
        clock: u64,
    ) -> Result<Self, IndexError> {
        let buckets = Buckets::new(region.len(), capacity)?;
        let buckets = buckets.with_count(capacity.min(IndexSize::FIRST))?;
        let control = ControlLine {
            boot_id,
            table: TableEpoch::new(buckets.count(), false),
            flush: FlushEpoch::default(),
            clock,
            capacity,
        };
        for (n, word) in control.words().into_iter().enumerate() {
            region.store(n as u64 * 8, word)?;
        }
        Ok(Index {
            region,
            buckets,
            unused: Vec::new(),
            fresh: buckets.first_overflow(),
            items: 0,
            flush: control.flush,
        })
    }

    /// The slot of a key: the first one in its chain with its tag for which `is_it` holds.
    ///
    /// # Errors
    /// The error of `is_it`.
    pub fn find(
        &self,
        hash: u64,
        mut is_it: impl FnMut(SlotWord) -> Result<bool, OpError>,
    ) -> Result<Option<(Slot, SlotWord)>, OpError> {
        let mut next = Some(self.buckets.main(hash));
        while let Some(bucket) = next {
            let mut line = Line::default();
            self.region.read(bucket.offset(), line.bytes_mut())?;
            let line = BucketLine(&line);
            for (slot, word) in bucket.slots().zip(line.words()) {
                if word.may_be(hash) && is_it(word)? {
                    return Ok(Some((slot, word)));
                }
            }
            next = self.buckets.linked(line.link());
        }
        Ok(None)
    }

    /// Walks one chain of the index, from `at`, which is 0 at first: appends its slot words to
    /// `words`, and returns the next `at`. A walk meets each item that stays in the index once,
    /// even while the index grows.
    ///
    /// # Errors
    /// Only for a bug of the store.
    pub fn walk(&self, at: u64, words: &mut Vec<SlotWord>) -> Result<Option<u64>, OpError> {
        let Some((main, onwards)) = self.buckets.onwards(at) else {
            return Ok(None);
        };
        let mut next = Some(main);
        while let Some(bucket) = next {
            let mut line = Line::default();
            self.region.read(bucket.offset(), line.bytes_mut())?;
            let line = BucketLine(&line);
            words.extend(line.words().filter(|word| *word != SlotWord::EMPTY));
            next = self.buckets.linked(line.link());
        }
        Ok(Some(onwards))
    }

    /// An empty slot in the chain of a key, which grows if needed. `None` when there is no
    /// overflow bucket left, or the chain has its greatest length.
    ///
    /// # Errors
    /// Only for a bug of the store.
    pub fn vacant(&mut self, hash: u64) -> Result<Option<Slot>, OpError> {
        self.vacant_from(self.buckets.main(hash))
    }

    fn vacant_from(&mut self, mut bucket: Bucket) -> Result<Option<Slot>, OpError> {
        let mut len = 1;
        loop {
            for slot in bucket.slots() {
                if self.word(slot)? == SlotWord::EMPTY {
                    return Ok(Some(slot));
                }
            }
            match self.next(bucket)? {
                Some(next) => (bucket, len) = (next, len + 1),
                None if len == Bucket::CHAIN => return Ok(None),
                None => break,
            }
        }
        let Some(grown) = self.take_overflow() else {
            return Ok(None);
        };
        self.region.store(bucket.link_offset(), grown.link())?;
        Ok(grown.slots().next())
    }

    fn take_overflow(&mut self) -> Option<Bucket> {
        self.unused.pop().or_else(|| {
            let fresh = self.buckets.linked(self.fresh.link())?;
            self.fresh = fresh.next();
            Some(fresh)
        })
    }

    /// The first slot of a key's main bucket that is in use.
    ///
    /// # Errors
    /// Only for a bug of the store.
    pub fn neighbour(&self, hash: u64) -> Result<Option<(Slot, SlotWord)>, OpError> {
        for slot in self.buckets.main(hash).slots() {
            let word = self.word(slot)?;
            if word != SlotWord::EMPTY {
                return Ok(Some((slot, word)));
            }
        }
        Ok(None)
    }

    /// Whether the slot exists and has this word, and the word is an item.
    pub fn has(&self, slot: Slot, word: SlotWord) -> bool {
        let is_slot = self.buckets.is_slot(slot);
        is_slot && word != SlotWord::EMPTY && self.word(slot) == Ok(word)
    }

    /// Publishes an item in an empty slot, for all readers at once.
    ///
    /// # Errors
    /// Only for a bug of the store.
    pub fn insert(&mut self, slot: Slot, word: SlotWord) -> Result<(), OpError> {
        self.items += 1;
        self.replace(slot, word)
    }

    /// Replaces the item of a slot, for all readers at once.
    ///
    /// # Errors
    /// Only for a bug of the store.
    pub fn replace(&self, slot: Slot, word: SlotWord) -> Result<(), OpError> {
        self.region.store(slot.offset(), word.0)
    }

    /// Removes an item: from now on no reader accepts it.
    ///
    /// # Errors
    /// Only for a bug of the store.
    pub fn clear(&mut self, slot: Slot) -> Result<(), OpError> {
        self.items = self.items.saturating_sub(1);
        self.replace(slot, SlotWord::EMPTY)
    }

    /// Removes all items; for readers at one moment, the end. Until then no reader that misses
    /// a key reports that.
    ///
    /// # Errors
    /// Only for a bug of the store.
    pub fn clear_all(&mut self) -> Result<(), OpError> {
        self.clear_each(|| ())
    }

    /// As [`Index::clear_all`], and calls `between` after each slot.
    pub(crate) fn clear_each(&mut self, mut between: impl FnMut()) -> Result<(), OpError> {
        self.publish_flush()?;
        self.region.release_fence();
        let main = (0..self.buckets.count()).map(Bucket::main);
        for bucket in main.chain(self.buckets.overflow().take_while(|b| *b != self.fresh)) {
            for slot in bucket.slots() {
                self.replace(slot, SlotWord::EMPTY)?;
                between();
            }
        }
        self.items = 0;
        self.region.release_fence();
        self.publish_flush()
    }

    /// Publishes the beginning or the end of a removal of all items.
    fn publish_flush(&mut self) -> Result<(), OpError> {
        self.flush = self.flush.next();
        self.region.store(ControlLine::FLUSH_EPOCH, self.flush.0)
    }

    /// Adds a main bucket if the load is too high, and moves its share of the items to it;
    /// `hash_of` reads the hash of the key of an item. Cheap enough for each new item.
    ///
    /// # Errors
    /// The error of `hash_of`.
    pub fn grow(
        &mut self,
        hash_of: impl Fn(SlotWord) -> Result<u64, OpError>,
    ) -> Result<(), OpError> {
        if self.items <= u64::from(self.buckets.count()) * LOAD {
            return Ok(());
        }
        let Some((grown, new, from)) = self.buckets.grown() else {
            return Ok(());
        };
        let mut moved = Vec::new();
        let mut next = Some(from);
        while let Some(bucket) = next {
            for slot in bucket.slots() {
                let word = self.word(slot)?;
                if word == SlotWord::EMPTY || grown.main(hash_of(word)?) == from {
                    continue;
                }
                let Some(vacant) = self.vacant_from(new)? else {
                    return self.ungrow(new);
                };
                self.replace(vacant, word)?;
                moved.push(slot);
            }
            next = self.next(bucket)?;
        }
        self.buckets = grown;
        // A reader that finds one of these slots empty or moved reads this epoch
        // afterwards, and looks again.
        self.publish_epoch(true)?;
        self.region.release_fence();
        for slot in moved {
            self.replace(slot, SlotWord::EMPTY)?;
        }
        self.draw_together(from)?;
        self.region.release_fence();
        self.publish_epoch(false)
    }

    fn publish_epoch(&self, moving: bool) -> Result<(), OpError> {
        let epoch = TableEpoch::new(self.buckets.count(), moving);
        self.region.store(ControlLine::TABLE_EPOCH, epoch.0)
    }

    /// Compacts a chain, and trims it.
    fn draw_together(&mut self, main: Bucket) -> Result<(), OpError> {
        let mut slots = Vec::new();
        let mut next = Some(main);
        while let Some(bucket) = next {
            for slot in bucket.slots() {
                slots.push((slot, self.word(slot)?));
            }
            next = self.next(bucket)?;
        }
        let is_gap = |&(_, word): &(Slot, SlotWord)| word == SlotWord::EMPTY;
        while let (Some(gap), Some(last)) = (
            slots.iter().position(is_gap),
            slots.iter().rposition(|slot| !is_gap(slot)),
        ) && gap < last
        {
            self.replace(slots[gap].0, slots[last].1)?;
            self.region.release_fence();
            self.replace(slots[last].0, SlotWord::EMPTY)?;
            slots[gap].1 = std::mem::take(&mut slots[last].1);
        }
        self.trim(main)
    }

    /// Empties a new bucket that is not published.
    fn ungrow(&mut self, new: Bucket) -> Result<(), OpError> {
        let mut next = Some(new);
        while let Some(bucket) = next {
            for slot in bucket.slots() {
                self.replace(slot, SlotWord::EMPTY)?;
            }
            next = self.next(bucket)?;
        }
        self.trim(new)
    }

    /// Frees the empty buckets at the end of a chain. A reader in one of them may be led into
    /// another chain, and miss items that are added to this one meanwhile. It misses no item
    /// that stays: items move only when the index grows, and then the reader looks again.
    fn trim(&mut self, main: Bucket) -> Result<(), OpError> {
        let mut chain = vec![main];
        while let Some(next) = self.next(chain[chain.len() - 1])? {
            chain.push(next);
        }
        while let [.., before, last] = chain[..] {
            for slot in last.slots() {
                if self.word(slot)? != SlotWord::EMPTY {
                    return Ok(());
                }
            }
            self.region.store(before.link_offset(), 0)?;
            self.unused.push(last);
            chain.pop();
        }
        Ok(())
    }

    /// Publishes the clock.
    ///
    /// # Errors
    /// Only for a bug of the store.
    pub fn set_clock(&self, clock: u64) -> Result<(), OpError> {
        self.region.store(ControlLine::CLOCK, clock)
    }

    /// The index region.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Main buckets in use.
    #[cfg(test)]
    pub fn buckets(&self) -> u32 {
        self.buckets.count()
    }

    fn word(&self, slot: Slot) -> Result<SlotWord, OpError> {
        Ok(SlotWord(self.region.load(slot.offset())?))
    }

    fn next(&self, bucket: Bucket) -> Result<Option<Bucket>, OpError> {
        Ok(self.buckets.linked(self.region.load(bucket.link_offset())?))
    }
}

/// Failure to lay an index out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// Caller: the region is too small.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// A bug of the store.
    #[error(transparent)]
    Memory(#[from] OpError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::hash::hash;
    use crate::protocol::layout::ItemAddress;
    use std::collections::HashMap;

    fn index(capacity: u64, overflow: usize) -> Index {
        let lines = 1 + capacity as usize + overflow;
        Index::new(Region::local(lines * LINE).unwrap(), capacity, 1, 0).unwrap()
    }

    fn insert(index: &mut Index, hash: u64, address: ItemAddress) -> Option<Slot> {
        let slot = index.vacant(hash).unwrap()?;
        index
            .insert(slot, SlotWord::new(hash, 1, address, 0))
            .unwrap();
        Some(slot)
    }

    #[test]
    fn chains_grow_until_no_bucket_is_left() {
        let mut index = index(1, 2);
        let slots: Vec<Slot> = (0..21u32)
            .map(|n| insert(&mut index, u64::from(n) << 56, ItemAddress(n)).unwrap())
            .collect();
        assert_eq!(index.vacant(0), Ok(None));
        for (n, slot) in slots.iter().enumerate() {
            let address = ItemAddress(n as u32);
            let found = index.find((n as u64) << 56, |word| Ok(word.address() == address));
            assert_eq!(found.unwrap().map(|(slot, _)| slot), Some(*slot));
        }
        index.clear(slots[9]).unwrap();
        assert_eq!(index.vacant(0), Ok(Some(slots[9])));
    }

    /// Keys are numbers here, and the address of an item is its key.
    #[test]
    fn a_growing_index_loses_nothing_and_reuses_buckets() {
        let mut index = index(4000, 1000);
        let hash_of = |n: u32| hash(3, &n.to_le_bytes());
        let mut slots = HashMap::new();
        for n in 0..20_000 {
            insert(&mut index, hash_of(n), ItemAddress(n)).unwrap();
            index.grow(|word| Ok(hash_of(word.address().0))).unwrap();
        }
        assert_eq!(index.buckets(), 4000);
        for n in 0..20_000 {
            let found = index.find(hash_of(n), |word| Ok(word.address() == ItemAddress(n)));
            let (slot, _) = found.unwrap().unwrap();
            assert_eq!(slots.insert(slot.0, n), None);
        }
        let used = index.fresh.link() - 4000;
        assert!(used < 700, "{used} overflow buckets");
        index.clear_all().unwrap();
        assert_eq!(index.find(hash_of(7), |_| Ok(true)), Ok(None));
    }

    #[test]
    fn keys_chosen_for_their_hash_get_one_chain_of_bounded_length() {
        let mut index = index(4000, 1000);
        let slots = (0..10_000).map_while(|n| insert(&mut index, 7, ItemAddress(n)));
        assert_eq!(slots.count(), (Bucket::CHAIN * Bucket::SLOTS) as usize);
        assert!(insert(&mut index, 8, ItemAddress(0)).is_some());
    }

    #[test]
    fn growth_without_overflow_buckets_changes_nothing() {
        let mut index = index(65, 2);
        let mut items = 0;
        // All in bucket 0, half of which belongs to bucket 64.
        while let Some(slot) = index.vacant(items << 6).unwrap() {
            let word = SlotWord::new(items << 6, 1, ItemAddress(items as u32), 0);
            index.insert(slot, word).unwrap();
            items += 1;
        }
        index.items = 1000;
        let hash_of = |word: SlotWord| Ok(u64::from(word.address().0 | 1) << 6);
        index.grow(hash_of).unwrap();
        assert_eq!(index.buckets(), 64);
        for n in 0..items {
            let found = index.find(n << 6, |word| Ok(u64::from(word.address().0) == n));
            assert!(found.unwrap().is_some());
        }
    }
}
