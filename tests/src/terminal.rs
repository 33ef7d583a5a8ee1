//! A terminal at which a story types.

use std::cell::Cell;
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{Termios, Winsize, tcgetattr, tcsetwinsize};

use crate::process::{FOR_EVER, append, code, holds_within};

/// The terminal. It is 24 lines high and 80 characters wide at first.
#[derive(Debug)]
pub struct Terminal {
    keyboard: File,
    /// The side of programs, held open so that the terminal outlives them.
    line: File,
    shown: Arc<Mutex<Vec<u8>>>,
    /// Bytes of `shown` that [`Terminal::shows`] has passed.
    seen: Cell<usize>,
}

impl Terminal {
    /// Makes a terminal.
    ///
    /// # Panics
    /// When there are no terminals.
    #[expect(clippy::new_without_default, reason = "it takes a device")]
    pub fn new() -> Self {
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).expect("there are terminals");
        unlockpt(&master).expect("it is a master");
        let slave = ioctl_tiocgptpeer(&master, flags).expect("it is unlocked");
        let (keyboard, line) = (File::from(master), File::from(slave));
        tcsetwinsize(&keyboard, size(24, 80)).expect("it is a terminal");
        let shown = Arc::new(Mutex::new(Vec::new()));
        let (mut screen, gathered) = (keyboard.try_clone().expect("it is open"), shown.clone());
        thread::spawn(move || {
            let mut some = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut some) {
                let mut shown = gathered.lock().unwrap_or_else(PoisonError::into_inner);
                shown.extend_from_slice(&some[..count]);
            }
        });
        Terminal {
            keyboard,
            line,
            shown,
            seen: Cell::new(0),
        }
    }

    /// Its descriptor for a program.
    pub fn stdio(&self) -> Stdio {
        self.line.try_clone().expect("it is open").into()
    }

    /// Starts a command that leads a session at this terminal.
    pub fn start(&self, command: &Command) -> AtTerminal {
        self.start_with(command, self.stdio())
    }

    /// The same, with another standard output.
    pub fn start_with(&self, command: &Command, stdout: Stdio) -> AtTerminal {
        let mut setsid = Command::new("setsid");
        append(setsid.arg("--ctty"), command);
        setsid.stdin(self.stdio()).stdout(stdout);
        setsid.stderr(self.stdio());
        AtTerminal(setsid.spawn().expect("setsid of util-linux is there"))
    }

    /// Types.
    ///
    /// # Panics
    /// When the terminal has gone.
    pub fn types(&self, keys: impl AsRef<[u8]>) {
        let mut keyboard = &self.keyboard;
        keyboard.write_all(keys.as_ref()).expect("it is there");
    }

    /// Waits until it shows `text`, behind the text of the last call.
    #[track_caller]
    pub fn shows(&self, text: &str) {
        let find = || {
            let shown = self.shown();
            let rest = &shown[self.seen.get()..];
            let at = rest
                .windows(text.len())
                .position(|part| part == text.as_bytes());
            at.map(|at| self.seen.get() + at + text.len())
        };
        let came = holds_within(FOR_EVER, || find().is_some());
        assert!(came, "it never shows {text:?}: {}", self.text());
        self.seen.set(find().expect("it came"));
    }

    /// All output so far.
    pub fn shown(&self) -> Vec<u8> {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.clone()
    }

    /// The same as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.shown()).into_owned()
    }

    /// Changes its size.
    ///
    /// # Panics
    /// When the terminal has gone.
    pub fn resize(&self, rows: u16, columns: u16) {
        tcsetwinsize(&self.keyboard, size(rows, columns)).expect("it is a terminal");
    }

    /// Asserts that a shell on it, and its commands, have its size, hear of a change, and are interrupted
    /// by its key.
    #[track_caller]
    pub fn resizes_and_interrupts(&self) {
        self.types("stty size\n");
        self.shows("24 80\r\n");
        let armed =
            r#"sh -c "trap 'stty size; exit' WINCH; echo ar''med; while :; do sleep 0.01; done""#;
        self.types(format!("{armed}\n"));
        self.shows("armed\r\n");
        self.resize(50, 132);
        self.shows("50 132\r\n");
        self.types("sh -c 'echo be''gun; exec sleep 1000'\n");
        self.shows("begun\r\n");
        self.types([3]);
        self.types("echo status $?\n");
        self.shows("status 130\r\n");
    }

    /// Its settings for input.
    ///
    /// # Panics
    /// When the terminal has gone.
    pub fn modes(&self) -> Termios {
        tcgetattr(&self.line).expect("it is a terminal")
    }
}

fn size(rows: u16, columns: u16) -> Winsize {
    Winsize {
        ws_row: rows,
        ws_col: columns,
        ws_xpixel: 0,
        ws_ypixel: 0,
    }
}

/// A command at a terminal. Dropping it kills it.
#[derive(Debug)]
pub struct AtTerminal(Child);

impl AtTerminal {
    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Waits for its end, and returns its exit status or 128 + the signal that ended it.
    ///
    /// # Panics
    /// When it does not come.
    #[track_caller]
    pub fn wait(mut self) -> i32 {
        let ended = holds_within(FOR_EVER, || matches!(self.0.try_wait(), Ok(Some(_))));
        assert!(ended, "it does not end");
        code(self.0.wait().expect("it is our child"))
    }
}

impl Drop for AtTerminal {
    fn drop(&mut self) {
        // Both fail when the command has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
