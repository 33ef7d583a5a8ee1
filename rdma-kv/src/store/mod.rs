//! The store: items in two regions, which the server writes and clients read.
//!
//! [`Store`] does no I/O, and learns the time from [`Store::tick`]. A set has two steps.
//! [`Store::reserve`] finds room, into which the caller copies the value (from a socket's buffer,
//! or by an RDMA read) without the lock. [`Store::commit`] publishes the item. A reservation that
//! is not committed must be returned by [`Store::abandon`].
//!
//! Memory is reused only after the slot of its old item has changed: unlink, release fence, the new
//! generation, then the rest. So a reader that meets new bytes finds the slot changed.
//! [Borrowed](crate::protocol::hazards) memory is not reused. A moved item becomes another item
//! with the same value, for readers too.

pub(crate) mod borrows;
mod cleaning;
mod clock;
mod counters;
mod flush;
mod free_list;
mod ghosts;
mod heavy_hitters;
pub(crate) mod index;
mod item;
mod limits;
pub mod operations;
mod receive_budget;
pub(crate) mod segments;
pub mod shared;
mod sweep;
#[cfg(test)]
mod traces;
mod usage;
mod walk;

use std::ops::Range;
use std::sync::Arc;

use toroid_fabric::{OpError, Region};

pub use counters::{Counters, EvictionLog};
pub use item::{Attributes, Item, Reservation};
pub use limits::{Limits, LimitsError, is_chunked, memcached_len};
pub(crate) use receive_budget::BudgetPermit;
pub use walk::Walk;

use cleaning::{Cursor, Need};
use clock::CLOCK_START;
use item::{KeyCopy, hash_of, read_header, write_header};
use sweep::Sweep;

use crate::protocol::geometry::Geometry;
use crate::protocol::hash::hash;
use crate::protocol::layout::{ItemAddress, ItemHeader, Location, MAX_KEY, Marks, Slot, SlotWord};
use crate::store::borrows::Borrows;
use crate::store::ghosts::{Ghost, Ghosts};
use crate::store::heavy_hitters::HeavyHitters;
use crate::store::index::{Index, IndexError};
use crate::store::segments::{Queue, SegmentNumber, Segments, room_of};

/// Bytes that a queue gains per byte of an item that it evicted too early. Higher rates follow a
/// working set sooner, and noise as well. The young queue gains more: an item that it evicted too
/// early belongs to a working set that moves, as do the next ones.
const YOUNG_GHOST_RATE: f64 = 6.0;
const MAIN_GHOST_RATE: f64 = 3.0;

/// Failure to store a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// Caller: the key is empty or longer than [`MAX_KEY`].
    #[error("a key of {0} bytes: give from 1 to {MAX_KEY}")]
    Key(usize),
    /// Caller: the item exceeds the size limit.
    #[error("object too large for cache")]
    TooLarge,
    /// All memory is reserved for values on their way.
    #[error("out of memory storing object")]
    OutOfMemory,
    /// Client: the value could not be read from its memory.
    #[error("the value could not be read from the client")]
    NotFetched,
    /// A bug of the store.
    #[error(transparent)]
    Memory(#[from] OpError),
}

/// The server's side of items and index.
#[derive(Debug)]
pub struct Store {
    index: Index,
    items: Region,
    segments: Segments,
    cleaning: Option<Cursor>,
    sweep: Option<Sweep>,
    /// Segments that [`Store::crawl`] still has to search.
    crawl: Vec<SegmentNumber>,
    may_evict: bool,
    has_cas: bool,
    /// Buffer for the value of an item that is moved.
    scratch: Vec<u8>,
    limits: Limits,
    boot_id: u64,
    seed: u64,
    generation: u64,
    cas: u64,
    clock: u32,
    counters: Counters,
    heavy_hitters: HeavyHitters,
    ghosts: Ghosts,
    /// Unix time in seconds at which the clock was 0.
    epoch_s: i64,
    /// Clock time at which all items are to be removed.
    flush_at: Option<u32>,
    eviction_log: Option<Arc<dyn EvictionLog>>,
}

impl Store {
    /// An empty store in two zeroed regions of [`Limits::regions`], with random numbers for its
    /// boot id and its hash seed, and the Unix time in seconds. Larger regions let
    /// [`Store::limit_memory`] raise the limit.
    ///
    /// # Errors
    /// [`IndexError`] when a region is too small.
    pub fn new(
        index: Region,
        items: Region,
        limits: Limits,
        random: [u64; 2],
        unix_s: i64,
    ) -> Result<Self, IndexError> {
        let [boot_id, seed] = random;
        let most = items.len();
        let capacity = index::IndexSize::of(most).capacity;
        Ok(Store {
            index: Index::new(index, capacity, boot_id, CLOCK_START.into())?,
            segments: Segments::new(limits.memory, most, limits.segment()),
            cleaning: None,
            sweep: None,
            crawl: Vec::new(),
            may_evict: true,
            has_cas: true,
            scratch: Vec::new(),
            items,
            limits,
            boot_id,
            seed,
            generation: 0,
            cas: 0,
            clock: CLOCK_START,
            counters: Counters::default(),
            heavy_hitters: HeavyHitters::default(),
            ghosts: Ghosts::new(limits.memory),
            epoch_s: unix_s.saturating_sub(CLOCK_START.into()),
            flush_at: None,
            eviction_log: None,
        })
    }

