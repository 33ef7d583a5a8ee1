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
use crate::layout::{
    ControlLine, ItemHeader, LINE, MAX_KEY, Marks, Place, Placement, Slot, SlotWord,
};

/// The clock starts here: 0 means never, and 1 is the time before the server started.
const CLOCK_START: u32 = 2;

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

/// What a client gives with a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The client's.
    pub flags: u32,
    /// By the store's clock, from when it is dead; 0 is never. See [`Store::deadline`].
    pub exptime: u32,
    /// Its cas; the next number when it is `None`.
    pub cas: Option<u64>,
    /// What it is marked with from the start.
    pub marks: Marks,
}

/// What a store holds and what became of its items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Items now.
    pub items: u64,
    /// Items ever stored.
    pub total_items: u64,
    /// Bytes of all items, headers and keys included.
    pub bytes: u64,
    /// Live items that gave way to others.
    pub evictions: u64,
    /// Of these, such that nobody ever got.
    pub evicted_unfetched: u64,
    /// Expired items whose memory was taken back.
    pub reclaimed: u64,
    /// Of these, such that nobody ever got.
    pub expired_unfetched: u64,
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
    clock: u32,
    counters: Counters,
    /// Unix time at which the clock stood at 0.
    epoch_s: i64,
    /// By the clock, when all items are to be removed.
    flush_at: Option<u32>,
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
            clock: CLOCK_START.into(),
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
            counters: Counters::default(),
            epoch_s: unix_s.saturating_sub(CLOCK_START.into()),
            flush_at: None,
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
        let uptime = u32::try_from(uptime_s).unwrap_or(u32::MAX);
        self.clock = CLOCK_START.saturating_add(uptime);
        self.index.set_clock(self.clock.into())?;
        self.flush_if_due()
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
        let (counters, clock) = (&mut self.counters, self.clock);
        let mut unlinked = Ok(());
        let evict = &mut |place| match unlink(index, items, seed, place) {
            Ok(header) => counters.lose(&header, clock),
            Err(error) => unlinked = Err(error),
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
    /// # Errors
    /// None but our own mistakes; also a key of another length than reserved.
    pub fn commit(
        &mut self,
        room: Reservation,
        key: &[u8],
        attributes: &Attributes,
    ) -> Result<Placement, SetError> {
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
        let offset = room.place.offset();
        self.items.write(offset, &header.to_bytes())?;
        self.items.write(offset + ItemHeader::LEN as u64, key)?;
        let hash = hash(self.seed, key);
        let word = SlotWord::new(hash, room.len(), room.place, room.generation);
        let old = self.slot_of(hash, key)?;
        let slot = match old {
            Some((slot, _)) => slot,
            None => self.vacant(hash)?,
        };
        // The linearization point.
        self.index.store(slot, word)?;
        self.arena.publish(room.place);
        self.counters.gain(&header);
        if let Some((_, old)) = old {
            let header = self.header(old.place())?;
            self.counters.drop(&header);
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

    /// Finds a key that is alive.
    ///
    /// # Errors
    /// None but our own mistakes.
    pub fn find(&mut self, key: &[u8]) -> Result<Option<Item>, OpError> {
        let Some((slot, word)) = self.slot_of(hash(self.seed, key), key)? else {
            return Ok(None);
        };
        let header = self.header(word.place())?;
        if header.expired(self.clock.into()) {
            self.clear(slot, word)?;
            self.counters.lose(&header, self.clock);
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

    /// Removes an item that was found.
    ///
    /// # Errors
    /// None but our own mistakes.
    pub fn remove(&mut self, item: &Item) -> Result<(), OpError> {
        self.counters.drop(&item.header);
        self.clear(item.placement.slot, item.placement.word)
    }

    /// Notes that somebody got an item that was found.
    ///
    /// # Errors
    /// None but our own mistakes.
    pub fn used(&mut self, item: &mut Item) -> Result<(), OpError> {
        item.header.accessed = self.clock;
        item.header.marks |= Marks::FETCHED;
        self.store_word(item, ItemHeader::NOTES_WORD, item.header.notes_word())
    }

    /// Marks an item that was found, with these marks and no others.
    ///
    /// # Errors
    /// None but our own mistakes.
    pub fn mark(&mut self, item: &mut Item, marks: Marks) -> Result<(), OpError> {
        item.header.marks = marks;
        self.store_word(item, ItemHeader::NOTES_WORD, item.header.notes_word())
    }

    /// Changes when an item that was found is dead; see [`Store::deadline`].
    ///
    /// # Errors
    /// None but our own mistakes.
    pub fn touch(&mut self, item: &mut Item, exptime: u32) -> Result<(), OpError> {
        item.header.exptime = exptime;
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

    /// The next number for a stored value.
    pub fn next_cas(&mut self) -> u64 {
        self.cas += 1;
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

    /// Removes all items, as far as they were stored before the call.
    ///
    /// # Errors
    /// None but our own mistakes.
    pub fn flush(&mut self) -> Result<(), OpError> {
        for place in self.arena.all_live() {
            let header = unlink(&self.index, &self.items, self.seed, place)?;
            self.counters.drop(&header);
            self.arena.free(place);
        }
        Ok(())
    }

    /// Removes all items when the clock has come to `at`, or never, whatever was said before.
    ///
    /// # Errors
    /// None but our own mistakes.
    pub fn flush_at(&mut self, at: Option<u32>) -> Result<(), OpError> {
        self.flush_at = at;
        self.flush_if_due()
    }

    fn flush_if_due(&mut self) -> Result<(), OpError> {
        match self.flush_at.take_if(|at| *at <= self.clock) {
            Some(_) => self.flush(),
            None => Ok(()),
        }
    }

    /// The next generation is the one after `generation`.
    #[cfg(test)]
    pub(crate) fn skip_to_generation(&mut self, generation: u64) {
        self.generation = generation;
    }

    fn store_word(&self, item: &Item, offset: u64, word: u64) -> Result<(), OpError> {
        let place = item.placement.word.place();
        self.items.store(place.offset() + offset, word)
    }

    fn clear(&mut self, slot: Slot, word: SlotWord) -> Result<(), OpError> {
        self.index.store(slot, SlotWord::EMPTY)?;
        self.arena.free(word.place());
        Ok(())
    }

    fn slot_of(&self, hash: u64, key: &[u8]) -> Result<Option<(Slot, SlotWord)>, OpError> {
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
        let header = self.header(word.place())?;
        self.counters.lose(&header, self.clock);
        self.clear(slot, word)?;
        Ok(slot)
    }

    fn header(&self, place: Place) -> Result<ItemHeader, OpError> {
        read_header(&self.items, place)
    }
}

impl Counters {
    fn gain(&mut self, header: &ItemHeader) {
        self.items += 1;
        self.total_items += 1;
        self.bytes += header.item_len();
    }

    fn drop(&mut self, header: &ItemHeader) {
        self.items = self.items.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(header.item_len());
    }

    /// An item that nobody removed goes.
    fn lose(&mut self, header: &ItemHeader, clock: u32) {
        self.drop(header);
        let unfetched = u64::from(!header.marks.contains(Marks::FETCHED));
        if header.expired(clock.into()) {
            self.reclaimed += 1;
            self.expired_unfetched += unfetched;
        } else {
            self.evictions += 1;
            self.evicted_unfetched += unfetched;
        }
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

/// Clears the slot of the item at `place`; returns its header.
fn unlink(index: &Index, items: &Region, seed: u64, place: Place) -> Result<ItemHeader, OpError> {
    let mut buffer = [0; MAX_KEY];
    let hash = hash(seed, read_key(items, place, &mut buffer)?);
    if let Some((slot, _)) = index.find(hash, |word| Ok(word.place() == place))? {
        index.store(slot, SlotWord::EMPTY)?;
    }
    read_header(items, place)
}
