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

use std::ops::Range;

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

/// How far an index has grown: twice its main buckets, and 1 more while slots of the two that took
/// part in the last step are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableEpoch(pub u64);

impl TableEpoch {
    /// Who missed that many steps looks again, whatever they were.
    const STEPS: u64 = 64;

    /// Of an index that has so many main buckets.
    pub fn new(count: u32, moving: bool) -> Self {
        TableEpoch(u64::from(count) * 2 + u64::from(moving))
    }

    /// Main buckets in use.
    pub fn count(self) -> u64 {
        self.0 / 2
    }

    /// Whether a slot may have been moved within or out of `bucket` since `before`.
    pub fn disturbs(self, before: TableEpoch, bucket: Bucket) -> bool {
        // The last step before counts if it was not over.
        let steps = before.count().saturating_sub(before.0 % 2)..self.count();
        let last = self.count().saturating_sub(self.0 % 2)..self.count();
        let touches = |new: u64| {
            let from = new ^ (1 << new.max(1).ilog2());
            [new, from].contains(&u64::from(bucket.0))
        };
        match steps.end.checked_sub(steps.start) {
            Some(0..=Self::STEPS) => steps.chain(last).any(touches),
            _ => true,
        }
    }
}

/// Twice how often all items were removed at once, and 1 more while they are being removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushEpoch(pub u64);

impl FlushEpoch {
    /// The next one: the beginning of a removal, or its end.
    #[must_use]
    pub fn next(self) -> Self {
        FlushEpoch(self.0.wrapping_add(1))
    }

    /// Whether items are being removed.
    pub fn is_flushing(self) -> bool {
        !self.0.is_multiple_of(2)
    }
}

/// How many buckets an index has, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// Main buckets in use: from 1 to `capacity`.
    count: u32,
    /// Main buckets that there is room for.
    capacity: u32,
    /// All buckets that there is room for.
    all: u32,
}

impl Buckets {
    /// One bucket of an index of `index_len` bytes that can have `capacity` main buckets.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`] when they do not fit.
    pub fn new(index_len: u64, capacity: u64) -> Result<Self, LayoutError> {
        let refused = LayoutError::Geometry {
            index: index_len,
            count: 1,
            capacity,
        };
        // Slots are numbered by 32 bits, eight words to a line.
        let all = (index_len / LINE as u64).min(1 << 29).saturating_sub(1);
        let (all, capacity) = (all as u32, u32::try_from(capacity).map_err(|_| refused)?);
        if (1..=all).contains(&capacity) {
            Ok(Buckets {
                count: 1,
                capacity,
                all,
            })
        } else {
            Err(refused)
        }
    }

    /// The same index with `count` main buckets in use.
    ///
    /// # Errors
    /// [`LayoutError::Geometry`] when there is no room for so many, or it is none.
    pub fn with_count(self, count: u64) -> Result<Self, LayoutError> {
        let fits = (1..=u64::from(self.capacity)).contains(&count);
        if fits {
            Ok(Buckets {
                count: count as u32,
                ..self
            })
        } else {
            Err(LayoutError::Geometry {
                index: (1 + u64::from(self.all)) * LINE as u64,
                count,
                capacity: self.capacity.into(),
            })
        }
    }

    /// Main buckets in use.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The main bucket of a key.
    pub fn main(&self, hash: u64) -> Bucket {
        // The power of two that is above the highest number in use, and the one below.
        let high = self.count.next_power_of_two();
        let number = hash as u32 & (high - 1);
        Bucket(if number < self.count {
            number
        } else {
            number & (high / 2 - 1)
        })
    }

