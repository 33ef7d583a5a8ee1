//! The copier of a migration: the agent moves the bytes of a region to fresh memory.
//!
//! When a node leaves whose processes may have mapped a region, the remaining processes change to
//! fresh, empty memory. The agent alone copies the old memory, each chunk once, and lists resident
//! chunks in a table. A process that needs a chunk requests it and waits; other chunks follow in
//! the background. Copied chunks are dropped from the old memory.
//!
//! Copying overwrites, so a reader that touches fresh memory too early, and leaves zero pages
//! there, does no harm. Former members cannot change the fresh memory once they could never write
//! the old memory, or once that is [frozen](Copier::freeze) or copied whole.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, fallocate};

use crate::key::Partition;
use crate::mem::forked_syscall::ForkedSyscall;
use crate::mem::mapping::{Mapping, PAGE};
use crate::mem::memfd::{is_spoiled, read_only, seal_writes};
use crate::mem::migration_table::{CHUNK, MigrationTableWriter};
use crate::os::thread::{lock, now, pause, processor_time};

const ZEROS: [u8; PAGE] = [0; PAGE];

/// Chunks of a piece that is dropped at a time.
const DROPPED: u64 = (4 << 20) / CHUNK;

/// Usual bound on the processor time of dropping a piece: tens of microseconds, or a millisecond if
/// a few processes have touched each of its pages. A piece that a process has mapped thousands of
/// times takes longer. Not elapsed time, because a busy machine delays threads.
const USUAL_TIME: Duration = Duration::from_millis(2);

/// Multiple of [`USUAL_TIME`] that no thread waits for a processor. A drop that takes longer waits
/// for the kernel's locks of the memory, which a process keeps busy.
const LONG: u32 = 25;

/// A kernel that took this long to refuse a seal has waited in vain for pinned pages, and would
/// again.
const IN_VAIN: Duration = Duration::from_millis(50);

/// Pause between two attempts to seal memory that remaining processes still have mapped.
const GLANCE: Duration = Duration::from_micros(500);

/// Bytes that are punched at a time when the whole memory is dropped. For longer pieces, processes
/// that drop their mappings would wait for the kernel's locks.
const PUNCHED: u64 = 4 << 20;

/// The migration of one region to fresh memory.
#[derive(Debug)]
pub struct Copier {
    /// The old memory, read-only.
    from: File,
    /// The old memory, for dropping copied chunks.
    old: File,
    fresh: File,
    len: u64,
    table: MigrationTableWriter,
    cursor: Mutex<Cursor>,
    dropping: Mutex<Dropping>,
}

/// An attempt to make the old memory unwritable for all processes. Ends when dropped.
#[derive(Debug)]
pub struct Freezing<'a> {
    copier: &'a Copier,
    child: ForkedSyscall,
}

/// Old memory that has been copied whole.
#[derive(Debug)]
pub struct Leftover {
    memory: File,
    len: u64,
}

#[derive(Debug)]
struct Cursor {
    /// All chunks before this one are resident.
    next: u64,
    resident: u64,
}

#[derive(Debug, Default)]
struct Dropping {
    /// All chunks before this one have been dropped.
    next: u64,
    /// Dropping took too long: the rest is dropped when no process waits any more.
    is_slow: bool,
}

impl Copier {
    /// Prepares the migration of `len` bytes from one memory to another, both made by
    /// [`create_memory`](crate::mem::memfd::create_memory) or
    /// [`create_for_peers`](crate::mem::memfd::create_for_peers).
    ///
    /// # Errors
    /// The system's.
    pub fn new(old: File, fresh: File, len: u64) -> io::Result<Self> {
        Self::with_table(old, fresh, len, MigrationTableWriter::create(len)?)
    }

    /// Resumes a migration that another agent has begun, from its [parts](Copier::parts). A
    /// resident chunk is not copied again, because it may have been written since.
    ///
    /// # Errors
    /// The system's.
    pub fn resume([old, table]: [File; 2], fresh: File, len: u64) -> io::Result<Self> {
        let is_frozen = is_spoiled(&old)?;
        let copier = Self::with_table(old, fresh, len, MigrationTableWriter::resume(table, len)?)?;
        if is_frozen {
            copier.keep_whole();
        }
        Ok(copier)
    }