    /// The geometry for clients; `None` for a store in local memory.
    pub fn geometry(&self) -> Option<Geometry> {
        Some(Geometry {
            index: self.index.region().remote_key()?,
            items: self.items.remote_key()?,
            seed: self.seed,
            boot_id: self.boot_id,
            max_item: self.limits.item,
        })
    }

    /// The items region.
    pub fn items(&self) -> &Region {
        &self.items
    }

    #[cfg(test)]
    pub(crate) fn index_region(&self) -> &Region {
        self.index.region()
    }

    /// The next bytes of the items region to populate: see [`Segments::take_unpopulated`].
    pub fn take_unpopulated(&mut self, most: u64) -> Option<Range<u64>> {
        self.segments.take_unpopulated(most)
    }

    /// Current limits.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Changes the memory for items; returns whether that is possible. [`Store::sweep`] then
    /// releases memory beyond the limit.
    pub fn limit_memory(&mut self, memory: u64) -> bool {
        let limits = Limits {
            memory,
            ..self.limits
        };
        let is_there = limits.check().is_ok() && memory <= self.items.len();
        let may_be = is_there && self.segments.limit_to(memory);
        if may_be {
            self.limits = limits;
            self.ghosts = Ghosts::new(memory);
        }
        may_be
    }

    /// Reserves room for an item, evicting others if needed.
    ///
    /// # Errors
    /// [`SetError`].
    pub fn reserve(
        &mut self,
        key: &[u8],
        flags: u32,
        value_len: usize,
    ) -> Result<Reservation, SetError> {
        self.reserve_for(Need::More, key, flags, value_len)
    }

    /// Reserves room for an item that replaces one of the same length: also in a full store
    /// that may not evict.
    ///
    /// # Errors
    /// [`SetError`].
    pub fn reserve_instead(
        &mut self,
        key: &[u8],
        flags: u32,
        value_len: usize,
    ) -> Result<Reservation, SetError> {
        self.reserve_for(Need::Instead, key, flags, value_len)
    }

    fn reserve_for(
        &mut self,
        need: Need,
        key: &[u8],
        flags: u32,
        value_len: usize,
    ) -> Result<Reservation, SetError> {
        let key_len = key.len();
        if !(1..=MAX_KEY).contains(&key_len) {
            return Err(SetError::Key(key_len));
        }
        if !self.limits.admit(key_len, flags, value_len) {
            return Err(SetError::TooLarge);
        }
        let room = room_of(ItemHeader::len_of(key_len, value_len));
        let queue = self.queue_for(key, room);
        let address = self.room_for(room, need, queue)?;
        let generation = self.start_item(address)?;
        let header = ItemHeader {
            generation,
            value_len: value_len as u32,
            key_len: key_len as u16,
            ..ItemHeader::default()
        };
        // Its lengths lead the cleaning past it.
        write_header(&self.items, address, &header)?;
        Ok(Reservation {
            address,
            generation,
            key_len: key_len as u16,
            value_len: value_len as u32,
        })
    }

    /// The queue for a new item: the main queue if the key was evicted recently.
    fn queue_for(&mut self, key: &[u8], room: u32) -> Queue {
        let hash = hash(self.seed, key);
        let Some(Ghost { queue, weight }) = self.ghosts.take(hash, self.counters.items) else {
            return Queue::Young;
        };
        let rate = match queue {
            Queue::Young => YOUNG_GHOST_RATE,
            Queue::Main => MAIN_GHOST_RATE,
        };
        let bytes = f64::from(room) * weight * rate;
        self.segments.note_ghost(queue, bytes as u64);
        match self.segments.spare() {
            // Each queue needs an open segment, and there are too few segments for
            // both.
            0 => Queue::Young,
            _ => Queue::Main,
        }
    }

