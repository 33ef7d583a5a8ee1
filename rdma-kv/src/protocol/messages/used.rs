//! Items that a client has read, as they travel.
//!
//! ```text
//!  0      4       8      16
//!  +------+-------+------+
//!  | slot | times | word |
//!  +------+-------+------+
//! ```

use crate::protocol::layout::{Slot, SlotWord};

/// One hit of so many, at random, says where the item was: it costs the server a look at the item.
/// Were it each fourth, it would be the same keys again and again of some that are read in turn.
pub const SAMPLED: u32 = 4;

/// Packed.
pub type PackedUse = [u8; 16];

/// Which item was read, and how often; any of it may be nonsense.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// The slot that led to it.
    pub slot: Slot,
    /// How often.
    pub times: u32,
    /// What was in the slot, at last.
    pub word: SlotWord,
}

impl Use {
    /// As it travels.
    pub fn pack(&self) -> PackedUse {
        let mut packed = [0; 16];
        packed[..4].copy_from_slice(&self.slot.0.to_le_bytes());
        packed[4..8].copy_from_slice(&self.times.to_le_bytes());
        packed[8..].copy_from_slice(&self.word.0.to_le_bytes());
        packed
    }

    /// What came.
    pub fn unpack(packed: &PackedUse) -> Self {
        let [a, b, c, d, e, f, g, h, word @ ..] = *packed;
        Use {
            slot: Slot(u32::from_le_bytes([a, b, c, d])),
            times: u32::from_le_bytes([e, f, g, h]),
            word: SlotWord(u64::from_le_bytes(word)),
        }
    }
}
