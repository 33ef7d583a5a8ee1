//! The `shm` provider for one host: regions are mapped, one-sided operations are loads and stores.
//!
//! There is no control path here. The client library, by grants of an agent, and
//! [`loopback`](crate::loopback) implement `Provider` with these types.

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
