//! Routing: what the live send path and the simulator share. No I/O, no clock.
//!
//! * [`Topology`]: routers, the directed links between them, and nodes at routers; a
//!   [`TorusNetwork`] or a [`Dragonfly`]. A [`Path`] through it is as small as the header of a packet:
//!   [`Topology::step`] takes the path from router to router.
//! * [`Mode`]: the seven routing modes of Cray's Aries. [`choose`] draws candidates and decides by
//!   their [`Load`]. The bias is not published: see [`Biases`].
//! * [`counters`]: what a network card counts per tenant and mode.
//! * [`model`]: packets, flits and the predicted time of a message.
//! * [`policy`]: the mode of each message, from the counters of earlier messages.
//!
//! Modes, counters, model and policy are those of De Sensi, Di Girolamo and Hoefler, "Mitigating
//! Network Noise on Dragonfly Networks through Application-Aware Routing", SC 2019.

mod choice;
pub mod counters;
mod divisor;
mod dragonfly;
mod mode;
pub mod model;
mod network;
mod path;
pub mod policy;
mod torus;

pub use choice::{Bias, Biases, Load, choose, choose_again, choose_by};
pub use counters::{Counters, Sample};
pub use dragonfly::Dragonfly;
pub use mode::{Mode, ParseModeError};
pub use model::Operation;
pub use network::{Network, NetworkError};
pub use path::{Path, Steps};
pub use policy::{Outgoing, Policy};
pub use torus::TorusNetwork;

use std::fmt;

use crate::topology::NodeId;

/// A directed link between two routers; numbers are dense from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub u32);

/// A router; numbers are dense from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RouterId(pub u32);

/// One hop of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Step {
    /// The link.
    pub link: LinkId,
    /// The virtual channel in which a packet waits behind the link.
    pub channel: u8,
}

/// The two routers of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub struct Ends {
    pub from: RouterId,
    pub to: RouterId,
}

/// Kinds of links, which differ in rate and latency.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LinkKind {
    /// Within a chassis of a dragonfly ("green").
    Row,
    /// Between chassis of a group of a dragonfly ("black").
    Column,
    /// Between groups of a dragonfly ("blue").
    Global,
    /// Between neighbours of a torus.
    Torus,
}

/// A network of routers.
pub trait Topology: fmt::Debug + Send + Sync {
    /// The number of nodes.
    fn nodes(&self) -> u32;

    /// The number of routers.
    fn routers(&self) -> u32;

    /// The router of a node.
    fn router(&self, node: NodeId) -> RouterId;

    /// The number of directed links between routers.
    fn links(&self) -> u32;

    /// The routers of a link.
    fn ends(&self, link: LinkId) -> Ends;

    /// The kind of a link.
    fn kind(&self, link: LinkId) -> LinkKind;

    /// Virtual channels that keep the network free of deadlock.
    fn channels(&self) -> u8;

    /// The least number of hops between two routers.
    fn distance(&self, from: RouterId, to: RouterId) -> u32;

    /// A minimal path. `choice` picks one of several and has well mixed bits: a random number or a
    /// hash. The choice 0 is good for a single path per pair.
    fn minimal(&self, from: RouterId, to: RouterId, choice: u64) -> Path;

    /// A path by an intermediate router that `choice` picks. The path is minimal where the network
    /// has no intermediate router.
    fn non_minimal(&self, from: RouterId, to: RouterId, choice: u64) -> Path;

    /// Another path from the router that `path` has reached to its end, minimal or not; `None` if
    /// the virtual channels left are too few.
    fn divert(&self, path: &Path, is_minimal: bool, choice: u64) -> Option<Path>;

    /// The next hop of a path, which the path then has behind it; `None` at its end.
    fn step(&self, path: &mut Path) -> Option<Step>;

    /// The first hop of the rest of a path.
    #[inline]
    fn first(&self, path: &Path) -> Option<Step> {
        let mut path = *path;
        self.step(&mut path)
    }

    /// All hops of the rest of a path.
    fn steps(&self, path: &Path) -> Steps<'_, Self>
    where
        Self: Sized,
    {
        Steps::new(self, path)
    }

    /// The number of hops of the rest of a path.
    fn hops(&self, path: &Path) -> u32 {
        let mut path = *path;
        let mut hops = 0;
        while self.step(&mut path).is_some() {
            hops += 1;
        }
        hops
    }
}

/// One of `n` by 16 bits of a choice.
#[inline]
fn pick(choice: u32, shift: u32, n: u32) -> u32 {
    ((u64::from(choice >> shift & 0xffff) * u64::from(n)) >> 16) as u32
}

/// One of `n` by a random number.
#[inline]
fn one_of(random: u32, n: u32) -> u32 {
    ((u64::from(random) * u64::from(n)) >> 32) as u32
}

/// The `n`th number that is neither `a` nor `b`, which differ.
#[inline]
fn without(n: u32, a: u32, b: u32) -> u32 {
    let (low, high) = (a.min(b), a.max(b));
    let n = n + u32::from(n >= low);
    n + u32::from(n >= high)
}

#[cfg(test)]
mod tests;
