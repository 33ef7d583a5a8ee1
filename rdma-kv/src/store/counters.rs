//! Counters of a store, and the log of its evictions.

use crate::protocol::layout::{ItemHeader, Marks};

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
    /// Expired items whose memory was needed for others.
    pub reclaimed: u64,
    /// Expired items that were looked for, and found.
    pub crawler_reclaimed: u64,
    /// Of both, such that nobody ever got.
    pub expired_unfetched: u64,
    /// Expired items that somebody asked for.
    pub expired_found: u64,
    /// Segments that were looked through for expired items.
    pub sweeps: u64,
    /// Items that were looked at for it.
    pub swept: u64,
    /// Gets by clients that read by themselves, as far as they have reported them.
    pub one_sided_gets: u64,
    /// Of these, such that found something.
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

    /// An item that nobody removed goes.
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

/// A log of evictions, told under the store's lock.
pub trait EvictionLog: std::fmt::Debug + Send + Sync {
    /// Whether it takes lines just now.
    fn is_wanted(&self) -> bool;

    /// An item that gave way to others, by the store's clock.
    fn evicted(&self, header: &ItemHeader, key: &[u8], clock: u32);
}
