//! The store: items in two regions, written here and read by anyone.
//!
//! [`Store`] does no I/O and knows no time but what [`Store::tick`] says. A set has two steps:
//! [`Store::reserve`] finds room, into which the caller brings the value (from a socket's buffer,
//! or by an RDMA read) without holding anything up, and [`Store::commit`] publishes. What is
//! reserved and never committed must be given back by [`Store::abandon`].
//!
//! Memory is reused only after the slot of what was in it changed: unlink, release fence, the
//! new generation, then the rest. A reader that meets the new bytes thus finds its slot changed.
//! What clients have [borrowed](crate::protocol::hazards) is not reused.
//! An item that is moved becomes another with the same value, also for readers.

pub(crate) mod borrows;
mod cleaning;
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

use std::sync::Arc;

use toroid_fabric::{OpError, Region};

pub use counters::{Counters, EvictionLog};
pub use item::{Attributes, Item, Reservation};
pub use limits::{Limits, LimitsError, is_chunked, memcached_len};
pub(crate) use receive_budget::BudgetPermit;
pub use walk::Walk;

use cleaning::{Cursor, Need};
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

/// The clock starts here: 0 means never, and 1 is the time before the server started.
const CLOCK_START: u32 = 2;

/// Expiry times up to this many seconds, 30 days, count from now; larger ones are Unix time.
const RELATIVE_LIMIT: i64 = 60 * 60 * 24 * 30;

/// How many times an item's bytes a queue gains that evicted it too early. With more of them the shares
/// follow a working set sooner, and chance as well. The young queue gains more: an item that it evicted too
/// early is of a working set that moves, and the next ones are as well.
const YOUNG_GHOST_RATE: f64 = 6.0;
const MAIN_GHOST_RATE: f64 = 3.0;

/// Why nothing was stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SetError {
    /// Caller: the key is empty or longer than [`MAX_KEY`].
    #[error("a key of {0} bytes: give from 1 to {MAX_KEY}")]
    Key(usize),
    /// Caller: over the item size limit.
    #[error("object too large for cache")]
    TooLarge,
    /// Everything is in the middle of being set.
    #[error("out of memory storing object")]
    OutOfMemory,
    /// Client: its memory could not be read.
    #[error("the value could not be read from the client")]
    NotFetched,
    /// Us.
    #[error(transparent)]
    Memory(#[from] OpError),
}

/// The server's side of the items and their index.
#[derive(Debug)]
pub struct Store {
    index: Index,
    items: Region,
    segments: Segments,
    cleaning: Option<Cursor>,
    sweep: Option<Sweep>,
    /// Segments that [`Store::crawl`] wants looked through.
    crawl: Vec<SegmentNumber>,
    may_evict: bool,
    has_cas: bool,
    /// For the value of an item that is moved.
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
    /// Unix time at which the clock stood at 0.
    epoch_s: i64,
    /// By the clock, when all items are to be removed.
    flush_at: Option<u32>,
    eviction_log: Option<Arc<dyn EvictionLog>>,
}

impl Store {
    /// An empty store in two zeroed regions of [`Limits::regions`], with random numbers for its
    /// boot id and its hash, and the Unix time in seconds. The regions may be those of more memory, so
    /// that [`Store::limit_memory`] can raise the limit.
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

    /// What clients need; `None` for a store in local memory.
    pub fn geometry(&self) -> Option<Geometry> {
        Some(Geometry {
            index: self.index.region().remote_key()?,
            items: self.items.remote_key()?,
            seed: self.seed,
            boot_id: self.boot_id,
            max_item: self.limits.item,
        })
    }

    /// The region that values go to.
    pub fn items(&self) -> &Region {
        &self.items
    }

    #[cfg(test)]
    pub(crate) fn index_region(&self) -> &Region {
        self.index.region()
    }

    /// Its limits now.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Changes the memory for items; returns whether that is possible. If it is less, [`Store::sweep`] gives
    /// back what is too much.
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

    /// Publishes the time since the store was made, in seconds.
    ///
    /// # Errors
    /// None but our own mistakes.
    pub fn tick(&mut self, uptime_s: u64) -> Result<(), OpError> {
        let uptime = u32::try_from(uptime_s).unwrap_or(u32::MAX);
        self.clock = CLOCK_START.saturating_add(uptime);
        self.heavy_hitters.decay();
        self.index.set_clock(self.clock.into())?;
        self.flush_if_due()
    }

    /// Finds room for an item, evicting if needed.
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

