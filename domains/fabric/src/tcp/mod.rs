//! The `tcp` provider: hosts without RDMA. A TCP connection to the peer's host stands for the fabric,
//! and a trusted process there for the network card.
//!
//! Callers connect, authenticate and authorize; this module gets a connected socket, [tuned](tune).
//! The initiating process owns the socket from then on, as a [`QueuePair`] or a [`Channel`]. At the
//! target's host, [`serve()`] executes operations on regions of `shm`, with the rights that they have
//! at that moment, and [`relay()`] carries packets to a channel of `shm`. So the target process takes
//! no part in either. [`wire`] has the messages.
//!
//! Connections within a host are clear. Those between hosts are [`secure`]: the callers agree on keys
//! and pass them with the socket.
//!
//! The other end may be malicious and may go away at any time. Then every operation ends with an
//! error, within the reply timeout of [`queue_pair`] or the timeouts of [`tune`].

mod batch;
pub mod channel;
mod device;
mod handles;
mod in_flight;
pub mod queue_pair;
pub mod region;
pub mod relay;
pub mod secure;
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
pub use relay::{RemoteEnd, Turns, Way, relay};
pub use secure::Connection;
pub use serve::{DeviceTarget, Opened, Regions, serve};
pub use stream::Cutter;