    /// For going through all keys in the order of their hashes' lowest 32 bits, written backwards: the main
    /// bucket of those from `at` on, and where those of the next one begin; `None` at the end. A bucket that is
    /// split is so into neighbours, so the order stays as it is while the index grows (Redis walks its tables
    /// alike).
    pub fn onwards(&self, at: u64) -> Option<(Bucket, u64)> {
        let hash = u32::try_from(at).ok()?.reverse_bits();
        let Bucket(number) = self.main(hash.into());
        let high = self.count.next_power_of_two();
        let is_split = number >= high / 2 || number + high / 2 < self.count;
        let modulus = if is_split { high } else { high / 2 };
        Some((Bucket(number), at + (1 << 32) / u64::from(modulus)))
    }

    /// With one more in use: the new bucket, and the one that it takes its share from. `None`
    /// when there is no room.
    pub fn grown(&self) -> Option<(Self, Bucket, Bucket)> {
        let new = self.count;
        let from = new & !(1u32.checked_shl(new.ilog2())?);
        let grown = Buckets {
            count: new + 1,
            ..*self
        };
        (new < self.capacity).then_some((grown, Bucket(new), Bucket(from)))
    }

    /// The overflow bucket that a link leads to; `None` at the end of a chain. A link that leads
    /// elsewhere is no correct server's, and also ends it.
    pub fn linked(&self, link: u64) -> Option<Bucket> {
        let number = u32::try_from(link).ok()?;
        let overflow = self.capacity..self.all;
        overflow.contains(&number).then_some(Bucket(number))
    }

    /// Whether there is such a slot, in use or not.
    pub fn is_slot(&self, slot: Slot) -> bool {
        let (line, word) = (slot.0 / 8, slot.0 % 8);
        (1..=self.all).contains(&line) && word < Bucket::SLOTS
    }

    /// Where overflow buckets start, if there are any.
    pub fn first_overflow(&self) -> Bucket {
        Bucket(self.capacity)
    }

    /// The overflow buckets.
    pub fn overflow(&self) -> impl DoubleEndedIterator<Item = Bucket> + use<> {
        (self.capacity..self.all).map(Bucket)
    }
}

/// A bucket's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bucket(u32);

impl Bucket {
    /// Slots of a bucket.
    pub const SLOTS: u32 = 7;

    /// Most buckets of a chain. Only keys that were chosen for their hash need so many.
    pub const CHAIN: u32 = 32;

    /// A main bucket.
    pub fn main(number: u32) -> Self {
        Bucket(number)
    }

    /// The bucket that lies behind it.
    pub fn next(self) -> Self {
        Bucket(self.0 + 1)
    }

    /// Where it starts in the index region.
    pub fn offset(self) -> u64 {
        (1 + u64::from(self.0)) * LINE as u64
    }

    /// The number that a link to it is.
    pub fn link(self) -> u64 {
        u64::from(self.0)
    }

    /// Where its link is in the index region.
    pub fn link_offset(self) -> u64 {
        self.offset() + u64::from(Self::SLOTS) * 8
    }

    /// Its slots.
    pub fn slots(self) -> impl Iterator<Item = Slot> {
        let first = (1 + self.0) * 8;
        (first..first + Self::SLOTS).map(Slot)
    }
}

/// A bucket's copy.
#[derive(Clone, Copy, Debug)]
pub struct BucketLine<'a>(pub &'a Line);

impl BucketLine<'_> {
    /// The slot words, in order.
    pub fn words(&self) -> impl Iterator<Item = SlotWord> {
        (0..Bucket::SLOTS as usize).map(|n| SlotWord(self.0.word(n)))
    }

    /// The link.
    pub fn link(&self) -> u64 {
        self.0.word(Bucket::SLOTS as usize)
    }
}

/// Where a slot is: the number of its word in the index region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub u32);

impl Slot {
    /// Its offset in the index region.
    pub fn offset(self) -> u64 {
        u64::from(self.0) * 8
    }
}

/// Where an item is, in units of 16 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ItemAddress(pub u32);

impl ItemAddress {
    /// Addresses beyond this many do not fit a slot word: 64 GiB.
    pub const LIMIT: u64 = 1 << 32;

