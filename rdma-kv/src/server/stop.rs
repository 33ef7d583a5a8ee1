//! Stopping a server from outside.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

/// Stops a server, from any thread. Clones stop the same server.
#[derive(Clone, Debug)]
pub struct Stop(Arc<OwnedFd>);

impl Stop {
    /// A handle that was not stopped.
    ///
    /// # Errors
    /// The system's: no descriptor left.
    pub fn new() -> io::Result<Self> {
        Ok(Stop(Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?)))
    }

    /// Stops the server. Requests under way are finished, and connections are closed.
    pub fn stop(&self) {
        // Fails only after 2^64 - 2 stops.
        let _ = rustix::io::write(&*self.0, &1u64.to_ne_bytes());
    }

    /// Calls `work`, then stops, also after a panic.
    pub(crate) fn after<T>(&self, work: impl FnOnce() -> T) -> T {
        struct OnDrop<'a>(&'a Stop);
        impl Drop for OnDrop<'_> {
            fn drop(&mut self) {
                self.0.stop();
            }
        }
        let _stop = OnDrop(self);
        work()
    }

    /// A descriptor that is readable from the stop on.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Waits up to `timeout`; returns whether it was stopped.
    pub(crate) fn wait(&self, timeout: Duration) -> io::Result<bool> {
        Ok(self.wait_or(&[], Some(timeout))?.stopped)
    }

    /// Waits until one of `others` is readable, the stop, or `timeout`.
    pub(super) fn wait_or(
        &self,
        others: &[BorrowedFd<'_>],
        timeout: Option<Duration>,
    ) -> io::Result<Woken> {
        let fds = std::iter::once(self.fd()).chain(others.iter().copied());
        let mut fds: Vec<PollFd<'_>> = fds
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
        Ok(Woken {
            stopped: ready.next().unwrap_or(false),
            ready: ready.collect(),
        })
    }
}

/// Result of a wait.
pub(super) struct Woken {
    pub(super) stopped: bool,
    /// Readiness of the others, in order.
    pub(super) ready: Vec<bool>,
}