    fn with_table(
        old: File,
        fresh: File,
        len: u64,
        table: MigrationTableWriter,
    ) -> io::Result<Self> {
        let is_resident = |chunk: &u64| table.is_resident(*chunk);
        let cursor = Cursor {
            next: 0,
            resident: (0..table.chunks()).filter(is_resident).count() as u64,
        };
        Ok(Copier {
            from: read_only(&old)?,
            old,
            fresh,
            len,
            table,
            cursor: Mutex::new(cursor),
            dropping: Mutex::default(),
        })
    }

    /// The old memory and the table: with the fresh memory, all that another agent needs to resume
    /// the migration. For no other process.
    pub fn parts(&self) -> [BorrowedFd<'_>; 2] {
        [self.old.as_fd(), self.table.memory().as_fd()]
    }

    /// Whether chunks may be copied, since this agent or another called [`Copier::release`].
    pub fn is_released(&self) -> bool {
        self.table.is_released()
    }

    /// The table to hand out, read-only.
    ///
    /// # Errors
    /// The system's.
    pub fn table(&self) -> io::Result<File> {
        self.table.hand_out()
    }

    /// The old memory, read-only: for a process that opens the region during the migration.
    ///
    /// # Errors
    /// The system's.
    pub fn old(&self) -> io::Result<File> {
        read_only(&self.from)
    }

