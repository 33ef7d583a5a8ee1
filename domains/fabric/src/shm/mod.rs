//! The `shm` provider for one host: regions are mapped, one-sided operations are loads and stores.
//!
//! It has no control path of its own: an agent grants memory and descriptors, or the network of
//! [`loopback`](crate::loopback). These implement `Provider` with the types from here.

#[cfg(not(loom))]
pub mod channel;
#[cfg(not(loom))]
pub mod control;
pub mod queue_pair;
pub mod region;
mod ring;

#[cfg(not(loom))]
pub use channel::Channel;
#[cfg(not(loom))]
pub use control::{ChannelEnds, RING_BYTES};
pub use queue_pair::QueuePair;
pub use region::RemoteRegion;
