//! Counters of a store, and the log of its evictions.

use crate::protocol::layout::{ItemHeader, Marks};

/// Counters of items and of their fate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Items in the store.
    pub items: u64,
    /// Items ever stored.
    pub total_items: u64,
    /// Bytes of all items, headers and keys included.
    pub bytes: u64,
    /// Live items that were evicted.
    pub evictions: u64,
    /// Evicted items that no client ever got.
    pub evicted_unfetched: u64,
    /// Expired items that were removed to make room.
    pub reclaimed: u64,
    /// Expired items that sweeps removed.
    pub crawler_reclaimed: u64,
    /// Items of both kinds that no client ever got.
    pub expired_unfetched: u64,
    /// Expired items that gets removed.
    pub expired_found: u64,
    /// Sweeps of segments.
    pub sweeps: u64,
    /// Items that sweeps examined.
    pub swept: u64,
    /// One-sided gets, as far as clients have reported them.
    pub one_sided_gets: u64,
    /// One-sided gets that found an item.
    pub one_sided_hits: u64,
}

impl Counters {
    pub(super) fn gain(&mut self, header: &ItemHeader) {
        self.items += 1;
        self.total_items += 1;
        self.bytes += header.item_len();
    }

    pub(super) fn drop(&mut self, header: &ItemHeader) {
        self.items = self.items.saturating_sub(1);
        self.bytes = self.bytes.saturating_sub(header.item_len());
    }

    /// Counts an item that was evicted, or had expired.
    pub(super) fn lose(&mut self, header: &ItemHeader, clock: u32) {
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

/// Log of evictions, called under the lock of the store.
pub trait EvictionLog: std::fmt::Debug + Send + Sync {
    /// Whether evictions are logged at present.
    fn is_wanted(&self) -> bool;

    /// Logs an eviction at this clock time.
    fn evicted(&self, header: &ItemHeader, key: &[u8], clock: u32);
}
