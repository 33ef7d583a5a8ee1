//! Consistency of gets from cached locations.

use super::Attempt;
use crate::protocol::layout::{Location, SlotWord, Word};

/// Guarantee of a get from a cached location. Lookups in the index and borrowed values are always
/// strict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// Gets are linearizable: the value is the key's at some moment during the get. The slot is
    /// read again after the item.
    #[default]
    Strict,
    /// The value was the key's at some time, perhaps long ago, even if the key was removed or
    /// set since. It is never another key's, nor of two values. A client sees its own changes,
    /// and never returns to an older value. Expired items are not returned. No slot is read:
    /// the generation of the item, read again, shows that its memory was not reused.
    Relaxed,
    /// The key is the [`crate::content_key`] of the value. Nothing is read again: the hash
    /// decides, so reads need no order, and removed or expired values may be found. A value
    /// under a key that is not its hash is not found.
    ContentAddressed,
}

/// The last read of a get.
pub(super) struct LastLook<'a, R> {
    pub(super) remote: &'a R,
    pub(super) offset: u64,
    /// Expected word, if the item is whole.
    expected: u64,
    is_slot: bool,
}

impl Consistency {
    pub(super) fn last_look<'a, R>(
        self,
        index: &'a R,
        items: &'a R,
        location: Location,
    ) -> Option<LastLook<'a, R>> {
        let (remote, offset, expected) = match self {
            Consistency::Strict => (index, location.slot.offset(), location.word.0),
            Consistency::Relaxed => (items, location.word.address().offset(), location.generation),
            Consistency::ContentAddressed => return None,
        };
        Some(LastLook {
            remote,
            offset,
            expected,
            is_slot: self == Consistency::Strict,
        })
    }
}

impl<R> LastLook<'_, R> {
    /// The result, if the word that was read is another.
    pub(super) fn mismatch(&self, found: Word) -> Option<Attempt> {
        match (found.value() == self.expected, self.is_slot) {
            (true, _) => None,
            (false, true) => Some(Attempt::Replaced(SlotWord(found.value()))),
            (false, false) => Some(Attempt::Changed),
        }
    }
}

#[cfg(test)]
mod tests;
