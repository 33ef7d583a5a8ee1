//! Moving the bytes of a region to fresh memory: what the agent does.
//!
//! When a node leaves whose processes may have mapped a region, those who stay change to fresh,
//! empty memory. The agent alone copies what the old memory holds, chunk by chunk, each once, and
//! says in a table which chunks have arrived. A process that needs one asks for it and waits; the
//! others come by and by. What has arrived is dropped from the old memory.
//!
//! Copying overwrites: a reader that touches the fresh memory too early leaves zeros there, and
//! does no harm by it. When the leavers are to be rid of, the old memory must be one that no
//! leaver could ever write, or be [frozen](Copier::freeze), or be copied whole.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::key::Partition;
use crate::mem::forked_syscall::ForkedSyscall;
use crate::mem::mapping::{Mapping, PAGE};
use crate::mem::memfd::{is_spoiled, read_only, seal_writes};
use crate::mem::migration_table::{CHUNK, MigrationTableWriter};
use crate::os::thread::{now, pause, processor_time};

const ZEROS: [u8; PAGE] = [0; PAGE];

/// Chunks that are dropped at a time.
const DROPPED: u64 = (4 << 20) / CHUNK;

/// To drop a piece takes tens of microseconds, a millisecond if a few have touched each of its pages,
/// and long if somebody has it mapped thousands of times. Counted is time of the processor: for its
/// turn on a busy machine a thread may wait longer than that.
const USUAL_TIME: Duration = Duration::from_millis(2);

/// So many times that long nobody waits for a turn: somebody keeps the kernel's locks of the memory
/// busy.
const LONG: u32 = 25;

/// If it took so long to find that memory cannot be sealed, the kernel has waited in vain for
/// pages that somebody has pinned, and would do so again.
const IN_VAIN: Duration = Duration::from_millis(50);

/// How often to look whether those who stay have dropped the old memory.
const GLANCE: Duration = Duration::from_micros(500);

/// Bytes that are punched at a time when all go: a larger piece keeps those from the kernel's locks
/// who drop their mappings.
const PUNCHED: u64 = 4 << 20;

/// A region on its way to fresh memory.
#[derive(Debug)]
pub struct Copier {
    /// The old memory: for reading, and for dropping what has been copied.
    from: File,
    old: File,
    fresh: File,
    len: u64,
    table: MigrationTableWriter,
    cursor: Mutex<Cursor>,
    dropping: Mutex<Dropping>,
}

/// The old memory is being made one that nobody can write. Ends when it is dropped.
#[derive(Debug)]
pub struct Freezing<'a> {
    copier: &'a Copier,
    child: ForkedSyscall,
}

/// Old memory of which all has been copied.
#[derive(Debug)]
pub struct Leftover {
    memory: File,
    len: u64,
}

#[derive(Debug)]
struct Cursor {
    /// All chunks before this one have arrived.
    next: u64,
    resident: u64,
}

#[derive(Debug, Default)]
struct Dropping {
    /// All chunks before this one have been dropped.
    next: u64,
    /// It took too long: the rest is dropped when nobody waits any more.
    is_slow: bool,
}

impl Copier {
    /// Prepares to move `len` bytes from one memory to another, both made by
    /// [`create_memory`](crate::mem::memfd::create_memory) or
    /// [`create_for_peers`](crate::mem::memfd::create_for_peers).
    ///
    /// # Errors
    /// The system's.
    pub fn new(old: File, fresh: File, len: u64) -> io::Result<Self> {
        Self::with_table(old, fresh, len, MigrationTableWriter::create(len)?)
    }

    /// Goes on with a move that another agent has begun, of which there are the
    /// [parts](Copier::parts): a chunk that has arrived is not copied again, because it may have
    /// been written since.
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

    /// The old memory, and how far the move is: with the fresh memory, all that another agent
    /// needs to go on with it. To hand to nobody else.
    pub fn parts(&self) -> [BorrowedFd<'_>; 2] {
        [self.old.as_fd(), self.table.memory().as_fd()]
    }

    /// From here on chunks may be copied, as [`Copier::release`] has said, of whatever agent.
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

    /// The old memory, read-only: for who opens the region while it moves.
    ///
    /// # Errors
    /// The system's.
    pub fn old(&self) -> io::Result<File> {
        read_only(&self.from)
    }

