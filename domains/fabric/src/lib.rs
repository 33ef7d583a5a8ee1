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
//! * `verbs`: the provider for RDMA adapters, behind the feature of that name.
//! * [`provider`]: one type over all of them.
//! * [`line`]: bytes between two trusted processes, the trait [`Line`].
//! * [`parameters`]: what two sides have to know of each other's RDMA adapters.
//! * [`protection`]: what tests may leave out.
//! * [`inherited`]: what processes shall not pass on.
//! * [`mounts`]: directories that they lend.
//!
//! The fabric knows no domain. It sees a [`Partition`] with an [`Epoch`] and enforces bounds,
//! rights and epochs; who gets which is decided above.

pub mod channel;
mod contention;
pub mod endpoint;
pub mod inherited;
pub mod key;
pub mod line;
pub mod link;
pub mod mapped;
pub mod mounts;
pub mod parameters;
pub mod protection;
#[cfg(not(loom))]
pub mod provider;
pub mod region;
mod ring;
pub mod segments;
pub mod shm;
mod sync;
#[cfg(not(loom))]
pub mod tcp;
pub mod topology;
#[cfg(all(feature = "verbs", not(loom)))]
pub mod verbs;

pub use channel::PacketChannel;
pub use endpoint::{Completion, Endpoint, OpError, Operation, PostError, Read};
pub use key::{Access, Epoch, Partition, RegionId, RemoteKey};
pub use line::Line;
pub use link::Protocol;
pub use mapped::Mapped;
pub use protection::Protection;
pub use region::Region;
pub use segments::{Segment, Segments};
pub use topology::{NodeId, Place, Torus};
