//! Wake-ups of a sleeping process: one pipe for each direction of a channel.
//!
//! A pipe and not an eventfd: the two ends are different open files, so a hostile peer can neither
//! make our end blocking nor fill the pipe in a way that makes us wait. A full pipe means the same
//! as one byte. The sleeper has a write end of its own, opened anew for the same reason, with which
//! its control thread ends a wait.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::time::Duration;

use rustix::pipe::{PipeFlags, pipe_with};

use crate::os::thread::sleep_on;

/// Creates a non-blocking pipe: read end, write end, and a second write end with its own open file.
pub(crate) fn pipe() -> io::Result<(OwnedFd, OwnedFd, OwnedFd)> {
    let (reader, writer) = pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
    let own = OpenOptions::new()
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(format!("/proc/self/fd/{}", writer.as_raw_fd()))?;
    Ok((reader, writer, own.into()))
}

/// The write end of a pipe, which wakes the process at the read end; never blocks.
#[derive(Clone, Debug)]
pub struct Waker(Arc<File>);

impl Waker {
    pub(crate) fn new(writer: OwnedFd) -> Self {
        Waker(Arc::new(writer.into()))
    }

    /// Wakes the sleeper.
    pub fn wake(&self) {
        // The write fails when the pipe is full, so the sleeper wakes anyway, or when the read end
        // is closed.
        let _ = (&*self.0).write(&[1]);
    }
}

/// The read end of a pipe, at which a process sleeps.
#[derive(Debug)]
pub(crate) struct Sleeper(File);

impl Sleeper {
    pub(crate) fn new(reader: OwnedFd) -> Self {
        Sleeper(reader.into())
    }

    /// Discards the wake-ups so far.
    pub(crate) fn drain(&mut self) {
        // One read takes all bytes but those of a hostile peer, which cause another wake-up. The
        // read fails when the pipe is empty.
        let _ = self.0.read(&mut [0; 64]);
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Sleeps until woken or until `timeout` has passed.
    pub(crate) fn sleep(&self, timeout: Duration) {
        sleep_on(self.fd(), timeout);
    }
}
