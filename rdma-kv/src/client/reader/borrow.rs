//! Borrowing: gets that leave the value in place. See [`crate::protocol::hazards`].

use toroid_fabric::{Endpoint, Mapped, OpError, Read};

use super::{Accepted, Attempt, Consistency, Lookup, ReadMode, Reader, unless_outside};
use crate::client::view::{HazardPointer, View};
use crate::protocol::hash::hash;
use crate::protocol::layout::{BucketLine, ItemHeader, Location, MAX_KEY, Word};

/// A key whose bucket has been read, before it is borrowed.
#[derive(Clone, Copy)]
pub(crate) struct Probed {
    hash: u64,
    /// First slot with the tag of the key, if its main bucket has one.
    location: Option<Location>,
}

impl<E: Endpoint<Remote: Mapped>> Reader<E> {
    /// Whether the items are mapped into this process.
    pub(crate) fn can_borrow(&self) -> bool {
        self.items.is_mapped()
    }

    /// The items region.
    pub(crate) fn items(&self) -> &E::Remote {
        &self.items
    }

    /// Reads the main bucket of a key, before a hazard pointer is taken. A bucket covers more
    /// keys than a line of the location cache, so with many keys it is likelier to be in a
    /// processor cache, and it is never stale. Meanwhile the item is prefetched.
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

    /// Borrows a value, protected by `hazard`.
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
            // The key is in no slot with its tag, or not in the first.
            _ => {
                let mode = ReadMode::Borrow(&mut hazard);
                (self.look_up_repeatedly(hash, key, mode)?, None)
            }
        };
        // If the server had dropped the hazard pointer, the checks prove nothing.
        if hazard.is_recalled()? {
            return Ok(Lookup::Retry);
        }
        match location {
            Some(location) => self.uses.hit(location.slot, location.word),
            None => self.note_use(hash, &lookup),
        }
        // Strict gets notice stale locations by themselves.
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
    /// Borrows the item of a slot with the tag of the key, and caches its location.
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

    /// Writes the address to the hazard pointer, then checks slot and key.
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
            // Without a fence a processor may delay a store this long.
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

    /// Reads the slot, then header and key of the item; returns the slot word, the header, and
    /// whether the key matches. In this order: the item is reliable only after its slot was
    /// read. `None` when an item of this key would exceed the region.
    fn read_head(
        &mut self,
        location: Location,
        key: &[u8],
    ) -> Result<Option<(u64, ItemHeader, bool)>, OpError> {
        let offset = location.word.address().offset();
        let mut head = Head::default();
        let head_len = ItemHeader::len_of(key.len(), 0);
        // To the end of the key's last word, which belongs to the item.
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

/// Buffer for a header and a key, aligned so that the fabric copies short ones word by word.
#[repr(align(8))]
struct Head([u8; (ItemHeader::LEN + MAX_KEY).next_multiple_of(8)]);

impl Default for Head {
    fn default() -> Self {
        Head([0; (ItemHeader::LEN + MAX_KEY).next_multiple_of(8)])
    }
}

#[cfg(test)]
mod tests;