    /// Begins to make the old memory unwritable for every process, even with a writable descriptor.
    /// Remaining processes must unmap it, which they do after the change to the fresh memory.
    /// Frozen memory cannot be dropped piece by piece: all of it stays until the end of the
    /// migration.
    ///
    /// May follow [`Copier::release`]: a former member may write until all is frozen or copied.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock): too many children hang already, because a process
    /// keeps the locks of memory of the domain `of`. The system's: no further process.
    pub fn freeze(&self, of: Partition) -> io::Result<Freezing<'_>> {
        Ok(Freezing {
            copier: self,
            child: ForkedSyscall::start(of, &self.old, seal, 0)?,
        })
    }

    /// Forbids dropping pieces from now on.
    fn keep_whole(&self) {
        self.dropping().next = self.chunks();
    }

    /// The old memory, if it has pages that can be dropped. For memory that peers may write, once
    /// all chunks are resident.
    ///
    /// # Errors
    /// The system's.
    pub fn leftover(&self) -> io::Result<Option<Leftover>> {
        if self.dropping().next >= self.chunks() || is_empty(&self.old)? {
            return Ok(None);
        }
        let (memory, len) = (self.old.try_clone()?, self.len);
        Ok(Some(Leftover { memory, len }))
    }

    /// Permits copying: all remaining processes have changed to the fresh memory or are fenced.
    /// Before, a process might still write to the old memory, and the bytes would be lost.
    pub fn release(&self) {
        self.table.release();
    }

    /// Copies a chunk, if it is not resident yet.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) before [`Copier::release`]. The system's: there is
    /// no memory left, or a process that may write the fresh memory has sealed it. The chunk is not
    /// resident.
    pub fn fetch(&self, chunk: u64) -> io::Result<()> {
        let mut cursor = self.cursor();
        self.fetch_with(&mut cursor, chunk)
    }

    /// Copies the first chunk that is not resident; returns whether there was one.
    ///
    /// # Errors
    /// As [`Copier::fetch`].
    pub fn fetch_next(&self) -> io::Result<bool> {
        let Some(chunk) = self.next_chunk() else {
            return Ok(false);
        };
        let is_released = self.table.is_released();
        // Only for the whole memory: finding single holes takes a lock that a process with the
        // right to write can keep (`SEEK_DATA`), and `mincore`, which takes no lock, reports
        // swapped pages as holes.
        let is_empty = is_released && is_empty(&self.from)?;
        let mut cursor = self.cursor();
        if is_empty && !self.table.is_resident(chunk) {
            self.set_resident(&mut cursor, chunk)
        } else {
            self.fetch_with(&mut cursor, chunk)?
        }
        Ok(true)
    }

    fn next_chunk(&self) -> Option<u64> {
        let mut cursor = self.cursor();
        while cursor.next < self.chunks() && self.table.is_resident(cursor.next) {
            cursor.next += 1;
        }
        (cursor.next < self.chunks()).then_some(cursor.next)
    }

    /// Drops a copied piece from the old memory; returns whether there is more to drop at present.
    /// For one thread, while no process waits for a chunk, and for memory that peers may only read:
    /// otherwise the call may never return.
    ///
    /// The kernel visits every mapping of the piece, of which a former member may have thousands.
    /// Once a drop took long, the rest stays until all chunks are resident, and is then dropped at
    /// once.
    ///
    /// # Errors
    /// The system's: a holder has sealed the memory, which then stays until no process has it.
    pub fn drop_copied(&self) -> io::Result<bool> {
        self.drop_copied_usually_in(USUAL_TIME)
    }

    fn drop_copied_usually_in(&self, usual: Duration) -> io::Result<bool> {
        let mut dropping = self.dropping();
        let end = self.droppable(&dropping);
        if end <= dropping.next {
            return Ok(false);
        }
        let (start, begun, worked) = (dropping.next, Instant::now(), processor_time());
        // No second attempt after a failure, which would repeat.
        dropping.next = self.chunks();
        punch(&self.old, start * CHUNK, (end - start) * CHUNK)?;
        dropping.next = end;
        let work = processor_time().saturating_sub(worked);
        dropping.is_slow |= work >= usual || begun.elapsed() >= usual.saturating_mul(LONG);
        Ok(self.droppable(&dropping) > end)
    }

    /// The end of the next piece to drop.
    fn droppable(&self, dropping: &Dropping) -> u64 {
        let next = dropping.next;
        let most = if dropping.is_slow {
            self.chunks()
        } else {
            self.chunks().min(next + DROPPED)
        };
        // Readers of the old memory check the table again before they trust a copy.
        let end = (next..most).find(|chunk| !self.table.is_resident(*chunk));
        match end {
            Some(_) if dropping.is_slow => next,
            Some(end) => end,
            None => most,
        }
    }

    /// Bytes of chunks that are not resident.
    pub fn remaining(&self) -> u64 {
        let resident = self.cursor().resident;
        self.len.saturating_sub(resident * CHUNK)
    }

    /// Chunks of the region.
    pub fn chunks(&self) -> u64 {
        self.table.chunks()
    }

    fn fetch_with(&self, cursor: &mut Cursor, chunk: u64) -> io::Result<()> {
        if !self.table.is_released() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if chunk >= self.chunks() || self.table.is_resident(chunk) {
            return Ok(());
        }
        let start = chunk * CHUNK;
        let end = self.len.min(start + CHUNK);
        self.copy(start, end)?;
        self.set_resident(cursor, chunk);
        Ok(())
    }

    fn set_resident(&self, cursor: &mut Cursor, chunk: u64) {
        self.table.set_resident(chunk);
        cursor.resident += 1;
    }

    /// Copies a range except pages of zeros, so holes stay holes. Reading the file and writing
    /// through a mapping take no inode lock; writing the file would. A process that may write the
    /// memory can keep that lock.
    fn copy(&self, start: u64, end: u64) -> io::Result<()> {
        thread_local!(static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; CHUNK as usize]));
        BUFFER.with_borrow_mut(|buffer| {
            let bytes = &mut buffer[..(end - start) as usize];
            self.from.read_exact_at(bytes, start)?;
            let runs = populated(bytes);
            if runs.is_empty() {
                return Ok(());
            }
            let window = Mapping::of_part(&self.fresh, start, bytes.len(), true);
            window.map_err(sealed)?.fill(bytes, &runs)
        })
    }

    /// On a poisoned lock only the progress counter may be wrong.
    fn cursor(&self) -> MutexGuard<'_, Cursor> {
        lock(&self.cursor)
    }

    fn dropping(&self) -> MutexGuard<'_, Dropping> {
        lock(&self.dropping)
    }
}

fn sealed(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            io::Error::new(error.kind(), "a process that may write it has sealed it")
        }
        _ => error,
    }
}

