//! One store, many threads.

use std::hint::spin_loop;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use crossbeam::utils::CachePadded;
use toroid_fabric::{OpError, Region};

use crate::protocol::geometry::Geometry;
use crate::store::receive_budget::{BudgetPermit, ReceiveBudget};
use crate::store::{Item, Limits, Store};

/// How often to look whether a lock that is taken is free, with pauses of the processor in between, as
/// each look takes the lock's line of memory from who has it: some ten microseconds in all.
const LOOKS: u32 = 60;
const PAUSES: u32 = 10;

/// A store behind a lock. Values are read, and large ones brought to reserved memory, without it:
/// so they delay nobody.
#[derive(Clone, Debug)]
pub struct Shared {
    /// Apart from the lock's own line, at which others look.
    store: Arc<Mutex<CachePadded<Store>>>,
    items: Region,
    limits: Limits,
    /// [`Limits::memory`] now.
    memory: Arc<AtomicU64>,
    receive_budget: ReceiveBudget,
}

impl Shared {
    /// Shares `store`.
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

    /// The limits of the store now.
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
        // It is a number alone, which orders nothing else.
        self.memory.store(store.limits().memory, Ordering::Relaxed);
        may_be
    }

    /// Room for a value of so many bytes until it has arrived; `None` when there is too little.
    pub(crate) fn receive_permit(&self, len: usize) -> Option<BudgetPermit> {
        self.receive_budget.take(len)
    }

    /// What clients need to read from it; `None` for a store in local memory.
    pub fn geometry(&self) -> Option<Geometry> {
        self.lock().geometry()
    }

    /// Calls `with` with the store, while nobody else changes it.
    pub fn with<T>(&self, with: impl FnOnce(&mut Store) -> T) -> T {
        with(&mut self.lock())
    }

    /// Removes a key; returns whether it was there and alive.
    ///
    /// # Errors
    /// None but our own mistakes.
    pub fn delete(&self, key: &[u8]) -> Result<bool, OpError> {
        let mut store = self.lock();
        let found = store.find(key)?;
        found
            .map(|item| store.remove(&item))
            .transpose()
            .map(|removed| removed.is_some())
    }

    /// Finds a key that is alive and gives it to `read`, as [`Shared::read`] does.
    ///
    /// # Errors
    /// What `read` returns.
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

    /// Gives what `find` returns to `read`, together with the items region, while its memory
    /// cannot change. Others use the store meanwhile.
    ///
    /// # Errors
    /// What `find` and `read` return.
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

    /// Gives the items region to `read`, while the memory of an item that is [pinned](Store::pin) cannot
    /// change, and unpins the item. Others use the store meanwhile.
    pub fn read_pinned<T>(&self, item: &Item, read: impl FnOnce(&Region) -> T) -> T {
        let result = read(&self.items);
        self.lock().unpin(item);
        result
    }

    /// See [`Store::tick`].
    ///
    /// # Errors
    /// None but our own mistakes.
    pub fn tick(&self, uptime_s: u64) -> Result<(), OpError> {
        self.lock().tick(uptime_s)
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

    /// Nobody has the lock for long, so who finds it taken looks again for a while: to sleep and to be
    /// woken takes longer.
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
