//! TAPs: the kernel's end of an interface whose other end is a descriptor. The only module here
//! with `unsafe`.
//!
//! A TAP of ours is persistent, so that it outlives the driver that made it and the next driver
//! finds the interface with its addresses and connections as they were.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tun_tap::{Iface, Mode};

/// A TAP, opened without blocking. Dropping it leaves the interface where it is.
#[derive(Debug)]
pub struct Tap(File);

impl Tap {
    /// Opens the TAP `name` in the network namespace of the calling thread, and makes it first
    /// if there is none. Takes 0.3 ms.
    ///
    /// # Errors
    /// The system's: without /dev/net/tun or the right to use it; if the interface is no TAP
    /// (`EINVAL`), or another process holds it (`EBUSY`).
    pub fn open(name: &str) -> io::Result<Self> {
        let iface = Iface::without_packet_info(name, Mode::Tap)?;
        // SAFETY: `into_raw_fd` gives up the ownership of an open descriptor, and nothing else
        // has its number.
        let tap = unsafe { OwnedFd::from_raw_fd(iface.into_raw_fd()) };
        fcntl(&tap, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
        set_persistence(tap.as_fd(), true)?;
        Ok(Tap(tap.into()))
    }

    /// Reads the next frame that the interface sent, cut off at the length of `into`, and
    /// returns its length.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] when there is none. Anything but that and
    /// [`io::ErrorKind::Interrupted`] means that the interface is gone.
    pub fn receive(&self, into: &mut [u8]) -> io::Result<usize> {
        (&self.0).read(into)
    }

    /// Lets the interface receive a frame.
    ///
    /// # Errors
    /// The system's; the frame is lost then. `EIO`: the interface is down; `EBADFD`: it is gone.
    pub fn send(&self, frame: &[u8]) -> io::Result<()> {
        match (&self.0).write(frame)? {
            written if written == frame.len() => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    /// Takes the interface away. The kernel waits for its readers to forget it: 15 to 25 ms.
    ///
    /// # Errors
    /// The system's. That the interface is gone already is none.
    pub fn delete(self) -> io::Result<()> {
        match set_persistence(self.0.as_fd(), false) {
            Err(error) if is_gone(&error) => Ok(()),
            result => result,
        }
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Whether an operation on a TAP failed because its interface no longer exists.
pub fn is_gone(error: &io::Error) -> bool {
    error.raw_os_error() == Some(nix::errno::Errno::EBADFD as i32)
}

mod ioctl {
    nix::ioctl_write_int! {
        /// `TUNSETPERSIST` of linux/if_tun.h.
        set_persistence, b'T', 203
    }
}

fn set_persistence(tap: BorrowedFd<'_>, persistent: bool) -> io::Result<()> {
    // SAFETY: the request takes an integer and no pointer, and the borrow keeps the descriptor
    // open meanwhile. A descriptor that is no TAP is refused by the kernel.
    unsafe { ioctl::set_persistence(tap.as_raw_fd(), persistent.into()) }?;
    Ok(())
}
