//! A store behind a lock, for many threads.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use crossbeam::utils::CachePadded;
use toroid_fabric::{OpError, Region};

use crate::protocol::geometry::Geometry;
use crate::store::receive_budget::{BudgetPermit, ReceiveBudget};
use crate::store::{Item, Limits, Store};

/// Attempts to take the lock before a thread sleeps, and pauses between them: about ten
/// microseconds in all. Each attempt takes the cache line of the lock from its owner.
const LOOKS: u32 = 60;
const PAUSES: u32 = 10;

/// Bytes that are populated at a time: four pages. A request that arrives meanwhile waits for some
/// 7 us.
const POPULATED: u64 = 16 << 10;

/// A store behind a lock. Values are read, and large ones copied to reserved memory, without the
/// lock.
#[derive(Clone, Debug)]
pub struct Shared {
    /// Padded apart from the line of the lock, which waiting threads read.
    store: Arc<Mutex<CachePadded<Store>>>,
    items: Region,
    limits: Limits,
    /// Current [`Limits::memory`].
    memory: Arc<AtomicU64>,
    receive_budget: ReceiveBudget,
}

impl Shared {
    /// Puts a store behind a lock.
    pub fn new(store: Store) -> Self {
        let limits = store.limits();
        let memory = Arc::new(AtomicU64::new(limits.memory));
        Shared {
            items: store.items().clone(),
            limits,
            receive_budget: ReceiveBudget::new(Arc::clone(&memory), limits.item),
            memory,
            store: Arc::new(Mutex::new(store.into())),
        }
    }

    /// Current limits of the store.
    pub fn limits(&self) -> Limits {
        Limits {
            memory: self.memory.load(Ordering::Relaxed),
            ..self.limits
        }
    }

    /// See [`Store::limit_memory`].
    pub fn limit_memory(&self, memory: u64) -> bool {
        let mut store = self.lock();
        let may_be = store.limit_memory(memory);
        // This number orders no other memory.
        self.memory.store(store.limits().memory, Ordering::Relaxed);
        may_be
    }

    /// A permit to buffer a value of `len` bytes until it has arrived; `None` when the budget
    /// is spent.
    pub(crate) fn receive_permit(&self, len: usize) -> Option<BudgetPermit> {
        self.receive_budget.take(len)
    }

    /// The geometry for clients; `None` for a store in local memory.
    pub fn geometry(&self) -> Option<Geometry> {
        self.lock().geometry()
    }

    /// Calls `with` with the locked store.
    pub fn with<T>(&self, with: impl FnOnce(&mut Store) -> T) -> T {
        with(&mut self.lock())
    }

    /// Removes a key; returns whether it was present.
    ///
    /// # Errors
    /// Only for a bug of the store.
    pub fn delete(&self, key: &[u8]) -> Result<bool, OpError> {
        let mut store = self.lock();
        let found = store.find(key)?;
        found
            .map(|item| store.remove(&item))
            .transpose()
            .map(|removed| removed.is_some())
    }

    /// Finds the live item of a key, notes its use, and passes it to `read`, as
    /// [`Shared::read`] does.
    ///
    /// # Errors
    /// The error of `read`.
    pub fn get<T>(
        &self,
        key: &[u8],
        read: impl FnOnce(&Item, &Region) -> Result<T, OpError>,
    ) -> Result<Option<T>, OpError> {
        let find = |store: &mut Store| {
            let mut item = store.find(key)?;
            item.as_mut().map(|item| store.used(item)).transpose()?;
            Ok(item)
        };
        self.read(find, read)
    }

    /// Passes the item that `find` returns to `read`, with the items region. The item is pinned
    /// meanwhile, and the lock is free.
    ///
    /// # Errors
    /// The errors of `find` and `read`.
    pub fn read<T>(
        &self,
        find: impl FnOnce(&mut Store) -> Result<Option<Item>, OpError>,
        read: impl FnOnce(&Item, &Region) -> Result<T, OpError>,
    ) -> Result<Option<T>, OpError> {
        let mut store = self.lock();
        let Some(item) = find(&mut store)? else {
            return Ok(None);
        };
        store.pin(&item);
        drop(store);
        self.read_pinned(&item, |items| read(&item, items))
            .map(Some)
    }

    /// Passes the items region to `read` without the lock, then unpins the item, which must be
    /// [pinned](Store::pin).
    pub fn read_pinned<T>(&self, item: &Item, read: impl FnOnce(&Region) -> T) -> T {
        let result = read(&self.items);
        self.lock().unpin(item);
        result
    }

    /// See [`Store::tick`].
    ///
    /// # Errors
    /// Only for a bug of the store.
    pub fn tick(&self, uptime_s: u64) -> Result<(), OpError> {
        self.lock().tick(uptime_s)
    }

    /// Populates some memory for later items, without the lock; returns whether there may be more.
    /// For a thread that has nothing else to do.
    pub fn populate_ahead(&self) -> bool {
        let unpopulated = self.lock().take_unpopulated(POPULATED);
        if let Some(bytes) = unpopulated.clone() {
            self.items.populate(bytes);
        }
        unpopulated.is_some()
    }

    #[cfg(test)]
    pub(crate) fn skip_to_generation(&self, generation: u64) {
        self.lock().skip_to_generation(generation);
    }

    /// The index and the items.
    #[cfg(test)]
    pub(crate) fn regions(&self) -> [Region; 2] {
        [self.lock().index_region().clone(), self.items.clone()]
    }

    /// The lock is never held for long, so a thread that finds it taken spins first: sleep and
    /// wake-up take longer.
    fn lock(&self) -> MutexGuard<'_, CachePadded<Store>> {
        for _ in 0..LOOKS {
            match self.store.try_lock() {
                Err(TryLockError::WouldBlock) => (0..PAUSES).for_each(|_| spin_loop()),
                Err(TryLockError::Poisoned(poisoned)) => return poisoned.into_inner(),
                Ok(store) => return store,
            }
        }
        self.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