    /// Begins to make the old memory one that nobody can write any more, whatever they hold. Those
    /// who stay must drop it, which they do once they have changed to the fresh memory. Then it
    /// cannot be dropped piece by piece: all of it stays until the move has ended.
    ///
    /// It need not come before [`Copier::release`]: who leaves may write until all is frozen or copied.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock): too many processes of this one hang already because
    /// somebody keeps the locks of memory `of` this domain. The system's: it cannot have another process.
    pub fn freeze(&self, of: Partition) -> io::Result<Freezing<'_>> {
        Ok(Freezing {
            copier: self,
            child: ForkedSyscall::start(of, &self.old, seal, 0)?,
        })
    }

    /// Nothing can be dropped of it any more.
    fn keep_whole(&self) {
        self.dropping().next = self.chunks();
    }

    /// The old memory, if there is something in it that can be dropped: for memory that others may
    /// write, when all has arrived.
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

    /// From here on chunks may be copied: everybody who stays has changed to the fresh memory, or
    /// is fenced. Before, somebody might still write to the old memory what would be lost.
    pub fn release(&self) {
        self.table.release();
    }

    /// Copies a chunk, if it has not arrived yet.
    ///
    /// # Errors
    /// [`WouldBlock`](io::ErrorKind::WouldBlock) before [`Copier::release`]. The system's: there is
    /// no memory left, or a process that may write the fresh memory has sealed it. The chunk has
    /// not arrived.
    pub fn fetch(&self, chunk: u64) -> io::Result<()> {
        let mut cursor = self.cursor();
        self.fetch_with(&mut cursor, chunk)
    }

    /// Copies the first chunk that has not arrived; returns whether there was one.
    ///
    /// # Errors
    /// As [`Copier::fetch`].
    pub fn fetch_next(&self) -> io::Result<bool> {
        let Some(chunk) = self.next_chunk() else {
            return Ok(false);
        };
        let is_released = self.table.is_released();
        // Only of the whole: to find single holes takes a lock that who may write can keep
        // (`SEEK_DATA`), and what does not need it takes swapped pages for holes (`mincore`).
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

    /// Drops from the old memory a piece that has been copied; for one thread, when nobody waits
    /// for a chunk, and memory that others may only read: else it may never return. Returns whether
    /// there is more to drop at this time.
    ///
    /// The kernel looks at every mapping of the piece, and a leaver may have thousands. Once that
    /// took long, the rest stays until all has arrived and goes at once.
    ///
    /// # Errors
    /// The system's: a holder has sealed it. Then it stays until nobody has it.
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
        // If it fails it will not succeed later.
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
        // Readers of the old memory look at the table again before they believe what they read.
        let end = (next..most).find(|chunk| !self.table.is_resident(*chunk));
        match end {
            Some(_) if dropping.is_slow => next,
            Some(end) => end,
            None => most,
        }
    }

    /// Bytes that have not arrived.
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

    /// Copies what the old memory holds, without pages of zeros: holes stay holes. Neither to read
    /// it nor to write through a mapping takes the lock of an inode, which who may write that memory
    /// can keep; to write the file would.
    fn copy(&self, start: u64, end: u64) -> io::Result<()> {
        thread_local!(static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; CHUNK as usize]));
        BUFFER.with_borrow_mut(|buffer| {
            let bytes = &mut buffer[..(end - start) as usize];
            self.from.read_exact_at(bytes, start)?;
            let runs = populated(bytes);
            if runs.is_empty() {
                return Ok(());
            }
            let window = Mapping::of_writable_part(&self.fresh, start, bytes.len());
            window.map_err(sealed)?.fill(bytes, &runs)
        })
    }

    /// A thread that panicked has changed nothing here by halves but a count for people.
    fn cursor(&self) -> MutexGuard<'_, Cursor> {
        self.cursor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn dropping(&self) -> MutexGuard<'_, Dropping> {
        self.dropping.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Where there are pages with anything but zeros.
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

/// Whether memory has no page at all.
fn is_empty(memory: &File) -> io::Result<bool> {
    Ok(memory.metadata()?.blocks() == 0)
}

impl Freezing<'_> {
    /// Waits until the old memory is frozen, but not longer than this. Returns whether it is; if not,
    /// that goes on.
    ///
    /// # Errors
    /// It will not be: somebody has pinned a page, or a process that may write it has sealed its
    /// seals.
    pub fn wait(&mut self, timeout: Duration) -> io::Result<bool> {
        let frozen = self.child.wait(Some(timeout))?;
        if frozen.is_some() {
            self.copier.keep_whole();
        }
        Ok(frozen.is_some())
    }
}

impl Leftover {
    /// Drops it in a process of its own, and waits for the end of that, which may never come.
    ///
    /// # Errors
    /// Then it stays until nobody has it. As those of [`Copier::freeze`]; the system's: a holder has
    /// sealed it.
    pub fn drop_forked(self, of: Partition) -> io::Result<()> {
        let mut child = ForkedSyscall::start(of, &self.memory, punch_all, self.len)?;
        // Whoever has it cannot make it larger.
        drop(self);
        child.wait(None).map(drop)
    }
}

/// Tries until nobody has it mapped for writing. In a child.
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

/// In a child.
fn punch_all(memory: &File, len: u64) -> io::Result<()> {
    let mut pieces = (0..len).step_by(PUNCHED as usize);
    pieces.try_for_each(|start| punch(memory, start, PUNCHED.min(len - start)))
}

/// Gives pages back; who has them mapped sees zeros.
fn punch(file: &File, start: u64, len: u64) -> io::Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    let range = |n| libc::off_t::try_from(n).map_err(|_| io::ErrorKind::InvalidInput);
    let (start, len) = (range(start)?, range(len)?);
    // SAFETY: fallocate takes integers.
    match unsafe { libc::fallocate(file.as_raw_fd(), mode, start, len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;
    use crate::mem::memfd::create_memory;

    /// To drop a piece that is mapped very often takes long, and who waits for a chunk once waited
    /// for that, too.
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
        assert_eq!(chunks_left(), chunks, "who asked does not wait for that");
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
