//! The `shm` provider: one host, regions are mapped, one-sided operations are loads and stores.
//!
//! [`queue_pair`] and [`channel`] are the data path of processes. [`control`] is what an agent
//! does: create sealed memory, make read-only descriptors. When a node leaves, regions move to
//! fresh memory: [`transfer`] is the agent's part of it, [`moving`] and [`faults`] that of the
//! processes; a [`fence`] ends what a process holds that does not take part. [`compact`] lets large
//! memory move fast.

mod apart;
#[cfg(not(loom))]
pub mod channel;
mod chunks;
pub mod compact;
pub mod control;
pub mod faults;
pub mod fence;
mod handover;
pub(crate) mod memory;
pub mod moving;
pub mod queue_pair;
pub mod status;
pub mod thread;
#[cfg(feature = "verbs")]
pub(crate) mod told;
pub mod transfer;
mod userfault;
#[cfg(not(loom))]
pub mod wake;

#[cfg(not(loom))]
pub use channel::{Channel, ChannelEnds};
pub use chunks::CHUNK;
pub use compact::Compaction;
pub use moving::Memory;
pub use queue_pair::{AsShm, QueuePair, RemoteRegion};
pub use status::Status;
pub use transfer::Transfer;
