//! What lies in the two regions that a server exports, byte by byte.
//!
//! The *index* region: a control line, then buckets of one cache line: main buckets, as many as
//! there is capacity for, of which the first ones are in use; then overflow buckets, which hang
//! from others by links. The index grows by one main bucket at a time (linear hashing): the new
//! one takes its share from the one with the same number but for the highest bit. It is filled before the
//! table epoch counts it, and only then are slots of the other cleared and moved together. So
//! whoever misses a key looks at the epoch afterwards: [`TableEpoch::disturbs`].
//!
//! When all items are removed at once, their slots are cleared one by one. Whoever misses a key
//! meanwhile sees it by the flush epoch, and must not say so: others still find what is to go.
//!
//! ```text
//! control line
//!  0       8         16            24            32      40         48   64
//!  +-------+---------+-------------+-------------+-------+----------+------+
//!  | magic | boot id | table epoch | flush epoch | clock | capacity | zero |
//!  +-------+---------+-------------+-------------+-------+----------+------+
//!
//! bucket
//!  0        8        16        24        32        40        48        56     64
//!  +--------+--------+---------+---------+---------+---------+---------+------+
//!  | slot 0 | slot 1 | slot 2  | slot 3  | slot 4  | slot 5  | slot 6  | link |
//!  +--------+--------+---------+---------+---------+---------+---------+------+
//!
//! slot word, from the highest bit
//!  64    56      49      17           0
//!  +-----+-------+-------+------------+
//!  | tag | class | addr. | generation |
//!  +-----+-------+-------+------------+
//! ```
//!
//! The *items* region: items at multiples of 16 bytes.
//!
//! ```text
//!  0            8     16        20      24          28         32        34      36         40
//!  +------------+-----+---------+-------+-----------+----------+---------+-------+----------+-----+-------+
//!  | generation | cas | exptime | flags | value len | checksum | key len | marks | accessed | key | value |
//!  +------------+-----+---------+-------+-----------+----------+---------+-------+----------+-----+-------+
//! ```
//!
//! All numbers are little endian. A link is the number of an overflow bucket, or 0. Publishing,
//! replacing and removing an item each are one store of its slot word. An item that is published
//! changes in three words only, each stored whole: cas, exptime, and marks with the time of the
//! last access, which are the server's own notes and mean nothing to a reader. The checksum is 0 on
//! providers whose reads are ordered, where the slot decides; `verbs` will fill it.
//!
//! A reader copies out and then believes nothing: everything here that parses does so from a
//! copy and checks what it finds.

mod buckets;
mod epochs;
mod items;
#[cfg(test)]
mod tests;

pub use buckets::{Bucket, BucketLine, Buckets, Slot};
pub use epochs::{FlushEpoch, TableEpoch};
pub use items::{ItemAddress, ItemHeader, Location, Marks, SlotWord};

/// Bytes of a cache line and of a bucket.
pub const LINE: usize = 64;

/// Bytes that items are aligned to: the unit of item addresses.
pub const UNIT: usize = 16;

/// The longest key in bytes, as with memcached.
pub const MAX_KEY: usize = 250;

/// A cache line's copy, aligned so that the fabric moves it word by word, each word whole.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub struct Line(pub [[u8; 8]; 8]);

impl Line {
    /// The bytes, to read into.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.as_flattened_mut()
    }

    /// The numbers in it, in order.
    pub fn words(&self) -> impl Iterator<Item = u64> {
        self.0.into_iter().map(u64::from_le_bytes)
    }

    /// One of the numbers in it.
    pub fn word(&self, n: usize) -> u64 {
        u64::from_le_bytes(self.0[n])
    }
}

/// A word's copy, aligned so that the fabric moves it whole.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(8))]
pub struct Word(pub [u8; 8]);

impl Word {
    /// The number in it.
    pub fn value(&self) -> u64 {
        u64::from_le_bytes(self.0)
    }
}

/// Why bytes of a server's region are not what a server writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Another program, or another version of this one.
    #[error("no index of this version: its first word is {0:#018x}")]
    Magic(u64),
    /// The regions do not hold what the server says.
    #[error("an index of {index} bytes cannot hold {count} of {capacity} buckets")]
    Geometry {
        /// Bytes of the index region.
        index: u64,
        /// Main buckets in use.
        count: u64,
        /// Main buckets that there is room for.
        capacity: u64,
    },
}

/// The first line of the index: what a server publishes about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlLine {
    /// Random, new at each start.
    pub boot_id: u64,
    /// How far the index has grown.
    pub table: TableEpoch,
    /// How often all items were removed at once.
    pub flush: FlushEpoch,
    /// The server's clock in seconds; the expiry of items is in its terms.
    pub clock: u64,
    /// Main buckets that there is room for.
    pub capacity: u64,
}

impl ControlLine {
    /// `TOROKV`, then the version of this layout.
    pub const MAGIC: u64 = u64::from_le_bytes(*b"TOROKV\x00\x03");
    /// Offset of the table epoch in the index region. The flush epoch follows.
    pub const TABLE_EPOCH: u64 = 16;
    /// Offset of the flush epoch in the index region.
    pub const FLUSH_EPOCH: u64 = 24;
    /// Offset of the clock in the index region.
    pub const CLOCK: u64 = 32;

    /// The line's words, in order.
    pub fn words(&self) -> [u64; 8] {
        [
            Self::MAGIC,
            self.boot_id,
            self.table.0,
            self.flush.0,
            self.clock,
            self.capacity,
            0,
            0,
        ]
    }

    /// The control line of an index of `index_len` bytes, and its buckets.
    ///
    /// # Errors
    /// [`LayoutError`].
    pub fn parse(line: &Line, index_len: u64) -> Result<(Self, Buckets), LayoutError> {
        if line.word(0) != Self::MAGIC {
            return Err(LayoutError::Magic(line.word(0)));
        }
        let control = ControlLine {
            boot_id: line.word(1),
            table: TableEpoch(line.word(2)),
            flush: FlushEpoch(line.word(3)),
            clock: line.word(4),
            capacity: line.word(5),
        };
        let buckets = Buckets::new(index_len, control.capacity)?;
        Ok((control, buckets.with_count(control.table.count())?))
    }
}
