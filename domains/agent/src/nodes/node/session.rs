//! Sessions: a command of a node, from its start to its own or its caller's end.
//!
//! The thread of a session shares its descriptors with no other (see [`super::init`]), and no other
//! thread reaps its child: until the thread has waited for it, no other process has its number.

use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use toroid_protocol::agent::{Event, Message, Request};
use toroid_protocol::node::StartCommand;
use toroid_protocol::wire::{self, Reader, WireError, Writer};

use super::command::{self, Failure, NOT_EXECUTABLE, Prepared};

/// Time for a command without a caller to clean up.
const GRACE: Duration = Duration::from_millis(500);

/// Runs a command for a caller, and ends it if the caller ends.
pub(super) fn attend(session: UnixStream) -> Result<(), WireError> {
    let (order, mut descriptors) = wire::split(session)?.0.receive::<StartCommand>()?;
    let caller = descriptors.pop().ok_or(WireError::Closed)?;
    let (mut caller, answers) = wire::split(caller.into())?;
    caller.take_no_descriptors();
    let last_word = match order.terminal {
        // The signal of the kernel when a terminal has gone; interactive shells ignore SIGTERM.
        Some(_) => Signal::HUP,
        None => Signal::TERM,
    };
    let started = command::prepare(order, descriptors).and_then(Prepared::start);
    let mut command = match started {
        Ok(child) => Command::watch(child)?,
        Err(failure) => return complain(&answers, failure),
    };
    if let Err(gone) = command.accompany(&mut caller) {
        command.end(last_word)?;
        return Err(gone);
    }
    let status = command.child.wait()?;
    report(&answers, exit_status(status))
}

/// A running command.
struct Command {
    child: Child,
    /// Process group, with the number of the command.
    group: Pid,
    /// For waiting until the command has ended.
    handle: OwnedFd,
}

impl Command {
    fn watch(mut child: Child) -> io::Result<Self> {
        let group = Pid::from_child(&child);
        match pidfd_open(group, PidfdFlags::empty()) {
            Ok(handle) => Ok(Command {
                child,
                group,
                handle,
            }),
            Err(error) => {
                // Its end could not be reported. The kill fails only after the end.
                let _ = kill_process_group(group, Signal::KILL);
                child.wait()?;
                Err(error.into())
            }
        }
    }

    /// Passes its caller's signals on until the command has ended. The end of the caller is an
    /// error.
    fn accompany(&self, caller: &mut Reader) -> Result<(), WireError> {
        while !self.has_ended_before(caller)? {
            match caller.receive()?.0 {
                Request::Signal { signal } => {
                    if let Some(signal) = Signal::from_named_raw(signal) {
                        self.signal(signal);
                    }
                }
                _ => return Err(WireError::Malformed("only signals are for commands".into())),
            }
        }
        Ok(())
    }

    /// Waits until the command has ended, or its caller sends something.
    fn has_ended_before(&self, caller: &Reader) -> io::Result<bool> {
        let timeout = if caller.has_more() {
            PollTimeout::ZERO
        } else {
            PollTimeout::NONE
        };
        self.ends_within(timeout, Some(caller.stream()))
    }

    /// Whether the command ends before the timeout and before there is something to read.
    fn ends_within(&self, timeout: PollTimeout, other: Option<&UnixStream>) -> io::Result<bool> {
        let watched = [Some(self.handle.as_fd()), other.map(AsFd::as_fd)];
        let watch = |fd| PollFd::new(fd, PollFlags::POLLIN);
        let mut watched: Vec<_> = watched.into_iter().flatten().map(watch).collect();
        loop {
            match poll(&mut watched, timeout) {
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error.into()),
                Ok(_) => return Ok(watched[0].any().unwrap_or_default()),
            }
        }
    }

    fn signal(&self, signal: Signal) {
        // This fails only after the last process of the group has ended.
        let _ = kill_process_group(self.group, signal);
    }

    /// Signals the command to end, and kills its remaining processes after a while.
    fn end(&mut self, last_word: Signal) -> io::Result<ExitStatus> {
        self.signal(last_word);
        let grace = PollTimeout::try_from(GRACE).unwrap_or(PollTimeout::ZERO);
        // After the grace period the result does not matter.
        let _ = self.ends_within(grace, None);
        self.signal(Signal::KILL);
        self.child.wait()
    }
}

/// Writes the reason of a failed start to the command's standard error, and then reports the
/// status. An unread standard error blocks only the session's own thread.
fn complain(caller: &Writer, failure: Failure) -> Result<(), WireError> {
    if let Some((mut stderr, message)) = failure.complaint {
        // If this fails, only the status is reported.
        let _ = writeln!(stderr, "toroid: {message}");
    }
    report(caller, failure.status)
}

/// Sends the exit status, the last and only message in this direction, so there is room for it.
fn report(caller: &Writer, status: i32) -> Result<(), WireError> {
    let reported = caller.send(&Message::Event(Event::Exited { status }), &[]);
    caller.shut_down();
    reported
}

fn exit_status(status: ExitStatus) -> i32 {
    match (status.code(), status.signal()) {
        (Some(status), _) => status,
        (None, Some(signal)) => 128 + signal,
        (None, None) => NOT_EXECUTABLE,
    }
}
