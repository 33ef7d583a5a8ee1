//! One descriptor for two reasons to wake up: the device has something to tell, or the control
//! thread has.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;

use crate::mem::waker::{Sleeper, Waker, pipe};

/// Readable when the device's descriptor is, or somebody woke.
#[derive(Debug)]
pub(super) struct Watch {
    both: OwnedFd,
    sleeper: Sleeper,
    waker: Waker,
}

impl Watch {
    /// Watches the device's descriptor, which must stay open as long as this.
    pub(super) fn new(device: BorrowedFd<'_>) -> io::Result<Self> {
        let both = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let (reader, writer, _) = pipe()?;
        add(&both, device)?;
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

/// Has an epoll(7) be readable while a descriptor is.
pub(crate) fn add(to: &OwnedFd, fd: BorrowedFd<'_>) -> io::Result<()> {
    let (data, events) = (epoll::EventData::new_u64(0), epoll::EventFlags::IN);
    Ok(epoll::add(to, fd, data, events)?)
}
