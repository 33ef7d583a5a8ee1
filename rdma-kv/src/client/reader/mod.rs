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
mod checks;
mod consistency;
mod many;

use std::ops::Range;

pub(crate) use checks::Checks;
pub use consistency::Consistency;
use toroid_fabric::{Endpoint, OpError, Read};

use crate::client::content::content_key;
use crate::client::location_cache::{Hit, LocationCache};
use crate::client::uses::Uses;
use crate::client::view::HazardPointer;
use crate::protocol::geometry::Geometry;
use crate::protocol::hash::hash;
use crate::protocol::layout::{
    Bucket, BucketLine, Buckets, ControlLine, FlushEpoch, ItemHeader, LayoutError, Line, Location,
    MAX_KEY, Slot, SlotWord, TableEpoch, Word,
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

    fn look_up_repeatedly(
        &mut self,
        hash: u64,
        key: &[u8],
        mut mode: ReadMode<'_, E::Remote>,
    ) -> Result<Lookup<Accepted>, OpError> {
        for _ in 0..LOOKUPS {
            let lookup = self.look_up(hash, key, &mut mode)?;
            match (lookup, &mode) {
                (Lookup::Retry, _) => {}
                (Lookup::Found(item), ReadMode::Copy)
                    if !self.may_return(key, self.value(&item).data) =>
                {
                    return Ok(Lookup::Absent);
                }
                (settled, _) => return Ok(settled),
            }
        }
        self.stats.asked += 1;
        Ok(Lookup::Retry)
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

    fn read_slot(&mut self, slot: Slot) -> Result<u64, OpError> {
        let mut word = Word::default();
        self.stats.reads += 1;
        self.endpoint.read_batch(&mut [Read {
            remote: &self.index,
            offset: slot.offset(),
            into: &mut word.0,
        }])?;
        Ok(word.value())
    }

    /// Reads the item at a cached location, and its slot again.
    fn read_at(&mut self, location: Location, key: &[u8]) -> Result<Attempt, OpError> {
        let mismatch = self.read_item(location, u64::from(location.len), self.consistency)?;
        self.judge(location, key, 0..location.len as usize, mismatch)
    }

    /// What an item in the buffer means that was read from a cached location, and if it is not whole,
    /// what that means.
    fn judge(
        &mut self,
        location: Location,
        key: &[u8],
        item: Range<usize>,
        mismatch: Option<Attempt>,
    ) -> Result<Attempt, OpError> {
        if let Some(mismatch) = mismatch {
            return Ok(mismatch);
        }
        let by_content = self.is_by_content();
        let attempt = self.examine(key, item, |header| {
            by_content || header.generation == location.generation
        });
        match attempt {
            Attempt::Found(item) if by_content => {
                Ok(if self.may_return(key, self.value(&item).data) {
                    Attempt::Found(item)
                } else {
                    Attempt::Changed
                })
            }
            attempt => self.unless_expired(location, attempt),
        }
    }

    /// As [`Reader::read_at`], with the value straight into `into`; `None` when it does not fit.
    fn read_value_at(
        &mut self,
        location: Location,
        key: &[u8],
        into: &mut [u8],
    ) -> Result<Option<Attempt>, OpError> {
        let head_len = ItemHeader::len_of(key.len(), 0);
        let value_len = (location.len as usize).checked_sub(head_len);
        let Some(value) = value_len.and_then(|len| into.get_mut(..len)) else {
            return Ok(None);
        };
        let mut head = [0; ItemHeader::LEN + MAX_KEY];
        let Some(head) = head.get_mut(..head_len) else {
            return Ok(None);
        };
        let (mut word, offset) = (Word::default(), location.word.address().offset());
        let (items, index) = (&self.items, &self.index);
        let last = self.consistency.last_look(index, items, location);
        let mut reads = [
            Read {
                remote: items,
                offset,
                into: &mut *head,
            },
            Read {
                remote: items,
                offset: offset + head_len as u64,
                into: &mut *value,
            },
            Read {
                remote: last.as_ref().map_or(items, |last| last.remote),
                offset: last.as_ref().map_or(0, |last| last.offset),
                into: &mut word.0,
            },
        ];
        let reads = &mut reads[..2 + usize::from(last.is_some())];
        self.stats.reads += reads.len() as u64;
        self.endpoint.read_batch(reads)?;
        let mismatch = last.and_then(|last| last.mismatch(word));
        if mismatch.is_some() && self.checks().slot {
            return Ok(mismatch);
        }
        let Some((header, found)) = head.split_first_chunk() else {
            return Ok(None);
        };
        let header = ItemHeader::from_bytes(header);
        let checks = self.checks();
        let by_content = self.is_by_content();
        let is_generation = by_content || header.generation == location.generation;
        let same = (is_generation || !checks.generation)
            && header.item_len() == u64::from(location.len)
            // Else a longer key that starts with this one would do.
            && (usize::from(header.key_len) == key.len() && found == key || !checks.key);
        let attempt = if same {
            Attempt::Found(Accepted {
                header,
                value_start: head_len,
            })
        } else {
            Attempt::Changed
        };
        if by_content {
            let is_right = self.may_return(key, value);
            return Ok(Some(if is_right { attempt } else { Attempt::Changed }));
        }
        self.unless_expired(location, attempt).map(Some)
    }

    fn is_by_content(&self) -> bool {
        self.consistency == Consistency::ContentAddressed
    }

    /// Reads up to `len` bytes of the item that `location` names into the buffer, then what tells that
    /// they are whole; returns what it means if they are not.
    fn read_item(
        &mut self,
        location: Location,
        len: u64,
        consistency: Consistency,
    ) -> Result<Option<Attempt>, OpError> {
        let offset = location.word.address().offset();
        let len = len as usize;
        if self.item.len() < len {
            self.item.resize(len, 0);
        }
        let item = Read {
            remote: &self.items,
            offset,
            into: &mut self.item[..len],
        };
        let Some(last) = consistency.last_look(&self.index, &self.items, location) else {
            self.stats.reads += 1;
            self.endpoint.read_batch(&mut [item])?;
            return Ok(None);
        };
        let mut word = Word::default();
        let look = Read {
            remote: last.remote,
            offset: last.offset,
            into: &mut word.0,
        };
        self.stats.reads += 2;
        self.endpoint.read_batch(&mut [item, look])?;
        let mismatch = last.mismatch(word);
        Ok(mismatch.filter(|_| self.checks().slot))
    }

    /// Checks an item in the buffer, which came with an unchanged slot.
    fn examine(
        &self,
        key: &[u8],
        item: Range<usize>,
        is_generation: impl FnOnce(&ItemHeader) -> bool,
    ) -> Attempt {
        let checks = self.checks();
        let start = item.start;
        let Some((header, found, _)) = ItemHeader::split(&self.item[item]) else {
            return Attempt::Changed;
        };
        if !is_generation(&header) && checks.generation {
            return Attempt::Changed;
        }
        if found != key && checks.key {
            return Attempt::OtherKey;
        }
        Attempt::Found(Accepted {
            value_start: start + ItemHeader::len_of(found.len(), 0),
            header,
        })
    }

    /// Looks at the server's clock if the item may expire. The clock is read after the slot: an
    /// item not yet dead then was not dead when it was known to be live.
    fn unless_expired(&mut self, location: Location, attempt: Attempt) -> Result<Attempt, OpError> {
        let Attempt::Found(item) = &attempt else {
            return Ok(attempt);
        };
        let header = item.header;
        if header.exptime == 0 || !header.expired(self.read_clock()?) {
            return Ok(attempt);
        }
        Ok(if self.is_still(location, &header)? {
            Attempt::Expired
        } else {
            Attempt::Changed
        })
    }

    /// Whether the item is still its key's. Asked after the clock has killed it: had it been
    /// replaced or touched before the clock's tick, the key would never have been gone. The
    /// generation, read last, tells that its memory was not reused until the slot was read.
    fn is_still(&mut self, location: Location, header: &ItemHeader) -> Result<bool, OpError> {
        let (mut slot, mut words) = (Word::default(), Line::default());
        let words = &mut words.bytes_mut()[..ItemHeader::LEN];
        self.stats.reads += 2;
        self.endpoint.read_batch(&mut [
            Read {
                remote: &self.index,
                offset: location.slot.offset(),
                into: &mut slot.0,
            },
            Read {
                remote: &self.items,
                offset: location.word.address().offset(),
                into: &mut *words,
            },
        ])?;
        let now = words
            .first_chunk()
            .map(ItemHeader::from_bytes)
            .unwrap_or_default();
        let still = slot.value() == location.word.0
            && (now.generation, now.exptime) == (header.generation, header.exptime);
        Ok(still || !self.checks().slot_after_clock)
    }

    fn read_clock(&mut self) -> Result<u64, OpError> {
        let mut word = Word::default();
        self.stats.reads += 1;
        self.endpoint.read_batch(&mut [Read {
            remote: &self.index,
            offset: ControlLine::CLOCK,
            into: &mut word.0,
        }])?;
        Ok(word.value())
    }

    /// Walks the key's chain once.
    fn look_up(
        &mut self,
        hash: u64,
        key: &[u8],
        mode: &mut ReadMode<'_, E::Remote>,
    ) -> Result<Lookup<Accepted>, OpError> {
        let (mut bucket, mut others) = (self.buckets.main(hash), 0);
        for _ in 0..CHAIN_LIMIT {
            let line = self.read_bucket(bucket)?;
            let line = BucketLine(&line);
            for (slot, word) in bucket.slots().zip(line.words()) {
                if !word.may_be(hash) {
                    continue;
                }
                let location = Location {
                    slot,
                    word,
                    generation: 0,
                    len: 0,
                };
                let attempt = match mode {
                    ReadMode::Copy => self.try_slot(hash, location, key)?,
                    ReadMode::Borrow(hazard) => self.borrow_slot(hash, location, key, hazard)?,
                };
                match attempt {
                    Attempt::Found(item) => return Ok(Lookup::Found(item)),
                    Attempt::Expired => return Ok(Lookup::Absent),
                    Attempt::OtherKey if others < OTHERS_LIMIT => others += 1,
                    Attempt::OtherKey | Attempt::Replaced(_) | Attempt::Changed => {
                        return Ok(Lookup::Retry);
                    }
                }
            }
            match self.buckets.linked(line.link()) {
                Some(next) => bucket = next,
                None => return self.absent(hash),
            }
        }
        Ok(Lookup::Retry)
    }

    /// A miss counts only if nothing was moved in or out of the key's bucket meanwhile, and if the
    /// key was not removed by a flush that others cannot see yet.
    fn absent(&mut self, hash: u64) -> Result<Lookup<Accepted>, OpError> {
        let (table, flush) = self.read_epochs()?;
        let disturbed = table.disturbs(self.table, self.buckets.main(hash));
        if let Ok(buckets) = self.buckets.with_count(table.count()) {
            (self.buckets, self.table) = (buckets, table);
        }
        let checks = self.checks();
        let doubtful = disturbed && checks.table_epoch || flush.is_flushing() && checks.flush_epoch;
        Ok(if doubtful {
            Lookup::Retry
        } else {
            Lookup::Absent
        })
    }

    fn read_epochs(&mut self) -> Result<(TableEpoch, FlushEpoch), OpError> {
        let mut words = Line::default();
        self.stats.reads += 1;
        self.endpoint.read_batch(&mut [Read {
            remote: &self.index,
            offset: ControlLine::TABLE_EPOCH,
            into: &mut words.bytes_mut()[..16],
        }])?;
        Ok((TableEpoch(words.word(0)), FlushEpoch(words.word(1))))
    }

    fn read_bucket(&mut self, bucket: Bucket) -> Result<Line, OpError> {
        let mut line = Line::default();
        self.stats.reads += 1;
        self.endpoint.read_batch(&mut [Read {
            remote: &self.index,
            offset: bucket.offset(),
            into: line.bytes_mut(),
        }])?;
        Ok(line)
    }

    /// Reads the item of a slot with the key's tag, as far as the slot word says it may reach.
    fn try_slot(&mut self, hash: u64, location: Location, key: &[u8]) -> Result<Attempt, OpError> {
        let Some(len) = self.reach(location.word) else {
            return Ok(Attempt::Changed);
        };
        let mismatch = self.read_item(location, len, Consistency::Strict)?;
        self.judge_new(hash, location, key, 0..len as usize, mismatch)
    }

    /// How many bytes an item may have of which only the slot word is known; `None` when there can be
    /// none.
    fn reach(&self, word: SlotWord) -> Option<u64> {
        let rest = self.items_len.checked_sub(word.address().offset())?;
        Some(rest.min(word.len_limit()).min(self.max_item.into()))
    }

    /// As [`Reader::judge`], of an item of which only the slot was known. Where it is, is remembered.
    fn judge_new(
        &mut self,
        hash: u64,
        location: Location,
        key: &[u8],
        item: Range<usize>,
        mismatch: Option<Attempt>,
    ) -> Result<Attempt, OpError> {
        if mismatch.is_some() {
            return Ok(Attempt::Changed);
        }
        let attempt = self.examine(key, item, |header| location.word.is_of(header.generation));
        if let Attempt::Found(item) = &attempt {
            self.note_location(hash, location, &item.header);
        }
        self.unless_expired(location, attempt)
    }

    /// Remembers where a key was found.
    fn note_location(&mut self, hash: u64, location: Location, header: &ItemHeader) {
        let (generation, len) = (header.generation, header.item_len() as u32);
        let found = Location {
            generation,
            len,
            ..location
        };
        self.locations.insert(hash, found);
    }

    fn checks(&self) -> Checks {
        #[cfg(any(test, feature = "unsafe-variants"))]
        return self.checks;
        #[cfg(not(any(test, feature = "unsafe-variants")))]
        Checks::ALL
    }
}

/// A cached location that lies outside of the region is as good as one that changed.
fn unless_outside(attempt: Result<Attempt, OpError>) -> Result<Attempt, OpError> {
    match attempt {
        Err(OpError::OutOfBounds { .. }) => Ok(Attempt::Changed),
        other => other,
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
