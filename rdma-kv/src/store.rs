//! The store: items in two regions, written here and read by anyone.
//!
//! [`Store`] does no I/O and knows no time but what [`Store::tick`] says. A set has two steps:
//! [`Store::reserve`] finds room, into which the caller brings the value (from a socket's buffer,
//! or by an RDMA read) without holding anything up, and [`Store::commit`] publishes. What is
//! reserved and never committed must be given back by [`Store::abandon`].
//!
//! Memory is reused only after the slot of what was in it changed: unlink, release fence, the
//! new generation, then the rest. A reader that meets the new bytes thus finds its slot changed.

use fabric::{OpError, Region, RemoteKey};

use crate::arena::Arena;
use crate::hash::hash;
use crate::index::{Index, IndexError};
use crate::layout::{ControlLine, ItemHeader, LINE, MAX_KEY, Place, Placement, Slot, SlotWord};

/// The clock starts here: 0 means never, and 1 is the time before the server started.
const CLOCK_START: u64 = 2;

/// Expiry times up to this many seconds, 30 days, count from now; larger ones are Unix time.
const RELATIVE_LIMIT: i64 = 60 * 60 * 24 * 30;

/// What an item of memcached adds to a key and a value when it compares with the limit: its
/// header with cas, the key's NUL and the value's line end.
const MEMCACHED_OVERHEAD: usize = 48 + 8 + 1 + 2;

/// What a store is made with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes for items (`-m`).
    pub memory: u64,
    /// Bytes of the largest item (`-I`), counted as memcached does.
    pub item: u32,
}

/// Why limits make no store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitsError {
    /// Memcached's bounds.
    #[error("an item size limit of {0} bytes is impossible: give from 1k to 1g")]
    Item(u32),
    /// Two items of the largest size must fit.
    #[error(
        "{memory} bytes of memory are too little for items of up to {item} bytes: \
         give at least twice as much, or a smaller item size"
    )]
    TooSmall {
        /// Bytes given.
        memory: u64,
        /// Bytes of the largest item.
        item: u32,
    },
    /// Beyond what a slot word can name.
    #[error("{0} bytes of memory are too much: at most 64 GiB")]
    TooLarge(u64),
}

impl Limits {
    /// Memcached's defaults: 64 MiB, items of 1 MiB.
    pub const DEFAULT: Limits = Limits {
        memory: 64 << 20,
        item: 1 << 20,
    };

    /// # Errors
    /// [`LimitsError`].
    pub fn check(&self) -> Result<(), LimitsError> {
        let Limits { memory, item } = *self;
        if !(1 << 10..=1 << 30).contains(&item) {
            return Err(LimitsError::Item(item));
        }
        if memory < 2 * u64::from(self.page()) {
            return Err(LimitsError::TooSmall { memory, item });
        }
        if memory > Place::LIMIT * LINE as u64 {
            return Err(LimitsError::TooLarge(memory));
        }
        Ok(())
    }

    /// Whether a value may be stored under a key of this length; memcached's arithmetic.
    pub fn admit(&self, key_len: usize, flags: u32, value_len: usize) -> bool {
        let flags = if flags == 0 { 0 } else { 4 };
        key_len + value_len + flags + MEMCACHED_OVERHEAD <= self.item as usize
    }

    fn page(&self) -> u32 {
        self.item.next_multiple_of(LINE as u32).max(1 << 20)
    }

    /// Bytes of the two regions, index and items.
    pub fn regions(&self) -> (u64, u64) {
        (Index::geometry(self.memory).0, self.memory)
    }
}

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

/// What a client must know to read from the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Of the index region.
    pub index: RemoteKey,
    /// Of the items region.
    pub items: RemoteKey,
    /// Of [`crate::hash::hash`].
    pub seed: u64,
    /// Of the control line.
    pub boot_id: u64,
    /// Bytes of the largest item.
    pub max_item: u32,
}

/// Room for an item.
#[derive(Debug)]
#[must_use = "commit or abandon it, or its memory is lost"]
pub struct Reservation {
    place: Place,
    generation: u64,
    key_len: u16,
    value_len: u32,
}

impl Reservation {
    /// Where the value belongs in the items region.
    pub fn value_offset(&self) -> u64 {
        self.place.offset() + (ItemHeader::LEN as u64) + u64::from(self.key_len)
    }

