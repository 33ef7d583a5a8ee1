//! A progress bar on standard error, if that is a terminal.

use indicatif::{ProgressBar, ProgressStyle};

/// The progress of a run. Dropping it clears the line.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    pub fn new() -> Self {
        let style = ProgressStyle::with_template("[{bar:24}] {eta:>4} {msg}");
        let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
        Progress(ProgressBar::new(1).with_style(style.progress_chars("#>.")))
    }

    /// Sets the number of steps of the run.
    pub fn expect(&self, steps: usize) {
        self.0.set_length(steps.max(1) as u64);
    }

    /// Shows a message without counting a step.
    pub fn say(&self, what: impl ToString) {
        self.0.set_message(what.to_string());
    }

    /// Counts a step and shows the next one.
    pub fn step(&self, what: impl ToString) {
        self.0.inc(1);
        self.say(what);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