    /// Its offset in the items region.
    pub fn offset(self) -> u64 {
        u64::from(self.0) * UNIT as u64
    }
}

/// What a slot says about its item. Storing one publishes an item; 0 is an empty slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotWord(pub u64);

impl SlotWord {
    /// An empty slot.
    pub const EMPTY: SlotWord = SlotWord(0);
    const CLASS_SHIFT: u32 = 49;
    const CLASS: u64 = (1 << 7) - 1;
    const GENERATION_BITS: u32 = 17;
    const GENERATION: u64 = (1 << Self::GENERATION_BITS) - 1;

    /// The word for an item of `len` bytes.
    pub fn new(hash: u64, len: u32, address: ItemAddress, generation: u64) -> Self {
        SlotWord(
            u64::from(Self::tag_of(hash)) << 56
                | class_of(len) << Self::CLASS_SHIFT
                | u64::from(address.0) << Self::GENERATION_BITS
                | generation & Self::GENERATION,
        )
    }

    /// The tag of a key: never 0, so that no item's word is 0.
    fn tag_of(hash: u64) -> u8 {
        ((hash >> 56) as u8).max(1)
    }

    /// Whether this may be the slot of the key with this hash.
    pub fn may_be(self, hash: u64) -> bool {
        (self.0 >> 56) as u8 == Self::tag_of(hash)
    }

    /// Where the item is.
    pub fn address(self) -> ItemAddress {
        ItemAddress((self.0 >> Self::GENERATION_BITS) as u32)
    }

    /// At least the item's bytes, and at most a quarter more, rounded up to 16 bytes.
    pub fn len_limit(self) -> u64 {
        let class = self.0 >> Self::CLASS_SHIFT & Self::CLASS;
        // Four classes to each power of two.
        ((4 + class % 4) << (class / 4)) * UNIT as u64
    }

    /// Whether these are the low bits of `generation`.
    pub fn is_of(self, generation: u64) -> bool {
        (self.0 ^ generation) & Self::GENERATION == 0
    }
}

/// The smallest class that holds `len` bytes.
fn class_of(len: u32) -> u64 {
    let units = u64::from(len.div_ceil(UNIT as u32)).max(4);
    let exponent = units.ilog2() - 2;
    // Rounding up may reach the next power of two, which is the next class all the same.
    units.div_ceil(1 << exponent) - 4 + u64::from(exponent) * 4
}

/// All that a reader needs to read an item in one go: what clients cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// Where the slot is.
    pub slot: Slot,
    /// What was in it.
    pub word: SlotWord,
    /// The item's generation.
    pub generation: u64,
    /// The item's bytes: header, key and value.
    pub len: u32,
}

/// The first bytes of an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ItemHeader {
    /// Unique for the server's life, never reused.
    pub generation: u64,
    /// Memcached's unique number of a stored value.
    pub cas: u64,
    /// By the server's clock, from when it is dead; 0 is never.
    pub exptime: u32,
    /// The client's.
    pub flags: u32,
    /// Bytes.
    pub value_len: u32,
    /// See the module's header.
    pub checksum: u32,
    /// Bytes.
    pub key_len: u16,
    /// The server's.
    pub marks: Marks,
    /// When the server was last told that it was used, by its clock.
    pub accessed: u32,
}

bitflags::bitflags! {
    /// What the server notes about an item.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Marks: u16 {
        /// Somebody got it since it was stored.
        const FETCHED = 1;
        /// It was declared stale (`md` with `I`).
        const STALE = 2;
        /// Somebody was told to store it anew (`W`), and nobody else is.
        const WON = 4;
        /// Its key came in base64 (`b`), and is told so.
        const BINARY_KEY = 8;
        /// How often it was used since it was last moved: from 0 to 3.
        const FREQUENCY = 3 << 8;
    }
}

impl Marks {
    const ONCE: u16 = 1 << 8;

