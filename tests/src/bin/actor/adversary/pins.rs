//! Pages held by the kernel: it goes on to read and write them for a process whose mapping has gone.
//!
//! ```text
//!   feed ── read in flight ──> page, PINNED     the page is registered as a buffer with io_uring,
//!   page, COUNTED ── write ──> told             pipes and memory as files
//!   page, PINNED ─── write ──> memory, FILED
//!   page == kept ─── tee ────> copy             the page itself lies in a pipe
//! ```

use std::fs::File;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsRawFd;

use io_uring::squeue::Entry;
use io_uring::types::Fixed;
use io_uring::{IoUring, opcode};

use super::{COUNTED, FILED, PINNED, Result};

const PAGE: usize = 4096;
const WORD: u32 = 8;

/// Operations under way at a time.
const DEPTH: u32 = 4;

/// User data of the read that is always in flight, and of all other operations.
const READ: u64 = 1;
const OTHER: u64 = 2;

/// The registered files.
const FEED: Fixed = Fixed(0);
const TOLD: Fixed = Fixed(1);
const MEMORY: Fixed = Fixed(2);

/// The first page of a region, held by the kernel.
pub struct Pins {
    /// `None` where the system does not allow io_uring.
    ring: Option<Ring>,
    kept: (PipeReader, PipeWriter),
    copy: (PipeReader, PipeWriter),
}

impl Pins {
    /// Holds the first page of memory in a pipe and, with `by_ring`, as a buffer of a ring.
    pub fn new(memory: &File, by_ring: bool) -> Result<Self> {
        let page = Page::map(memory)?;
        let kept = io::pipe()?;
        page.give(&kept.1)?;
        let ring = if by_ring && Self::missing().is_none() {
            Some(Ring::new(&page, memory)?)
        } else {
            None
        };
        Ok(Pins {
            ring,
            kept,
            copy: io::pipe()?,
        })
    }

    /// The error of `io_uring`, if the system does not allow it.
    pub fn missing() -> Option<io::Error> {
        IoUring::new(DEPTH).err()
    }

    /// Lets the kernel write a number to the page, and a word of the page to the memory.
    pub fn go_on(&mut self, n: u64) -> Result<()> {
        match &mut self.ring {
            Some(ring) => ring.go_on(n),
            None => Ok(()),
        }
    }

    /// The counted word, as the kernel reads it from its buffer.
    pub fn pinned(&mut self) -> Result<Option<u64>> {
        self.ring.as_mut().map(Ring::counted).transpose()
    }

    /// The same, from the page in the pipe.
    pub fn piped(&mut self) -> Result<u64> {
        let (from, to) = (self.kept.0.as_raw_fd(), self.copy.1.as_raw_fd());
        // SAFETY: tee takes integers.
        let copied = unsafe { libc::tee(from, to, WORD as usize, 0) };
        done(copied == WORD as isize)?;
        read_word(&mut self.copy.0)
    }
}

struct Ring {
    uring: IoUring,
    /// The buffer's address when it was registered; nothing is mapped there any more.
    address: u64,
    feed: PipeWriter,
    told: PipeReader,
    is_reading: bool,
}

impl Ring {
    fn new(page: &Page, memory: &File) -> Result<Self> {
        let uring = IoUring::new(DEPTH)?;
        let (hungry, feed) = io::pipe()?;
        let (told, telling) = io::pipe()?;
        let buffer = libc::iovec {
            iov_base: page.0,
            iov_len: PAGE,
        };
        // SAFETY: the page is mapped. Later accesses by the kernel are to memory that other processes
        // write as well, and to which this process has no reference.
        unsafe { uring.submitter().register_buffers(&[buffer])? };
        // Only the ring keeps these ends open.
        let files = [hungry.as_raw_fd(), telling.as_raw_fd(), memory.as_raw_fd()];
        uring.submitter().register_files(&files)?;
        Ok(Ring {
            uring,
            address: page.0 as u64,
            feed,
            told,
            is_reading: false,
        })
    }

    fn go_on(&mut self, n: u64) -> Result<()> {
        if self.is_reading {
            // After the shrink this ends a read that had begun before.
            self.feed.write_all(&n.to_le_bytes())?;
        }
        self.write(MEMORY, PINNED, FILED)?;
        if !self.is_reading {
            let read = opcode::ReadFixed::new(FEED, self.at(PINNED), WORD, 0);
            self.post(read.build().user_data(READ))?;
            self.is_reading = true;
            self.uring.submit()?;
        }
        Ok(())
    }

    fn counted(&mut self) -> Result<u64> {
        self.write(TOLD, COUNTED, 0)?;
        read_word(&mut self.told)
    }

    /// Lets the kernel write a word of the page to a file.
    fn write(&mut self, file: Fixed, from: u64, to: u64) -> Result<()> {
        let write = opcode::WriteFixed::new(file, self.at(from), WORD, 0).offset(to);
        self.post(write.build().user_data(OTHER))?;
        loop {
            self.uring.submit_and_wait(1)?;
            let mut written = None;
            for completion in self.uring.completion() {
                match completion.user_data() {
                    OTHER => written = Some(completion.result()),
                    _ => self.is_reading = false,
                }
            }
            match written {
                None => {}
                Some(count) if count == WORD as i32 => return Ok(()),
                Some(error) => return Err(io::Error::from_raw_os_error(-error).into()),
            }
        }
    }

    fn at(&self, offset: u64) -> *mut u8 {
        (self.address + offset) as *mut u8
    }

    fn post(&mut self, operation: Entry) -> Result<()> {
        // SAFETY: the operation uses a registered buffer and registered files, which the ring keeps.
        unsafe { self.uring.submission().push(&operation)? };
        Ok(())
    }
}

/// The first page of some memory, mapped for writing.
struct Page(*mut libc::c_void);

impl Page {
    fn map(memory: &File) -> Result<Self> {
        let (protection, file) = (libc::PROT_READ | libc::PROT_WRITE, memory.as_raw_fd());
        let anywhere = std::ptr::null_mut();
        // SAFETY: a new mapping at an address that the kernel chooses aliases nothing.
        let page = unsafe { libc::mmap(anywhere, PAGE, protection, libc::MAP_SHARED, file, 0) };
        done(page != libc::MAP_FAILED)?;
        Ok(Page(page))
    }

    /// Gives the page away, into a pipe.
    fn give(&self, pipe: &PipeWriter) -> Result<()> {
        let whole = libc::iovec {
            iov_base: self.0,
            iov_len: PAGE,
        };
        // SAFETY: the page is mapped, and this process has no reference to it.
        let given = unsafe { libc::vmsplice(pipe.as_raw_fd(), &whole, 1, libc::SPLICE_F_GIFT) };
        Ok(done(given == PAGE as isize)?)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no pointer to it is used afterwards.
        unsafe { libc::munmap(self.0, PAGE) };
    }
}

fn read_word(pipe: &mut PipeReader) -> Result<u64> {
    let mut word = [0; WORD as usize];
    pipe.read_exact(&mut word)?;
    Ok(u64::from_le_bytes(word))
}

/// The error of the system call that has just failed, if it has.
fn done(well: bool) -> io::Result<()> {
    if well {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
