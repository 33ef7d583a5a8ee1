//! Memory that can move while it is used: what a process does when its agent moves a region.
//!
//! The addresses stay; other memory comes to be behind them. An access that is on its way, in
//! whatever thread, meets the old memory or the new, and in the new waits for what has not
//! arrived. So no operation has to be kept out, and none is lost.
//!
//! * A mapping that is written as well changes to the fresh memory in one `mremap`, registered
//!   with userfaultfd before: an access to a chunk that has not arrived waits.
//! * A mapping that is only read cannot be registered. Its status says that it moves, and a read
//!   that sees so, before or after it copied, takes each chunk from the old memory or the new,
//!   wherever it is.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::error::OpError;
use crate::mem::faults::{self, Faults, RequestChunk, Watch};
use crate::mem::mapping::{BLOCK, Mapping, PAGE, copy, load};
use crate::mem::migration_table::{CHUNK, MigrationTable};
use crate::mem::nontemporal::copy_to_peer;
use crate::mem::status::Status;

/// Long transfers look at the region's state again after this many bytes.
const RECHECK_BYTES: usize = 64 * 1024;

/// Bytes of the blocks that are folded while the memory migrates: each is looked for in two places.
const COPIED: usize = 4096;

/// The memory of a region as one process has it mapped.
#[derive(Debug)]
pub struct Memory {
    /// First, so that it is dropped before the memory is unmapped.
    device_registrations: crate::mem::device_registrations::DeviceRegistrations,
    mapping: Mapping,
    writable: bool,
    status: Arc<Status>,
    migrations: MigrationCounter,
    migration: Mutex<Option<MigrationState>>,
}

/// Whether the memory is moving in a way that reads have to know, and how often it has.
///
/// ```text
///  31                                  1    0
///  +------------------------------------+--------+
///  | moves begun                        | moving |
///  +------------------------------------+--------+
/// ```
#[derive(Debug, Default)]
struct MigrationCounter(AtomicU32);

/// What a read saw of [`MigrationCounter`]; another value afterwards means: do it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Snapshot(u32);

/// A move that has begun.
#[derive(Clone, Debug)]
enum MigrationState {
    /// Accesses wait.
    Writable(Arc<Faults>, Arc<Watch>),
    /// Reads look into the table.
    ReadOnly(Arc<OldMemory>),
}

/// What of a region is still in the old memory.
#[derive(Debug)]
struct OldMemory {
    old: Mapping,
    table: MigrationTable,
}

/// Old memory that is no longer in use; dropping it takes the kernel a while when there is a lot.
/// Until it is dropped the agent cannot [freeze](crate::mem::Copier::freeze) the old memory.
#[derive(Debug)]
#[must_use = "drop it when nobody waits"]
pub struct ParkedMapping(Option<Mapping>);

/// Memory that is dropped at once: a thread would cost more.
const SMALL: usize = 1 << 20;

impl ParkedMapping {
    /// Drops it while the caller goes on.
    pub fn drop_in_background(self) {
        if self.0.as_ref().is_some_and(|old| old.len() > SMALL) {
            // Without a thread it is dropped here.
            let _ = std::thread::Builder::new().spawn(move || drop(self));
        }
    }
}

impl Memory {
    /// Maps `len` bytes of `file`, for reading or for both.
    ///
    /// # Errors
    /// The system's, also when the descriptor does not allow it.
    pub fn map(file: &File, len: usize, writable: bool, status: Arc<Status>) -> io::Result<Self> {
        let mapping = Mapping::of_file(file, len, writable)?;
        Ok(Self::new(mapping, writable, status))
    }

    /// Zeroed memory of this process alone.
    pub(crate) fn private(len: usize) -> io::Result<Self> {
        Ok(Self::new(Mapping::private(len)?, true, Arc::default()))
    }

    /// Memory of this process alone, which was somebody's buffer.
    pub(crate) fn adopted(words: Box<[u64]>) -> Self {
        Self::new(Mapping::adopted(words), true, Arc::default())
    }

    /// What devices have been told of it, which they must forget before it moves or goes.
    pub fn device_registrations(&self) -> &crate::mem::device_registrations::DeviceRegistrations {
        &self.device_registrations
    }

    /// Lets no device use the old memory any more, nor the fresh one before all of it is there: it
    /// would neither wait for what has not arrived, nor notice that it uses the wrong one.
    fn invalidate_registrations(&self) {
        self.device_registrations.invalidate();
    }