    /// How often the item was used since it was last moved: from 0 to 3, which is or more.
    pub fn frequency(self) -> u16 {
        (self & Marks::FREQUENCY).bits() / Self::ONCE
    }

    /// Used once more.
    pub fn more_frequent(self) -> Self {
        if self.contains(Marks::FREQUENCY) {
            self
        } else {
            Marks::from_bits_retain(self.bits() + Self::ONCE)
        }
    }

    /// As if used once less.
    pub fn less_frequent(self) -> Self {
        match self.frequency() {
            0 => self,
            _ => Marks::from_bits_retain(self.bits() - Self::ONCE),
        }
    }
}

impl ItemHeader {
    /// Bytes.
    pub const LEN: usize = 40;
    const CAS: Range<usize> = 8..16;
    const EXPTIME: Range<usize> = 16..20;
    const FLAGS: Range<usize> = 20..24;
    const VALUE_LEN: Range<usize> = 24..28;
    const CHECKSUM: Range<usize> = 28..32;
    const KEY_LEN: Range<usize> = 32..34;
    const MARKS: Range<usize> = 34..36;
    const ACCESSED: Range<usize> = 36..40;
    /// Offset of the word that holds the cas.
    pub const CAS_WORD: u64 = 8;
    /// Offset of the word that holds exptime and flags.
    pub const EXPTIME_WORD: u64 = 16;
    /// Offset of the word that holds the key's length, the marks and the time of the last access.
    pub const NOTES_WORD: u64 = 32;

    /// The bytes of an item with a key and a value of these lengths.
    pub fn len_of(key_len: usize, value_len: usize) -> usize {
        Self::LEN + key_len + value_len
    }

