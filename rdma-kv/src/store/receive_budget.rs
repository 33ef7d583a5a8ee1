//! Memory for values that have not arrived completely.
//!
//! A connection keeps the first bytes of a value until the rest arrives. All of a server's
//! connections together may keep a quarter of the memory for items, but one value in any case. A
//! value for which there is no room is refused when it is announced, and dropped as it comes.
//! Memcached evicts items for such values, and refuses them when all its memory is taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Values up to this many bytes are not counted: a connection may have a buffer of that size.
const SHORT: usize = 16 * 1024;

/// Budget of all connections.
#[derive(Clone, Debug)]
pub(crate) struct ReceiveBudget {
    /// Memory of the store.
    memory: Arc<AtomicU64>,
    /// Largest item in bytes.
    item: u32,
    /// Bytes of values that are arriving.
    taken: Arc<AtomicU64>,
}

/// Permit to buffer a value until it has arrived.
#[derive(Debug)]
pub(crate) struct BudgetPermit {
    bytes: u64,
    taken: Arc<AtomicU64>,
}

impl ReceiveBudget {
    /// The budget of a store with this memory, which may change, and this largest item.
    pub(crate) fn new(memory: Arc<AtomicU64>, item: u32) -> Self {
        ReceiveBudget {
            memory,
            item,
            taken: Arc::default(),
        }
    }

    /// A permit for a value of `len` bytes; `None` when the budget is spent.
    pub(crate) fn take(&self, len: usize) -> Option<BudgetPermit> {
        let bytes = if len <= SHORT { 0 } else { len as u64 };
        // These numbers order no other memory.
        let order = Ordering::Relaxed;
        let limit = (self.memory.load(order) / 4).max(self.item.into());
        let add = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= limit);
        self.taken.fetch_update(order, order, add).ok()?;
        Some(BudgetPermit {
            bytes,
            taken: Arc::clone(&self.taken),
        })
    }
}

impl Drop for BudgetPermit {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
