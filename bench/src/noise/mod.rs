//! The command `noise`: noise of processors and of networks, after a thesis on noise in clouds
//! (Rahn, 2021, "Noise Estimation in HPC Cloud Networks") and De Sensi et al. (2019), "Mitigating network
//! noise on Dragonfly networks through application-aware routing".
//!
//! [`os`] measures the host alone, without a network; [`net`] the network between two hosts;
//! [`congest`] a domain beside the traffic of another one.

mod congest;
pub mod net;
mod os;
mod signals;

use anyhow::Result;
use clap::{Args, Subcommand};

use crate::progress::Progress;
use crate::report::Report;

// Not a doc comment, which would replace the text of the command.
#[derive(Args)]
pub(crate) struct Options {
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

    /// Answer `noise connect` from another host, until a signal.
    ///
    /// Needs no agent and no root, but a key, which both ends prove before anything else. One session
    /// at a time, within limits of time and bytes.
    Serve(net::ServerOptions),

    /// Measure the network to a host that runs `noise serve`.
    ///
    /// Latency and bandwidth of messages over TCP and UDP, streams in the middle window of a run, and
    /// the noise of packets, apart from that of both hosts. Needs no agent and no root. In a node
    /// that shares a domain with the server's also one-sided reads and writes.
    Connect(net::Options),

    /// Find whether the path to `noise serve` switches between bursts and continuous use.
    ///
    /// Round trips of a large message, single and 100 in a row, with busy waits of 1 s to 0 between:
    /// the test for Google's Hoverboard gateways. Takes two minutes and more.
    Burst(net::BurstOptions),

    /// Measure a stream to `noise serve` for 15 minutes: its intervals, outliers and changes.
    Stress(net::StressOptions),

    /// Measure a domain beside the traffic of another domain: all-to-all, incast, broadcast.
    ///
    /// Impact is the time of operations beside the traffic over their time alone, at mean and 99th
    /// percentile, in turns, as GPCNeT. Starts a private agent with six nodes and leaves nothing
    /// behind. The path ethernet needs /dev/net/tun; root is not needed.
    #[command(after_help = "Example: toroid-bench noise congest --quick --path rdma --fabric bgp")]
    Congest(congest::Options),
}

impl Options {
    pub(crate) fn is_json(&self) -> bool {
        match &self.command {
            Command::Os(options) => options.common.json,
            Command::Serve(_) => false,
            Command::Connect(options) => options.common.json,
            Command::Burst(options) => options.common.json,
            Command::Stress(options) => options.common.json,
            Command::Congest(options) => options.common.json,
        }
    }

    /// Whether times under a model of links are measured.
    pub(crate) fn is_on_time(&self) -> bool {
        matches!(&self.command, Command::Congest(options) if options.fabric.is_some())
    }
}

/// Measures; nothing is left behind.
pub(crate) fn measure(options: &Options, progress: &Progress) -> Result<Report> {
    match &options.command {
        Command::Os(options) => os::measure(options, progress),
        Command::Serve(options) => match net::serve(options)? {},
        Command::Connect(options) => net::measure(options, progress),
        Command::Burst(options) => net::burst(options, progress),
        Command::Stress(options) => net::stress(options, progress),
        Command::Congest(options) => Ok(congest::measure(options, progress)?),
    }
}