    /// Publishes an item whose value is in its room, and replaces the old item of the key.
    ///
    /// # Errors
    /// Only for a bug of the store, and for a key of another length than reserved.
    pub fn commit(
        &mut self,
        room: Reservation,
        key: &[u8],
        attributes: &Attributes,
    ) -> Result<Location, SetError> {
        if key.len() != usize::from(room.key_len) {
            self.abandon(room);
            return Err(SetError::Key(key.len()));
        }
        let header = ItemHeader {
            generation: room.generation,
            cas: attributes.cas.unwrap_or_else(|| self.next_cas()),
            exptime: attributes.exptime,
            flags: attributes.flags,
            value_len: room.value_len,
            checksum: 0,
            key_len: room.key_len,
            marks: attributes.marks,
            accessed: self.clock,
        };
        write_header(&self.items, room.address, &header)?;
        let offset = room.address.offset();
        self.items.write(offset + ItemHeader::LEN as u64, key)?;
        let hash = hash(self.seed, key);
        self.index
            .grow(|word| hash_of(&self.items, self.seed, word.address()))?;
        let word = SlotWord::new(hash, room.len(), room.address, room.generation);
        let slot = match self.slot_of(hash, key)? {
            Some((slot, old, old_header)) => {
                // The linearization point.
                self.index.replace(slot, word)?;
                self.forget(&old_header, old.address());
                slot
            }
            None => {
                let slot = match self.vacant(hash) {
                    Ok(slot) => slot,
                    Err(error) => {
                        self.abandon(room);
                        return Err(error);
                    }
                };
                self.index.insert(slot, word)?;
                slot
            }
        };
        let frequency = header.marks.frequency();
        self.segments
            .commit(room.address, room.room(), header.exptime, frequency);
        self.counters.gain(&header);
        Ok(Location {
            slot,
            word,
            generation: room.generation,
            len: room.len(),
        })
    }

    /// Returns a reservation.
    pub fn abandon(&mut self, room: Reservation) {
        self.segments.abandon(room.address, room.room());
    }

    /// Finds the live item of a key.
    ///
    /// # Errors
    /// Only for a bug of the store.
    pub fn find(&mut self, key: &[u8]) -> Result<Option<Item>, OpError> {
        let hash = hash(self.seed, key);
        let Some((slot, word, header)) = self.slot_of(hash, key)? else {
            return Ok(None);
        };
        if header.expired(self.clock.into()) {
            self.index.clear(slot)?;
            self.counters.expired_found += 1;
            self.forget(&header, word.address());
            return Ok(None);
        }
        let len = header.item_len() as u32;
        let generation = header.generation;
        Ok(Some(Item {
            hash,
            header,
            location: Location {
                slot,
                word,
                generation,
                len,
            },
        }))
    }

    /// Removes an item that [`Store::find`] returned.
    ///
    /// # Errors
    /// Only for a bug of the store.
    pub fn remove(&mut self, item: &Item) -> Result<(), OpError> {
        self.index.clear(item.location.slot)?;
        self.forget(&item.header, item.location.word.address());
        Ok(())
    }

    /// Pins the memory of an item until [`Store::unpin`], even if the item is removed: for
    /// readers without the lock.
    pub fn pin(&mut self, item: &Item) {
        self.segments.pin(item.location.word.address(), item.room());
    }

    /// Unpins the memory of an item.
    pub fn unpin(&mut self, item: &Item) {
        self.segments
            .unpin(item.location.word.address(), item.room());
    }

    /// Hazard pointers of all clients.
    pub fn borrows(&mut self) -> &mut Borrows {
        self.segments.borrows()
    }

    /// Sets the marks of an item, except its frequency.
    ///
    /// # Errors
    /// Only for a bug of the store.
    pub fn mark(&mut self, item: &mut Item, marks: Marks) -> Result<(), OpError> {
        let often = item.header.marks & Marks::FREQUENCY;
        item.header.marks = (marks - Marks::FREQUENCY) | often;
        self.store_word(item, ItemHeader::NOTES_WORD, item.header.notes_word())
    }

    /// Changes the expiry of an item; see [`Store::deadline`].
    ///
    /// # Errors
    /// Only for a bug of the store.
    pub fn touch(&mut self, item: &mut Item, exptime: u32) -> Result<(), OpError> {
        item.header.exptime = exptime;
        self.segments
            .note_expiry(item.location.word.address(), exptime);
        self.store_word(item, ItemHeader::EXPTIME_WORD, item.header.exptime_word())
    }

    /// Changes the cas of an item.
    ///
    /// # Errors
    /// Only for a bug of the store.
    pub fn renumber(&mut self, item: &mut Item, cas: u64) -> Result<(), OpError> {
        item.header.cas = cas;
        self.store_word(item, ItemHeader::CAS_WORD, cas)
    }

    /// The next cas; 0, which never matches, if cas is disabled.
    pub fn next_cas(&mut self) -> u64 {
        self.cas += u64::from(self.has_cas);
        self.cas
    }

    /// Current counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Enables or disables cas numbers of later values. Enabled by default.
    pub fn set_has_cas(&mut self, has_cas: bool) {
        self.has_cas = has_cas;
    }