    /// As [`Store::reserve`], for an item that replaces one of the same length: also where a store
    /// that may not evict is full.
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
        // Its lengths lead who cleans past it.
        write_header(&self.items, address, &header)?;
        Ok(Reservation {
            address,
            generation,
            key_len: key_len as u16,
            value_len: value_len as u32,
        })
    }

    /// The queue for a new item: the main one if its key was evicted not long ago.
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
            // Each queue has a segment that is not full, and there are not enough for both.
            0 => Queue::Young,
            _ => Queue::Main,
        }
    }

    /// Publishes an item whose value is in place, instead of what the key had.
    ///
    /// # Errors
    /// None but our own mistakes; also a key of another length than reserved.
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

    /// Gives back what was reserved.
    pub fn abandon(&mut self, room: Reservation) {
        self.segments.abandon(room.address, room.room());
    }

    /// Finds a key that is alive.
    ///
    /// # Errors
    /// None but our own mistakes.
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

    /// Removes an item that was found.
    ///
    /// # Errors
    /// None but our own mistakes.
    pub fn remove(&mut self, item: &Item) -> Result<(), OpError> {
        self.index.clear(item.location.slot)?;
        self.forget(&item.header, item.location.word.address());
        Ok(())
    }

    /// Keeps the memory of an item that was found as it is, whatever becomes of the item, until
    /// [`Store::unpin`]: for who reads it without the lock.
    pub fn pin(&mut self, item: &Item) {
        self.segments.pin(item.location.word.address(), item.room());
    }

    /// The end of [`Store::pin`].
    pub fn unpin(&mut self, item: &Item) {
        self.segments
            .unpin(item.location.word.address(), item.room());
    }

    /// What clients have borrowed.
    pub fn borrows(&mut self) -> &mut Borrows {
        self.segments.borrows()
    }

    /// Marks an item that was found, with these marks and no others; how often it was used stays.
    ///
    /// # Errors
    /// None but our own mistakes.
    pub fn mark(&mut self, item: &mut Item, marks: Marks) -> Result<(), OpError> {
        let often = item.header.marks & Marks::FREQUENCY;
        item.header.marks = (marks - Marks::FREQUENCY) | often;
        self.store_word(item, ItemHeader::NOTES_WORD, item.header.notes_word())
    }

    /// Changes when an item that was found is dead; see [`Store::deadline`].
    ///
    /// # Errors
    /// None but our own mistakes.
    pub fn touch(&mut self, item: &mut Item, exptime: u32) -> Result<(), OpError> {
        item.header.exptime = exptime;
        self.segments
            .note_expiry(item.location.word.address(), exptime);
        self.store_word(item, ItemHeader::EXPTIME_WORD, item.header.exptime_word())
    }

    /// Gives an item that was found another cas.
    ///
    /// # Errors
    /// None but our own mistakes.
    pub fn renumber(&mut self, item: &mut Item, cas: u64) -> Result<(), OpError> {
        item.header.cas = cas;
        self.store_word(item, ItemHeader::CAS_WORD, cas)
    }

    /// The next number for a stored value; 0, which is never the right one, where values have none.
    pub fn next_cas(&mut self) -> u64 {
        self.cas += u64::from(self.has_cas);
        self.cas
    }

    /// Seconds by the store's clock, which items' times are in terms of.
    pub fn now(&self) -> u32 {
        self.clock
    }

    /// When an item is dead by the store's clock, from memcached's time: 0 never, negative at
    /// once, up to 30 days (in seconds) from now, else Unix time.
    pub fn deadline(&self, exptime: i64) -> u32 {
        let now = i64::from(self.clock);
        let at = match exptime {
            0 => 0,
            ..0 => 1,
            1..=RELATIVE_LIMIT => now + exptime,
            _ => exptime.saturating_sub(self.epoch_s).max(1),
        };
        u32::try_from(at).unwrap_or(u32::MAX)
    }

    /// What it holds and what became of its items.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Whether values that are stored from now on have cas numbers. They do from the start.
    pub fn set_has_cas(&mut self, has_cas: bool) {
        self.has_cas = has_cas;
    }

    /// Tells evictions to `log` from now on.
    pub fn set_eviction_log(&mut self, log: Arc<dyn EvictionLog>) {
        self.eviction_log = Some(log);
    }

    /// Whether items that are alive may give way to others; else a full store refuses (`-M`).
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

    /// A generation for what will be at `address`.
    fn start_item(&mut self, address: ItemAddress) -> Result<u64, OpError> {
        self.generation += 1;
        // What was here is unlinked. Whoever meets this generation, or a byte that follows it,
        // finds the slot that led here changed.
        self.items.release_fence();
        self.items.store(address.offset(), self.generation)?;
        // And whoever meets a byte that follows it meets this generation afterwards.
        self.items.release_fence();
        Ok(self.generation)
    }

    /// The slot of the item at `at`, if it is live, and its key's hash.
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

    /// An item that a client removed or replaced is gone.
    fn forget(&mut self, header: &ItemHeader, address: ItemAddress) {
        self.counters.drop(header);
        self.release(header, address);
    }

    /// An item that had expired is gone, as somebody looked for it.
    fn expire(&mut self, header: &ItemHeader, address: ItemAddress) {
        self.counters.crawler_reclaimed += 1;
        self.counters.expired_unfetched += u64::from(!header.marks.contains(Marks::FETCHED));
        self.forget(header, address);
    }

    /// An item that nobody removed gave way to others.
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

    /// The slot of a key, and the header of what it leads to.
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

    /// A slot for a new key. When its chain cannot grow, a neighbour makes room.
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

    /// The header of an item, and its key's hash.
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