    fn len(&self) -> u32 {
        ItemHeader::LEN as u32 + u32::from(self.key_len) + self.value_len
    }
}

/// The server's side of the items and their index.
#[derive(Debug)]
pub struct Store {
    index: Index,
    items: Region,
    arena: Arena,
    limits: Limits,
    boot_id: u64,
    seed: u64,
    generation: u64,
    cas: u64,
    clock: u64,
    /// Unix time at which the clock stood at 0.
    epoch_s: i64,
}

impl Store {
    /// An empty store in two zeroed regions of [`Limits::regions`], with random numbers for its
    /// boot id and its hash, and the Unix time in seconds.
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
        let control = ControlLine {
            boot_id,
            table_epoch: 0,
            clock: CLOCK_START,
            flush_epoch: 0,
            buckets_log2: Index::geometry(limits.memory).1,
        };
        Ok(Store {
            index: Index::new(index, &control)?,
            arena: Arena::new(items.len(), limits.page()),
            items,
            limits,
            boot_id,
            seed,
            generation: 0,
            cas: 0,
            clock: CLOCK_START,
            epoch_s: unix_s.saturating_sub(CLOCK_START as i64),
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

    /// The limits it was made with.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Publishes the time since the store was made, in seconds.
    ///
    /// # Errors
    /// None but our own mistakes.
    pub fn tick(&mut self, uptime_s: u64) -> Result<(), OpError> {
        self.clock = CLOCK_START + uptime_s;
        self.index.set_clock(self.clock)
    }

    /// Finds room for an item, evicting if needed.
    ///
    /// # Errors
    /// [`SetError`].
    pub fn reserve(
        &mut self,
        key_len: usize,
        flags: u32,
        value_len: usize,
    ) -> Result<Reservation, SetError> {
        if !(1..=MAX_KEY).contains(&key_len) {
            return Err(SetError::Key(key_len));
        }
        if !self.limits.admit(key_len, flags, value_len) {
            return Err(SetError::TooLarge);
        }
        let (index, items, seed) = (&self.index, &self.items, self.seed);
        let mut unlinked = Ok(());
        let evict = &mut |place| {
            if let Err(error) = unlink(index, items, seed, place) {
                unlinked = Err(error);
            }
        };
        let len = ItemHeader::len_of(key_len, value_len);
        let place = self
            .arena
            .reserve(len, evict)
            .ok_or(SetError::OutOfMemory)?;
        unlinked?;
        self.generation += 1;
        // What was here is unlinked. Whoever meets this generation, or a byte that follows it,
        // finds the slot that led here changed.
        self.items.release_fence();
        self.items.store(place.offset(), self.generation)?;
        Ok(Reservation {
            place,
            generation: self.generation,
            key_len: key_len as u16,
            value_len: value_len as u32,
        })
    }

    /// Publishes an item whose value is in place, instead of what the key had.
    ///
    /// `exptime` is memcached's: 0 never, negative at once, up to 30 days from now, else Unix
    /// time.
    ///
    /// # Errors
    /// None but our own mistakes; also a key of another length than reserved.
    pub fn commit(
        &mut self,
        room: Reservation,
        key: &[u8],
        flags: u32,
        exptime: i64,
    ) -> Result<Placement, SetError> {
        if key.len() != usize::from(room.key_len) {
            self.abandon(room);
            return Err(SetError::Key(key.len()));
        }
        self.cas += 1;
        let header = ItemHeader {
            generation: room.generation,
            cas: self.cas,
            exptime: self.expiry(exptime),
            flags,
            value_len: room.value_len,
            checksum: 0,
            key_len: room.key_len,
        };
        let offset = room.place.offset();
        self.items.write(offset, &header.to_bytes())?;
        self.items.write(offset + ItemHeader::LEN as u64, key)?;
        let hash = hash(self.seed, key);
        let word = SlotWord::new(hash, room.len(), room.place, room.generation);
        let old = self.find(hash, key)?;
        let slot = match old {
            Some((slot, _)) => slot,
            None => self.vacant(hash)?,
        };
        // The linearization point.
        self.index.store(slot, word)?;
        self.arena.publish(room.place);
        if let Some((_, old)) = old {
            self.arena.free(old.place());
        }
        Ok(Placement {
            slot,
            word,
            generation: room.generation,
            len: room.len(),
        })
    }

    /// Gives back what was reserved.
    pub fn abandon(&mut self, room: Reservation) {
        self.arena.free(room.place);
    }

    /// Removes a key; returns whether it was there and alive.
    ///
    /// # Errors
    /// None but our own mistakes.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, OpError> {
        let alive = self.lookup(key)?;
        if let Some(item) = &alive {
            self.remove(item.placement.slot, item.placement.word)?;
        }
        Ok(alive.is_some())
    }

    /// Finds a key that is alive.
    ///
    /// # Errors
    /// None but our own mistakes.
    pub fn lookup(&mut self, key: &[u8]) -> Result<Option<Item>, OpError> {
        let Some((slot, word)) = self.find(hash(self.seed, key), key)? else {
            return Ok(None);
        };
        let header = self.header(word.place())?;
        if header.expired(self.clock) {
            self.remove(slot, word)?;
            return Ok(None);
        }
        let len = header.item_len() as u32;
        let generation = header.generation;
        Ok(Some(Item {
            header,
            placement: Placement {
                slot,
                word,
                generation,
                len,
            },
        }))
    }

    /// The next generation is the one after `generation`.
    #[cfg(test)]
    pub(crate) fn skip_to_generation(&mut self, generation: u64) {
        self.generation = generation;
    }

    fn remove(&mut self, slot: Slot, word: SlotWord) -> Result<(), OpError> {
        self.index.store(slot, SlotWord::EMPTY)?;
        self.arena.free(word.place());
        Ok(())
    }

    fn find(&self, hash: u64, key: &[u8]) -> Result<Option<(Slot, SlotWord)>, OpError> {
        self.index.find(hash, |word| {
            let mut buffer = [0; MAX_KEY];
            Ok(read_key(&self.items, word.place(), &mut buffer)? == key)
        })
    }

    /// A slot for a new key. When the index has no bucket left, a neighbour makes room.
    fn vacant(&mut self, hash: u64) -> Result<Slot, SetError> {
        if let Some(slot) = self.index.vacant(hash)? {
            return Ok(slot);
        }
        let (slot, word) = self.index.neighbour(hash)?.ok_or(SetError::OutOfMemory)?;
        self.remove(slot, word)?;
        Ok(slot)
    }

    fn header(&self, place: Place) -> Result<ItemHeader, OpError> {
        read_header(&self.items, place)
    }

    fn expiry(&self, exptime: i64) -> u32 {
        let now = self.clock as i64;
        let at = match exptime {
            0 => 0,
            ..0 => 1,
            1..=RELATIVE_LIMIT => now + exptime,
            _ => exptime.saturating_sub(self.epoch_s).max(1),
        };
        u32::try_from(at).unwrap_or(u32::MAX)
    }
}

/// A live item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its header.
    pub header: ItemHeader,
    /// Where it is.
    pub placement: Placement,
}

