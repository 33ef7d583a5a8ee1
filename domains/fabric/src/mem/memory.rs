//! Memory that can migrate while it is used: the part that each process takes in a migration.
//!
//! Fresh memory replaces the old memory at the same addresses. An access in flight meets either
//! memory; in fresh memory the access waits until its chunk is resident. So operations need not be
//! stopped, and none is lost.
//!
//! * A writable mapping changes to the fresh memory in one `mremap`, after the fresh memory was
//!   registered with userfaultfd: an access to a chunk that is not resident waits.
//! * A read-only mapping cannot be registered. A counter announces the migration: a read that finds
//!   the counter changed, before or after copying, takes each chunk from the memory that has it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard};

use super::copy::{BLOCK, copy, load};
use super::device_registrations::DeviceRegistrations;
use super::faults::{self, Faults, RequestChunk};
use super::mapping::{Mapping, PAGE};
use super::migration::{
    MigrationCounter, MigrationState, OldMemory, ParkedMapping, SMALL, Snapshot,
};
use super::migration_table::MigrationTable;
use super::nontemporal::copy_to_peer;
use super::status::Status;
use crate::error::OpError;
use crate::os::thread::lock;

/// Bytes after which a long transfer checks the status and the migration counter again.
const RECHECK_BYTES: usize = 64 * 1024;

/// Bytes of a block of [`Memory::fold`] during a migration; each block is looked up in the table.
const COPIED: usize = 4096;

/// The memory of a region, as one process maps it.
#[derive(Debug)]
pub struct Memory {
    /// First field, so that registrations end before the memory is unmapped.
    device_registrations: DeviceRegistrations,
    mapping: Mapping,
    writable: bool,
    status: Arc<Status>,
    migrations: MigrationCounter,
    migration: Mutex<Option<MigrationState>>,
}

impl Memory {
    /// Maps `len` bytes of `file` for reading, and for writing if `writable`.
    ///
    /// # Errors
    /// The system's, also when the descriptor does not permit this.
    pub fn map(file: &File, len: usize, writable: bool, status: Arc<Status>) -> io::Result<Self> {
        let mapping = Mapping::of_file(file, len, writable)?;
        Ok(Self::new(mapping, writable, status))
    }

    /// Zeroed memory of this process alone.
    pub(crate) fn private(len: usize) -> io::Result<Self> {
        Ok(Self::new(Mapping::private(len)?, true, Arc::default()))
    }

    /// The caller's buffer as memory of this process alone.
    pub(crate) fn adopted(words: Box<[u64]>) -> Self {
        Self::new(Mapping::adopted(words), true, Arc::default())
    }

    /// Registrations of the memory with devices. They end before the memory migrates or is
    /// unmapped.
    pub fn device_registrations(&self) -> &DeviceRegistrations {
        &self.device_registrations
    }

    fn new(mapping: Mapping, writable: bool, status: Arc<Status>) -> Self {
        Memory {
            device_registrations: DeviceRegistrations::default(),
            mapping,
            writable,
            status,
            migrations: MigrationCounter::default(),
            migration: Mutex::default(),
        }
    }

    /// The status, which says whether the memory may still be used.
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Whether the memory is mapped for writing.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Changes to `fresh` memory, whose resident chunks are listed in `table`. From now on the old
    /// memory is not written. `request` asks the agent for chunks that accesses wait for. A second
    /// call for the same migration does nothing: an agent that resumes it repeats the order.
    ///
    /// # Errors
    /// The system's; or the previous migration is incomplete. Then the memory has been revoked and
    /// [detached](Memory::detach).
    pub fn start_migration(
        &self,
        fresh: &File,
        table: &File,
        request: RequestChunk,
    ) -> io::Result<ParkedMapping> {
        let moved = self.has_begun(table).and_then(|has_begun| {
            if has_begun {
                Ok(ParkedMapping(None))
            } else {
                self.change(fresh, table, request)
            }
        });
        moved.inspect_err(|_| self.give_up())
    }

    /// Whether the migration with this table is in progress.
    fn has_begun(&self, table: &File) -> io::Result<bool> {
        match self.migration().as_ref() {
            Some(migration) => migration.table().is_in(table),
            None => Ok(false),
        }
    }

