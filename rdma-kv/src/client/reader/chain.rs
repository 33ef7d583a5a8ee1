//! Lookups in the index: the chain of a key's bucket, and the items that its slots lead to.

use std::ops::Range;

use toroid_fabric::{Endpoint, OpError, Read};

use super::{
    Accepted, Attempt, CHAIN_LIMIT, Consistency, LOOKUPS, Lookup, OTHERS_LIMIT, ReadMode, Reader,
};
use crate::protocol::layout::{
    Bucket, BucketLine, ControlLine, FlushEpoch, ItemHeader, Line, Location, SlotWord, TableEpoch,
};

impl<E: Endpoint> Reader<E> {
    pub(super) fn look_up_repeatedly(
        &mut self,
        hash: u64,
        key: &[u8],
        mut mode: ReadMode<'_, E::Remote>,
    ) -> Result<Lookup<Accepted>, OpError> {
        for _ in 0..LOOKUPS {
            let lookup = self.look_up(hash, key, &mut mode)?;
            match (lookup, &mode) {
                (Lookup::Retry, _) => {}
                (Lookup::Found(item), ReadMode::Copy)
                    if !self.may_return(key, self.value(&item).data) =>
                {
                    return Ok(Lookup::Absent);
                }
                (settled, _) => return Ok(settled),
            }
        }
        self.stats.asked += 1;
        Ok(Lookup::Retry)
    }

    /// Walks the chain of a key once.
    pub(super) fn look_up(
        &mut self,
        hash: u64,
        key: &[u8],
        mode: &mut ReadMode<'_, E::Remote>,
    ) -> Result<Lookup<Accepted>, OpError> {
        let (mut bucket, mut others) = (self.buckets.main(hash), 0);
        for _ in 0..CHAIN_LIMIT {
            let line = self.read_bucket(bucket)?;
            let line = BucketLine(&line);
            for (slot, word) in bucket.slots().zip(line.words()) {
                if !word.may_be(hash) {
                    continue;
                }
                let location = Location {
                    slot,
                    word,
                    generation: 0,
                    len: 0,
                };
                let attempt = match mode {
                    ReadMode::Copy => self.try_slot(hash, location, key)?,
                    ReadMode::Borrow(hazard) => self.borrow_slot(hash, location, key, hazard)?,
                };
                match attempt {
                    Attempt::Found(item) => return Ok(Lookup::Found(item)),
                    Attempt::Expired => return Ok(Lookup::Absent),
                    Attempt::OtherKey if others < OTHERS_LIMIT => others += 1,
                    Attempt::OtherKey | Attempt::Replaced(_) | Attempt::Changed => {
                        return Ok(Lookup::Retry);
                    }
                }
            }
            match self.buckets.linked(line.link()) {
                Some(next) => bucket = next,
                None => return self.absent(hash),
            }
        }
        Ok(Lookup::Retry)
    }

    /// A miss is valid only if no slot of the bucket moved meanwhile, and no removal of all
    /// items is under way, which others cannot see yet.
    pub(super) fn absent(&mut self, hash: u64) -> Result<Lookup<Accepted>, OpError> {
        let (table, flush) = self.read_epochs()?;
        let disturbed = table.disturbs(self.table, self.buckets.main(hash));
        if let Ok(buckets) = self.buckets.with_count(table.count()) {
            (self.buckets, self.table) = (buckets, table);
        }
        let checks = self.checks();
        let doubtful = disturbed && checks.table_epoch || flush.is_flushing() && checks.flush_epoch;
        Ok(if doubtful {
            Lookup::Retry
        } else {
            Lookup::Absent
        })
    }

    pub(super) fn read_epochs(&mut self) -> Result<(TableEpoch, FlushEpoch), OpError> {
        let mut words = Line::default();
        self.stats.reads += 1;
        self.endpoint.read_batch(&mut [Read {
            remote: &self.index,
            offset: ControlLine::TABLE_EPOCH,
            into: &mut words.bytes_mut()[..16],
        }])?;
        Ok((TableEpoch(words.word(0)), FlushEpoch(words.word(1))))
    }

    pub(super) fn read_bucket(&mut self, bucket: Bucket) -> Result<Line, OpError> {
        let mut line = Line::default();
        self.stats.reads += 1;
        self.endpoint.read_batch(&mut [Read {
            remote: &self.index,
            offset: bucket.offset(),
            into: line.bytes_mut(),
        }])?;
        Ok(line)
    }

    /// Reads the item of a slot with the tag of the key, up to the length in the slot word.
    pub(super) fn try_slot(
        &mut self,
        hash: u64,
        location: Location,
        key: &[u8],
    ) -> Result<Attempt, OpError> {
        let Some(len) = self.reach(location.word) else {
            return Ok(Attempt::Changed);
        };
        let mismatch = self.read_item(location, len, Consistency::Strict)?;
        self.judge_new(hash, location, key, 0..len as usize, mismatch)
    }

    /// Most bytes of an item of which only the slot word is known; `None` when the address is
    /// outside of the region.
    pub(super) fn reach(&self, word: SlotWord) -> Option<u64> {
        let rest = self.items_len.checked_sub(word.address().offset())?;
        Some(rest.min(word.len_limit()).min(self.max_item.into()))
    }

    /// Checks an item of which only the slot was known, and caches its location.
    pub(super) fn judge_new(
        &mut self,
        hash: u64,
        location: Location,
        key: &[u8],
        item: Range<usize>,
        mismatch: Option<Attempt>,
    ) -> Result<Attempt, OpError> {
        if mismatch.is_some() {
            return Ok(Attempt::Changed);
        }
        let attempt = self.examine(key, item, |header| location.word.is_of(header.generation));
        if let Attempt::Found(item) = &attempt {
            self.note_location(hash, location, &item.header);
        }
        self.unless_expired(location, attempt)
    }

    /// Caches the location of a key.
    pub(super) fn note_location(&mut self, hash: u64, location: Location, header: &ItemHeader) {
        let (generation, len) = (header.generation, header.item_len() as u32);
        let found = Location {
            generation,
            len,
            ..location
        };
        self.locations.insert(hash, found);
    }
}
