//! Counters of commands. Each connection has its own, so that no two threads write to one place; a
//! reader sums them up.
//!
//! The counters are memcached's, whether a command came as text or as a message.

use std::ops::{AddAssign, Index};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::protocol::change::{Delta, Mode, Stored};
use crate::store::SetError;
use crate::store::operations::Counted;

/// A counter; see memcached's `doc/protocol.txt` for meanings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Count {
    GetCommands,
    SetCommands,
    FlushCommands,
    TouchCommands,
    MetaCommands,
    GetHits,
    GetMisses,
    GetExpired,
    /// Always 0: a flush leaves nothing that a get could find.
    GetFlushed,
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
    /// Connections closed for being idle.
    IdleKicks,
    /// Clients that began in the binary protocol.
    BinaryClients,
    /// Gets beyond the limit of a line.
    LongGets,
    /// Periods without accepting connections.
    ListenDisabled,
    /// Their length in microseconds.
    ListenDisabledUs,
    /// Walks through all items for `lru_crawler metadump`.
    CrawlerStarts,
    BytesRead,
    BytesWritten,
}

const KINDS: usize = Count::BytesWritten as usize + 1;

/// Counters of one connection; only its thread adds to them.
#[derive(Debug)]
pub(crate) struct Counts([AtomicU64; KINDS]);

impl Default for Counts {
    fn default() -> Self {
        Counts([const { AtomicU64::new(0) }; KINDS])
    }
}

impl Counts {
    pub(crate) fn add(&self, count: Count, more: u64) {
        let counter = &self.0[count as usize];
        counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
    }

    pub(crate) fn one(&self, count: Count) {
        self.add(count, 1);
    }

    /// Counts a get, or a touch if it changes the expiry.
    pub(crate) fn get(&self, touches: bool, found: bool) {
        if touches {
            self.touch(found)
        } else {
            self.one(Count::GetCommands);
            self.look(found, [Count::GetHits, Count::GetMisses]);
        }
    }

    /// Counts a touch.
    pub(crate) fn touch(&self, found: bool) {
        self.one(Count::TouchCommands);
        self.look(found, [Count::TouchHits, Count::TouchMisses]);
    }

    /// Counts a delete.
    pub(crate) fn delete(&self, found: bool) {
        self.look(found, [Count::DeleteHits, Count::DeleteMisses]);
    }

    fn look(&self, found: bool, [hits, misses]: [Count; 2]) {
        self.one(if found { hits } else { misses });
    }

    /// Counts the result of a store; the attempt is counted by [`Count::SetCommands`].
    pub(crate) fn stored(&self, mode: Mode, stored: Stored) {
        if mode == Mode::Compare {
            self.one(match stored {
                Stored::Stored { .. } => Count::CasHits,
                Stored::Exists => Count::CasBadValues,
                _ => Count::CasMisses,
            });
        }
    }

    /// Counts a change of a number.
    pub(crate) fn counted(&self, delta: Delta, counted: Counted) {
        match (counted, delta) {
            (Counted::Done { .. }, Delta::Add(_)) => self.one(Count::IncrHits),
            (Counted::Done { .. }, Delta::Subtract(_)) => self.one(Count::DecrHits),
            (Counted::NotFound, Delta::Add(_)) => self.one(Count::IncrMisses),
            (Counted::NotFound, Delta::Subtract(_)) => self.one(Count::DecrMisses),
            _ => {}
        }
    }

    /// Counts a failure to store.
    pub(crate) fn failed(&self, error: SetError) {
        match error {
            SetError::TooLarge => self.one(Count::TooLarge),
            SetError::OutOfMemory | SetError::NotFetched => self.one(Count::NoMemory),
            SetError::Key(_) | SetError::Memory(_) => {}
        }
    }
}

/// Sums of counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sums([u64; KINDS]);

impl Default for Sums {
    fn default() -> Self {
        Sums([0; KINDS])
    }
}

impl Sums {
    /// Difference to `earlier`.
    pub(crate) fn since(&self, earlier: &Sums) -> Sums {
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
