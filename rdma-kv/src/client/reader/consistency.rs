//! What a get from a cached location promises, and what it looks at for that.

use super::Attempt;
use crate::protocol::layout::{Location, SlotWord, Word};

/// What a get promises when its client knows where the key's item was. A look-up is strict always, and
/// so is what is borrowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Consistency {
    /// The value is the key's at some moment during the get: gets are linearizable. The slot is read
    /// again after the item.
    #[default]
    Strict,
    /// The value was the key's at some time, perhaps long ago, and also if the key was removed or set
    /// anew since; it is never another key's or of two values. A client sees its own changes, and
    /// never goes back to an older value. An item that has expired is not returned. No slot is read: the item's
    /// generation, read again, tells that its memory was not used for anything else.
    Relaxed,
    /// The key is the value's [`crate::client::content_key`], and the value is the one with that key. Nothing
    /// is read again: the hash decides, so this needs no order of reads, and what was removed or has
    /// expired may still be found. What is stored under a key that is not its own is not found.
    ContentAddressed,
}

/// What is read last.
pub(super) struct LastLook<'a, R> {
    pub(super) remote: &'a R,
    pub(super) offset: u64,
    /// What must be there, if what was read before is to be whole.
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
    /// What was read before it, if this is not what must be there.
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
