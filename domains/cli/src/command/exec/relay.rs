//! Output of commands, passed on to this process's own.

use std::fs::File;
use std::io::{self, IsTerminal, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::thread::{self, JoinHandle};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Bytes read at once.
const CHUNK: usize = 64 * 1024;

/// Maximum length of an unfinished line in bytes. Longer lines are broken.
const LONGEST_LINE: usize = 64 * 1024;

/// Bytes read from a stream after its command has ended: the capacity of a pipe for ordinary users.
/// Remaining processes of the command may write for ever.
const REST: usize = 1 << 20;

/// A stream of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// Standard output.
    Standard,
    /// Standard error.
    Error,
}

impl Output {
    /// Whether it is a terminal.
    pub(crate) fn is_terminal(self) -> bool {
        match self {
            Output::Standard => io::stdout().is_terminal(),
            Output::Error => io::stderr().is_terminal(),
        }
    }

    /// A copy of its descriptor.
    pub(crate) fn try_clone(self) -> io::Result<OwnedFd> {
        match self {
            Output::Standard => io::stdout().as_fd().try_clone_to_owned(),
            Output::Error => io::stderr().as_fd().try_clone_to_owned(),
        }
    }

    fn write(self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Output::Standard => {
                let mut stdout = io::stdout().lock();
                stdout.write_all(bytes)?;
                stdout.flush()
            }
            Output::Error => io::stderr().write_all(bytes),
        }
    }
}

/// A stream of a command.
#[derive(Debug)]
pub(crate) struct Source {
    from: File,
    to: Output,
    /// Begins each line.
    label: Option<String>,
    /// The begun line, if lines have labels.
    line: Vec<u8>,
    /// Bytes that may still be read after the command has ended.
    rest: usize,
}

impl Source {
    /// A source that is relayed to `to`.
    pub(crate) fn new(from: OwnedFd, to: Output, label: Option<String>) -> Self {
        Source {
            from: from.into(),
            to,
            label: label.map(|label| format!("{label}: ")),
            line: Vec::new(),
            rest: REST,
        }
    }

    /// Relays available output; returns whether more may come.
    fn pass_on(&mut self, is_over: bool) -> bool {
        let mut chunk = [0; CHUNK];
        let limit = if is_over { self.rest.min(CHUNK) } else { CHUNK };
        let count = match self.from.read(&mut chunk[..limit]) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return true,
            // A terminal that has lost its other end fails instead of ending.
            Ok(0) | Err(_) => {
                // Output that cannot be written is lost.
                let _ = self.end_line();
                return false;
            }
            Ok(count) => count,
        };
        if is_over {
            self.rest -= count;
        }
        self.write(&chunk[..count]).is_ok()
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(label) = &self.label else {
            return self.to.write(bytes);
        };
        let mut labelled = Vec::with_capacity(bytes.len() + CHUNK / 16);
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                labelled.extend_from_slice(label.as_bytes());
                labelled.append(&mut self.line);
            }
        }
        self.to.write(&labelled)?;
        if self.line.len() >= LONGEST_LINE {
            self.end_line()
        } else {
            Ok(())
        }
    }

    /// Writes a line that has no end.
    fn end_line(&mut self) -> io::Result<()> {
        if self.line.is_empty() {
            Ok(())
        } else {
            self.write(b"\n")
        }
    }
}

/// A thread that passes output on.
#[derive(Debug)]
pub(crate) struct Relay {
    ended: PipeWriter,
    thread: JoinHandle<()>,
}

impl Relay {
    /// Starts it.
    pub(crate) fn start(sources: Vec<Source>) -> io::Result<Self> {
        let (end, ended) = io::pipe()?;
        let thread = thread::Builder::new().spawn(move || pass_on_all(sources, &end))?;
        Ok(Relay { ended, thread })
    }

    /// Returns after all output of the ended commands has been relayed, even if other processes
    /// still have their streams.
    pub(crate) fn finish(self) {
        drop(self.ended);
        // It does not panic.
        let _ = self.thread.join();
    }
}

fn pass_on_all(mut sources: Vec<Source>, end: &PipeReader) {
    let mut is_over = false;
    while !sources.is_empty() {
        let Ok(ready) = await_any(&sources, end, is_over) else {
            return;
        };
        if is_over && !ready.contains(&true) {
            break;
        }
        let mut ready = ready.into_iter();
        is_over |= ready.next().unwrap_or(true);
        sources.retain_mut(|source| !ready.next().unwrap_or(true) || source.pass_on(is_over));
        sources.retain(|source| source.rest > 0);
    }
    for mut source in sources {
        // Output that cannot be written is lost.
        let _ = source.end_line();
    }
}

/// Waits until the end or some sources are ready, and returns which, that of the end first. After the
/// end it does not wait.
fn await_any(sources: &[Source], end: &PipeReader, is_over: bool) -> Result<Vec<bool>, Errno> {
    let (timeout, awaited) = if is_over {
        (PollTimeout::ZERO, PollFlags::empty())
    } else {
        (PollTimeout::NONE, PollFlags::POLLIN)
    };
    let streams = sources.iter().map(|source| source.from.as_fd());
    let streams = streams.map(|stream| PollFd::new(stream, PollFlags::POLLIN));
    let mut watched = vec![PollFd::new(end.as_fd(), awaited)];
    watched.extend(streams);
    while let Err(error) = poll(&mut watched, timeout) {
        if error != Errno::EINTR {
            return Err(error);
        }
    }
    let mut ready: Vec<_> = watched
        .iter()
        .map(|one| one.any().unwrap_or(true))
        .collect();
    if is_over {
        // Reported once.
        ready[0] = false;
    }
    Ok(ready)
}
