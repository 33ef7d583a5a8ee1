//! Epochs of the index: by them a reader that misses a key knows whether to look again.

use super::Bucket;

/// How far an index has grown: twice its main buckets, and 1 more while slots of the two that took
/// part in the last step are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableEpoch(pub u64);

impl TableEpoch {
    /// Who missed that many steps looks again, whatever they were.
    const STEPS: u64 = 64;

    /// Of an index that has so many main buckets.
    pub fn new(count: u32, moving: bool) -> Self {
        TableEpoch(u64::from(count) * 2 + u64::from(moving))
    }

    /// Main buckets in use.
    pub fn count(self) -> u64 {
        self.0 / 2
    }

    /// Whether a slot may have been moved within or out of `bucket` since `before`.
    pub fn disturbs(self, before: TableEpoch, bucket: Bucket) -> bool {
        // The last step before counts if it was not over.
        let steps = before.count().saturating_sub(before.0 % 2)..self.count();
        let last = self.count().saturating_sub(self.0 % 2)..self.count();
        let touches = |new: u64| {
            let from = new ^ (1 << new.max(1).ilog2());
            [new, from].contains(&u64::from(bucket.0))
        };
        match steps.end.checked_sub(steps.start) {
            Some(0..=Self::STEPS) => steps.chain(last).any(touches),
            _ => true,
        }
    }
}

/// Twice how often all items were removed at once, and 1 more while they are being removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushEpoch(pub u64);

impl FlushEpoch {
    /// The next one: the beginning of a removal, or its end.
    #[must_use]
    pub fn next(self) -> Self {
        FlushEpoch(self.0.wrapping_add(1))
    }

    /// Whether items are being removed.
    pub fn is_flushing(self) -> bool {
        !self.0.is_multiple_of(2)
    }
}
