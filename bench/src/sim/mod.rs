//! Simulated fabrics: the engine of the command `simulate`.
//!
//! A simulation is a [`Network`] and a program that drives it: the program sends messages and sets
//! timers, and [`Network::next`] returns what happens next, in virtual time. Nothing here has a
//! clock, a thread or I/O, and the same calls give the same trace, bit by bit.
//!
//! * [`wheel`]: the event queue; `agenda`: its events, timers and happenings.
//! * [`profile`]: rates, latencies and buffers of a fabric.
//! * [`chunks`]: chunks on the clocks of the link model, for large fabrics.
//! * [`packets`]: packets with responses, virtual channels and credits, for routing.
//! * `transfer`, `cards`: messages and network cards of both levels.
//!
//! Topologies, routes and counters are those of [`toroid_fabric::routes`], which the live send path
//! uses as well.

mod agenda;
mod cards;
pub mod chunks;
pub mod packets;
pub mod profile;
mod slab;
#[cfg(test)]
mod tests;
mod transfer;
pub mod wheel;

use std::fmt;

use toroid_fabric::NodeId;
use toroid_fabric::routes::{Counters, LinkId, Mode, Operation};

pub use profile::Profile;

/// Virtual time, in units of 1/8 ns.
pub type Ticks = u64;

/// Ticks of a nanosecond.
pub const TICKS: Ticks = 8;

/// Nanoseconds of a time.
pub fn nanoseconds(ticks: Ticks) -> f64 {
    ticks as f64 / TICKS as f64
}

/// A message between two nodes of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message {
    /// Node that posts the operation.
    pub from: NodeId,
    /// The other node.
    pub to: NodeId,
    /// Length, at least 1 packet.
    pub bytes: u64,
    /// A put moves the bytes from `from` to `to`, a get from `to` to `from`.
    pub operation: Operation,
    /// Routing of all packets, responses included.
    pub mode: Mode,
    /// Communication domain, for counters. Domains share network cards and links.
    pub domain: u16,
    /// Number that [`Happening`]s of the message carry.
    pub token: u64,
}

impl Message {
    /// A put in domain 0, with the number of its node as the token.
    pub fn put(from: u32, to: u32, bytes: u64, mode: Mode) -> Self {
        Message {
            from: NodeId(from),
            to: NodeId(to),
            bytes,
            operation: Operation::Put,
            mode,
            domain: 0,
            token: from.into(),
        }
    }

    /// A get, otherwise as [`Message::put`].
    pub fn get(from: u32, to: u32, bytes: u64, mode: Mode) -> Self {
        Message {
            operation: Operation::Get,
            ..Self::put(from, to, bytes, mode)
        }
    }
}

/// What a program waits for. Times are those of [`Network::now`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Happening {
    /// The last byte has arrived: at the other node for a put, at the sender for a get.
    Delivered(u64),
    /// The sender has all responses. Follows [`Happening::Delivered`].
    Completed(u64),
    /// A timer is due.
    Timer(u64),
}

/// A simulated fabric.
pub trait Network {
    /// Time of the last happening.
    fn now(&self) -> Ticks;

    /// Queues a message at the sender's network card now. Messages of a sender and a domain leave in
    /// order.
    fn send(&mut self, message: Message);

    /// Lets [`Happening::Timer`] happen at a time. A time of the past is now.
    fn timer(&mut self, at: Ticks, token: u64);

    /// Advances to the next happening; `None` if nothing is pending.
    fn next(&mut self) -> Option<Happening>;

    /// Counters of a network card for one domain and mode.
    fn counters(&self, node: NodeId, domain: u16, mode: Mode) -> Counters;

    /// Use of each directed link between routers, by [`LinkId`].
    fn link_bytes(&self, link: LinkId) -> u64;

    /// The link that was busy for the largest part of the time.
    fn busiest(&self) -> Option<Busiest>;

    /// Packets or chunks by their path.
    fn routed(&self) -> Routed;

    /// Events so far, a measure of the work.
    fn events(&self) -> u64;
}

/// A link and its use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Busiest {
    /// The link.
    pub link: LinkId,
    /// Bytes on the wire.
    pub bytes: u64,
    /// Share of the time since 0, from 0 to 1.
    pub busy: f64,
}

/// Routing decisions by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Routed {
    /// Packets or chunks on a minimal path.
    pub minimal: u64,
    /// Packets or chunks by an intermediate router.
    pub non_minimal: u64,
}

impl Routed {
    /// Share of the non-minimal ones, from 0 to 1; 0 without any.
    pub fn share_non_minimal(&self) -> f64 {
        self.non_minimal as f64 / (self.minimal + self.non_minimal).max(1) as f64
    }

    /// Counts a packet or chunk.
    #[inline]
    fn count(&mut self, is_minimal: bool) {
        match is_minimal {
            true => self.minimal += 1,
            false => self.non_minimal += 1,
        }
    }

    /// Decisions after `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Routed) -> Routed {
        Routed {
            minimal: self.minimal.saturating_sub(earlier.minimal),
            non_minimal: self.non_minimal.saturating_sub(earlier.non_minimal),
        }
    }
}

/// Why a simulation does not start.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SimulationError {
    /// The state of the simulation exceeds the memory.
    #[error(
        "a simulation of {nodes} nodes at the level of {level} may need {}, and {} are available: use fewer nodes{remedy}",
        Size(*needed),
        Size(*available)
    )]
    NoMemory {
        /// Nodes of the fabric.
        nodes: u32,
        /// `packets` or `chunks`.
        level: &'static str,
        /// Estimated bytes.
        needed: u64,
        /// Bytes available.
        available: u64,
        /// What else helps.
        remedy: &'static str,
    },
    /// The profile describes no fabric that could work.
    #[error("profile \"{profile}\": {problem}")]
    Profile {
        /// Name of the profile.
        profile: String,
        /// Value, limit and remedy.
        problem: String,
    },
}

struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 >> 30 {
            0 => write!(f, "{} MiB", self.0 >> 20),
            _ => write!(f, "{:.1} GiB", self.0 as f64 / (1 << 30) as f64),
        }
    }
}
