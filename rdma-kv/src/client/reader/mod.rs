//! Reader: one-sided gets, which read values out of the server's memory without its CPU.
//!
//! From a cached location: read the item, then its slot, in that order, in one batch. An unchanged
//! slot means that the item was live at that moment, and that its memory was not reused during the
//! read. If the item has expired by the server's clock, which is read after both, a third read of
//! the slot shows whether another item had replaced it by then. If the slot leads to another item,
//! read that item and the slot again. If the location is contended, read the slot first.
//!
//! Otherwise, and without a cached location: read the bucket and its chain, then item and slot. A
//! set of a present key stores to the same slot, so a reader that walks the chain never misses a
//! key that stays.
//!
//! [`Consistency`] selects weaker checks than the second read of the slot.
//!
//! Nothing that was read is trusted. Offsets come from checked numbers. Lengths are bounded by the
//! region, by the largest item and by the copy of the item; chains are bounded by a count. A faulty
//! server can cause wrong values and misses, and nothing worse.

mod borrow;
mod chain;
mod checks;
mod consistency;
mod item;
mod many;

pub(crate) use checks::Checks;
pub use consistency::Consistency;
use item::unless_outside;
use toroid_fabric::{Endpoint, OpError, Read};

use crate::client::content::content_key;
use crate::client::location_cache::{Hit, LocationCache};
use crate::client::uses::Uses;
use crate::client::view::HazardPointer;
use crate::protocol::geometry::Geometry;
use crate::protocol::hash::hash;
use crate::protocol::layout::{
    Bucket, Buckets, ControlLine, ItemHeader, LayoutError, Line, Location, SlotWord, TableEpoch,
};

/// Lookups of a get while others change the key, before the server is asked.
const LOOKUPS: usize = 3;

/// Most buckets of a chain, also while it is compacted.
const CHAIN_LIMIT: u32 = 2 * Bucket::CHAIN;

/// Items of other keys with the same tag that a get reads before it asks the server. There hardly
/// ever is one; a faulty server could make readers copy for hours.
const OTHERS_LIMIT: usize = 16;

/// The location cache grows to 2^20 lines: 64 MiB, two million locations.
const LOCATIONS_LIMIT_LOG2: u32 = 20;

/// Values up to this length are fetched together with the header: copying them is cheaper than a
/// second read.
const TOGETHER: u32 = 2048;

/// Largest item of any server in bytes.
const ITEM_LIMIT: u32 = 1 << 30;

/// A value in the reader's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueRef<'a> {
    /// Flags that were given when it was set.
    pub flags: u32,
    /// Its cas.
    pub cas: u64,
    /// The bytes.
    pub data: &'a [u8],
}

/// An item in the reader's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemRef<'a> {
    /// Its header.
    pub header: ItemHeader,
    /// Its value.
    pub data: &'a [u8],
}

impl<'a> ItemRef<'a> {
    /// The value with flags and cas.
    pub fn value(&self) -> ValueRef<'a> {
        ValueRef {
            flags: self.header.flags,
            cas: self.header.cas,
            data: self.data,
        }
    }
}

/// Result of a one-sided lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup<T> {
    /// The key was present.
    Found(T),
    /// The key was absent at some moment during the lookup.
    Absent,
    /// Concurrent changes did not let the lookup finish. The caller asks the server.
    Retry,
}

impl<T> Lookup<T> {
    fn map<U>(self, change: impl FnOnce(T) -> U) -> Lookup<U> {
        match self {
            Lookup::Found(found) => Lookup::Found(change(found)),
            Lookup::Absent => Lookup::Absent,
            Lookup::Retry => Lookup::Retry,
        }
    }
}

/// Statistics of a reader.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderStats {
    /// Gets.
    pub gets: u64,
    /// Gets of these that were answered from a cached location.
    pub cached: u64,
    /// Reads posted, of any size.
    pub reads: u64,
    /// Gets that ended with [`Lookup::Retry`], for which the server is asked.
    pub asked: u64,
}

