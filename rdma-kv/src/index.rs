//! The server's side of the index: the only writer of its region.

use fabric::{OpError, Region};

use crate::layout::{Bucket, Buckets, ControlLine, LINE, LayoutError, Overflow, Slot, SlotWord};

/// The index, written by one server and read by anyone.
#[derive(Debug)]
pub struct Index {
    region: Region,
    buckets: Buckets,
    unused: Overflow,
}

impl Index {
    /// Lays an empty index out in a zeroed region.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`] when the region is too small.
    pub fn new(region: Region, control: &ControlLine) -> Result<Self, IndexError> {
        let buckets = Buckets::new(region.len(), control.buckets_log2)?;
        for (n, word) in control.words().into_iter().enumerate() {
            region.store(n as u64 * 8, word)?;
        }
        let unused = buckets.overflow();
        Ok(Index {
            region,
            buckets,
            unused,
        })
    }

    /// How large a region should be for items of `items_len` bytes, and the logarithm of its
    /// main buckets: one bucket per KiB, and as many again for chains, which use memory only
    /// when they grow.
    pub fn geometry(items_len: u64) -> (u64, u32) {
        let main = (items_len / 1024).clamp(64, 1 << 28).next_power_of_two();
        ((1 + 2 * main) * LINE as u64, main.ilog2())
    }

    /// The slot of a key: the first of its chain with its tag for which `is_it` holds.
    ///
    /// # Errors
    /// What `is_it` returns.
    pub fn find(
        &self,
        hash: u64,
        mut is_it: impl FnMut(SlotWord) -> Result<bool, OpError>,
    ) -> Result<Option<(Slot, SlotWord)>, OpError> {
        let mut next = Some(self.buckets.main(hash));
        while let Some(bucket) = next {
            for slot in bucket.slots() {
                let word = self.word(slot)?;
                if word.may_be(hash) && is_it(word)? {
                    return Ok(Some((slot, word)));
                }
            }
            next = self.next(bucket)?;
        }
        Ok(None)
    }

    /// An empty slot of a key's chain; the chain grows if it has none. `None` when there is no
    /// bucket left to grow by.
    ///
    /// # Errors
    /// None but our own mistakes.
    pub fn vacant(&mut self, hash: u64) -> Result<Option<Slot>, OpError> {
        let mut bucket = self.buckets.main(hash);
        loop {
            for slot in bucket.slots() {
                if self.word(slot)? == SlotWord::EMPTY {
                    return Ok(Some(slot));
                }
            }
            match self.next(bucket)? {
                Some(next) => bucket = next,
                None => break,
            }
        }
        let Some(grown) = self.unused.next() else {
            return Ok(None);
        };
        // Linked for good: were it reused in another chain, a reader that stands on it would go
        // astray and miss items of this one.
        self.region.store(bucket.link_offset(), grown.link())?;
        Ok(grown.slots().next())
    }

    /// The first slot of a key's main bucket that is in use.
    ///
    /// # Errors
    /// None but our own mistakes.
    pub fn neighbour(&self, hash: u64) -> Result<Option<(Slot, SlotWord)>, OpError> {
        for slot in self.buckets.main(hash).slots() {
            let word = self.word(slot)?;
            if word != SlotWord::EMPTY {
                return Ok(Some((slot, word)));
            }
        }
        Ok(None)
    }

    /// Publishes, replaces or, with [`SlotWord::EMPTY`], removes an item: the point at which
    /// every reader sees it.
    ///
    /// # Errors
    /// None but our own mistakes.
    pub fn store(&self, slot: Slot, word: SlotWord) -> Result<(), OpError> {
        self.region.store(slot.offset(), word.0)
    }

    /// Publishes the clock.
    ///
    /// # Errors
    /// None but our own mistakes.
    pub fn set_clock(&self, clock: u64) -> Result<(), OpError> {
        self.region.store(ControlLine::CLOCK, clock)
    }

    /// The region that peers read.
    pub fn region(&self) -> &Region {
        &self.region
    }

    fn word(&self, slot: Slot) -> Result<SlotWord, OpError> {
        Ok(SlotWord(self.region.load(slot.offset())?))
    }

    fn next(&self, bucket: Bucket) -> Result<Option<Bucket>, OpError> {
        Ok(self.buckets.linked(self.region.load(bucket.link_offset())?))
    }
}

/// Why an index could not be laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IndexError {
    /// Caller: the region is too small.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// Us.
    #[error(transparent)]
    Memory(#[from] OpError),
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::Place;

    fn index(lines: usize) -> Index {
        let control = ControlLine {
            boot_id: 1,
            table_epoch: 0,
            clock: 0,
            flush_epoch: 0,
            buckets_log2: 0,
        };
        Index::new(Region::local(lines * LINE).unwrap(), &control).unwrap()
    }

    #[test]
    fn chains_grow_until_no_bucket_is_left() {
        let mut index = index(1 + 1 + 2);
        let mut words = vec![];
        for n in 0..21u32 {
            let hash = u64::from(n) << 56;
            let slot = index.vacant(hash).unwrap().unwrap();
            let word = SlotWord::new(hash, 1, Place(n), 0);
            index.store(slot, word).unwrap();
            words.push((hash, slot, word));
        }
        assert_eq!(index.vacant(0), Ok(None));
        for (n, (hash, slot, word)) in words.iter().enumerate() {
            let found = index.find(*hash, |w| Ok(w.place() == Place(n as u32)));
            assert_eq!(found, Ok(Some((*slot, *word))));
        }
        index.store(words[9].1, SlotWord::EMPTY).unwrap();
        assert_eq!(index.vacant(0), Ok(Some(words[9].1)));
    }
}
