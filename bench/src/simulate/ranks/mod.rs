//! Ranks of a program on a simulated network.
//!
//! Each [rank](SimulatedRank) is a coroutine on a stack of its own. Exactly one runs at a time: a send
//! or a receive hands over to the [scheduler], which owns the network and its clock. A hand-over takes
//! some 10 ns (one to a parked thread and back takes 6 to 12 us), and the same network gives the same
//! run, message by message.
//!
//! Messages pass through the [message layer](crate::worker::micro::message_layer) of live ranks: eager
//! up to a limit, three-way above. Its packets are messages of the network, each in the mode that the
//! rank's [`Policy`] chooses. Computation and the overhead `o` of LogGP at both ends advance a clock of
//! the rank, in ticks.
//!
//! A run in which no rank can go on ends with [`Stop::Deadlock`]; a rank that panics ends it with
//! [`Stop::Panic`]. The stacks of the other ranks are unwound.

mod deadlock;
mod posts;
mod rank;
mod scheduler;
#[cfg(test)]
mod tests;
#[cfg(test)]
pub mod uniform;

use anyhow::Result;
use toroid_fabric::NodeId;
use toroid_fabric::routes::policy::{Policy, Recorded};

pub use self::rank::SimulatedRank;
use self::scheduler::Scheduler;
use crate::sim::{Happening, Network, Ticks};
use crate::worker::micro::message_layer;

/// The first token of [`Beside`]. Smaller ones are those of ranks.
pub const FIRST_TOKEN_BESIDE: u64 = 1 << 63;

/// Times of a rank's processor, and limits of its message layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Costs {
    /// Overhead of a packet at its sender and at its receiver.
    pub send: Ticks,
    pub receive: Ticks,
    /// Ticks of an operation of [`Rank::compute`](crate::worker::programs::rank::Rank::compute).
    pub operation: f64,
    /// Ticks of a copied byte.
    pub copied_byte: f64,
    /// Bytes of the longest eager message.
    pub eager: usize,
    /// Bytes of the longest piece of a longer message.
    pub piece: usize,
}

impl Default for Costs {
    /// Processors that cost nothing.
    fn default() -> Self {
        Costs {
            send: 0,
            receive: 0,
            operation: 0.0,
            copied_byte: 0.0,
            eager: message_layer::EAGER,
            piece: usize::MAX,
        }
    }
}

/// Traffic of other tenants on the network of a run.
pub trait Beside {
    /// Answers an event with a token from [`FIRST_TOKEN_BESIDE`] on, for instance by the next message.
    fn happened(&mut self, network: &mut dyn Network, what: Happening);
}

/// The ranks of a run, and their network.
pub struct Job<'a> {
    pub network: &'a mut dyn Network,
    /// The node of each rank.
    pub nodes: &'a [NodeId],
    /// The domain of all messages.
    pub domain: u16,
    pub costs: Costs,
    /// The policy of each rank.
    pub policies: &'a mut [Recorded<Box<dyn Policy>>],
    pub beside: Option<&'a mut dyn Beside>,
}

/// The reason why a run has no results.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// Ranks wait for each other, or for one that has ended.
    #[error("deadlock: {0}")]
    Deadlock(String),
    /// A rank ended with an error, and others wait for it.
    #[error("rank {rank} failed: {error:#}")]
    Failed { rank: usize, error: anyhow::Error },
    #[error("rank {rank} panicked: {message}")]
    Panic { rank: usize, message: String },
    #[error("the network has lost {0} messages: report this as a fault of the simulator")]
    Lost(usize),
    #[error("no memory for the stacks of {ranks} ranks: {error}; choose fewer")]
    Memory { ranks: usize, error: std::io::Error },
}

/// Runs a program from the present of the network on, until all ranks have ended and all their
/// messages have arrived and are answered. Returns the result of each rank.
pub fn run<T: 'static>(
    job: Job<'_>,
    program: impl Fn(&mut SimulatedRank<'_>) -> Result<T> + 'static,
) -> Result<Vec<Result<T>>, Stop> {
    Scheduler::new(job, program)?.run()
}
