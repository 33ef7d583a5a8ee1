//! Moving the bytes of a region to fresh memory: what the agent does.
//!
//! When a node leaves whose processes may have mapped a region, those who stay change to fresh,
//! empty memory. The agent alone copies what the old memory holds, chunk by chunk, each once, and
//! says in a table which chunks have arrived. A process that needs one asks for it and waits; the
//! others come by and by. What has arrived is dropped from the old memory.
//!
//! Copying overwrites: a reader that touches the fresh memory too early leaves zeros there, and
//! does no harm by it. It relies on old memory that is [frozen](is_frozen) or that nobody but the
//! leaver writes and that is copied whole before anybody goes on.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::chunks::{self, CHUNK, Table, TableWriter};
use super::control::read_only;

/// A region on its way to fresh memory.
#[derive(Debug)]
pub struct Transfer {
    /// The old memory: for reading, and for dropping what has been copied.
    from: File,
    old: File,
    fresh: File,
    len: u64,
    table: TableWriter,
    shown: File,
    cursor: Mutex<Cursor>,
}

#[derive(Debug)]
struct Cursor {
    /// All chunks before this one have arrived.
    next: u64,
    arrived: u64,
}

impl Transfer {
    /// Prepares to move `len` bytes from one memory to another, both made by
    /// [`create_memory`](super::control::create_memory).
    ///
    /// # Errors
    /// The system's.
    pub fn new(old: File, fresh: File, len: u64) -> io::Result<Self> {
        let (table, shown) = Table::create(len)?;
        let cursor = Cursor {
            next: 0,
            arrived: 0,
        };
        Ok(Transfer {
            from: read_only(&old)?,
            old,
            fresh,
            len,
            table,
            shown,
            cursor: Mutex::new(cursor),
        })
    }

    /// The table to hand out, read-only.
    ///
    /// # Errors
    /// The system's.
    pub fn table(&self) -> io::Result<File> {
        self.shown.try_clone()
    }

    /// The old memory, read-only: for who opens the region while it moves.
    ///
    /// # Errors
    /// The system's.
    pub fn old(&self) -> io::Result<File> {
        self.from.try_clone()
    }

    /// Whether nobody can write the old memory any more through a descriptor that was reopened
    /// for writing, or a mapping made of one.
    pub fn is_frozen(&self) -> bool {
        is_frozen(&self.from)
    }

    /// Copies a chunk, if it has not arrived yet.
    ///
    /// # Errors
    /// The system's: there is no memory left. The chunk has not arrived.
    pub fn fetch(&self, chunk: u64) -> io::Result<()> {
        let mut cursor = self.cursor();
        self.fetch_with(&mut cursor, chunk)
    }

    /// Copies the first chunk that has not arrived; returns whether there was one.
    ///
    /// # Errors
    /// As [`Transfer::fetch`].
    pub fn fetch_next(&self) -> io::Result<bool> {
        let mut cursor = self.cursor();
        while cursor.next < self.chunks() && self.table.has_arrived(cursor.next) {
            cursor.next += 1;
        }
        let chunk = cursor.next;
        if chunk >= self.chunks() {
            return Ok(false);
        }
        self.fetch_with(&mut cursor, chunk)?;
        Ok(true)
    }

    /// Bytes that have not arrived.
    pub fn remaining(&self) -> u64 {
        let arrived = self.cursor().arrived;
        self.len.saturating_sub(arrived * CHUNK)
    }

    /// Chunks of the region.
    pub fn chunks(&self) -> u64 {
        chunks::count(self.len)
    }

    fn fetch_with(&self, cursor: &mut Cursor, chunk: u64) -> io::Result<()> {
        if chunk >= self.chunks() || self.table.has_arrived(chunk) {
            return Ok(());
        }
        let start = chunk * CHUNK;
        let end = self.len.min(start + CHUNK);
        self.copy(start, end)?;
        self.table.arrived(chunk);
        cursor.arrived += 1;
        // Readers of the old memory look at the table again before they believe what they read.
        punch(&self.old, start, CHUNK)
    }

    /// Copies what the old memory holds, without its holes.
    fn copy(&self, start: u64, end: u64) -> io::Result<()> {
        thread_local!(static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; CHUNK as usize]));
        let mut at = start;
        while let Some(data) = seek(&self.from, at, libc::SEEK_DATA)?.filter(|data| *data < end) {
            let hole = seek(&self.from, data, libc::SEEK_HOLE)?.unwrap_or(end);
            at = hole.min(end);
            BUFFER.with_borrow_mut(|buffer| {
                let bytes = &mut buffer[..(at - data) as usize];
                self.from.read_exact_at(bytes, data)?;
                self.fresh.write_all_at(bytes, data)
            })?;
        }
        Ok(())
    }

    /// A thread that panicked has changed nothing here by halves but a count for people.
    fn cursor(&self) -> MutexGuard<'_, Cursor> {
        self.cursor.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether no description of this memory was opened for writing, so that no mapping can come
/// from one either: a kernel gives a read lease on a file only then, and counts descriptors in
/// tables, in flight and behind mappings. The description that
/// [`create_memory`](super::control::create_memory) returns, and its duplicates, do not count.
fn is_frozen(read_only: &File) -> bool {
    let lease = |kind: libc::c_int| {
        // SAFETY: F_SETLEASE takes an integer.
        unsafe { libc::fcntl(read_only.as_raw_fd(), libc::F_SETLEASE, kind) == 0 }
    };
    lease(libc::F_RDLCK) && lease(libc::F_UNLCK)
}

/// The next place of a kind, or `None` after the last.
fn seek(file: &File, from: u64, whence: libc::c_int) -> io::Result<Option<u64>> {
    let from = libc::off_t::try_from(from).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: lseek takes integers; nobody uses the position of this description.
    let found = unsafe { libc::lseek(file.as_raw_fd(), from, whence) };
    match u64::try_from(found) {
        Ok(found) => Ok(Some(found)),
        Err(_) => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            error => Err(error),
        },
    }
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
