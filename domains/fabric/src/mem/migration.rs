//! The state of a migration in a process: which chunks are in the old memory and which in the
//! fresh.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering, fence};

use super::copy::copy;
use super::faults::{Faults, Watch};
use super::mapping::Mapping;
use super::migration_table::{CHUNK, MigrationTable};

/// Mappings of up to this many bytes are dropped at once: a thread would cost more.
pub(super) const SMALL: usize = 1 << 20;

/// A migration that has begun.
#[derive(Clone, Debug)]
pub(super) enum MigrationState {
    /// The mapping is writable: accesses wait for their chunk.
    Writable(Arc<Faults>, Arc<Watch>),
    /// The mapping is read-only: reads look up each chunk in the table.
    ReadOnly(Arc<OldMemory>),
}

impl MigrationState {
    pub(super) fn table(&self) -> &MigrationTable {
        match self {
            MigrationState::Writable(_, watch) => watch.table(),
            MigrationState::ReadOnly(old) => &old.table,
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.table().is_all_resident()
    }

    /// Ends the migration: accesses that wait go on.
    pub(super) fn end(self) {
        match self {
            MigrationState::Writable(faults, watch) => faults.unwatch(&watch),
            MigrationState::ReadOnly(old) => old.drop_in_background(),
        }
    }
}

/// Number of migrations begun, and whether one is in progress.
///
/// ```text
///  31                                  1    0
///  +------------------------------------+-----------+
///  | migrations begun                   | migrating |
///  +------------------------------------+-----------+
/// ```
#[derive(Debug, Default)]
pub(super) struct MigrationCounter(AtomicU32);

/// A value of [`MigrationCounter`]. A read repeats its copy if another value follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Snapshot(u32);

impl MigrationCounter {
    const MIGRATING: u32 = 1;
    const ONE_MIGRATION: u32 = 1 << 1;

    /// Makes later reads look up each chunk, and reads in flight repeat.
    pub(super) fn start(&self) {
        self.update(|word| (word | Self::MIGRATING).wrapping_add(Self::ONE_MIGRATION));
    }

    pub(super) fn stop(&self) {
        self.update(|word| word & !Self::MIGRATING);
    }

    fn update(&self, change: impl Fn(u32) -> u32) {
        // Release: pairs with the Acquire in `snapshot`. `Some` never fails.
        let _ = self
            .0
            .fetch_update(Ordering::Release, Ordering::Relaxed, |word| {
                Some(change(word))
            });
    }

    #[inline]
    pub(super) fn snapshot(&self) -> Snapshot {
        // Acquire: pairs with the Release in `update`.
        Snapshot(self.0.load(Ordering::Acquire))
    }
}

impl Snapshot {
    pub(super) fn is_migrating(self) -> bool {
        self.0 & MigrationCounter::MIGRATING != 0
    }
}

/// The old memory of a read-only mapping, and the table of resident chunks.
#[derive(Debug)]
pub(super) struct OldMemory {
    mapping: Mapping,
    table: MigrationTable,
}

impl OldMemory {
    pub(super) fn new(mapping: Mapping, table: MigrationTable) -> Arc<Self> {
        Arc::new(OldMemory { mapping, table })
    }

    /// Unmaps the old memory with its last handle, in a thread of its own: neither the control
    /// thread, on whose messages all others wait, nor a reader waits for it.
    pub(super) fn drop_in_background(self: Arc<Self>) {
        if let Some(old) = Arc::into_inner(self) {
            ParkedMapping(Some(old.mapping)).drop_in_background();
        }
    }

    /// Copies each part from the memory that holds its chunk; `fresh` is the address of `at` in the
    /// fresh memory.
    ///
    /// # Safety
    /// As [`Memory::read`](super::Memory).
    pub(super) unsafe fn copy_out(&self, fresh: *const u8, at: usize, to: *mut u8, len: usize) {
        let mut done = 0;
        while done < len {
            let offset = at + done;
            let piece = (len - done).min(CHUNK as usize - offset % CHUNK as usize);
            // SAFETY: a part of the ranges that the caller promises.
            unsafe { self.copy_chunk(fresh.add(done), offset, to.add(done), piece) };
            done += piece;
        }
    }

    /// # Safety
    /// As `copy_out`, within one chunk.
    unsafe fn copy_chunk(&self, fresh: *const u8, at: usize, to: *mut u8, len: usize) {
        let chunk = at as u64 / CHUNK;
        if !self.table.is_resident(chunk) {
            let old = self.mapping.start() + at;
            // SAFETY: the old mapping is as long as the fresh one.
            unsafe { copy(old as _, to, len) };
            // Acquire: the table is read after the bytes. The agent drops old bytes, which then
            // read as zeros, only after the table lists the chunk as resident.
            fence(Ordering::Acquire);
            if !self.table.is_resident(chunk) {
                return;
            }
        }
        // SAFETY: the caller's promise.
        unsafe { copy(fresh, to, len) };
    }
}

/// A mapping of old memory that is no longer in use. Unmapping a large one takes the kernel tens of
/// milliseconds. Until then the agent cannot [freeze](super::Copier::freeze) the old memory.
#[derive(Debug)]
#[must_use = "drop it when no other thread waits"]
pub struct ParkedMapping(pub(super) Option<Mapping>);

impl ParkedMapping {
    /// Unmaps it in a thread of its own.
    pub fn drop_in_background(self) {
        if self.0.as_ref().is_some_and(|old| old.len() > SMALL) {
            // Without a thread it is dropped here.
            let _ = std::thread::Builder::new().spawn(move || drop(self));
        }
    }
}
