//! Processes by their descriptors: numbers may be another process's by the time that they are used,
//! and what an earlier agent has started are no children of this one.

use std::os::fd::{AsFd, OwnedFd};
use std::process::Child;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Whether a process has ended.
pub(super) fn has_ended(process: &OwnedFd) -> bool {
    ends_within(process, PollTimeout::ZERO)
}

/// Waits for the end of a process, a child of this one or not.
pub(super) fn outlast(process: &OwnedFd, child: Option<Child>) {
    while !ends_within(process, PollTimeout::NONE) {}
    if let Some(mut child) = child {
        // It has ended, so this only takes it off the books.
        let _ = child.wait();
    }
}

/// Waits for the end of a process for so long; returns whether it has come.
pub(super) fn ends_within(process: &OwnedFd, time: impl Into<PollTimeout>) -> bool {
    let time = time.into();
    let mut ended = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    loop {
        match poll(&mut ended, time) {
            Err(Errno::EINTR) => {}
            result => return result.is_ok_and(|count| count > 0),
        }
    }
}
