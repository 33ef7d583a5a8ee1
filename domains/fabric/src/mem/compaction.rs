//! Compaction: the agent moves shared memory into pages of 2 MiB, whatever the host's default.
//!
//! Dropping a mapping, and looking for pins before [writes are
//! sealed](crate::mem::memfd::seal_writes), take the kernel some 70 us for each MiB in pages of 4
//! KiB, and 0.1 to 0.3 us in pages of 2 MiB. The host's switch (`shmem_enabled`) is not ours, but
//! `madvise(MADV_COLLAPSE)` ignores every value but `deny`. The call copies a piece into one huge
//! page and unmaps the small pages everywhere. An access meanwhile waits, and the next access maps
//! the huge page.
//!
//! The test whether a piece is populated must not take the inode's lock, which a process that may
//! write the memory can keep. So `mincore` is used and not `SEEK_DATA`.

use std::fs::File;
use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::mem::mapping::{Mapping, PAGE, TABLE};
use crate::mem::memfd::{create_memory, read_only};
use crate::os::thread::processor_time;

/// Bytes of a piece. Smaller memory, and the rest behind the last whole piece, stay as they are.
pub const PIECE: u64 = TABLE as u64;

/// Least number of present pages of 4 KiB of a piece. A huge page populates the whole piece, so
/// memory grows by a seventh at most.
const ENOUGH: usize = TABLE / PAGE / 8 * 7;

/// Processor time of a piece that is not counted. A piece takes a few milliseconds, and some tens
/// when the kernel has to move other pages to make room for a huge one. A piece that a process has
/// mapped thousands of times takes longer.
const USUAL_TIME: Duration = Duration::from_millis(20);

/// Processor time beyond [`USUAL_TIME`] that all pieces of a memory may take together.
const MOST_EXTRA_TIME: Duration = Duration::from_millis(500);

/// A piece takes this long only if a process keeps the kernel's locks of its mappings busy.
const TOO_LONG: Duration = Duration::from_secs(1);

/// The compaction of one memory.
#[derive(Debug)]
pub struct Compaction {
    /// Read-only, so that writes can be sealed at any time.
    memory: File,
    /// For each whole piece, whether it needs no further look.
    is_done: Vec<bool>,
    /// Sum of the processor time of pieces beyond [`USUAL_TIME`].
    extra_time: Duration,
}

/// Result of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Another look would find nothing to do.
    Done,
    /// Some pieces may be ready later: they have few pages, or a page was pinned.
    Later,
    /// The kernel takes too long. Leave the memory as it is.
    TooLong,
    /// The caller's `goes_on` returned false.
    Stopped,
}

/// Result for one piece.
enum Outcome {
    Huge,
    NotNow,
    NoHugePages,
}

/// Checks whether this kernel supports compaction.
///
/// # Errors
/// The system's: EINVAL before Linux 6.1, without huge pages, or where `shmem_enabled` is `deny`.
pub fn available() -> io::Result<()> {
    let memory = create_memory(PIECE)?;
    let mapping = Mapping::of_file(&memory, TABLE, true)?;
    for page in (0..PIECE).step_by(PAGE) {
        if let Some(byte) = mapping.byte(page) {
            byte.store(1, Ordering::Relaxed);
        }
    }
    match mapping.collapse() {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Err(error),
        // Any other error may be temporary.
        _ => Ok(()),
    }
}

impl Compaction {
    /// Prepares `len` bytes of memory made by [`create_memory`] or
    /// [`create_for_peers`](crate::mem::memfd::create_for_peers).
    ///
    /// # Errors
    /// The system's.
    pub fn new(memory: &File, len: u64) -> io::Result<Self> {
        Ok(Compaction {
            memory: read_only(memory)?,
            is_done: vec![false; (len / PIECE) as usize],
            extra_time: Duration::ZERO,
        })
    }

    /// Bytes of the pieces that need a look.
    pub fn remaining(&self) -> u64 {
        PIECE * self.is_done.iter().filter(|done| !**done).count() as u64
    }

    /// Looks at each piece once, and moves populated pieces into huge pages. Before each piece it
    /// calls `goes_on` with the bytes that are left of this look, and stops if `goes_on` returns
    /// false. Not to be called while the memory migrates.
    ///
    /// # Errors
    /// The system's, unless the error concerns a single piece.
    pub fn look(&mut self, mut goes_on: impl FnMut(u64) -> bool) -> io::Result<Look> {
        let mut left = self.remaining();
        for piece in 0..self.is_done.len() {
            if self.is_done[piece] {
                continue;
            }
            if !goes_on(left) {
                return Ok(Look::Stopped);
            }
            left -= PIECE;
            let (begun, worked) = (Instant::now(), processor_time());
            match self.compact(piece as u64 * PIECE)? {
                Outcome::Huge => self.is_done[piece] = true,
                Outcome::NotNow => {}
                // The kernel has tried hard to allocate one.
                Outcome::NoHugePages => return Ok(Look::Later),
            }
            let work = processor_time().saturating_sub(worked);
            if self.is_too_long(work, begun.elapsed()) {
                return Ok(Look::TooLong);
            }
        }
        Ok(match self.remaining() {
            0 => Look::Done,
            _ => Look::Later,
        })
    }

    /// Counts the processor time and the elapsed time of a piece; returns whether to stop for good.
    fn is_too_long(&mut self, work: Duration, elapsed: Duration) -> bool {
        self.extra_time += work.saturating_sub(USUAL_TIME);
        self.extra_time > MOST_EXTRA_TIME || elapsed > TOO_LONG
    }

    fn compact(&self, start: u64) -> io::Result<Outcome> {
        let piece = Mapping::of_part(&self.memory, start, TABLE, false)?;
        if piece.present_pages()? < ENOUGH {
            return Ok(Outcome::NotNow);
        }
        let error = match piece.collapse() {
            Ok(()) => return Ok(Outcome::Huge),
            Err(error) => error,
        };
        match error.raw_os_error() {
            Some(libc::ENOMEM) => Ok(Outcome::NoHugePages),
            // A page is pinned, or a thread waits for a missing page (userfaultfd).
            Some(libc::EAGAIN | libc::EBUSY | libc::EINVAL) => Ok(Outcome::NotNow),
            _ => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::memfd::create_for_peers;

    #[test]
    fn the_time_beyond_the_usual_is_bounded() {
        let memory = create_for_peers(PIECE).unwrap();
        let new = || Compaction::new(&memory, PIECE).unwrap();
        let millis = Duration::from_millis;
        let mut usual = new();
        assert!((0..1000).all(|_| !usual.is_too_long(millis(10), millis(100))));
        assert!((0..5).all(|_| !usual.is_too_long(millis(60), millis(200))));
        let mut mapped_by_thousands = new();
        let longer =
            (0..1000).take_while(|_| !mapped_by_thousands.is_too_long(millis(60), millis(60)));
        assert_eq!(longer.count(), 12);
        assert!(
            new().is_too_long(millis(1000), millis(1000)),
            "in one piece"
        );
        assert!(
            new().is_too_long(millis(1), millis(1001)),
            "waiting for a lock counts"
        );
    }
}
