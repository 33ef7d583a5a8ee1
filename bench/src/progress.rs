//! A line on standard error that says how far a run is, when a person is there to read it.

use std::io::{self, IsTerminal, Write};

const BAR: usize = 24;

/// How far a run is.
#[derive(Debug)]
pub struct Progress {
    shown: bool,
    done: u32,
    total: u32,
}

impl Progress {
    /// Nothing done yet. Silent unless standard error is a terminal.
    pub fn new() -> Self {
        Progress {
            shown: io::stderr().is_terminal(),
            done: 0,
            total: 1,
        }
    }

    /// From now on there are `total` steps.
    pub fn expect(&mut self, total: u32) {
        self.total = total.max(1);
    }

    /// Says what is being done.
    pub fn say(&self, what: &str) {
        if self.shown {
            let filled = BAR * self.done.min(self.total) as usize / self.total as usize;
            let bar = "#".repeat(filled) + &".".repeat(BAR - filled);
            self.print(&format!("\r\x1b[K[{bar}] {what}"));
        }
    }

    /// A step is done, and another begins.
    pub fn step(&mut self, what: &str) {
        self.done += 1;
        self.say(what);
    }

    fn print(&self, text: &str) {
        let mut stderr = io::stderr();
        // Whoever closed standard error does not miss it.
        let _ = stderr.write_all(text.as_bytes());
        let _ = stderr.flush();
    }
}

impl Default for Progress {
    fn default() -> Self {
        Self::new()
    }
}

/// Leaves an empty line.
impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            self.print("\r\x1b[K");
        }
    }
}
