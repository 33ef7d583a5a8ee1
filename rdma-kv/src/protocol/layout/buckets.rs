//! Buckets of the index: where they are, how they grow, and their slots.

use super::{LINE, LayoutError, Line, SlotWord};

/// Number and position of the buckets of an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buckets {
    /// Main buckets in use: from 1 to `capacity`.
    pub(super) count: u32,
    /// Main buckets that there is room for.
    capacity: u32,
    /// Main and overflow buckets that there is room for.
    all: u32,
}

impl Buckets {
    /// An index of `index_len` bytes with room for `capacity` main buckets, one of them in use.
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
    /// [`LayoutError::Geometry`] when the count is 0 or exceeds the capacity.
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

    /// Walks all keys in the order of the lowest 32 bits of their hashes, reversed: returns the
    /// main bucket of the keys from `at` on, and the `at` of the next bucket; `None` at the
    /// end. A split of a bucket yields neighbours, so the order stays the same while the index
    /// grows (as in Redis' SCAN).
    pub fn onwards(&self, at: u64) -> Option<(Bucket, u64)> {
        let hash = u32::try_from(at).ok()?.reverse_bits();
        let Bucket(number) = self.main(hash.into());
        let high = self.count.next_power_of_two();
        let is_split = number >= high / 2 || number + high / 2 < self.count;
        let modulus = if is_split { high } else { high / 2 };
        Some((Bucket(number), at + (1 << 32) / u64::from(modulus)))
    }

    /// The index with one more main bucket in use, that bucket, and the one whose keys it
    /// shares. `None` when there is no room.
    pub fn grown(&self) -> Option<(Self, Bucket, Bucket)> {
        let new = self.count;
        let from = new & !(1u32.checked_shl(new.ilog2())?);
        let grown = Buckets {
            count: new + 1,
            ..*self
        };
        (new < self.capacity).then_some((grown, Bucket(new), Bucket(from)))
    }

    /// The overflow bucket of a link; `None` at the end of a chain. A link to anything else,
    /// which no correct server writes, ends the chain as well.
    pub fn linked(&self, link: u64) -> Option<Bucket> {
        let number = u32::try_from(link).ok()?;
        let overflow = self.capacity..self.all;
        overflow.contains(&number).then_some(Bucket(number))
    }

    /// Whether the index has room for this slot.
    pub fn is_slot(&self, slot: Slot) -> bool {
        let (line, word) = (slot.0 / 8, slot.0 % 8);
        (1..=self.all).contains(&line) && word < Bucket::SLOTS
    }

    /// The first overflow bucket, if there is one.
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
pub struct Bucket(pub(super) u32);

impl Bucket {
    /// Slots of a bucket.
    pub const SLOTS: u32 = 7;

    /// Most buckets of a chain. Only keys that were chosen for their hash need so many.
    pub const CHAIN: u32 = 32;

    /// A main bucket.
    pub fn main(number: u32) -> Self {
        Bucket(number)
    }

    /// The next bucket in memory.
    pub fn next(self) -> Self {
        Bucket(self.0 + 1)
    }

    /// Its offset in the index region.
    pub fn offset(self) -> u64 {
        (1 + u64::from(self.0)) * LINE as u64
    }

    /// The link that leads to it.
    pub fn link(self) -> u64 {
        u64::from(self.0)
    }

    /// Offset of its link in the index region.
    pub fn link_offset(self) -> u64 {
        self.offset() + u64::from(Self::SLOTS) * 8
    }

    /// Its slots.
    pub fn slots(self) -> impl Iterator<Item = Slot> {
        let first = (1 + self.0) * 8;
        (first..first + Self::SLOTS).map(Slot)
    }
}

/// Copy of a bucket.
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

/// Position of a slot: the number of its word in the index region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(pub u32);

impl Slot {
    /// Its offset in the index region.
    pub fn offset(self) -> u64 {
        u64::from(self.0) * 8
    }
}
