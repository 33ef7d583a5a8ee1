//! Memory for values that have not arrived completely.
//!
//! A connection keeps what has come of a value until the rest is there. All of a server's connections together
//! may keep a quarter of the memory for items, but one value in any case. A value for which there is no room is
//! refused when it is announced, and dropped as it comes. Memcached evicts items for such values, and refuses
//! them when all its memory is taken.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Shorter values are not counted: a connection may have a buffer of as many bytes.
const SHORT: usize = 16 * 1024;

/// What all connections may keep.
#[derive(Clone, Debug)]
pub(crate) struct ReceiveBudget {
    /// The store's memory.
    memory: Arc<AtomicU64>,
    /// Bytes of its largest item.
    item: u32,
    /// Bytes of values that were announced.
    taken: Arc<AtomicU64>,
}

/// Room for a value until it has arrived.
#[derive(Debug)]
pub(crate) struct BudgetPermit {
    bytes: u64,
    taken: Arc<AtomicU64>,
}

impl ReceiveBudget {
    /// For a store with so much memory, which may change, and items of up to `item` bytes.
    pub(crate) fn new(memory: Arc<AtomicU64>, item: u32) -> Self {
        ReceiveBudget {
            memory,
            item,
            taken: Arc::default(),
        }
    }

    /// Room for a value of so many bytes; `None` when others have taken it.
    pub(crate) fn take(&self, len: usize) -> Option<BudgetPermit> {
        let bytes = if len <= SHORT { 0 } else { len as u64 };
        // These are numbers alone, which order nothing else.
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