    fn new(mapping: Mapping, writable: bool, status: Arc<Status>) -> Self {
        Memory {
            device_registrations: crate::mem::device_registrations::DeviceRegistrations::default(),
            mapping,
            writable,
            status,
            migrations: MigrationCounter::default(),
            migration: Mutex::default(),
        }
    }

    /// Whether it may still be used.
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// Whether it is mapped for writing.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Changes to `fresh` memory, which `table` tells of; from now on nothing is written to the
    /// old. Chunks that an access waits for are asked for with `ask`. Who has changed before, in
    /// the same move, has nothing to do: the next agent tells it again.
    ///
    /// # Errors
    /// The system's; or a move that had begun has not brought everything. Then the memory has
    /// been revoked and [detached](Memory::detach).
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

    /// Whether it moves, and this is the table of the move.
    fn has_begun(&self, table: &File) -> io::Result<bool> {
        let migration = self.migration();
        let begun = migration
            .as_ref()
            .map(|migration| migration.table().is_in(table));
        begun.unwrap_or(Ok(false))
    }

    fn change(
        &self,
        fresh: &File,
        table: &File,
        request: RequestChunk,
    ) -> io::Result<ParkedMapping> {
        self.finish_previous_migration()?;
        self.invalidate_registrations();
        let table = MigrationTable::map(table, self.mapping.len())?;
        if self.writable {
            self.change_written(fresh, table, request)
        } else {
            self.change_read(fresh, table)
        }
    }

    /// A move whose end nobody has told of ends if all has arrived.
    fn finish_previous_migration(&self) -> io::Result<()> {
        match self.migration().as_ref() {
            Some(migration) if !migration.is_complete() => {
                return Err(io::Error::other("it has not ended moving"));
            }
            _ => {}
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
        // Registered before any access can reach it and before it has any page, and watched
        // before any access can wait.
        let fresh = Mapping::closed(fresh, self.mapping.len())?;
        faults.register(&pages(&fresh))?;
        fresh.open()?;
        self.watch(&faults, table, request);
        // Without it the switch would also have to take down every page of the old memory, while
        // all threads of the process wait.
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

    /// For memory that is mapped while its region migrates: `old` is where the rest is. Nobody may
    /// have used the memory before.
    ///
    /// # Errors
    /// As [`Memory::start_migration`].
    pub fn join_migration(
        &self,
        old: &File,
        table: &File,
        request: RequestChunk,
    ) -> io::Result<()> {
        self.invalidate_registrations();
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
        // A process that locks its memory has all of its pages, and so would wait for none.
        self.mapping.take_out_pages()?;
        self.watch(&faults, table, request);
        Ok(())
    }

    fn watch(&self, faults: &Arc<Faults>, table: MigrationTable, request: RequestChunk) {
        let watch = faults.watch(pages(&self.mapping), table, request);
        *self.migration() = Some(MigrationState::Writable(Arc::clone(faults), watch));
    }

    /// To be done before the first byte of the fresh memory can be read.
    fn read_from(&self, old: Mapping, table: MigrationTable) {
        *self.migration() = Some(MigrationState::ReadOnly(Arc::new(OldMemory { old, table })));
        self.migrations.start();
    }

    /// Chunks have arrived: whoever waited for one of them goes on.
    pub fn wake_resident(&self) {
        // Held meanwhile: an address that waited in this move must not be resolved in the next.
        if let Some(MigrationState::Writable(faults, watch)) = self.migration().as_ref() {
            faults.wake_resident(watch);
        }
    }

    /// Asks for every chunk that an access waits for, and for all later ones, with `ask`: when
    /// what was asked before may not have been heard. If all have arrived, that may not have been
    /// heard either.
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

    /// All has arrived: the memory is as if it had always been there.
    pub fn finish_migration(&self) {
        let migration = self.migration().take();
        self.migrations.stop();
        end(migration);
        if self.status.check().is_ok() {
            self.device_registrations.allow();
        }
    }

    /// Whether a move has begun and not ended.
    pub fn is_migrating(&self) -> bool {
        self.migration().is_some()
    }

    /// Nobody may take for bytes of the region what comes in their place.
    fn give_up(&self) {
        self.status.revoke();
        self.detach();
    }

    /// Lets go of the memory. Its status must have ended before: accesses meet zeros from now
    /// on, and whoever waited goes on.
    pub fn detach(&self) {
        self.invalidate_registrations();
        let migration = self.migration().take();
        let parked = self.park(migration.as_ref());
        // It fails when the process can map nothing any more; then the old memory stays, and the
        // status keeps everybody from using it.
        let _ = self.mapping.detach();
        parked.drop_in_background();
        end(migration);
    }

    /// The page tables of what is let go, for somebody else to drop: a gigabyte takes the kernel
    /// tens of milliseconds. Where accesses wait there are not many yet.
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
            // Acquire: whatever is loaded after this piece is loaded after it; pairs with the
            // Release fence in `write`, or with the store of a word.
            fence(Ordering::Acquire);
            let now = self.snapshot()?;
            // What was copied while the memory moved may be neither old nor new.
            if now == snapshot {
                done += piece;
            }
            snapshot = now;
        }
        Ok(())
    }