/// The data path of a client.
#[derive(Debug)]
pub struct Reader<E: Endpoint> {
    endpoint: E,
    index: E::Remote,
    items: E::Remote,
    index_len: u64,
    items_len: u64,
    max_item: u32,
    /// See [`Reader::read_apart_beyond`].
    together: u32,
    buckets: Buckets,
    table: TableEpoch,
    seed: u64,
    locations: LocationCache,
    item: Vec<u8>,
    consistency: Consistency,
    stats: ReaderStats,
    uses: Uses,
    #[cfg(any(test, feature = "unsafe-variants"))]
    checks: Checks,
}

/// Failure to set a reader up, or to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The read failed.
    #[error(transparent)]
    Operation(#[from] OpError),
    /// The index is malformed.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The server restarted between its greeting and the first read.
    #[error("the server's index is of another start than its greeting")]
    BootId,
}

/// A copy of an item that passed all checks.
struct Accepted {
    header: ItemHeader,
    value_start: usize,
}

/// How an item is read.
enum ReadMode<'a, R> {
    /// Copied to the reader's buffer.
    Copy,
    /// Left in place, protected by this hazard pointer.
    Borrow(&'a mut HazardPointer<R>),
}

/// Result of one attempt to read an item.
enum Attempt {
    /// The item is live and belongs to the key.
    Found(Accepted),
    /// The item is the key's, and has expired.
    Expired,
    /// The item belongs to another key with the same tag.
    OtherKey,
    /// The slot now leads to another item, perhaps of the same key.
    Replaced(SlotWord),
    /// The item changed while it was read, or is not the one that was expected.
    Changed,
}

