//! Memory whose page faults go to a program (userfaultfd(2)): an access to a missing page waits until the
//! program brings it. Only processes that have registered for it may have to wait.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use nix::fcntl::{FallocateFlags, fallocate};

use super::mapping::{Mapping, PAGE};
use super::{Result, faulted};

/// Of `linux/userfaultfd.h`.
const USER_MODE_ONLY: i32 = 1;
const API: u64 = 0xaa;
const MISSING: u64 = 1;
const INITIALIZE: u64 = 0xc018_aa3f;
const REGISTER: u64 = 0xc020_aa00;
const COPY: u64 = 0xc028_aa03;

pub struct Faults {
    /// Closing it lets all waiting accesses go on.
    faults: OwnedFd,
    memory: Arc<Mapping>,
    file: File,
    page: Mapping,
    /// Offset of the page that is punched and brought back; the page behind it never comes back.
    faulted: u64,
}

impl Faults {
    pub fn new(memory: &File) -> Result<Self> {
        let file = memory.try_clone()?;
        let faulted = faulted(file.metadata()?.len());
        let waited_for = faulted + PAGE as u64;
        let pages = waited_for as usize / PAGE + 1;
        let memory = Arc::new(Mapping::of(&file, pages)?);
        let flags = libc::O_CLOEXEC | USER_MODE_ONLY;
        // SAFETY: the call takes a number.
        let faults = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        if faults < 0 {
            return Err(io::Error::last_os_error().into());
        }
        // SAFETY: the descriptor is new, and has no other owner.
        let faults = unsafe { OwnedFd::from_raw_fd(faults as i32) };
        control(&faults, INITIALIZE, &mut [API, 0, 0])?;
        let start = memory.address(faulted as usize) as u64;
        control(&faults, REGISTER, &mut [start, 2 * PAGE as u64, MISSING, 0])?;
        punch(&file, waited_for)?;
        let touched = Arc::clone(&memory);
        thread::spawn(move || touched.read(waited_for));
        let page = Mapping::own()?;
        Ok(Faults {
            faults,
            memory,
            file,
            page,
            faulted,
        })
    }

    /// Takes a page away and brings another.
    pub fn go_on(&mut self, n: u64) -> Result<()> {
        punch(&self.file, self.faulted)?;
        self.page.write(0, n);
        let there = self.memory.address(self.faulted as usize) as u64;
        let from = self.page.address(0) as u64;
        // Fails when another process has just brought a page.
        let _ = control(&self.faults, COPY, &mut [there, from, PAGE as u64, 0, 0]);
        Ok(())
    }
}

fn punch(file: &File, at: u64) -> nix::Result<()> {
    let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(file, hole, at as i64, PAGE as i64)
}

fn control<const N: usize>(faults: &OwnedFd, what: u64, argument: &mut [u64; N]) -> io::Result<()> {
    // SAFETY: the argument is as long as that of this request, and is read and written only during
    // the call; the addresses in it are of mappings to which this process has no reference.
    match unsafe { libc::ioctl(faults.as_raw_fd(), what, argument) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