    fn change(
        &self,
        fresh: &File,
        table: &File,
        request: RequestChunk,
    ) -> io::Result<ParkedMapping> {
        self.finish_previous_migration()?;
        // A device neither waits for a chunk that is not resident, nor notices that the memory behind
        // the addresses was replaced.
        self.device_registrations.invalidate();
        let table = MigrationTable::map(table, self.mapping.len())?;
        if self.writable {
            self.change_written(fresh, table, request)
        } else {
            self.change_read(fresh, table)
        }
    }

    /// Ends a previous migration whose end was not announced, if all chunks are resident.
    fn finish_previous_migration(&self) -> io::Result<()> {
        let is_incomplete = |migration: &MigrationState| !migration.is_complete();
        if self.migration().as_ref().is_some_and(is_incomplete) {
            return Err(io::Error::other("the previous migration has not ended"));
        }
        self.finish_migration();
        Ok(())
    }

    fn change_written(
        &self,
        fresh: &File,
        table: MigrationTable,
        request: RequestChunk,
    ) -> io::Result<ParkedMapping> {
        let faults = faults::faults()?;
        // Registered before an access can reach the mapping and before the mapping has a page;
        // watched before an access can wait.
        let fresh = Mapping::closed(fresh, self.mapping.len())?;
        faults.register(&pages(&fresh))?;
        fresh.open()?;
        self.watch(&faults, table, request);
        // Without parking, the switch would also unmap every page of the old memory, while all
        // threads of the process wait.
        let parked = self.mapping.park().ok();
        faults.while_remapping(|| self.mapping.replace_by(fresh))?;
        Ok(ParkedMapping(parked))
    }

    fn change_read(&self, fresh: &File, table: MigrationTable) -> io::Result<ParkedMapping> {
        let old = self.mapping.park()?;
        self.read_from(old, table);
        self.mapping.replace_by_file(fresh)?;
        Ok(ParkedMapping(None))
    }

    /// Takes part in a migration that is in progress when the memory is mapped: `old` has the
    /// chunks that are not resident. No access may have happened before.
    ///
    /// # Errors
    /// As [`Memory::start_migration`].
    pub fn join_migration(
        &self,
        old: &File,
        table: &File,
        request: RequestChunk,
    ) -> io::Result<()> {
        self.device_registrations.invalidate();
        let joined = MigrationTable::map(table, self.mapping.len()).and_then(|table| {
            if self.writable {
                self.join_written(table, request)
            } else {
                let old = Mapping::of_file(old, self.mapping.len(), false)?;
                self.read_from(old, table);
                Ok(())
            }
        });
        joined.inspect_err(|_| self.give_up())
    }

    fn join_written(&self, table: MigrationTable, request: RequestChunk) -> io::Result<()> {
        let faults = faults::faults()?;
        faults.register(&pages(&self.mapping))?;
        // In a process that locks its memory (`mlockall`) all pages are mapped, and no access
        // waits.
        self.mapping.take_out_pages()?;
        self.watch(&faults, table, request);
        Ok(())
    }

    fn watch(&self, faults: &Arc<Faults>, table: MigrationTable, request: RequestChunk) {
        let watch = faults.watch(pages(&self.mapping), table, request);
        *self.migration() = Some(MigrationState::Writable(Arc::clone(faults), watch));
    }

    /// Must precede the first read of the fresh memory.
    fn read_from(&self, old: Mapping, table: MigrationTable) {
        *self.migration() = Some(MigrationState::ReadOnly(OldMemory::new(old, table)));
        self.migrations.start();
    }

    /// Wakes accesses that wait for chunks which are resident now.
    pub fn wake_resident(&self) {
        // The lock is held meanwhile: an address that waits in this migration must not be resolved
        // in the next.
        if let Some(MigrationState::Writable(faults, watch)) = self.migration().as_ref() {
            faults.wake_resident(watch);
        }
    }