    /// Folds bytes in blocks, where they are, see [`Mapped::fold`](crate::Mapped::fold).
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
            // SAFETY: a part of the range that the caller promises, and a block of ours that is as long.
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

    /// The same, for bytes that another processor is going to read: see [`copy_to_peer`].
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
    /// As `write`; what [`copy`] demands must do for `copy`.
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
            // Release: whatever is stored after this piece is seen after it; pairs with the
            // Acquire fence in `read`, or with the load of a word.
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
        self.migration
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        end(self.migration().take());
    }
}

fn end(migration: Option<MigrationState>) {
    match migration {
        Some(MigrationState::Writable(faults, watch)) => faults.unwatch(&watch),
        Some(MigrationState::ReadOnly(old)) => old.drop_in_background(),
        None => {}
    }
}

fn pages(mapping: &Mapping) -> Range<usize> {
    mapping.start()..mapping.start() + mapping.len().next_multiple_of(PAGE)
}

impl MigrationState {
    fn table(&self) -> &MigrationTable {
        match self {
            MigrationState::Writable(_, watch) => watch.table(),
            MigrationState::ReadOnly(old) => &old.table,
        }
    }

    fn is_complete(&self) -> bool {
        self.table().is_all_resident()
    }
}

impl MigrationCounter {
    const MIGRATING: u32 = 1;
    const ONE_MIGRATION: u32 = 1 << 1;

    /// From now on reads look for each chunk where it is; those in flight start again.
    fn start(&self) {
        self.update(|word| (word | Self::MIGRATING).wrapping_add(Self::ONE_MIGRATION));
    }

    fn stop(&self) {
        self.update(|word| word & !Self::MIGRATING);
    }

    fn update(&self, change: impl Fn(u32) -> u32) {
        // Release: pairs with the Acquire in `snapshot`. It does not fail.
        let _ = self
            .0
            .fetch_update(Ordering::Release, Ordering::Relaxed, |word| {
                Some(change(word))
            });
    }

    #[inline]
    fn snapshot(&self) -> Snapshot {
        // Acquire: pairs with the Release in `update`.
        Snapshot(self.0.load(Ordering::Acquire))
    }
}

impl Snapshot {
    fn is_migrating(self) -> bool {
        self.0 & MigrationCounter::MIGRATING != 0
    }
}

impl OldMemory {
    /// Neither the control thread, whose news everybody waits for, nor one that reads waits until the
    /// old memory is dropped.
    fn drop_in_background(self: Arc<Self>) {
        if let Some(old) = Arc::into_inner(self) {
            ParkedMapping(Some(old.old)).drop_in_background();
        }
    }

    /// Copies each part from where it is; `fresh` is the address of `at` in the new memory.
    ///
    /// # Safety
    /// As [`Memory::read`].
    unsafe fn copy_out(&self, fresh: *const u8, at: usize, to: *mut u8, len: usize) {
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
    /// As [`Memory::read`], within one chunk.
    unsafe fn copy_chunk(&self, fresh: *const u8, at: usize, to: *mut u8, len: usize) {
        let chunk = at as u64 / CHUNK;
        if !self.table.is_resident(chunk) {
            let old = self.old.start() + at;
            // SAFETY: the old mapping is as long as the new one.
            unsafe { copy(old as _, to, len) };
            // Acquire: the table is looked at after the bytes. The agent drops old bytes, so
            // that zeros are read there, only after it said that the chunk has arrived.
            fence(Ordering::Acquire);
            if !self.table.is_resident(chunk) {
                return;
            }
        }
        // SAFETY: the caller's promise.
        unsafe { copy(fresh, to, len) };
    }
}
