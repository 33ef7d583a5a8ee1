//! The command `simulate`: machines that are not here, in virtual time.
//!
//! [`validate`] compares the simulator with closed forms, other simulators and published figures.

pub mod validate;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::progress::Progress;
use crate::report::Report;

// Not a doc comment, which would replace the text of the command.
#[derive(Args)]
pub struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compare the simulator with closed forms, other simulators and published figures.
    ///
    /// Exit status 1 if an error is above its bar, or a comparison cannot run.
    Validate(validate::Options),
}

impl Options {
    pub fn is_json(&self) -> bool {
        match &self.command {
            Command::Validate(options) => options.json,
        }
    }
}

/// Simulates; nothing is left behind.
pub fn measure(options: &Options, progress: &Progress) -> Result<Report> {
    match &options.command {
        Command::Validate(options) => validate::measure(options, progress),
    }
}
