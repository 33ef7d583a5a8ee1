//! Items that a client has read, as they travel.
//!
//! ```text
//!  0      4       8      16
//!  +------+-------+------+
//!  | slot | times | word |
//!  +------+-------+------+
//! ```

use crate::protocol::layout::{Slot, SlotWord};

/// One hit in this many, at random, names its item, which costs the server a look at the item.
/// Every fourth hit would name the same keys again and again if some are read in turn.
pub const SAMPLED: u32 = 4;

/// A use as it travels.
pub type PackedUse = [u8; 16];

/// An item that was read, and how often. The server must not rely on any of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// Slot that led to the item.
    pub slot: Slot,
    /// Reads.
    pub times: u32,
    /// Last content of the slot.
    pub word: SlotWord,
}

impl Use {
    /// Encodes it.
    pub fn pack(&self) -> PackedUse {
        let mut packed = [0; 16];
        packed[..4].copy_from_slice(&self.slot.0.to_le_bytes());
        packed[4..8].copy_from_slice(&self.times.to_le_bytes());
        packed[8..].copy_from_slice(&self.word.0.to_le_bytes());
        packed
    }

    /// Decodes it.
    pub fn unpack(packed: &PackedUse) -> Self {
        let [a, b, c, d, e, f, g, h, word @ ..] = *packed;
        Use {
            slot: Slot(u32::from_le_bytes([a, b, c, d])),
            times: u32::from_le_bytes([e, f, g, h]),
            word: SlotWord(u64::from_le_bytes(word)),
        }
    }
}