/// Runs of pages that are not all zeros.
fn populated(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for page in (0..bytes.len()).step_by(PAGE) {
        let page = page..bytes.len().min(page + PAGE);
        if bytes[page.clone()] == ZEROS[..page.len()] {
            continue;
        }
        match runs.last_mut() {
            Some(run) if run.end == page.start => run.end = page.end,
            _ => runs.push(page),
        }
    }
    runs
}

/// Whether memory has no pages.
fn is_empty(memory: &File) -> io::Result<bool> {
    Ok(memory.metadata()?.blocks() == 0)
}

impl Freezing<'_> {
    /// Waits up to `timeout` until the old memory is frozen; returns whether it is. Otherwise the
    /// attempt goes on.
    ///
    /// # Errors
    /// The attempt has failed: a page is pinned, or a process that may write the memory has sealed
    /// its seals.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<bool> {
        let frozen = self.child.wait(Some(timeout))?;
        if frozen.is_some() {
            self.copier.keep_whole();
        }
        Ok(frozen.is_some())
    }
}

impl Leftover {
    /// Drops the memory in a forked child, and waits for the end of the child, which may never
    /// come.
    ///
    /// # Errors
    /// As [`Copier::freeze`]; the system's: a holder has sealed the memory, which then stays until
    /// no process has it.
    pub fn drop_forked(self, of: Partition) -> io::Result<()> {
        let mut child = ForkedSyscall::start(of, &self.memory, punch_all, self.len)?;
        // No holder can enlarge the memory meanwhile.
        drop(self);
        child.wait(None).map(drop)
    }
}

/// Retries until no process has the memory mapped for writing. Runs in a child.
fn seal(memory: &File, _: u64) -> io::Result<()> {
    loop {
        let begun = now();
        match seal_writes(memory) {
            Err(error) if is_busy(&error) && now().saturating_sub(begun) < IN_VAIN => pause(GLANCE),
            result => return result,
        }
    }
}

fn is_busy(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::EBUSY)
}

/// Drops all pages. Runs in a child.
fn punch_all(memory: &File, len: u64) -> io::Result<()> {
    let mut pieces = (0..len).step_by(PUNCHED as usize);
    pieces.try_for_each(|start| punch(memory, start, PUNCHED.min(len - start)))
}

/// Drops the pages of a range; mappings of them read zeros.
fn punch(file: &File, start: u64, len: u64) -> io::Result<()> {
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(fallocate(file, mode, start, len)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;
    use crate::mem::memfd::create_memory;

    /// Regression: dropping a piece with many mappings takes long, and processes that waited for a
    /// chunk waited for the drop, too.
    #[test]
    fn memory_that_takes_long_to_drop_is_dropped_at_the_end() {
        const NEVER_LONG: Duration = Duration::MAX;
        const ALWAYS_LONG: Duration = Duration::ZERO;
        let len = 16 << 20;
        let (old, fresh) = (create_memory(len).unwrap(), create_memory(len).unwrap());
        old.write_all_at(&vec![1; len as usize], 0).unwrap();
        let copier = Copier::new(old.try_clone().unwrap(), fresh, len).unwrap();
        copier.release();
        let fetch = |to: u64| (0..to).for_each(|chunk| copier.fetch(chunk).unwrap());
        let drop_in = |usual| copier.drop_copied_usually_in(usual).unwrap();
        let chunks_left = || old.metadata().unwrap().blocks() * 512 / CHUNK;
        let chunks = copier.chunks();

        fetch(1);
        assert_eq!(chunks_left(), chunks, "fetching a chunk drops nothing");
        assert!(!drop_in(NEVER_LONG));
        assert_eq!(chunks_left(), chunks - 1);
        fetch(2 * DROPPED + 2);
        assert!(drop_in(NEVER_LONG), "another piece has been copied");
        assert_eq!(chunks_left(), chunks - 1 - DROPPED);
        assert!(!drop_in(ALWAYS_LONG), "the rest waits for the end");
        let left = chunks_left();
        assert_eq!(left, chunks - 1 - 2 * DROPPED);
        fetch(chunks - 1);
        assert!(!drop_in(NEVER_LONG));
        assert_eq!(chunks_left(), left);
        fetch(chunks);
        assert!(!drop_in(NEVER_LONG), "all the rest at once");
        assert_eq!(chunks_left(), 0);
    }
}