    /// Requests every chunk that an access waits for, and all later ones, with `request`, because
    /// earlier requests may have been lost. If all chunks are resident, the migration ends, because
    /// that message may have been lost too.
    pub fn request_again(&self, request: RequestChunk) {
        let migration = self.migration();
        match migration.as_ref() {
            Some(migration) if migration.is_complete() => {}
            Some(MigrationState::Writable(faults, watch)) => {
                faults.wake_resident(watch);
                return faults.request_again(watch, request);
            }
            _ => return,
        }
        drop(migration);
        self.finish_migration();
    }

    /// Ends the migration: all chunks are resident.
    pub fn finish_migration(&self) {
        let migration = self.migration().take();
        self.migrations.stop();
        if let Some(migration) = migration {
            migration.end();
        }
        if self.status.check().is_ok() {
            self.device_registrations.allow();
        }
    }

    /// Whether a migration is in progress.
    pub fn is_migrating(&self) -> bool {
        self.migration().is_some()
    }

    /// Revokes the memory before zeros replace its bytes.
    fn give_up(&self) {
        self.status.revoke();
        self.detach();
    }

    /// Replaces the memory by zeros of this process. The status must have ended before. Accesses
    /// that wait go on.
    pub fn detach(&self) {
        self.device_registrations.invalidate();
        let migration = self.migration().take();
        let parked = self.park(migration.as_ref());
        // A failure means that the process cannot map more memory. Then the old memory stays, and
        // the status keeps operations from using it.
        let _ = self.mapping.detach();
        parked.drop_in_background();
        if let Some(migration) = migration {
            migration.end();
        }
    }

    /// Parks the memory that is about to be detached, so that its page tables are freed elsewhere.
    /// During a migration of a writable mapping there are few of them yet.
    fn park(&self, migration: Option<&MigrationState>) -> ParkedMapping {
        let is_large = self.mapping.len() > SMALL;
        match migration {
            None | Some(MigrationState::ReadOnly(_)) if is_large => {
                ParkedMapping(self.mapping.park().ok())
            }
            _ => ParkedMapping(None),
        }
    }

    pub(crate) fn mapping(&self) -> &Mapping {
        &self.mapping
    }

    /// Copies bytes out.
    ///
    /// # Safety
    /// The range must lie within the memory. `to` must be writable for `len` bytes and, unless it
    /// is another shared mapping, not accessed by anyone else.
    pub(crate) unsafe fn read(&self, at: usize, to: *mut u8, len: usize) -> Result<(), OpError> {
        let mut done = 0;
        let mut snapshot = self.snapshot()?;
        while done < len {
            let piece = (len - done).min(RECHECK_BYTES);
            // SAFETY: a part of the ranges that the caller promises.
            unsafe { self.copy_out(snapshot, at + done, to.add(done), piece) };
            // Acquire: later loads happen after those of this piece; pairs with the Release fence
            // in `write`, or with the store of a word.
            fence(Ordering::Acquire);
            let now = self.snapshot()?;
            // Bytes that were copied during a switch may be neither old nor new.
            if now == snapshot {
                done += piece;
            }
            snapshot = now;
        }
        Ok(())
    }

    /// Folds bytes in blocks, most of them without a copy: see
    /// [`Mapped::fold`](crate::Mapped::fold).
    ///
    /// # Safety
    /// The range must lie within the memory.
    pub(crate) unsafe fn fold<A: Clone>(
        &self,
        at: usize,
        len: usize,
        mut all: A,
        each: impl Fn(&mut A, &[u8]),
    ) -> Result<A, OpError> {
        let mut done = 0;
        let mut snapshot = self.snapshot()?;
        while done < len {
            let piece = (len - done).min(RECHECK_BYTES);
            let mut with_piece = all.clone();
            // SAFETY: a part of the range that the caller promises.
            unsafe { self.fold_piece(snapshot, at + done, piece, &mut with_piece, &each) };
            // Acquire: as in `read`.
            fence(Ordering::Acquire);
            let now = self.snapshot()?;
            // As in `read`.
            if now == snapshot {
                all = with_piece;
                done += piece;
            }
            snapshot = now;
        }
        Ok(all)
    }

