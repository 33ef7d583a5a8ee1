//! `userfaultfd(2)`: a thread that touches a missing page waits until the page is mapped.
//!
//! This is the part that migrations need: shared memory, and faults from user mode, which need no
//! privilege. The numbers are those of `linux/userfaultfd.h`.

use std::fs::File;
use std::io::{self, Read};
use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd};

use crate::os::checked;

const USER_MODE_ONLY: libc::c_int = 1;
const API: u64 = 0xaa;
const FEATURES: u64 = EVENT_REMAP | MISSING_SHMEM | MINOR_SHMEM;
const EVENT_REMAP: u64 = 1 << 2;
const MISSING_SHMEM: u64 = 1 << 5;
const MINOR_SHMEM: u64 = 1 << 10;

const MODE_MISSING: u64 = 1;
const MODE_MINOR: u64 = 1 << 2;

const MESSAGE_BYTES: usize = 32;
const EVENT_PAGEFAULT: u8 = 0x12;
const ADDRESS: Range<usize> = 16..24;

/// An ioctl(2) of a userfaultfd, with the type of its argument.
struct Command<T>(libc::c_ulong, PhantomData<T>);

impl<T> Command<T> {
    /// `_IOWR(0xaa, number, T)`, or `_IOR`.
    const fn new(direction: u64, number: u64) -> Self {
        let number = direction << 30 | (size_of::<T>() as u64) << 16 | API << 8 | number;
        Command(number, PhantomData)
    }
}

const READ_WRITE: u64 = 3;
const READ: u64 = 2;

/// `api`, `features`, `ioctls`.
const HANDSHAKE: Command<[u64; 3]> = Command::new(READ_WRITE, 0x3f);
/// `start`, `len`, `mode`, `ioctls`.
const REGISTER: Command<[u64; 4]> = Command::new(READ_WRITE, 0x00);
/// `start`, `len`.
const UNREGISTER: Command<[u64; 2]> = Command::new(READ, 0x01);
/// `start`, `len`.
const WAKE: Command<[u64; 2]> = Command::new(READ, 0x02);
/// `start`, `len`, `mode`, bytes done or negated error.
const ZEROPAGE: Command<[u64; 4]> = Command::new(READ_WRITE, 0x04);
/// `start`, `len`, `mode`, bytes done or negated error.
const CONTINUE: Command<[u64; 4]> = Command::new(READ_WRITE, 0x07);

/// An open userfaultfd.
#[derive(Debug)]
pub(super) struct Userfault(File);

impl Userfault {
    /// Opens a userfaultfd for shared memory.
    ///
    /// # Errors
    /// The system's: the kernel lacks the call or a feature, or a filter forbids the call.
    pub(super) fn open() -> io::Result<Self> {
        // SAFETY: the call takes flags and returns a new descriptor or -1.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nothing else owns.
        let userfault = Userfault(unsafe { File::from_raw_fd(fd as libc::c_int) });
        userfault.ask(HANDSHAKE, &mut [API, FEATURES, 0])?;
        Ok(userfault)
    }

    /// Makes accesses to unmapped pages of `range` wait, whether or not the file has the pages. The
    /// registration follows the mapping to other addresses. A thread must then be in
    /// [`wait`](Userfault::wait) to take the event, or `mremap` does not return.
    pub(super) fn register(&self, range: &Range<usize>) -> io::Result<()> {
        let [start, len] = words(range);
        self.ask(REGISTER, &mut [start, len, MODE_MISSING | MODE_MINOR, 0])
    }

    /// Ends the registration of `range`; waiting threads continue.
    pub(super) fn unregister(&self, range: &Range<usize>) -> io::Result<()> {
        self.ask(UNREGISTER, &mut words(range))
    }

    /// Lets threads that wait in `range` retry.
    pub(super) fn wake(&self, range: &Range<usize>) -> io::Result<()> {
        self.ask(WAKE, &mut words(range))
    }

    /// Waits for an event; returns the address of a page fault, or `None` for any other event.
    pub(super) fn wait(&self) -> io::Result<Option<usize>> {
        let mut message = [0; MESSAGE_BYTES];
        (&self.0).read_exact(&mut message)?;
        let mut address = [0; 8];
        address.copy_from_slice(&message[ADDRESS]);
        let touched = message[0] == EVENT_PAGEFAULT;
        Ok(touched.then_some(u64::from_ne_bytes(address) as usize))
    }

    /// Maps the pages of `range` up to the first that the file lacks, and wakes threads that wait
    /// for them. Returns whether the file has the first page.
    pub(super) fn map_present(&self, range: &Range<usize>) -> io::Result<bool> {
        let errors = self.fill(CONTINUE, range)?;
        match errors {
            0 | libc::EEXIST => Ok(true),
            libc::EFAULT => Ok(false),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Adds a zeroed page to the file and maps it. Returns false if the file has the page already.
    pub(super) fn add_zeroed(&self, page: &Range<usize>) -> io::Result<bool> {
        match self.fill(ZEROPAGE, page)? {
            0 => Ok(true),
            libc::EEXIST => Ok(false),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Returns the error number that ended the work before its first page, or 0. While a mapping
    /// moves the error is EAGAIN, until the event has been read. So the thread that reads events
    /// must not retry until success.
    fn fill(&self, command: Command<[u64; 4]>, range: &Range<usize>) -> io::Result<libc::c_int> {
        let [start, len] = words(range);
        let mut argument = [start, len, 0, 0];
        let Err(error) = self.ask(command, &mut argument) else {
            return Ok(0);
        };
        let done = argument[3] as i64;
        match error.raw_os_error() {
            Some(_) if done > 0 => Ok(0),
            Some(number) => Ok(number),
            None => Err(error),
        }
    }

    fn ask<T>(&self, command: Command<T>, argument: &mut T) -> io::Result<()> {
        // SAFETY: each command is declared with the type of its argument, which is ours alone.
        let result = unsafe {
            let argument: *mut T = argument;
            libc::ioctl(self.0.as_raw_fd(), command.0, argument)
        };
        checked(result)
    }
}

fn words(range: &Range<usize>) -> [u64; 2] {
    [range.start as u64, range.len() as u64]
}
