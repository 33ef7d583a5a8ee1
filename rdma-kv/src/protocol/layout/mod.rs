//! Layout of the two regions that a server exports, byte by byte.
//!
//! The *index* region has a control line, then buckets of one cache line each: main buckets, of which
//! the first ones are in use, then overflow buckets, which are linked into chains. The index grows by
//! one main bucket at a time (linear hashing): a new bucket takes its share of the keys of the bucket
//! with the same number without the highest bit. The new bucket is filled first. Then the table epoch
//! counts it, and only then are slots of the other bucket cleared and moved together. So a reader that
//! misses a key reads the epoch afterwards: [`TableEpoch::disturbs`].
//!
//! When all items are removed at once, their slots are cleared one by one. A reader that misses a key
//! meanwhile learns so from the flush epoch, and must not report the key as absent: other readers still
//! find items that are about to be removed.
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
//! replacing and removing an item is one store of its slot word. A published item changes in three
//! words only, each stored atomically: cas, exptime, and marks with the time of the last use. The last
//! are the server's notes, which readers ignore. The checksum is 0 on providers with ordered reads,
//! where the slot decides; `verbs` will fill it.
//!
//! A reader copies first and then trusts nothing: all parsers here work on a copy and check it.

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

/// Longest key in bytes, as with memcached.
pub const MAX_KEY: usize = 250;

/// Copy of a cache line, aligned so that the fabric copies each word atomically.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
pub struct Line(pub [[u8; 8]; 8]);

impl Line {
    /// The bytes, to read into.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.as_flattened_mut()
    }

    /// Its words, in order.
    pub fn words(&self) -> impl Iterator<Item = u64> {
        self.0.into_iter().map(u64::from_le_bytes)
    }

    /// Word `n`.
    pub fn word(&self, n: usize) -> u64 {
        u64::from_le_bytes(self.0[n])
    }
}

/// Copy of a word, aligned so that the fabric copies it atomically.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(8))]
pub struct Word(pub [u8; 8]);

impl Word {
    /// Its number.
    pub fn value(&self) -> u64 {
        u64::from_le_bytes(self.0)
    }
}

/// Bytes of a server's region that no server writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    /// Another program, or another version of the layout.
    #[error("no index of this version: its first word is {0:#018x}")]
    Magic(u64),
    /// The regions cannot hold what the server claims.
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

/// First line of the index: the state that a server publishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlLine {
    /// Random number, new at each start.
    pub boot_id: u64,
    /// Growth of the index.
    pub table: TableEpoch,
    /// Counts removals of all items.
    pub flush: FlushEpoch,
    /// The server's clock in seconds. The expiry of items is in its terms.
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

    /// Its words, in order.
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

    /// Parses the control line of an index of `index_len` bytes; returns its buckets as well.
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