    /// # Safety
    /// As `fold`.
    #[inline(always)]
    unsafe fn fold_piece<A>(
        &self,
        snapshot: Snapshot,
        at: usize,
        len: usize,
        all: &mut A,
        each: impl Fn(&mut A, &[u8]),
    ) {
        if snapshot.is_migrating() {
            // SAFETY: the caller's promise.
            return unsafe { self.fold_copies::<COPIED, A>(snapshot, at, len, all, each) };
        }
        let start = (self.mapping.start() + at) as *const u8;
        let whole = len - len % BLOCK;
        for done in (0..whole).step_by(BLOCK) {
            // SAFETY: a whole block of the range that the caller promises.
            each(all, &unsafe { load(start.add(done)) });
        }
        // SAFETY: the rest of it.
        unsafe { self.fold_copies::<BLOCK, A>(snapshot, at + whole, len - whole, all, each) };
    }

    /// Folds blocks of `N` bytes that are copied.
    ///
    /// # Safety
    /// As `fold`.
    unsafe fn fold_copies<const N: usize, A>(
        &self,
        snapshot: Snapshot,
        at: usize,
        len: usize,
        all: &mut A,
        each: impl Fn(&mut A, &[u8]),
    ) {
        let mut block = [0; N];
        for done in (0..len).step_by(N) {
            let block = &mut block[..N.min(len - done)];
            // SAFETY: a part of the range that the caller promises, and a block of ours that is as
            // long.
            unsafe { self.copy_out(snapshot, at + done, block.as_mut_ptr(), block.len()) };
            each(all, block);
        }
    }

    /// # Safety
    /// As `read`.
    unsafe fn copy_out(&self, snapshot: Snapshot, at: usize, to: *mut u8, len: usize) {
        let migration = if snapshot.is_migrating() {
            self.migration().clone()
        } else {
            None
        };
        let from = self.mapping.start() + at;
        match migration {
            Some(MigrationState::ReadOnly(old)) => {
                // SAFETY: the caller's promise.
                unsafe { old.copy_out(from as _, at, to, len) };
                old.drop_in_background();
            }
            // SAFETY: the caller's promise.
            _ => unsafe { copy(from as _, to, len) },
        }
    }

    /// Copies bytes in.
    ///
    /// # Safety
    /// The memory must be writable and the range within it. `from` must be readable for `len`
    /// bytes and, unless it is another shared mapping, not written by anyone else.
    pub(crate) unsafe fn write(
        &self,
        at: usize,
        from: *const u8,
        len: usize,
    ) -> Result<(), OpError> {
        // SAFETY: the caller's promise.
        unsafe { self.write_by(copy, at, from, len) }
    }

    /// Copies in bytes that another processor will read: see [`copy_to_peer`].
    ///
    /// # Safety
    /// As `write`.
    pub(crate) unsafe fn write_to_peer(
        &self,
        at: usize,
        from: *const u8,
        len: usize,
    ) -> Result<(), OpError> {
        // SAFETY: the caller's promise.
        unsafe { self.write_by(copy_to_peer, at, from, len) }
    }

    /// # Safety
    /// As `write`; the requirements of [`copy`] must suffice for `copy`.
    #[inline(always)]
    unsafe fn write_by(
        &self,
        copy: unsafe fn(*const u8, *mut u8, usize),
        at: usize,
        from: *const u8,
        len: usize,
    ) -> Result<(), OpError> {
        let to = (self.mapping.start() + at) as *mut u8;
        let mut done = 0;
        self.status.check()?;
        while done < len {
            let piece = (len - done).min(RECHECK_BYTES);
            // SAFETY: a part of the ranges that the caller promises.
            unsafe { copy(from.add(done), to.add(done), piece) };
            // Release: later stores become visible after this piece; pairs with the Acquire fence
            // in `read`, or with the load of a word.
            fence(Ordering::AcqRel);
            self.status.check()?;
            done += piece;
        }
        Ok(())
    }

    #[inline]
    fn snapshot(&self) -> Result<Snapshot, OpError> {
        self.status.check()?;
        Ok(self.migrations.snapshot())
    }

    fn migration(&self) -> MutexGuard<'_, Option<MigrationState>> {
        lock(&self.migration)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(migration) = self.migration().take() {
            migration.end();
        }
    }
}

fn pages(mapping: &Mapping) -> Range<usize> {
    mapping.start()..mapping.start() + mapping.len().next_multiple_of(PAGE)
}
