//! Limits of a store and its items.

use crate::protocol::layout::{ItemAddress, UNIT};
use crate::store::index;

/// Bytes that memcached adds to key and value when it compares an item with the limit: header with
/// cas, NUL of the key, line end of the value.
const MEMCACHED_OVERHEAD: usize = 48 + 8 + 1 + 2;

/// Size from which memcached stores items in chunks: its `slab_chunk_max`.
const MEMCACHED_CHUNK: usize = 512 << 10;

/// Segments of a store, if two of the largest items fit into one; where only one fits, almost half
/// may stay unused.
const SEGMENTS: u64 = 64;

/// Least number of segments for that; one of them is kept free.
const SEGMENTS_MIN: u64 = 32;

/// Longest segment, unless one item is longer: short enough that the kernel migrates it unnoticed.
const SEGMENT_MAX: u64 = 8 << 20;

/// Limits of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes for items (`-m`).
    pub memory: u64,
    /// Bytes of the largest item (`-I`), counted as memcached does.
    pub item: u32,
}

/// Invalid limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitsError {
    /// The item size is outside of memcached's bounds.
    #[error("an item size limit of {0} bytes is impossible: give from 1k to 1g")]
    Item(u32),
    /// Two items of the largest size do not fit.
    #[error(
        "{memory} bytes of memory are too little for items of up to {item} bytes: \
         give at least twice as much, or a smaller item size"
    )]
    TooSmall {
        /// Bytes given.
        memory: u64,
        /// Bytes of the largest item.
        item: u32,
    },
    /// The memory exceeds the addresses of a slot word.
    #[error("{0} bytes of memory are too much: at most 64 GiB")]
    TooLarge(u64),
}

impl Limits {
    /// Memcached's defaults: 64 MiB, items of 1 MiB.
    pub const DEFAULT: Limits = Limits {
        memory: 64 << 20,
        item: 1 << 20,
    };

    /// # Errors
    /// [`LimitsError`].
    pub fn check(&self) -> Result<(), LimitsError> {
        let Limits { memory, item } = *self;
        if !(1 << 10..=1 << 30).contains(&item) {
            return Err(LimitsError::Item(item));
        }
        if memory < 2 * u64::from(item) {
            return Err(LimitsError::TooSmall { memory, item });
        }
        if memory > ItemAddress::LIMIT * UNIT as u64 {
            return Err(LimitsError::TooLarge(memory));
        }
        Ok(())
    }

    /// Whether a value may be stored under a key of this length, by memcached's arithmetic.
    pub fn admit(&self, key_len: usize, flags: u32, value_len: usize) -> bool {
        memcached_len(key_len, flags, value_len) <= self.item as usize
    }

    /// Bytes of a segment.
    pub(super) fn segment(&self) -> u32 {
        let item = u64::from(self.item.next_multiple_of(UNIT as u32));
        let least = if self.memory / (2 * item) >= SEGMENTS_MIN {
            2 * item
        } else {
            item
        };
        (self.memory / SEGMENTS).min(SEGMENT_MAX).max(least) as u32
    }

    /// These limits with the most memory that a store can have.
    pub fn largest(&self) -> Limits {
        Limits {
            memory: ItemAddress::LIMIT * UNIT as u64,
            ..*self
        }
    }

    /// Bytes of the index region and of the items region.
    pub fn regions(&self) -> (u64, u64) {
        (index::IndexSize::of(self.memory).len, self.memory)
    }
}

/// Whether memcached would store such an item in chunks, which it never takes for a number.
pub fn is_chunked(key_len: usize, flags: u32, value_len: usize) -> bool {
    memcached_len(key_len, flags, value_len) > MEMCACHED_CHUNK
}

/// Bytes of an item as memcached counts them.
pub fn memcached_len(key_len: usize, flags: u32, value_len: usize) -> usize {
    let flags = if flags == 0 { 0 } else { 4 };
    key_len + value_len + flags + MEMCACHED_OVERHEAD
}
