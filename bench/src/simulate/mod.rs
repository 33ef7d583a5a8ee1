//! The command `simulate`: machines that are not here, in virtual time.
//!
//! * [`run`]: a program of live ranks on a [`fabric`] that is not here, with a [`placement`] of its
//!   [`ranks`].
//! * [`routing`] compares routing modes and policies.
//! * [`scale`]: gets of a store on tori of up to 65,536 nodes and more.
//! * [`turns`]: simulations on all processors.
//! * [`validate`] compares the simulator with closed forms, other simulators and published figures.

mod fabric;
mod placement;
pub mod ranks;
pub mod routing;
mod run;
pub mod scale;
mod turns;
pub mod validate;

use anyhow::{Result, bail};
use clap::error::ErrorKind;
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
    /// Run a program of live ranks, with its checked result, in virtual time.
    ///
    /// Ranks compute and exchange their data as in `programs`: a large program takes this machine its
    /// computation. Exit status 1 if the program fails or its ranks wait for each other.
    Run(Box<run::Options>),

    /// Compare routing modes and policies on a dragonfly beside noisy neighbours.
    ///
    /// Modes take turns, iteration by iteration, on one fixed allocation. Modes are default
    /// (ADAPTIVE_0, and ADAPTIVE_1 for alltoall), high-bias (ADAPTIVE_3) and auto, which chooses one
    /// for each message by latency and stalls. Last come the findings of the paper that proposes
    /// auto (De Sensi et al., 2019), each found here or not.
    ///
    /// The fabric is simulated: bias values and delays of information are this project's own, lambda
    /// and sigma are from the authors' program. Shapes can be compared with the paper, absolute
    /// times cannot.
    Routing(routing::Options),

    /// Simulate gets of a store on tori of 2 to 65,536 nodes: Figure 6 of the Kittyhawk paper.
    ///
    /// Half of the nodes are servers, the others clients that get items one after another. Nodes and
    /// links are those of Blue Gene/P. Small tori are simulated several times with other places, and
    /// figures are means. Throughput is relative to one client with one server.
    #[command(
        after_help = "Example: toroid-bench simulate scale --nodes 2,512 --placement random,compact,nearest"
    )]
    Scale(scale::Options),

    /// Compare the simulator with closed forms, other simulators and published figures.
    ///
    /// Exit status 1 if an error is above its bar, or a comparison cannot run.
    Validate(validate::Options),
}

impl Options {
    pub fn is_json(&self) -> bool {
        match &self.command {
            Command::Run(options) => options.common.json,
            Command::Routing(options) => options.is_json(),
            Command::Scale(options) => options.json,
            Command::Validate(options) => options.json,
        }
    }
}

/// Simulates; nothing is left behind.
pub fn measure(options: &Options, progress: &Progress) -> Result<Report> {
    match &options.command {
        Command::Run(options) => run::measure(options, progress),
        Command::Routing(options) => routing::measure(options, progress),
        Command::Scale(options) => scale::measure(options, progress),
        Command::Validate(options) => validate::measure(options, progress),
    }
}

/// An error of the command line, with exit status 2.
fn refuse<T>(message: String) -> Result<T> {
    bail!(clap::Error::raw(ErrorKind::ValueValidation, message + "\n"))
}
