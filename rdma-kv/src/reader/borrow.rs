//! Borrowing: a get that leaves the value where it is. See [`crate::loans`].

use fabric::{Endpoint, Mapped, OpError, Read};

use super::{Accepted, Reader, Sought, Tried, Way, unless_outside};
use crate::hash::hash;
use crate::layout::{ItemHeader, MAX_KEY, Placement, Word};
use crate::view::{Slip, View};

impl<E: Endpoint<Remote: Mapped>> Reader<E> {
    /// Whether the values are where this process reaches them.
    pub(crate) fn can_borrow(&self) -> bool {
        self.items.is_mapped()
    }

    /// Gets a view of a value, which stays as it is for as long as `slip` says so.
    ///
    /// # Errors
    /// As [`Reader::get`].
    pub(crate) fn borrow(
        &mut self,
        key: &[u8],
        mut slip: Slip,
    ) -> Result<Sought<View<E::Remote>>, OpError> {
        self.stats.gets += 1;
        let hash = hash(self.seed, key);
        let sought = match self.places.find(hash) {
            Some(place) => {
                self.fetch_ahead(place, key);
                let tried = unless_outside(self.lend(place, key, &mut slip))?;
                self.settle(hash, tried)
            }
            None => Sought::Unsettled,
        };
        let sought = match sought {
            Sought::Unsettled => self.look_up_repeatedly(hash, key, Way::Lent(&mut slip))?,
            settled => settled,
        };
        // What was checked may have been anything if the server had forgotten the slip by then.
        if slip.is_recalled()? {
            return Ok(Sought::Unsettled);
        }
        self.note_use(hash, &sought);
        let items = self.items.clone();
        Ok(sought.map(|Accepted { header, .. }| View::lent(slip, items, &header)))
    }

    /// What is read behind the slip's fence comes to the caches while that takes its time.
    fn fetch_ahead(&self, place: Placement, key: &[u8]) {
        let item = place.word.place().offset();
        let end = item + ItemHeader::len_of(key.len(), 0) as u64 - 1;
        self.index.fetch_ahead(place.slot.offset());
        self.items.fetch_ahead(item);
        self.items.fetch_ahead(end);
    }
}

impl<E: Endpoint> Reader<E> {
    /// As [`Reader::lend`], for a slot with the key's tag.
    pub(super) fn lend_slot(
        &mut self,
        hash: u64,
        place: Placement,
        key: &[u8],
        slip: &mut Slip,
    ) -> Result<Tried, OpError> {
        let tried = self.lend(place, key, slip)?;
        if let Tried::Found(item) = &tried {
            self.note_place(hash, place, &item.header);
        }
        Ok(tried)
    }

    /// Writes the item of a slot on the slip, then looks whether it is the slot's and the key's.
    fn lend(&mut self, place: Placement, key: &[u8], slip: &mut Slip) -> Result<Tried, OpError> {
        let checks = self.checks();
        if checks.slip_first {
            slip.write(place.word.place())?;
        }
        let Some((slot, header, found)) = self.read_head(place, key)? else {
            return Ok(Tried::Other);
        };
        if !checks.slip_first {
            // Without a fence a processor may keep a store to itself for so long.
            slip.write(place.word.place())?;
        }
        if slot != place.word.0 && checks.slot {
            return Ok(Tried::Changed);
        }
        if !found && checks.key {
            return Ok(Tried::Other);
        }
        let rest = self.items_len.saturating_sub(place.word.place().offset());
        let is_possible = header.item_len() <= rest.min(self.max_item.into());
        if !is_possible {
            return Ok(Tried::Changed);
        }
        let value_start = ItemHeader::len_of(header.key_len.into(), 0);
        let tried = Tried::Found(Accepted {
            header,
            value_start,
        });
        self.unless_expired(place, tried)
    }

    /// Reads the slot, then the item's header and key: the word, the header, and whether the key is this
    /// one. In this order, as the item can be relied on only once its slot was seen. `None` when there
    /// is no room for an item of this key.
    fn read_head(
        &mut self,
        place: Placement,
        key: &[u8],
    ) -> Result<Option<(u64, ItemHeader, bool)>, OpError> {
        let offset = place.word.place().offset();
        let mut head = [0; ItemHeader::LEN + MAX_KEY];
        let head_len = ItemHeader::len_of(key.len(), 0);
        let rest = self.items_len.saturating_sub(offset);
        let Some(head) = head.get_mut(..head_len).filter(|_| head_len as u64 <= rest) else {
            return Ok(None);
        };
        let mut word = Word::default();
        self.stats.reads += 2;
        self.endpoint.read_batch(&mut [
            Read {
                remote: &self.index,
                offset: place.slot.offset(),
                into: &mut word.0,
            },
            Read {
                remote: &self.items,
                offset,
                into: &mut *head,
            },
        ])?;
        let Some((header, found)) = head.split_first_chunk() else {
            return Ok(None);
        };
        let header = ItemHeader::from_bytes(header);
        let is_key = usize::from(header.key_len) == key.len() && found == key;
        Ok(Some((word.value(), header, is_key)))
    }
}

#[cfg(test)]
#[path = "borrow_tests.rs"]
mod tests;
