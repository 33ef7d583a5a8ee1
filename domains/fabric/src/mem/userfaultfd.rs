//! `userfaultfd(2)`: threads that touch a page which is not there yet wait until it is.
//!
//! Only what moving regions need: shared memory, faults from user mode, which every process may
//! ask for. The numbers are those of `linux/userfaultfd.h`.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::fd::{AsRawFd, FromRawFd};

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

/// Something to do with a userfaultfd, with the type of its argument.
struct Command<T> {
    number: libc::c_ulong,
    _argument: std::marker::PhantomData<T>,
}

impl<T> Command<T> {
    /// `_IOWR(0xaa, number, T)`, or `_IOR`.
    const fn new(direction: u64, number: u64) -> Self {
        let number = direction << 30 | (size_of::<T>() as u64) << 16 | API << 8 | number;
        Command {
            number,
            _argument: std::marker::PhantomData,
        }
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
    /// # Errors
    /// The system's: it has none, or not for shared memory, or a filter forbids it.
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

    /// Lets accesses to pages of `range` wait that are not mapped yet, whether or not the memory
    /// behind them has them. This stays with the mapping when that is moved elsewhere; then
    /// somebody must [`wait`](Userfault::wait) for the news, or the move does not end.
    pub(super) fn register(&self, range: &Range<usize>) -> io::Result<()> {
        let [start, len] = words(range);
        self.ask(REGISTER, &mut [start, len, MODE_MISSING | MODE_MINOR, 0])
    }

    /// Ends that; who waits goes on.
    pub(super) fn unregister(&self, range: &Range<usize>) -> io::Result<()> {
        self.ask(UNREGISTER, &mut words(range))
    }

    /// Lets those who wait try again.
    pub(super) fn wake(&self, range: &Range<usize>) -> io::Result<()> {
        self.ask(WAKE, &mut words(range))
    }

    /// Waits until a thread waits; returns the address that it touched. `None`: other news.
    pub(super) fn wait(&self) -> io::Result<Option<usize>> {
        let mut message = [0; MESSAGE_BYTES];
        (&self.0).read_exact(&mut message)?;
        let mut address = [0; 8];
        address.copy_from_slice(&message[ADDRESS]);
        let touched = message[0] == EVENT_PAGEFAULT;
        Ok(touched.then_some(u64::from_ne_bytes(address) as usize))
    }

    /// Maps the pages of `range` that the memory has, up to the first that it has not, and wakes
    /// who waits for them. Returns whether the first one was there.
    pub(super) fn map_present(&self, range: &Range<usize>) -> io::Result<bool> {
        let errors = self.fill(CONTINUE, range)?;
        match errors {
            0 | libc::EEXIST => Ok(true),
            libc::EFAULT => Ok(false),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Adds a zeroed page to the memory and maps it. Returns false when the memory has one.
    pub(super) fn add_zeroed(&self, page: &Range<usize>) -> io::Result<bool> {
        match self.fill(ZEROPAGE, page)? {
            0 => Ok(true),
            libc::EEXIST => Ok(false),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Returns the error that ended the work before its first page, or 0. While a mapping is
    /// being moved the error is EAGAIN, until somebody has heard the news of it: so nobody who
    /// would hear it may repeat this until it works.
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
            libc::ioctl(self.0.as_raw_fd(), command.number, argument)
        };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn words(range: &Range<usize>) -> [u64; 2] {
    [range.start as u64, range.len() as u64]
}
