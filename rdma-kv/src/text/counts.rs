//! What is counted of the commands: by each connection for itself, so that no two threads write
//! to the same place; summed up when somebody asks.

use std::ops::{AddAssign, Index};
use std::sync::atomic::{AtomicU64, Ordering};

/// What is counted; see memcached's `doc/protocol.txt` for what each of them means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Count {
    GetCommands,
    SetCommands,
    FlushCommands,
    TouchCommands,
    MetaCommands,
    GetHits,
    GetMisses,
    GetExpired,
    DeleteMisses,
    DeleteHits,
    IncrMisses,
    IncrHits,
    DecrMisses,
    DecrHits,
    CasMisses,
    CasHits,
    CasBadValues,
    TouchHits,
    TouchMisses,
    TooLarge,
    NoMemory,
    AuthCommands,
    AuthErrors,
    Yields,
    BytesRead,
    BytesWritten,
}

const KINDS: usize = Count::BytesWritten as usize + 1;

/// One connection's counts, which only the thread that serves it adds to.
#[derive(Debug, Default)]
pub(super) struct Counts([AtomicU64; KINDS]);

impl Counts {
    pub(super) fn add(&self, count: Count, more: u64) {
        let counter = &self.0[count as usize];
        counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
    }
}

/// Many connections' counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums([u64; KINDS]);

impl Sums {
    /// What was counted since `earlier`.
    pub(super) fn since(&self, earlier: &Sums) -> Sums {
        let mut sums = *self;
        for (sum, earlier) in sums.0.iter_mut().zip(earlier.0) {
            *sum = sum.wrapping_sub(earlier);
        }
        sums
    }
}

impl AddAssign<&Counts> for Sums {
    fn add_assign(&mut self, counts: &Counts) {
        for (sum, counter) in self.0.iter_mut().zip(&counts.0) {
            *sum = sum.wrapping_add(counter.load(Ordering::Relaxed));
        }
    }
}

impl Index<Count> for Sums {
    type Output = u64;

    fn index(&self, count: Count) -> &u64 {
        &self.0[count as usize]
    }
}
