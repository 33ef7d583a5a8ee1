//! The command `noise`: noise of processors and of networks, after a thesis on noise in clouds
//! ("Evaluating HPC networks in the cloud", 2022) and De Sensi et al. (2019), "Mitigating network
//! noise on Dragonfly networks through application-aware routing".
//!
//! [`os`] measures the host alone, without a network.

mod os;
mod signals;

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
    /// Measure time that the host takes from a process: detours, and work by time and by quantum.
    ///
    /// A pinned loop reads the clock. A gap of more than nine times the shortest one is a detour.
    /// Root is not needed.
    Os(os::Options),
}

impl Options {
    pub fn is_json(&self) -> bool {
        match &self.command {
            Command::Os(options) => options.common.json,
        }
    }
}

/// Measures; nothing is left behind.
pub fn measure(options: &Options, progress: &Progress) -> Result<Report> {
    match &options.command {
        Command::Os(options) => os::measure(options, progress),
    }
}
