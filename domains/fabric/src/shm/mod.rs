//! The `shm` provider: one host, regions are mapped, one-sided operations are loads and stores.
//!
//! [`control`] is what an agent does (create sealed memory, make read-only descriptors);
//! [`queue_pair`] and [`channel`] are the data path of processes.

#[cfg(not(loom))]
pub mod channel;
pub mod control;
pub(crate) mod memory;
pub mod queue_pair;
#[cfg(not(loom))]
pub mod wake;

#[cfg(not(loom))]
pub use channel::{Channel, ChannelEnds};
pub use queue_pair::{QueuePair, RemoteRegion};
