//! How large a store and its items may be.

use crate::protocol::layout::{ItemAddress, UNIT};
use crate::store::index;

/// What an item of memcached adds to a key and a value when it compares with the limit: its
/// header with cas, the key's NUL and the value's line end.
const MEMCACHED_OVERHEAD: usize = 48 + 8 + 1 + 2;

/// Memcached keeps items of more bytes in chunks, whatever the limit: its `slab_chunk_max`.
const MEMCACHED_CHUNK: usize = 512 << 10;

/// How many segments the memory is divided into, if two of the largest items fit into one: where
/// only one fits, almost half may stay unused.
const SEGMENTS: u64 = 64;

/// How few there may be for that; one is kept free.
const SEGMENTS_MIN: u64 = 32;

/// Segments are not longer than this, unless one item is: shorter than what the kernel moves
/// while nobody notices.
const SEGMENT_MAX: u64 = 8 << 20;

/// What a store is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes for items (`-m`).
    pub memory: u64,
    /// Bytes of the largest item (`-I`), counted as memcached does.
    pub item: u32,
}

/// Why limits make no store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitsError {
    /// Memcached's bounds.
    #[error("an item size limit of {0} bytes is impossible: give from 1k to 1g")]
    Item(u32),
    /// Two items of the largest size must fit.
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
    /// Beyond what a slot word can name.
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

    /// Whether a value may be stored under a key of this length; memcached's arithmetic.
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

    /// The same with as much memory as there may be.
    pub fn largest(&self) -> Limits {
        Limits {
            memory: ItemAddress::LIMIT * UNIT as u64,
            ..*self
        }
    }

    /// Bytes of the two regions, index and items.
    pub fn regions(&self) -> (u64, u64) {
        (index::IndexSize::of(self.memory).len, self.memory)
    }
}

/// Whether memcached would keep such an item in chunks. It takes none of these for a number.
pub fn is_chunked(key_len: usize, flags: u32, value_len: usize) -> bool {
    memcached_len(key_len, flags, value_len) > MEMCACHED_CHUNK
}

/// Bytes of an item as memcached counts them.
pub fn memcached_len(key_len: usize, flags: u32, value_len: usize) -> usize {
    let flags = if flags == 0 { 0 } else { 4 };
    key_len + value_len + flags + MEMCACHED_OVERHEAD
}
