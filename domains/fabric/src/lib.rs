//! The data path of Toroid: memory that peers reach directly, and packets.
//!
//! From the bottom up:
//!
//! * [`topology`]: nodes and their places in a torus.
//! * [`key`]: names of regions, partitions, epochs, and the rights of peers.
//! * [`region`]: registered memory, as its owner sees it.
//! * [`endpoint`]: one-sided operations on a peer's region, the trait [`Endpoint`].
//! * [`link`], [`channel`]: packets with a link header over byte rings, the trait
//!   [`PacketChannel`].
//! * [`mapped`]: regions that need no queue pair to be read.
//! * [`shm`]: the provider for processes of one host.
//! * [`tcp`]: the provider for hosts without RDMA.
//! * `verbs`: the provider for RDMA devices, behind the feature of that name.
//! * [`provider`]: one type over all of them.
//! * [`line`]: bytes between two trusted processes, the trait [`Line`].
//! * [`parameters`]: what two sides have to know of each other's RDMA devices.
//! * [`protection`]: what tests may leave out.
//! * [`inherited`]: what processes shall not pass on.
//! * [`mounts`]: directories that they lend.
//!
//! The fabric knows no domain. It sees a [`Partition`] with an [`Epoch`] and enforces bounds,
//! rights and epochs; who gets which is decided above.

mod core;
mod error;
#[cfg(all(feature = "verbs", not(loom)))]
pub mod failover;
pub mod key;
#[cfg(not(loom))]
pub mod loopback;
pub mod mem;
pub mod os;
#[cfg(not(loom))]
pub mod provider;
pub mod shm;
mod sync;
#[cfg(not(loom))]
pub mod tcp;
mod test_knob;
pub mod topology;
#[cfg(all(feature = "verbs", not(loom)))]
pub mod verbs;

pub use self::core::busy_poll::BusyPoll;
pub use self::core::channel::PacketChannel;
pub use self::core::endpoint::{
    AsRegion, Completion, Endpoint, OpError, Operation, PostError, Read,
};
pub use self::core::link::Protocol;
pub use self::core::mapped::Mapped;
pub use self::core::membership::Membership;
pub use self::core::rdma_stream::RdmaStream;
pub use self::core::region::Region;
pub use self::core::segments::{Segment, Segments};
pub use self::core::{channel, endpoint, link, mapped, parameters, rdma_stream, region, segments};
pub use key::{Access, Epoch, Partition, RegionId, RemoteKey};
pub use mem::DropGuard;
pub use test_knob::TestKnob;
pub use topology::{NodeId, Place, Torus};
