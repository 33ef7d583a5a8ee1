//! Borrowing: a get that leaves the value where it is. See [`crate::protocol::hazards`].

use toroid_fabric::{Endpoint, Mapped, OpError, Read};

use super::{Accepted, Attempt, Consistency, Lookup, ReadMode, Reader, unless_outside};
use crate::client::view::{HazardPointer, View};
use crate::protocol::hash::hash;
use crate::protocol::layout::{BucketLine, ItemHeader, Location, MAX_KEY, Word};

/// A key on its way to be borrowed.
#[derive(Clone, Copy)]
pub(crate) struct Probed {
    hash: u64,
    /// The first slot with its tag, if its main bucket has one.
    location: Option<Location>,
}

impl<E: Endpoint<Remote: Mapped>> Reader<E> {
    /// Whether the values are where this process reaches them.
    pub(crate) fn can_borrow(&self) -> bool {
        self.items.is_mapped()
    }

    /// Where values are: what hazard pointers are for.
    pub(crate) fn items(&self) -> &E::Remote {
        &self.items
    }

    /// Looks in the index where the value is, before a hazard pointer is at hand. A bucket tells of more keys than a
    /// line of locations, so of many keys it is likelier in a cache; nor is it ever stale. And what is
    /// read behind the hazard pointer's fence comes to the caches meanwhile.
    ///
    /// # Errors
    /// As [`Reader::get`].
    pub(crate) fn probe(&mut self, key: &[u8]) -> Result<Probed, OpError> {
        let hash = hash(self.seed, key);
        let bucket = self.buckets.main(hash);
        let line = self.read_bucket(bucket)?;
        let line = BucketLine(&line);
        let mut slots = bucket.slots().zip(line.words());
        let found = slots.find(|(_, word)| word.may_be(hash));
        let location = found.map(|(slot, word)| {
            let item = word.address().offset();
            let end = item + ItemHeader::len_of(key.len(), 0) as u64 - 1;
            self.items.fetch_ahead(item);
            self.items.fetch_ahead(end);
            Location {
                slot,
                word,
                generation: 0,
                len: 0,
            }
        });
        Ok(Probed { hash, location })
    }

    /// Gets a view of a value, which stays as it is for as long as `hazard pointer` says so.
    ///
    /// # Errors
    /// As [`Reader::get`].
    pub(crate) fn borrow(
        &mut self,
        key: &[u8],
        Probed { hash, location }: Probed,
        mut hazard: HazardPointer<E::Remote>,
    ) -> Result<Lookup<View<E::Remote>>, OpError> {
        self.stats.gets += 1;
        let attempt =
            location.map(|location| unless_outside(self.try_borrow(location, key, &mut hazard)));
        let (lookup, location) = match attempt.transpose()? {
            Some(Attempt::Found(item)) => (Lookup::Found(item), location),
            Some(Attempt::Expired) => (Lookup::Absent, None),
            // It is in no slot with its tag, or not in the first.
            _ => {
                let mode = ReadMode::Borrow(&mut hazard);
                (self.look_up_repeatedly(hash, key, mode)?, None)
            }
        };
        // What was checked may have been anything if the server had forgotten the hazard pointer by then.
        if hazard.is_recalled()? {
            return Ok(Lookup::Retry);
        }
        match location {
            Some(location) => self.uses.hit(location.slot, location.word),
            None => self.note_use(hash, &lookup),
        }
        // Strict gets find out by themselves that a location is old.
        if self.consistency == Consistency::Relaxed {
            match (&lookup, location) {
                (Lookup::Found(item), Some(location)) => {
                    self.note_location(hash, location, &item.header)
                }
                (Lookup::Absent, _) => self.locations.remove(hash),
                _ => {}
            }
        }
        Ok(lookup.map(|Accepted { header, .. }| View::borrowed(hazard, &header)))
    }
}

impl<E: Endpoint> Reader<E> {
    /// As [`Reader::try_borrow`], for a slot with the key's tag.
    pub(super) fn borrow_slot(
        &mut self,
        hash: u64,
        location: Location,
        key: &[u8],
        hazard: &mut HazardPointer<E::Remote>,
    ) -> Result<Attempt, OpError> {
        let attempt = self.try_borrow(location, key, hazard)?;
        if let Attempt::Found(item) = &attempt {
            self.note_location(hash, location, &item.header);
        }
        Ok(attempt)
    }

    /// Writes the item of a slot on the hazard pointer, then looks whether it is the slot's and the key's.
    fn try_borrow(
        &mut self,
        location: Location,
        key: &[u8],
        hazard: &mut HazardPointer<E::Remote>,
    ) -> Result<Attempt, OpError> {
        let checks = self.checks();
        if checks.hazard_first {
            hazard.write(location.word.address())?;
        }
        let Some((slot, header, found)) = self.read_head(location, key)? else {
            return Ok(Attempt::OtherKey);
        };
        if !checks.hazard_first {
            // Without a fence a processor may keep a store to itself for so long.
            hazard.write(location.word.address())?;
        }
        if slot != location.word.0 && checks.slot {
            return Ok(Attempt::Changed);
        }
        if !found && checks.key {
            return Ok(Attempt::OtherKey);
        }
        let rest = self
            .items_len
            .saturating_sub(location.word.address().offset());
        let is_possible = header.item_len() <= rest.min(self.max_item.into());
        if !is_possible {
            return Ok(Attempt::Changed);
        }
        let value_start = ItemHeader::len_of(header.key_len.into(), 0);
        let attempt = Attempt::Found(Accepted {
            header,
            value_start,
        });
        self.unless_expired(location, attempt)
    }

    /// Reads the slot, then the item's header and key: the word, the header, and whether the key is this
    /// one. In this order, as the item can be relied on only once its slot was seen. `None` when there
    /// is no room for an item of this key.
    fn read_head(
        &mut self,
        location: Location,
        key: &[u8],
    ) -> Result<Option<(u64, ItemHeader, bool)>, OpError> {
        let offset = location.word.address().offset();
        let mut head = Head::default();
        let head_len = ItemHeader::len_of(key.len(), 0);
        // To the end of the key's last word, which is the item's, too.
        let read_len = head_len.next_multiple_of(8);
        let rest = self.items_len.saturating_sub(offset);
        let Some(head) = head
            .0
            .get_mut(..read_len)
            .filter(|_| read_len as u64 <= rest)
        else {
            return Ok(None);
        };
        let mut word = Word::default();
        self.stats.reads += 2;
        self.endpoint.read_batch(&mut [
            Read {
                remote: &self.index,
                offset: location.slot.offset(),
                into: &mut word.0,
            },
            Read {
                remote: &self.items,
                offset,
                into: &mut *head,
            },
        ])?;
        let Some((header, found)) = head[..head_len].split_first_chunk() else {
            return Ok(None);
        };
        let header = ItemHeader::from_bytes(header);
        let is_key = usize::from(header.key_len) == key.len() && found == key;
        Ok(Some((word.value(), header, is_key)))
    }
}

/// Room for a header and a key, aligned so that the fabric moves short ones word by word.
#[repr(align(8))]
struct Head([u8; (ItemHeader::LEN + MAX_KEY).next_multiple_of(8)]);

impl Default for Head {
    fn default() -> Self {
        Head([0; (ItemHeader::LEN + MAX_KEY).next_multiple_of(8)])
    }
}

#[cfg(test)]
mod tests;
