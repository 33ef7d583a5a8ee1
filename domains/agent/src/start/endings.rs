//! Reasons to end, or to start again: signals and the end of the liveness socket.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::Sender;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use signal_hook::low_level::pipe;

use super::{again, spawn};
use crate::core::host::Ending;
use crate::error::{AgentError, during};

/// A pair of sockets in which the arrival of a signal to end is noted, for this life of the agent and
/// all next ones: nobody reads the note, so that one which arrives between two lives is not lost.
#[derive(Debug)]
pub(crate) struct EndNote {
    pub(super) reader: OwnedFd,
    pub(super) writer: OwnedFd,
}

impl EndNote {
    pub(super) fn new() -> io::Result<Self> {
        let (reader, writer) = UnixStream::pair()?;
        Ok(EndNote {
            reader: reader.into(),
            writer: writer.into(),
        })
    }

    pub(super) fn try_clone(&self) -> io::Result<Self> {
        Ok(EndNote {
            reader: self.reader.try_clone()?,
            writer: self.writer.try_clone()?,
        })
    }

    /// Waits until a signal has arrived.
    fn wait(&self) {
        let mut noted = [PollFd::new(self.reader.as_fd(), PollFlags::POLLIN)];
        // An interrupted wait begins again.
        while poll(&mut noted, PollTimeout::NONE).is_err() {}
    }
}

/// Reports signals from now on, and one that a former life has noted.
pub(super) fn catch_signals(ending: &Sender<Ending>, note: EndNote) -> Result<(), AgentError> {
    let failed = during("catch signals");
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let writer = note.writer.try_clone().map_err(failed)?;
        pipe::register(signal, writer).map_err(failed)?;
    }
    let mut others = Signals::new([SIGUSR1]).map_err(failed)?;
    again::take_signals().map_err(failed)?;
    let told = ending.clone();
    spawn(move || {
        note.wait();
        // This fails only when the agent is ending anyway, as below.
        let _ = told.send(Ending::Told);
    })?;
    let told = ending.clone();
    spawn(move || {
        for _ in others.forever() {
            let _ = told.send(Ending::Again);
        }
    })
}

/// Reports the end of standard input, if that is the liveness socket.
pub(super) fn watch_lifeline(ending: &Sender<Ending>) -> Result<(), AgentError> {
    let ending = ending.clone();
    spawn(move || {
        // Only its end is of interest.
        let _ = io::copy(&mut io::stdin(), &mut io::sink());
        let _ = ending.send(Ending::Told);
    })
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use nix::sys::signal::{Signal, raise};

    use super::*;

    /// A signal that arrived between two lives, after the last look of the first, once ended neither.
    #[test]
    fn a_signal_to_end_is_told_to_the_next_life_too() {
        let note = EndNote::new().unwrap();
        let (first, told_first) = channel();
        catch_signals(&first, note.try_clone().unwrap()).unwrap();
        raise(Signal::SIGTERM).unwrap();
        assert!(matches!(told_first.recv(), Ok(Ending::Told)));
        let (next, told_next) = channel();
        catch_signals(&next, note).unwrap();
        assert!(matches!(told_next.recv(), Ok(Ending::Told)));
    }
}
