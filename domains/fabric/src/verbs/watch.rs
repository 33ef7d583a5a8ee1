//! One descriptor for two reasons to wake up: the adapter has something to tell, or the control
//! thread has.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::shm::wake::{Sleeper, Waker, pipe};

/// Readable when the adapter's descriptor is, or somebody woke.
#[derive(Debug)]
pub(super) struct Watch {
    both: OwnedFd,
    sleeper: Sleeper,
    waker: Waker,
}

impl Watch {
    /// Watches the adapter's descriptor, which must stay open as long as this.
    pub(super) fn new(adapter: BorrowedFd<'_>) -> io::Result<Self> {
        // SAFETY: the call takes a number and returns a new descriptor or -1.
        let both = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if both < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nothing else owns.
        let both = unsafe { OwnedFd::from_raw_fd(both) };
        let (reader, writer, _) = pipe()?;
        add(&both, adapter)?;
        add(&both, reader.as_fd())?;
        Ok(Watch {
            both,
            sleeper: Sleeper::new(reader),
            waker: Waker::new(writer),
        })
    }

    pub(super) fn waker(&self) -> Waker {
        self.waker.clone()
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.both.as_fd()
    }

    /// Forgets the wake-ups so far.
    pub(super) fn drain(&mut self) {
        self.sleeper.drain();
    }
}

fn add(to: &OwnedFd, fd: BorrowedFd<'_>) -> io::Result<()> {
    let mut event = libc::epoll_event {
        events: libc::EPOLLIN as u32,
        u64: 0,
    };
    let (to, fd) = (to.as_raw_fd(), fd.as_raw_fd());
    // SAFETY: both descriptors are open; the event is ours and read only.
    match unsafe { libc::epoll_ctl(to, libc::EPOLL_CTL_ADD, fd, &raw mut event) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
