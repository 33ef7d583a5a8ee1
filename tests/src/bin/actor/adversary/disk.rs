//! A disk that reads from memory and writes to it by itself (`O_DIRECT`). The kernel holds the pages of
//! a transfer under way, also after their mapping has gone.
//!
//! ```text
//!   number ──> file ── preadv ──> page of memory, FROM_DISK
//!   page of memory, COUNTED ── pwritev ──> file ──> told
//! ```

use std::env;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::mapping::{Mapping, PAGE};
use super::{COUNTED, FROM_DISK, Result};

/// A directory on a disk that all users may write, relative to this program.
const PLACE: &str = "../disk";

/// Repetitions of a page in an operation, which prolong it.
const TIMES: usize = 64;

/// Offset of the copy of the memory in the file.
const LATER: i64 = (TIMES * PAGE) as i64;

/// Pause between rounds: others need the disk as well.
const PAUSE: Duration = Duration::from_millis(1);

/// A thread that lets the disk do it again and again.
pub struct Disk {
    told: Arc<AtomicU64>,
    /// Of the rounds so far, how many have begun and ended.
    rounds: Arc<[AtomicU64; 2]>,
    is_over: Arc<AtomicBool>,
}

impl Disk {
    pub fn new(memory: &File) -> Result<Self> {
        let mut options = File::options();
        options.read(true).write(true);
        options.custom_flags(libc::O_DIRECT | libc::O_TMPFILE);
        let place = env::current_exe()?.with_file_name(PLACE);
        let file = options.open(&place).map_err(|error| {
            format!("no direct access to a disk in {}: {error}", place.display())
        })?;
        let disk = Disk {
            told: Arc::default(),
            rounds: Arc::default(),
            is_over: Arc::default(),
        };
        let memory = Mapping::of(memory, FROM_DISK as usize / PAGE + 1)?;
        let (own, told, is_over) = (
            Mapping::own()?,
            Arc::clone(&disk.told),
            Arc::clone(&disk.is_over),
        );
        let rounds = Arc::clone(&disk.rounds);
        thread::spawn(move || {
            for n in 1.. {
                rounds[0].store(n, Ordering::Release);
                own.write(0, n);
                go_on(&file, &memory, &own).expect("the disk goes on");
                told.store(own.read(COUNTED), Ordering::Relaxed);
                // Release: a reader of the count sees the value told before it.
                rounds[1].store(n, Ordering::Release);
                if is_over.load(Ordering::Relaxed) {
                    return;
                }
                thread::sleep(PAUSE);
            }
        });
        Ok(disk)
    }

    /// The counted word, as it was on the disk last.
    pub fn told(&self) -> u64 {
        self.told.load(Ordering::Relaxed)
    }

    /// Rounds that have begun, and rounds that have ended.
    pub fn rounds(&self) -> [u64; 2] {
        let [begun, ended] = &*self.rounds;
        [begun, ended].map(|count| count.load(Ordering::Acquire))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

/// Lets the disk copy our page to the memory, and the memory to our page.
fn go_on(file: &File, memory: &Mapping, own: &Mapping) -> io::Result<()> {
    transfer(libc::pwritev, file, 0, &pages(own, 0, TIMES))?;
    let to_memory = pages(memory, FROM_DISK as usize, TIMES);
    transfer(libc::preadv, file, 0, &to_memory)?;
    transfer(libc::pwritev, file, LATER, &pages(memory, 0, 1))?;
    transfer(libc::preadv, file, LATER, &pages(own, 0, 1))
}

/// The same page so often.
fn pages(mapping: &Mapping, offset: usize, times: usize) -> Vec<libc::iovec> {
    let page = libc::iovec {
        iov_base: mapping.address(offset),
        iov_len: PAGE,
    };
    vec![page; times]
}

/// `preadv(2)` or `pwritev(2)`.
type Call = unsafe extern "C" fn(i32, *const libc::iovec, i32, libc::off_t) -> isize;

fn transfer(call: Call, file: &File, at: i64, pages: &[libc::iovec]) -> io::Result<()> {
    // SAFETY: the pages are mapped, and this process has no reference to them.
    let done = unsafe { call(file.as_raw_fd(), pages.as_ptr(), pages.len() as i32, at) };
    if done == (pages.len() * PAGE) as isize {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}
