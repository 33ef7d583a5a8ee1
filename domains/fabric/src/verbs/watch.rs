//! One descriptor for two wake-ups: events of the device and those of the control thread.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;

use crate::mem::waker::{Sleeper, Waker, pipe};

/// An epoll(7) over the descriptor of the device and a wake-up pipe.
#[derive(Debug)]
pub(super) struct Watch {
    both: OwnedFd,
    sleeper: Sleeper,
    waker: Waker,
}

impl Watch {
    /// Watches the descriptor of the device, which must stay open meanwhile.
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

    /// Discards wake-ups of the control thread.
    pub(super) fn drain(&mut self) {
        self.sleeper.drain();
    }
}

/// Adds a descriptor to an epoll(7), which is readable while the descriptor is.
pub(crate) fn add(to: &OwnedFd, fd: BorrowedFd<'_>) -> io::Result<()> {
    let (data, events) = (epoll::EventData::new_u64(0), epoll::EventFlags::IN);
    Ok(epoll::add(to, fd, data, events)?)
}