    /// The wire form.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.generation.to_le_bytes());
        bytes[Self::CAS].copy_from_slice(&self.cas.to_le_bytes());
        bytes[Self::EXPTIME].copy_from_slice(&self.exptime.to_le_bytes());
        bytes[Self::FLAGS].copy_from_slice(&self.flags.to_le_bytes());
        bytes[Self::VALUE_LEN].copy_from_slice(&self.value_len.to_le_bytes());
        bytes[Self::CHECKSUM].copy_from_slice(&self.checksum.to_le_bytes());
        bytes[Self::KEY_LEN].copy_from_slice(&self.key_len.to_le_bytes());
        bytes[Self::MARKS].copy_from_slice(&self.marks.bits().to_le_bytes());
        bytes[Self::ACCESSED].copy_from_slice(&self.accessed.to_le_bytes());
        bytes
    }

    /// The word at [`ItemHeader::EXPTIME_WORD`].
    pub fn exptime_word(&self) -> u64 {
        u64::from(self.exptime) | u64::from(self.flags) << 32
    }

    /// The word at [`ItemHeader::NOTES_WORD`].
    pub fn notes_word(&self) -> u64 {
        u64::from(self.key_len)
            | u64::from(self.marks.bits()) << 16
            | u64::from(self.accessed) << 32
    }

    /// Splits an item's copy into header, key and value. `None` when it is too short for what
    /// its header says, or the key is longer than any.
    pub fn split(item: &[u8]) -> Option<(Self, &[u8], &[u8])> {
        let (header, rest) = item.split_first_chunk::<{ Self::LEN }>()?;
        let header = Self::from_bytes(header);
        let (key, rest) = rest.split_at_checked(usize::from(header.key_len))?;
        let value = rest.get(..header.value_len as usize)?;
        (key.len() <= MAX_KEY).then_some((header, key, value))
    }

    /// The header in these bytes; nothing is checked.
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        let u32_at = |range: Range<usize>| {
            let at = range.start;
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let u16_at =
            |range: Range<usize>| u16::from_le_bytes([bytes[range.start], bytes[range.start + 1]]);
        let u64_at =
            |at: usize| u64::from(u32_at(at..at + 4)) | u64::from(u32_at(at + 4..at + 8)) << 32;
        ItemHeader {
            generation: u64_at(0),
            cas: u64_at(Self::CAS.start),
            exptime: u32_at(Self::EXPTIME),
            flags: u32_at(Self::FLAGS),
            value_len: u32_at(Self::VALUE_LEN),
            checksum: u32_at(Self::CHECKSUM),
            key_len: u16_at(Self::KEY_LEN),
            marks: Marks::from_bits_truncate(u16_at(Self::MARKS)),
            accessed: u32_at(Self::ACCESSED),
        }
    }

    /// The item's bytes: header, key and value.
    pub fn item_len(&self) -> u64 {
        (Self::LEN + usize::from(self.key_len)) as u64 + u64::from(self.value_len)
    }

    /// Whether the item is dead at `clock`.
    pub fn expired(&self, clock: u64) -> bool {
        self.exptime != 0 && u64::from(self.exptime) <= clock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(words: [u64; 8]) -> Line {
        Line(words.map(u64::to_le_bytes))
    }

    #[test]
    fn going_onwards_meets_each_bucket_once_and_keys_where_they_are() {
        for count in 1..=130 {
            let buckets = Buckets::new(1 << 20, 200).unwrap();
            let buckets = buckets.with_count(count).unwrap();
            let (mut at, mut met) = (0, Vec::new());
            while let Some((Bucket(number), onwards)) = buckets.onwards(at) {
                for order in [at, at.midpoint(onwards), onwards - 1] {
                    let hash = (order as u32).reverse_bits();
                    assert_eq!(buckets.main(hash.into()), Bucket(number));
                }
                met.push(u64::from(number));
                at = onwards;
            }
            assert_eq!(at, 1 << 32);
            met.sort();
            assert!(met.into_iter().eq(0..count));
        }
    }

    #[test]
    fn slot_words_keep_what_they_were_given() {
        for (len, limit) in [
            (1, 64),
            (64, 64),
            (65, 80),
            (129, 160),
            (1 << 20, 1 << 20),
            ((1 << 20) + 1, 5 << 18),
            (1 << 30, 1 << 30),
        ] {
            let address = ItemAddress(u32::MAX);
            let generation = 0x1234_5678_9abc_def0;
            let word = SlotWord::new(0xab << 56, len, address, generation);
            assert_eq!(word.len_limit(), limit);
            assert_eq!(word.address(), address);
            assert!(word.may_be(0xab << 56) && !word.may_be(0xac << 56));
            assert!(word.is_of(generation) && word.is_of(generation + (1 << 17)));
            assert!(!word.is_of(generation + 1));
        }
        assert_ne!(SlotWord::new(0, 1, ItemAddress(0), 0), SlotWord::EMPTY);
        assert!(!SlotWord::EMPTY.may_be(0));
    }

    #[test]
    fn classes_waste_at_most_a_quarter() {
        for len in (1..100_000u32).chain((1 << 20) - 1000..(1 << 20) + 1000) {
            let limit = SlotWord::new(0, len, ItemAddress(0), 0).len_limit();
            let least = u64::from(len).next_multiple_of(UNIT as u64);
            assert!(
                (least..=(least * 5 / 4).max(64)).contains(&limit),
                "{len}: {limit}"
            );
        }
    }

    #[test]
    fn the_control_line_round_trips_and_is_checked() {
        let control = ControlLine {
            boot_id: 7,
            table: TableEpoch(10),
            flush: FlushEpoch(3),
            clock: 9,
            capacity: 8,
        };
        let words = control.words();
        let (parsed, buckets) = ControlLine::parse(&line(words), 64 * 9).unwrap();
        assert_eq!((parsed, buckets.count()), (control, 5));
        let small = LayoutError::Geometry {
            index: 64 * 8,
            count: 1,
            capacity: 8,
        };
        assert_eq!(ControlLine::parse(&line(words), 64 * 8), Err(small));
        assert_eq!(
            ControlLine::parse(&Line::default(), 4096),
            Err(LayoutError::Magic(0))
        );
        for (word, value) in [
            (2, 0),
            (2, 1),
            (2, 18),
            (2, u64::MAX),
            (5, 0),
            (5, 1 << 32),
            (5, u64::MAX),
        ] {
            let mut words = words;
            words[word] = value;
            assert!(ControlLine::parse(&line(words), u64::MAX).is_err());
        }
    }

    #[test]
    fn links_lead_to_overflow_buckets_only() {
        let buckets = Buckets::new(64 * (1 + 8 + 2), 8).unwrap();
        assert_eq!(buckets.linked(0), None);
        assert_eq!(buckets.linked(7), None);
        assert_eq!(buckets.linked(8), Some(Bucket(8)));
        assert_eq!(buckets.linked(9), Some(Bucket(9)));
        for link in [10, 1 << 32 | 8, u64::MAX] {
            assert_eq!(buckets.linked(link), None);
        }
        assert_eq!(buckets.overflow().count(), 2);
    }

    #[test]
    fn growing_disturbs_two_buckets() {
        let step = |from: u64, to: u64| {
            let disturbs = |n: &u32| TableEpoch(to).disturbs(TableEpoch(from), Bucket(*n));
            (0..8).filter(disturbs).collect::<Vec<u32>>()
        };
        // From 4 buckets to 5 and 6.
        assert_eq!(step(8, 8), [0; 0]);
        assert_eq!(step(8, 11), [0, 4]);
        assert_eq!(step(8, 10), [0, 4]);
        assert_eq!(step(11, 11), [0, 4]);
        assert_eq!(step(11, 10), [0, 4]);
        assert_eq!(step(10, 10), [0; 0]);
        assert_eq!(step(8, 12), [0, 1, 4, 5]);
        assert_eq!(step(10, 8), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(step(2, 1 << 20), [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    /// A key is in its bucket, or in the new one that takes its share.
    #[test]
    fn growing_moves_keys_from_one_bucket_only() {
        let mut buckets = Buckets::new(64 * 1000, 100).unwrap();
        while let Some((grown, new, from)) = buckets.grown() {
            for hash in 0..1000u64 {
                let (old, now) = (buckets.main(hash), grown.main(hash));
                assert!(
                    now == old || (old, now) == (from, new),
                    "{hash} of {buckets:?}"
                );
                assert!(now.0 < grown.count);
            }
            buckets = grown;
        }
        assert_eq!(buckets.count(), 100);
    }

    #[test]
    fn items_round_trip_and_short_ones_are_refused() {
        let header = ItemHeader {
            generation: 1 << 40,
            cas: 2 << 40,
            exptime: 3,
            flags: 4,
            value_len: 5,
            checksum: 6,
            key_len: 3,
            marks: Marks::STALE,
            accessed: 8,
        };
        let word = |at: u64| {
            let bytes = &header.to_bytes()[at as usize..][..8];
            u64::from_le_bytes(bytes.try_into().unwrap())
        };
        assert_eq!(word(ItemHeader::CAS_WORD), header.cas);
        assert_eq!(word(ItemHeader::EXPTIME_WORD), header.exptime_word());
        assert_eq!(word(ItemHeader::NOTES_WORD), header.notes_word());
        let mut item = header.to_bytes().to_vec();
        item.extend_from_slice(b"keyvaluemore");
        assert_eq!(header.item_len(), 48);
        assert_eq!(
            ItemHeader::split(&item),
            Some((header, &b"key"[..], &b"value"[..]))
        );
        for len in 0..48 {
            assert_eq!(ItemHeader::split(&item[..len]), None);
        }
        item[24..28].fill(0xff);
        assert_eq!(ItemHeader::split(&item), None);
    }
}
