//! Memory in pages of 2 MiB, whatever the host gives shared memory: what the agent does.
//!
//! To drop a mapping, and to look for pins before [writes are sealed](crate::mem::memfd::seal_writes),
//! takes the kernel some 70 us for each MiB in pages of 4 KiB, and 0.1 to 0.3 us in pages of 2 MiB.
//! The host's switch (`shmem_enabled`) is not ours, but `madvise(MADV_COLLAPSE)` does not ask it
//! unless it says `deny`. It copies a piece into one page behind everybody's back, and takes the
//! small pages out of all mappings; an access waits meanwhile, and the next one maps the large page.
//!
//! What tells whether a piece is populated must not need the inode's lock, which a process that may
//! write the memory can keep: so it is `mincore`, not `SEEK_DATA`.

use std::fs::File;
use std::io;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::mem::mapping::{Mapping, PAGE, TABLE};
use crate::mem::memfd::{create_memory, read_only};
use crate::os::thread::processor_time;

/// Bytes of a piece. Memory that is smaller stays as it is, and so does the rest behind the last
/// whole piece.
pub const PIECE: u64 = TABLE as u64;

/// A piece with fewer pages of 4 KiB than this is left alone, because it would have all of them
/// afterwards: so memory grows by a seventh at most.
const ENOUGH: usize = TABLE / PAGE / 8 * 7;

/// A piece takes a few milliseconds of the processor, now and then some tens, when the kernel has to
/// move other pages to have a huge one. Each takes longer if somebody has it mapped thousands of times.
/// What they take beyond this is counted, and a memory may take so much of it.
const USUAL_TIME: Duration = Duration::from_millis(20);
const MOST_EXTRA_TIME: Duration = Duration::from_millis(500);

/// A piece takes so much time at all only if somebody keeps the kernel's locks of its mappings busy.
const TOO_LONG: Duration = Duration::from_secs(1);

/// Memory that is to be in huge pages.
#[derive(Debug)]
pub struct Compaction {
    /// For reading, so that it can be sealed at any time.
    memory: File,
    /// Of each whole piece, whether it needs no further look.
    is_done: Vec<bool>,
    /// What pieces have taken beyond the usual.
    extra_time: Duration,
}

/// What came of a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Another look would find nothing to do.
    Done,
    /// There are pieces that may be ready later: they have few pages, or somebody held one.
    Later,
    /// It takes the kernel too long. Leave it as it is.
    TooLong,
    /// It was told to stop.
    Stopped,
}

/// What came of a piece.
enum Outcome {
    Huge,
    NotNow,
    NoHugePages,
}

/// Says whether this kernel can do it.
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
        // At another time it may work.
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

    /// Bytes that a look would look at.
    pub fn remaining(&self) -> u64 {
        PIECE * self.is_done.iter().filter(|done| !**done).count() as u64
    }

    /// Looks at each piece once, and brings into a huge page what is populated. Before each it calls
    /// `goes_on` with the bytes that are left of this look, and stops if that returns false. While
    /// the memory moves, nobody may do this.
    ///
    /// # Errors
    /// The system's, which has nothing to do with any piece.
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
                // The kernel has tried hard to make one.
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

    /// Counts what a piece took of the processor, and at all.
    fn is_too_long(&mut self, work: Duration, elapsed: Duration) -> bool {
        self.extra_time += work.saturating_sub(USUAL_TIME);
        self.extra_time > MOST_EXTRA_TIME || elapsed > TOO_LONG
    }

    fn compact(&self, start: u64) -> io::Result<Outcome> {
        let piece = Mapping::of_part(&self.memory, start, TABLE)?;
        if piece.present_pages()? < ENOUGH {
            return Ok(Outcome::NotNow);
        }
        let error = match piece.collapse() {
            Ok(()) => return Ok(Outcome::Huge),
            Err(error) => error,
        };
        match error.raw_os_error() {
            Some(libc::ENOMEM) => Ok(Outcome::NoHugePages),
            // Somebody holds a page, or waits for one that is missing (userfaultfd).
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
    fn a_few_pieces_may_take_long_but_not_all() {
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
        assert!(new().is_too_long(millis(1000), millis(1000)), "at once");
        assert!(
            new().is_too_long(millis(1), millis(1001)),
            "it waits for a lock"
        );
    }
}
