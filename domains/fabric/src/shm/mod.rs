//! The `shm` provider: one host, regions are mapped, one-sided operations are loads and stores.
//!
//! [`control`] is what an agent does (create sealed memory, make read-only descriptors);
//! [`queue_pair`] and [`channel`] are the data path of processes.

pub mod control;
pub(crate) mod memory;
pub mod queue_pair;

pub use queue_pair::{QueuePair, RemoteRegion};