impl Item {
    /// Where its value starts in the items region.
    pub fn value_offset(&self) -> u64 {
        let place = self.placement.word.place();
        place.offset() + (ItemHeader::LEN as u64) + u64::from(self.header.key_len)
    }
}

fn read_header(items: &Region, place: Place) -> Result<ItemHeader, OpError> {
    let mut bytes = [0; ItemHeader::LEN];
    items.read(place.offset(), &mut bytes)?;
    Ok(ItemHeader::from_bytes(&bytes))
}

fn read_key<'a>(
    items: &Region,
    place: Place,
    buffer: &'a mut [u8; MAX_KEY],
) -> Result<&'a [u8], OpError> {
    let header = read_header(items, place)?;
    let key = &mut buffer[..usize::from(header.key_len).min(MAX_KEY)];
    items.read(place.offset() + ItemHeader::LEN as u64, key)?;
    Ok(key)
}

/// Clears the slot of the item at `place`.
fn unlink(index: &Index, items: &Region, seed: u64, place: Place) -> Result<(), OpError> {
    let mut buffer = [0; MAX_KEY];
    let hash = hash(seed, read_key(items, place, &mut buffer)?);
    match index.find(hash, |word| Ok(word.place() == place))? {
        Some((slot, _)) => index.store(slot, SlotWord::EMPTY),
        None => Ok(()),
    }
}