    /// Sets the log of evictions.
    pub fn set_eviction_log(&mut self, log: Arc<dyn EvictionLog>) {
        self.eviction_log = Some(log);
    }

    /// Whether live items may be evicted; otherwise a full store refuses sets (`-M`).
    pub fn set_may_evict(&mut self, may_evict: bool) {
        self.may_evict = may_evict;
        self.segments.fill_all(!may_evict);
    }

    /// The next generation is the one after `generation`.
    #[cfg(test)]
    pub(crate) fn skip_to_generation(&mut self, generation: u64) {
        self.generation = generation;
    }

    /// Memory that is given back is used again at once; see [`Segments::reuse_at_once`].
    #[cfg(test)]
    pub(crate) fn reuse_at_once(&mut self) {
        self.segments.reuse_at_once();
    }

    /// Starts an item at `address`: publishes a new generation there.
    fn start_item(&mut self, address: ItemAddress) -> Result<u64, OpError> {
        self.generation += 1;
        // The old item is unlinked. A reader that meets this generation, or a later byte,
        // finds the slot of the old item changed.
        self.items.release_fence();
        self.items.store(address.offset(), self.generation)?;
        // A reader that meets a later byte finds this generation afterwards.
        self.items.release_fence();
        Ok(self.generation)
    }

    /// The slot of the item at `at` and the hash of its key, if it is live.
    fn live(
        &self,
        header: &ItemHeader,
        at: ItemAddress,
    ) -> Result<Option<(Slot, SlotWord, u64)>, OpError> {
        if usize::from(header.key_len) > MAX_KEY {
            return Ok(None);
        }
        let hash = hash_of(&self.items, self.seed, at)?;
        let found = self.index.find(hash, |word| Ok(word.address() == at))?;
        Ok(found.map(|(slot, word)| (slot, word, hash)))
    }

    /// Frees an item that a client removed or replaced.
    fn forget(&mut self, header: &ItemHeader, address: ItemAddress) {
        self.counters.drop(header);
        self.release(header, address);
    }

    /// Frees an expired item that a sweep found.
    fn expire(&mut self, header: &ItemHeader, address: ItemAddress) {
        self.counters.crawler_reclaimed += 1;
        self.counters.expired_unfetched += u64::from(!header.marks.contains(Marks::FETCHED));
        self.forget(header, address);
    }

    /// Frees an item that was evicted, or had expired.
    fn lose(&mut self, header: &ItemHeader, address: ItemAddress) {
        if let Some(log) = self.eviction_log.as_ref().filter(|log| log.is_wanted())
            && !header.expired(self.clock.into())
        {
            let mut key = KeyCopy::default();
            // A local read does not fail.
            if let Ok(key) = key.read(&self.items, address, header) {
                log.evicted(header, key, self.clock);
            }
        }
        self.counters.lose(header, self.clock);
        self.release(header, address);
    }

    fn release(&mut self, header: &ItemHeader, address: ItemAddress) {
        let room = room_of(header.item_len() as usize);
        self.segments
            .release(address, room, header.marks.frequency());
    }

    fn store_word(&self, item: &Item, offset: u64, word: u64) -> Result<(), OpError> {
        let address = item.location.word.address();
        self.items.store(address.offset() + offset, word)
    }

    /// The slot of a key, and the header of its item.
    fn slot_of(
        &self,
        hash: u64,
        key: &[u8],
    ) -> Result<Option<(Slot, SlotWord, ItemHeader)>, OpError> {
        let mut header = ItemHeader::default();
        let found = self.index.find(hash, |word| {
            header = self.header(word.address())?;
            let mut copy = KeyCopy::default();
            Ok(copy.read(&self.items, word.address(), &header)? == key)
        })?;
        Ok(found.map(|(slot, word)| (slot, word, header)))
    }

    /// A vacant slot for a new key. If the chain cannot grow, a neighbour is evicted.
    fn vacant(&mut self, hash: u64) -> Result<Slot, SetError> {
        if let Some(slot) = self.index.vacant(hash)? {
            return Ok(slot);
        }
        let neighbour = self.index.neighbour(hash)?.filter(|_| self.may_evict);
        let (slot, word) = neighbour.ok_or(SetError::OutOfMemory)?;
        let header = self.header(word.address())?;
        self.index.clear(slot)?;
        self.lose(&header, word.address());
        Ok(slot)
    }

    /// The header of an item, and the hash of its key.
    fn head(&self, address: ItemAddress) -> Result<(ItemHeader, u64), OpError> {
        let header = self.header(address)?;
        let mut key = KeyCopy::default();
        let hash = hash(self.seed, key.read(&self.items, address, &header)?);
        Ok((header, hash))
    }

    fn header(&self, address: ItemAddress) -> Result<ItemHeader, OpError> {
        read_header(&self.items, address)
    }
}
