//! The caller's terminal while a command has a terminal of its node.

use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::getpgrp;
use rustix::termios::{
    OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr,
    tcsetwinsize,
};

/// Rows and columns where there is no terminal to ask.
const DEFAULT_SIZE: (u16, u16) = (24, 80);

/// Whether a command gets a terminal by default.
pub(super) fn is_ours() -> bool {
    io::stdin().is_terminal() && io::stdout().is_terminal() && is_in_foreground()
}

/// Whether this process may read from the terminal that is its standard input, and change it. If that
/// does not control this process, it may.
pub(super) fn is_in_foreground() -> bool {
    tcgetpgrp(io::stdin()).map_or(true, |group| group == getpgrp())
}

/// Rows and columns of the caller's terminal.
pub(super) fn size() -> (u16, u16) {
    let size = tcgetwinsize(io::stdin()).or_else(|_| tcgetwinsize(io::stdout()));
    size.map_or(DEFAULT_SIZE, |size| (size.ws_row, size.ws_col))
}

/// Passes standard input on to a command's terminal. At its end, types the end-of-file character of
/// that terminal.
pub(super) fn pass_input(master: OwnedFd) {
    let mut typed = Typed {
        master: File::from(master),
        last: b'\n',
    };
    // It ends with the command, or with this process.
    if io::copy(&mut io::stdin().lock(), &mut typed).is_ok()
        && let Ok(modes) = tcgetattr(&typed.master)
    {
        let end = modes.special_codes[SpecialCodeIndex::VEOF];
        // In the middle of a line the first one only ends the line.
        let count = if typed.last == b'\n' { 1 } else { 2 };
        let _ = typed.master.write_all(&vec![end; count]);
    }
}

/// A terminal that remembers the last typed byte.
struct Typed {
    master: File,
    last: u8,
}

impl Write for Typed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.master.write(bytes)?;
        self.last = bytes[..count].last().copied().unwrap_or(self.last);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The caller's terminal in raw mode, and the command's terminal, of the same size.
#[derive(Clone, Debug)]
pub(super) struct Screen {
    master: Arc<OwnedFd>,
    /// Original modes of the caller's terminal; `None` without a terminal and after the end.
    modes: Arc<Mutex<Option<Termios>>>,
}

impl Screen {
    /// The screen of a command with this terminal.
    pub(super) fn new(master: OwnedFd) -> Self {
        Screen {
            master: Arc::new(master),
            modes: Arc::new(Mutex::new(tcgetattr(io::stdin()).ok())),
        }
    }

    /// Takes the caller's terminal, unless another job has it just now.
    pub(super) fn begin(&self) {
        if let Some(modes) = &*self.modes() {
            let mut raw = modes.clone();
            raw.make_raw();
            set(&raw);
        }
    }

    /// Gives the caller's terminal back for a while.
    pub(super) fn give_back(&self) {
        if let Some(modes) = &*self.modes() {
            set(modes);
        }
    }

    /// Gives the caller's terminal back for good.
    pub(super) fn end(&self) {
        if let Some(modes) = self.modes().take() {
            set(&modes);
        }
    }

    /// Makes the command's terminal as large as the caller's.
    pub(super) fn resize(&self) {
        if let Ok(size) = tcgetwinsize(io::stdin()).or_else(|_| tcgetwinsize(io::stdout())) {
            // It fails when all is over.
            let _ = tcsetwinsize(&self.master, size);
        }
    }

    fn modes(&self) -> MutexGuard<'_, Option<Termios>> {
        self.modes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Changes the caller's terminal. A job in the background would be stopped for that.
fn set(modes: &Termios) {
    if is_in_foreground() {
        // It fails when the terminal has gone.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, modes);
    }
}
