//! A forked child that goes on to use its parent's memory and descriptor.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;
use nix::unistd::Pid;

use super::mapping::Mapping;
use super::{COUNTED, FORKED, Result};

/// Offsets in the page that it tells by: rounds that have begun, and rounds that have ended.
const BEGUN: u64 = 8;
const ENDED: u64 = 16;

/// Pause between rounds.
const PAUSE: libc::timespec = libc::timespec {
    tv_sec: 0,
    tv_nsec: 500_000,
};

/// A process that was forked, and has not executed anything.
pub struct Child {
    pid: Pid,
    told: Mapping,
}

impl Child {
    pub fn new(memory: &File) -> Result<Self> {
        let told = Mapping::own()?;
        let memory = (Mapping::of(memory, 1)?, memory.as_raw_fd());
        // SAFETY: the child only makes system calls and uses memory that is mapped already.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error().into()),
            0 => go_on(&memory.0, memory.1, &told),
            pid => Ok(Child {
                pid: Pid::from_raw(pid),
                told,
            }),
        }
    }

    /// The counted word, as it has seen it last.
    pub fn told(&self) -> u64 {
        self.told.read(COUNTED)
    }

    /// Rounds that have begun, and rounds that have ended.
    pub fn rounds(&self) -> [u64; 2] {
        [BEGUN, ENDED].map(|word| self.told.read(word))
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // The child does not end by itself.
        let _ = kill(self.pid, Signal::SIGKILL);
        let _ = waitpid(self.pid, None);
    }
}

/// Writes by address and by descriptor, and reads, as long as its parent lives. It closes all other
/// descriptors: the kernel holds the pages of the parent's rings up to their last descriptor.
fn go_on(memory: &Mapping, file: i32, told: &Mapping) -> ! {
    let (mut n, own) = (0u64, file as libc::c_uint);
    // SAFETY: the calls take numbers and pointers to this stack.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        libc::syscall(libc::SYS_close_range, 0, own - 1, 0);
        libc::syscall(libc::SYS_close_range, own + 1, libc::c_uint::MAX, 0);
        loop {
            n += 1;
            told.write(BEGUN, n);
            memory.write(FORKED, n);
            let bytes = (&raw const n).cast();
            // Fails after writing was revoked.
            libc::pwrite(file, bytes, size_of::<u64>(), FORKED as libc::off_t);
            told.write(COUNTED, memory.read(COUNTED));
            told.write(ENDED, n);
            libc::nanosleep(&PAUSE, std::ptr::null_mut());
        }
    }
}
