//! Items: their addresses, the slot words that lead to them, and their headers.

use std::ops::Range;

use super::{MAX_KEY, Slot, UNIT};

/// Address of an item in units of 16 bytes.
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

/// Content of a slot. Storing it publishes an item; 0 is an empty slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotWord(pub u64);

impl SlotWord {
    /// An empty slot.
    pub const EMPTY: SlotWord = SlotWord(0);
    const CLASS_SHIFT: u32 = 49;
    const CLASS: u64 = (1 << 7) - 1;
    const GENERATION_BITS: u32 = 17;
    const GENERATION: u64 = (1 << Self::GENERATION_BITS) - 1;

    /// The word of an item of `len` bytes.
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

    /// Whether the tag is that of the key with this hash.
    pub fn may_be(self, hash: u64) -> bool {
        (self.0 >> 56) as u8 == Self::tag_of(hash)
    }

    /// The address of the item.
    pub fn address(self) -> ItemAddress {
        ItemAddress((self.0 >> Self::GENERATION_BITS) as u32)
    }

    /// Upper bound of the item's bytes: at most a quarter more, rounded up to 16 bytes.
    pub fn len_limit(self) -> u64 {
        let class = self.0 >> Self::CLASS_SHIFT & Self::CLASS;
        // Four classes to each power of two.
        ((4 + class % 4) << (class / 4)) * UNIT as u64
    }

    /// Whether the low bits of `generation` are in the word.
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

/// Location of an item: all that a reader needs to read it in one go, and what clients cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// Its slot.
    pub slot: Slot,
    /// Content of the slot.
    pub word: SlotWord,
    /// Its generation.
    pub generation: u64,
    /// Its bytes: header, key and value.
    pub len: u32,
}

/// Header of an item.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ItemHeader {
    /// Unique while the server runs: never reused.
    pub generation: u64,
    /// Memcached's unique number of a stored value.
    pub cas: u64,
    /// Expiry by the server's clock in seconds; 0 is never.
    pub exptime: u32,
    /// Flags that the client gave.
    pub flags: u32,
    /// Bytes of the value.
    pub value_len: u32,
    /// 0 on providers with ordered reads.
    pub checksum: u32,
    /// Bytes of the key.
    pub key_len: u16,
    /// Notes of the server.
    pub marks: Marks,
    /// Last use that the server knows of, by its clock.
    pub accessed: u32,
}

bitflags::bitflags! {
    /// Notes of the server about an item.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Marks: u16 {
        /// A client got the item since it was stored.
        const FETCHED = 1;
        /// The item is stale (`md` with `I`).
        const STALE = 2;
        /// One client has won the right to store it anew (`W`).
        const WON = 4;
        /// A client wrote the key in base64 (`b`), and reads it so.
        const BINARY_KEY = 8;
        /// Uses since the item was last moved: 0 to 3, where 3 means 3 or more.
        const FREQUENCY = 3 << 8;
    }
}

impl Marks {
    const ONCE: u16 = 1 << 8;

    /// Uses since the item was last moved: 0 to 3, where 3 means 3 or more.
    pub fn frequency(self) -> u16 {
        (self & Marks::FREQUENCY).bits() / Self::ONCE
    }

    /// The marks after one more use.
    pub fn more_frequent(self) -> Self {
        if self.contains(Marks::FREQUENCY) {
            self
        } else {
            Marks::from_bits_retain(self.bits() + Self::ONCE)
        }
    }

    /// The marks after an eviction that the item survives. Two uses less, so that an item without
    /// further uses leaves at the second eviction at the latest. Items of a working set that moves
    /// would otherwise stay too long.
    pub fn decayed(self) -> Self {
        let lost = self.frequency().min(2);
        Marks::from_bits_retain(self.bits() - Self::ONCE * lost)
    }
}

impl ItemHeader {
    /// Bytes of a header.
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

    /// Its bytes in memory.
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

    /// Splits a copy of an item into header, key and value. `None` when the copy is shorter
    /// than its header says, or the key is too long.
    pub fn split(item: &[u8]) -> Option<(Self, &[u8], &[u8])> {
        let (header, rest) = item.split_first_chunk::<{ Self::LEN }>()?;
        let header = Self::from_bytes(header);
        let (key, rest) = rest.split_at_checked(usize::from(header.key_len))?;
        let value = rest.get(..header.value_len as usize)?;
        (key.len() <= MAX_KEY).then_some((header, key, value))
    }

    /// Decodes a header; checks nothing.
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

    /// Whether the item has expired at `clock`.
    pub fn expired(&self, clock: u64) -> bool {
        self.exptime != 0 && u64::from(self.exptime) <= clock
    }
}
