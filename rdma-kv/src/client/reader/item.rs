//! Reads of one item, and the checks of its copy.

use std::ops::Range;

use toroid_fabric::{Endpoint, OpError, Read};

use super::{Accepted, Attempt, Consistency, Reader};
use crate::protocol::layout::{ControlLine, ItemHeader, Line, Location, MAX_KEY, Slot, Word};

impl<E: Endpoint> Reader<E> {
    pub(super) fn read_slot(&mut self, slot: Slot) -> Result<u64, OpError> {
        let mut word = Word::default();
        self.stats.reads += 1;
        self.endpoint.read_batch(&mut [Read {
            remote: &self.index,
            offset: slot.offset(),
            into: &mut word.0,
        }])?;
        Ok(word.value())
    }

    /// Reads the item at a cached location, then its slot.
    pub(super) fn read_at(&mut self, location: Location, key: &[u8]) -> Result<Attempt, OpError> {
        let mismatch = self.read_item(location, u64::from(location.len), self.consistency)?;
        self.judge(location, key, 0..location.len as usize, mismatch)
    }

    /// Checks an item in the buffer that was read from a cached location; `mismatch` is the
    /// result if the last read did not match.
    pub(super) fn judge(
        &mut self,
        location: Location,
        key: &[u8],
        item: Range<usize>,
        mismatch: Option<Attempt>,
    ) -> Result<Attempt, OpError> {
        if let Some(mismatch) = mismatch {
            return Ok(mismatch);
        }
        let by_content = self.is_by_content();
        let attempt = self.examine(key, item, |header| {
            by_content || header.generation == location.generation
        });
        match attempt {
            Attempt::Found(item) if by_content => {
                Ok(if self.may_return(key, self.value(&item).data) {
                    Attempt::Found(item)
                } else {
                    Attempt::Changed
                })
            }
            attempt => self.unless_expired(location, attempt),
        }
    }

    /// Reads the item at a cached location, with the value into `into`; `None` when the value
    /// does not fit.
    pub(super) fn read_value_at(
        &mut self,
        location: Location,
        key: &[u8],
        into: &mut [u8],
    ) -> Result<Option<Attempt>, OpError> {
        let head_len = ItemHeader::len_of(key.len(), 0);
        let value_len = (location.len as usize).checked_sub(head_len);
        let Some(value) = value_len.and_then(|len| into.get_mut(..len)) else {
            return Ok(None);
        };
        let mut head = [0; ItemHeader::LEN + MAX_KEY];
        let Some(head) = head.get_mut(..head_len) else {
            return Ok(None);
        };
        let (mut word, offset) = (Word::default(), location.word.address().offset());
        let (items, index) = (&self.items, &self.index);
        let last = self.consistency.last_look(index, items, location);
        let mut reads = [
            Read {
                remote: items,
                offset,
                into: &mut *head,
            },
            Read {
                remote: items,
                offset: offset + head_len as u64,
                into: &mut *value,
            },
            Read {
                remote: last.as_ref().map_or(items, |last| last.remote),
                offset: last.as_ref().map_or(0, |last| last.offset),
                into: &mut word.0,
            },
        ];
        let reads = &mut reads[..2 + usize::from(last.is_some())];
        self.stats.reads += reads.len() as u64;
        self.endpoint.read_batch(reads)?;
        let mismatch = last.and_then(|last| last.mismatch(word));
        if mismatch.is_some() && self.checks().slot {
            return Ok(mismatch);
        }
        let Some((header, found)) = head.split_first_chunk() else {
            return Ok(None);
        };
        let header = ItemHeader::from_bytes(header);
        let checks = self.checks();
        let by_content = self.is_by_content();
        let is_generation = by_content || header.generation == location.generation;
        let same = (is_generation || !checks.generation)
            && header.item_len() == u64::from(location.len)
            // Otherwise a longer key that begins with this one would pass.
            && (usize::from(header.key_len) == key.len() && found == key || !checks.key);
        let attempt = if same {
            Attempt::Found(Accepted {
                header,
                value_start: head_len,
            })
        } else {
            Attempt::Changed
        };
        if by_content {
            let is_right = self.may_return(key, value);
            return Ok(Some(if is_right { attempt } else { Attempt::Changed }));
        }
        self.unless_expired(location, attempt).map(Some)
    }