impl<E: Endpoint> Reader<E> {
    /// A reader of a server's regions, which are open for reading, with their lengths in bytes.
    /// Reads the control line.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn new(
        mut endpoint: E,
        (index, index_len): (E::Remote, u64),
        (items, items_len): (E::Remote, u64),
        geometry: &Geometry,
    ) -> Result<Self, ReadError> {
        let mut line = Line::default();
        let into = line.bytes_mut();
        endpoint.read_batch(&mut [Read {
            remote: &index,
            offset: 0,
            into,
        }])?;
        let (control, buckets) = ControlLine::parse(&line, index_len)?;
        if control.boot_id != geometry.boot_id {
            return Err(ReadError::BootId);
        }
        Ok(Reader {
            endpoint,
            index,
            items,
            index_len,
            items_len,
            max_item: items_len.min(geometry.max_item.min(ITEM_LIMIT).into()) as u32,
            together: TOGETHER,
            buckets,
            table: control.table,
            seed: geometry.seed,
            locations: LocationCache::new(LOCATIONS_LIMIT_LOG2),
            item: Vec::new(),
            consistency: Consistency::default(),
            stats: ReaderStats::default(),
            uses: Uses::default(),
            #[cfg(any(test, feature = "unsafe-variants"))]
            checks: Checks::of_this_process(),
        })
    }

    /// Sets the consistency of later gets. A change of it clears the location cache, which lacks
    /// the locations of items borrowed since.
    pub fn set_consistency(&mut self, consistency: Consistency) {
        if consistency != self.consistency {
            self.forget_all();
        }
        self.consistency = consistency;
    }

    /// Whether a get may return this value for this key: in content-addressed mode the key is
    /// its hash.
    pub fn may_return(&self, key: &[u8], value: &[u8]) -> bool {
        !self.is_by_content() || !self.checks().content || key == content_key(value)
    }

    /// Gets a value. It stays in the buffer of the reader until the next call.
    ///
    /// # Errors
    /// [`OpError`]: the server is gone, or access was revoked.
    pub fn get(&mut self, key: &[u8]) -> Result<Lookup<ValueRef<'_>>, OpError> {
        self.stats.gets += 1;
        let hash = hash(self.seed, key);
        let lookup = match self.locations.get(hash) {
            Some(hit) => {
                let attempt = self.read_hit(hash, hit, key)?;
                self.settle(hash, attempt)
            }
            None => Lookup::Retry,
        };
        let lookup = match lookup {
            Lookup::Retry => self.look_up_repeatedly(hash, key, ReadMode::Copy)?,
            settled => settled,
        };
        self.note_use(hash, &lookup);
        Ok(lookup.map(|item| self.value(&item)))
    }

    /// Sets the size in bytes of the largest item that [`Reader::get_into`] reads through the
    /// buffer; values of larger items are read straight into the caller's. 2 KiB by default.
    #[cfg(feature = "server")]
    #[must_use]
    pub fn read_apart_beyond(self, bytes: u32) -> Self {
        Reader {
            together: bytes,
            ..self
        }
    }

    /// Gets a value into `into`; returns its flags and length. A value longer than `into` is
    /// not copied.
    ///
    /// # Errors
    /// As [`Reader::get`].
    pub fn get_into(
        &mut self,
        key: &[u8],
        into: &mut [u8],
    ) -> Result<Lookup<(u32, usize)>, OpError> {
        self.stats.gets += 1;
        let hash = hash(self.seed, key);
        let mut lookup = Lookup::Retry;
        if let Some(hit) = self.locations.get(hash) {
            let location = hit.location;
            let straight = if location.len > self.together && !hit.is_contended {
                self.read_value_at(location, key, into).transpose()
            } else {
                None
            };
            let is_straight = straight.is_some();
            let (attempt, is_replaced) = match straight {
                Some(attempt) => {
                    let attempt = unless_outside(attempt)?;
                    let is_replaced = matches!(attempt, Attempt::Replaced(_));
                    (self.follow(hash, location, key, attempt)?, is_replaced)
                }
                None => (self.read_hit(hash, hit, key)?, false),
            };
            lookup = self.settle(hash, attempt);
            if is_straight && !is_replaced && !matches!(lookup, Lookup::Retry) {
                self.note_use(hash, &lookup);
                return Ok(
                    lookup.map(|Accepted { header, .. }| (header.flags, header.value_len as usize))
                );
            }
        }
        if matches!(lookup, Lookup::Retry) {
            lookup = self.look_up_repeatedly(hash, key, ReadMode::Copy)?;
        }
        self.note_use(hash, &lookup);
        Ok(lookup.map(|item| {
            let ValueRef { flags, data, .. } = self.value(&item);
            if let Some(into) = into.get_mut(..data.len()) {
                into.copy_from_slice(data);
            }
            (flags, data.len())
        }))
    }

    /// The hash of a key.
    pub fn hash_of(&self, key: &[u8]) -> u64 {
        hash(self.seed, key)
    }

    /// Caches the location that the server gave for a key, if it is possible.
    pub fn remember(&mut self, key: &[u8], location: Location) {
        self.remember_at(self.hash_of(key), location);
    }

    /// As [`Reader::remember`], for the key of a hash.
    pub fn remember_at(&mut self, hash: u64, location: Location) {
        if self.is_possible(location) {
            self.locations.insert(hash, location)
        } else {
            self.locations.remove(hash)
        }
    }

    /// Caches the location that the server gave for a posted change. If another location of the
    /// key is cached, either may be the newer one, and none is kept.
    pub fn remember_unless_cached(&mut self, hash: u64, location: Location) {
        match self.locations.peek(hash) {
            None => self.remember_at(hash, location),
            Some(_) => self.locations.remove(hash),
        }
    }

    /// Removes the location of a key from the cache.
    pub fn forget(&mut self, key: &[u8]) {
        self.forget_at(self.hash_of(key));
    }

    /// As [`Reader::forget`], for the key of a hash.
    pub fn forget_at(&mut self, hash: u64) {
        self.locations.remove(hash);
    }

    /// Clears the location cache.
    pub fn forget_all(&mut self) {
        self.locations = LocationCache::new(LOCATIONS_LIMIT_LOG2);
    }

    /// Largest item of the server in bytes.
    pub fn max_item(&self) -> u32 {
        self.max_item
    }

    /// Statistics so far.
    pub fn stats(&self) -> ReaderStats {
        self.stats
    }

    /// Uses that are not reported yet.
    pub fn uses(&mut self) -> &mut Uses {
        &mut self.uses
    }

    /// Counts a get for the next report. A get with [`Lookup::Retry`] is not counted here: the server answers
    /// it, and counts it itself.
    fn note_use(&mut self, hash: u64, lookup: &Lookup<Accepted>) {
        match (lookup, self.locations.peek(hash)) {
            (Lookup::Found(_), Some(location)) => self.uses.hit(location.slot, location.word),
            (Lookup::Absent, _) => self.uses.miss(),
            _ => {}
        }
    }

    fn is_possible(
        &self,
        Location {
            slot, word, len, ..
        }: Location,
    ) -> bool {
        let end = word.address().offset() + u64::from(len);
        len <= self.max_item && end <= self.items_len && slot.offset() + 8 <= self.index_len
    }

    fn value(&self, item: &Accepted) -> ValueRef<'_> {
        self.item(item).value()
    }

    fn item(&self, item: &Accepted) -> ItemRef<'_> {
        let end = item.value_start + item.header.value_len as usize;
        ItemRef {
            header: item.header,
            data: &self.item[item.value_start..end],
        }
    }

    /// The lookup that an attempt at a cached location means.
    fn settle(&mut self, hash: u64, attempt: Attempt) -> Lookup<Accepted> {
        match attempt {
            Attempt::Found(item) => {
                self.stats.cached += 1;
                Lookup::Found(item)
            }
            Attempt::Expired => Lookup::Absent,
            Attempt::OtherKey | Attempt::Replaced(_) | Attempt::Changed => {
                self.locations.remove(hash);
                Lookup::Retry
            }
        }
    }

    /// Reads the item behind the slot of a cached location, if it can be the same key's:
    /// usually the new value, without a read of the bucket.
    fn follow(
        &mut self,
        hash: u64,
        location: Location,
        key: &[u8],
        attempt: Attempt,
    ) -> Result<Attempt, OpError> {
        match attempt {
            Attempt::Replaced(word) if word.may_be(hash) => {
                let location = Location { word, ..location };
                unless_outside(self.try_slot(hash, location, key))
            }
            attempt => Ok(attempt),
        }
    }

    /// Reads the item at a cached location, or the one that its slot leads to now.
    fn read_hit(&mut self, hash: u64, hit: Hit, key: &[u8]) -> Result<Attempt, OpError> {
        let location = hit.location;
        if hit.is_contended && self.consistency == Consistency::Strict {
            let word = SlotWord(self.read_slot(location.slot)?);
            if word != location.word {
                return self.follow(hash, location, key, Attempt::Replaced(word));
            }
            self.locations.decay(hash);
        }
        let attempt = unless_outside(self.read_at(location, key))?;
        self.follow(hash, location, key, attempt)
    }

    fn checks(&self) -> Checks {
        #[cfg(any(test, feature = "unsafe-variants"))]
        return self.checks;
        #[cfg(not(any(test, feature = "unsafe-variants")))]
        Checks::ALL
    }
}

#[cfg(test)]
impl<E: Endpoint> Reader<E> {
    pub(crate) fn with_checks(self, checks: Checks) -> Self {
        Reader { checks, ..self }
    }

    /// Makes the location of a key contended.
    pub(crate) fn expect_changes(&mut self, key: &[u8]) {
        let hash = self.hash_of(key);
        for _ in 0..2 {
            let hit = self.locations.peek(hash).unwrap();
            let word = SlotWord(hit.word.0 ^ 1);
            self.locations.insert(hash, Location { word, ..hit });
        }
    }

    pub(crate) fn endpoint_mut(&mut self) -> &mut E {
        &mut self.endpoint
    }
}

#[cfg(test)]
mod tests;
