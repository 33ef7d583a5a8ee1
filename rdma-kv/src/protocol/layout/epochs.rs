//! Epochs of the index: by them a reader that misses a key knows whether to look again.

use super::Bucket;

/// Growth of an index: twice its main buckets, plus 1 while slots of the two buckets of the last
/// step are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableEpoch(pub u64);

impl TableEpoch {
    /// After more steps than this, every lookup counts as disturbed.
    const STEPS: u64 = 64;

    /// The epoch of an index with `count` main buckets.
    pub fn new(count: u32, moving: bool) -> Self {
        TableEpoch(u64::from(count) * 2 + u64::from(moving))
    }

    /// Main buckets in use.
    pub fn count(self) -> u64 {
        self.0 / 2
    }

    /// Whether a slot may have been moved within or out of `bucket` since `before`.
    pub fn disturbs(self, before: TableEpoch, bucket: Bucket) -> bool {
        // The last step before `before` counts if it was not over.
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

/// Removals of all items: twice their number, plus 1 during a removal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlushEpoch(pub u64);

impl FlushEpoch {
    /// The next epoch: the beginning or the end of a removal.
    #[must_use]
    pub fn next(self) -> Self {
        FlushEpoch(self.0.wrapping_add(1))
    }

    /// Whether items are being removed.
    pub fn is_flushing(self) -> bool {
        !self.0.is_multiple_of(2)
    }
}
