//! A command of a node and its caller: started, accompanied, and ended with either.
//!
//! The thread of a session shares its descriptors with no other (see [`super::init`]), and nobody
//! else takes its child: until it has waited for that, no other process has its number.

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

/// How long a command that nobody wants any more may take to clean up.
const GRACE: Duration = Duration::from_millis(500);

/// Runs a command for a caller, and ends it when that has gone.
pub(super) fn attend(session: UnixStream) -> Result<(), WireError> {
    let (order, mut descriptors) = wire::split(session)?.0.receive::<StartCommand>()?;
    let caller = descriptors.pop().ok_or(WireError::Closed)?;
    let (mut caller, answers) = wire::split(caller.into())?;
    caller.take_no_descriptors();
    let last_word = match order.terminal {
        // As the kernel says it when a terminal has gone; interactive shells ignore SIGTERM.
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

/// A command that runs.
struct Command {
    child: Child,
    /// Its number is also that of its process group.
    group: Pid,
    /// For waiting until it has ended.
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
                // Nobody would hear of its end. It fails when it has ended.
                let _ = kill_process_group(group, Signal::KILL);
                child.wait()?;
                Err(error.into())
            }
        }
    }

    /// Passes its caller's signals on until it has ended. It is an error when the caller has gone.
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

    /// Waits until it has ended, or its caller says something.
    fn has_ended_before(&self, caller: &Reader) -> io::Result<bool> {
        let timeout = if caller.has_more() {
            PollTimeout::ZERO
        } else {
            PollTimeout::NONE
        };
        self.ends_within(timeout, Some(caller.stream()))
    }

    /// Whether it ends before that, or before there is something to read.
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
        // It fails when the last process of the group has just ended.
        let _ = kill_process_group(self.group, signal);
    }

    /// Asks it to end, and kills what is left of it after a while.
    fn end(&mut self, last_word: Signal) -> io::Result<ExitStatus> {
        self.signal(last_word);
        let grace = PollTimeout::try_from(GRACE).unwrap_or(PollTimeout::ZERO);
        // However that ends, it is over.
        let _ = self.ends_within(grace, None);
        self.signal(Signal::KILL);
        self.child.wait()
    }
}

/// Says on its standard error why a command was not started, and then reports that. Only the
/// session's own thread waits if nobody reads there.
fn complain(caller: &Writer, failure: Failure) -> Result<(), WireError> {
    if let Some((mut stderr, message)) = failure.complaint {
        // Where it cannot be said, the status has to do.
        let _ = writeln!(stderr, "toroid: {message}");
    }
    report(caller, failure.status)
}

/// The last word of a session. It is the only one in this direction, so it finds room.
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
