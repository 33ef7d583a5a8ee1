//! One-sided gets: values read out of the server's memory without its CPU.
//!
//! From a cached location: read the item, then its slot, in that order, in one go. The slot
//! unchanged means that the item was live at that moment and that its memory was not reused
//! while it was read. If the item has expired by the server's clock, read after them, a third
//! look at the slot tells that nothing had replaced it by then. If the slot leads to another item by
//! now, read that one and the slot again. Where that happens more often than not, look at the slot first. Otherwise, and without a cached location: read the bucket (and its chain),
//! then item and slot. A set of a key that exists stores to the same slot, so a key that stays
//! is never missed by a reader that walks the chain.
//!
//! Instead of the slot, who asks for less looks at less: [`Consistency`].
//!
//! Nothing read is believed: offsets come from checked numbers, lengths are bounded by the
//! region, the largest item and the item's copy, chains by a count. A server gone wild can give wrong values and
//! misses, and nothing worse.

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

/// A get looks a key up this often while others change it, then asks the server.
const LOOKUPS: usize = 3;

/// No correct chain has more buckets, also where it is drawn together meanwhile.
const CHAIN_LIMIT: u32 = 2 * Bucket::CHAIN;

/// After so many items of other keys with the same tag, each of which was read, the server is asked:
/// there hardly ever is one, and a server gone wild could have readers copy for hours.
const OTHERS_LIMIT: usize = 16;

/// The cache of locations grows to 2^20 lines: 64 MiB, two million locations.
const LOCATIONS_LIMIT_LOG2: u32 = 20;

/// Another copy of so few bytes costs less than another read.
const TOGETHER: u32 = 2048;

/// No server takes larger items, in bytes.
const ITEM_LIMIT: u32 = 1 << 30;

/// A value in the reader's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValueRef<'a> {
    /// The client's, given when it was set.
    pub flags: u32,
    /// Its number.
    pub cas: u64,
    /// The value.
    pub data: &'a [u8],
}

/// An item in the reader's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ItemRef<'a> {
    /// What the server notes of it.
    pub header: ItemHeader,
    /// The value.
    pub data: &'a [u8],
}

impl<'a> ItemRef<'a> {
    /// What most clients want of it.
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

/// What a reader did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReaderStats {
    /// Gets.
    pub gets: u64,
    /// Of these, answered from a cached location.
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

/// Why a get failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The read did not happen.
    #[error(transparent)]
    Operation(#[from] OpError),
    /// The index is not what the server said.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The server started anew between its greeting and our first read.
    #[error("the server's index is of another start than its greeting")]
    BootId,
}

/// An item's copy that passed all checks.
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
    /// Reads the control line and prepares to read from a server's regions, opened for reading,
    /// of these lengths in bytes.
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

    /// What gets promise from now on. Places are forgotten if that is something else than before: which
    /// of them is newer than what was borrowed nobody has kept.
    pub fn set_consistency(&mut self, consistency: Consistency) {
        if consistency != self.consistency {
            self.forget_all();
        }
        self.consistency = consistency;
    }

    /// Whether a value that is stored under a key may be got.
    pub fn may_return(&self, key: &[u8], value: &[u8]) -> bool {
        !self.is_by_content() || !self.checks().content || key == content_key(value)
    }

    /// Gets a value, which stays in the reader's buffer until the next call.
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

    /// With [`Reader::get_into`], the values of items of more bytes are read straight to where they
    /// are wanted. Smaller ones are one read, and copied once more: 2 KiB unless this says otherwise.
    #[cfg(feature = "server")]
    #[must_use]
    pub fn read_apart_beyond(self, bytes: u32) -> Self {
        Reader {
            together: bytes,
            ..self
        }
    }

    /// Gets a value straight into `into`; returns its flags and length. A value longer than
    /// `into` is not copied at all, and its length tells so.
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

    /// A key's hash, by which locations are remembered.
    pub fn hash_of(&self, key: &[u8]) -> u64 {
        hash(self.seed, key)
    }

    /// Remembers where the server put a key, if there can be an item.
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

    /// Remembers where the server put the key of a hash by a change that was posted. If the key was seen
    /// somewhere since, which of the two is older nobody knows, and none is remembered.
    pub fn remember_unless_cached(&mut self, hash: u64, location: Location) {
        match self.locations.peek(hash) {
            None => self.remember_at(hash, location),
            Some(_) => self.locations.remove(hash),
        }
    }

    /// Forgets where a key was.
    pub fn forget(&mut self, key: &[u8]) {
        self.forget_at(self.hash_of(key));
    }

    /// As [`Reader::forget`], for the key of a hash.
    pub fn forget_at(&mut self, hash: u64) {
        self.locations.remove(hash);
    }

    /// Forgets where all keys were.
    pub fn forget_all(&mut self) {
        self.locations = LocationCache::new(LOCATIONS_LIMIT_LOG2);
    }

    /// Bytes of the largest item that the server can have.
    pub fn max_item(&self) -> u32 {
        self.max_item
    }

    /// What it did so far.
    pub fn stats(&self) -> ReaderStats {
        self.stats
    }

    /// What the server is to be told.
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

    /// What a read from a cached location means.
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

    /// What is behind the slot of a cached location now, if that can be the same key: as a rule its new
    /// value, without a look at the bucket. It is then in the buffer.
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

    /// Reads the item at a cached location, or the one that is behind its slot now.
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

    /// From now on it expects that others replace what is where it knows the key.
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
