//! What is counted of the commands: by each connection for itself, so that no two threads write
//! to the same place; summed up when somebody asks.
//!
//! What counts is memcached's, whether a command came as text or as a message.

use std::ops::{AddAssign, Index};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::protocol::change::{Delta, Mode, Stored};
use crate::store::SetError;
use crate::store::operations::Counted;

/// What is counted; see memcached's `doc/protocol.txt` for what each of them means.
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
    /// Stays 0: a flush leaves nothing that a get could find.
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
    /// Connections that were idle for too long.
    IdleKicks,
    /// Clients that began in the binary protocol.
    BinaryClients,
    /// Gets whose line was too long.
    LongGets,
    /// Times when no connection was accepted for a while.
    ListenDisabled,
    /// Their length in microseconds.
    ListenDisabledUs,
    /// Walks through all items for `lru_crawler metadump`.
    CrawlerStarts,
    BytesRead,
    BytesWritten,
}

const KINDS: usize = Count::BytesWritten as usize + 1;

/// One connection's counts, which only the thread that serves it adds to.
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

    /// A get found its key, or did not; one that `touches` changes the time of what it finds.
    pub(crate) fn get(&self, touches: bool, found: bool) {
        if touches {
            self.touch(found)
        } else {
            self.one(Count::GetCommands);
            self.look(found, [Count::GetHits, Count::GetMisses]);
        }
    }

    /// A touch found its key, or did not.
    pub(crate) fn touch(&self, found: bool) {
        self.one(Count::TouchCommands);
        self.look(found, [Count::TouchHits, Count::TouchMisses]);
    }

    /// A delete found its key, or did not.
    pub(crate) fn delete(&self, found: bool) {
        self.look(found, [Count::DeleteHits, Count::DeleteMisses]);
    }

    fn look(&self, found: bool, [hits, misses]: [Count; 2]) {
        self.one(if found { hits } else { misses });
    }

    /// A value was stored, or was not as others had changed the key. That there was one to be stored
    /// counts by itself: [`Count::SetCommands`].
    pub(crate) fn stored(&self, mode: Mode, stored: Stored) {
        if mode == Mode::Compare {
            self.one(match stored {
                Stored::Stored { .. } => Count::CasHits,
                Stored::Exists => Count::CasBadValues,
                _ => Count::CasMisses,
            });
        }
    }

    /// A number was changed, or was not.
    pub(crate) fn counted(&self, delta: Delta, counted: Counted) {
        match (counted, delta) {
            (Counted::Done { .. }, Delta::Add(_)) => self.one(Count::IncrHits),
            (Counted::Done { .. }, Delta::Subtract(_)) => self.one(Count::DecrHits),
            (Counted::NotFound, Delta::Add(_)) => self.one(Count::IncrMisses),
            (Counted::NotFound, Delta::Subtract(_)) => self.one(Count::DecrMisses),
            _ => {}
        }
    }

    /// There was no room for a value or a number.
    pub(crate) fn failed(&self, error: SetError) {
        match error {
            SetError::TooLarge => self.one(Count::TooLarge),
            SetError::OutOfMemory | SetError::NotFetched => self.one(Count::NoMemory),
            SetError::Key(_) | SetError::Memory(_) => {}
        }
    }
}

/// Many connections' counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sums([u64; KINDS]);

impl Default for Sums {
    fn default() -> Self {
        Sums([0; KINDS])
    }
}

impl Sums {
    /// What was counted since `earlier`.
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