    pub(super) fn is_by_content(&self) -> bool {
        self.consistency == Consistency::ContentAddressed
    }

    /// Reads up to `len` bytes of the item at `location` into the buffer, then the word that
    /// shows whether they are whole; returns the result if they are not.
    pub(super) fn read_item(
        &mut self,
        location: Location,
        len: u64,
        consistency: Consistency,
    ) -> Result<Option<Attempt>, OpError> {
        let offset = location.word.address().offset();
        let len = len as usize;
        if self.item.len() < len {
            self.item.resize(len, 0);
        }
        let item = Read {
            remote: &self.items,
            offset,
            into: &mut self.item[..len],
        };
        let Some(last) = consistency.last_look(&self.index, &self.items, location) else {
            self.stats.reads += 1;
            self.endpoint.read_batch(&mut [item])?;
            return Ok(None);
        };
        let mut word = Word::default();
        let look = Read {
            remote: last.remote,
            offset: last.offset,
            into: &mut word.0,
        };
        self.stats.reads += 2;
        self.endpoint.read_batch(&mut [item, look])?;
        let mismatch = last.mismatch(word);
        Ok(mismatch.filter(|_| self.checks().slot))
    }

    /// Checks the copy of an item whose slot was unchanged.
    pub(super) fn examine(
        &self,
        key: &[u8],
        item: Range<usize>,
        is_generation: impl FnOnce(&ItemHeader) -> bool,
    ) -> Attempt {
        let checks = self.checks();
        let start = item.start;
        let Some((header, found, _)) = ItemHeader::split(&self.item[item]) else {
            return Attempt::Changed;
        };
        if !is_generation(&header) && checks.generation {
            return Attempt::Changed;
        }
        if found != key && checks.key {
            return Attempt::OtherKey;
        }
        Attempt::Found(Accepted {
            value_start: start + ItemHeader::len_of(found.len(), 0),
            header,
        })
    }

    /// Reads the server's clock if the item may expire. The clock is read after the slot: an
    /// item that has not expired then had not expired when it was live.
    pub(super) fn unless_expired(
        &mut self,
        location: Location,
        attempt: Attempt,
    ) -> Result<Attempt, OpError> {
        let Attempt::Found(item) = &attempt else {
            return Ok(attempt);
        };
        let header = item.header;
        if header.exptime == 0 || !header.expired(self.read_clock()?) {
            return Ok(attempt);
        }
        Ok(if self.is_still(location, &header)? {
            Attempt::Expired
        } else {
            Attempt::Changed
        })
    }

    /// Whether an expired item is still the item of its key. Had it been replaced or touched
    /// before the tick of the clock, the key would never have been absent. The generation, read
    /// last, shows that the memory was not reused before the slot was read.
    pub(super) fn is_still(
        &mut self,
        location: Location,
        header: &ItemHeader,
    ) -> Result<bool, OpError> {
        let (mut slot, mut words) = (Word::default(), Line::default());
        let words = &mut words.bytes_mut()[..ItemHeader::LEN];
        self.stats.reads += 2;
        self.endpoint.read_batch(&mut [
            Read {
                remote: &self.index,
                offset: location.slot.offset(),
                into: &mut slot.0,
            },
            Read {
                remote: &self.items,
                offset: location.word.address().offset(),
                into: &mut *words,
            },
        ])?;
        let now = words
            .first_chunk()
            .map(ItemHeader::from_bytes)
            .unwrap_or_default();
        let still = slot.value() == location.word.0
            && (now.generation, now.exptime) == (header.generation, header.exptime);
        Ok(still || !self.checks().slot_after_clock)
    }

    pub(super) fn read_clock(&mut self) -> Result<u64, OpError> {
        let mut word = Word::default();
        self.stats.reads += 1;
        self.endpoint.read_batch(&mut [Read {
            remote: &self.index,
            offset: ControlLine::CLOCK,
            into: &mut word.0,
        }])?;
        Ok(word.value())
    }
}

/// Treats a cached location outside of the region as a changed one.
pub(super) fn unless_outside(attempt: Result<Attempt, OpError>) -> Result<Attempt, OpError> {
    match attempt {
        Err(OpError::OutOfBounds { .. }) => Ok(Attempt::Changed),
        other => other,
    }
}
