//! The `tcp` provider: hosts without RDMA. A connection to the peer's host takes the place of the
//! fabric, and a trusted process there that of the network card.
//!
//! Nothing here connects or decides who may: who has proved whom it speaks for gets a connected
//! socket, [tuned](tune). The initiating process owns it from then on, as a [`QueuePair`] or a
//! [`Channel`]. At the target's host, [`serve`] executes operations on regions of `shm`, under the
//! right that its host gives at that moment, and [`relay`] carries packets to a channel of `shm`;
//! so the target's process needs to know nothing of it. [`wire`] is what they say.
//!
//! Whoever is at the other end may be malicious, and may go away at any time: then everything here
//! ends with an error, within [`queue_pair`]'s patience or what [`tune`] allows.

mod batch;
pub mod channel;
mod device;
mod handles;
mod in_flight;
pub mod queue_pair;
pub mod region;
pub mod relay;
pub mod serve;
mod stream;
#[cfg(test)]
mod tests;
pub mod tune;
pub mod wire;
mod words;

pub use channel::Channel;
pub use queue_pair::QueuePair;
pub use region::RemoteRegion;
pub use relay::{Far, relay};
pub use serve::{DeviceTarget, Opened, Regions, serve};
pub use stream::Cutter;
