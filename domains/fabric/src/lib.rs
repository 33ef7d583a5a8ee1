//! The data path of Toroid: memory that peers read and write directly, and packets.
//!
//! The fabric knows no domain. It sees a [`Partition`] with an [`Epoch`] and enforces bounds,
//! rights and epochs. An agent above it decides which node gets which access.
//!
//! # Layers
//!
//! From the bottom up; a layer uses those above it in this list only:
//!
//! * [`topology`], [`key`]: nodes and their places in a torus; names of regions, partitions, epochs
//!   and rights.
//! * [`os`]: system calls that no library wraps.
//! * [`mem`]: memory that processes share, its migration to fresh pages when a node leaves, and the
//!   fences that end access.
//! * [`model`]: the link model, which computes when a message arrives.
//! * [`routes`]: networks, paths through them, routing modes, counters of network cards, and policies
//!   that choose modes.
//! * [`routing`]: routes of live messages under the model of a torus.
//! * `core`, re-exported here: [`Region`], one-sided operations ([`Endpoint`]), their completions by
//!   one queue ([`CompletionQueue`]), regions that need no queue pair ([`Mapped`]), packets
//!   ([`PacketChannel`]) with their link header ([`link`]), RDMA streams ([`rdma_stream`]).
//! * Providers, one folder each: [`shm`] for processes of one host, [`tcp`] for hosts without RDMA,
//!   `verbs` for RDMA devices and `failover` for both together (feature `verbs`), [`loopback`] for
//!   tests within one process.
//! * [`provider`]: the trait of all providers, and one type over those that an agent chooses from.
//! * [`emulation`]: queue pairs and channels that are as slow as a link model says.
//!
//! # Example
//!
//! ```
//! use std::time::Duration;
//! use toroid_fabric::loopback::Network;
//! use toroid_fabric::provider::Provider;
//! use toroid_fabric::{Access, Completion, Endpoint, NodeId, Operation, Partition, Region};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let network = Network::new(Partition(7));
//! let (owner, peer) = (network.join(NodeId(0)), network.join(NodeId(1)));
//! let region = owner.alloc(4096, Access::all())?;
//! let key = region.remote_key().ok_or("an exported region has a key")?;
//!
//! // The peer writes 5 bytes at offset 8 of the region.
//! let local = Region::local(4096)?;
//! local.write(0, b"hello")?;
//! let remote = peer.open(key, Access::REMOTE_WRITE)?;
//! let mut pair = peer.queue_pair(NodeId(0), 16)?;
//! pair.post(1, Operation::write(&remote, 8, &local, 0..5))?;
//! pair.flush();
//! let mut done = [Completion::default()];
//! while pair.poll(&mut done) == 0 {
//!     pair.wait(Duration::from_secs(1));
//! }
//! assert_eq!((done[0].id, done[0].result), (1, Ok(5)));
//!
//! let mut bytes = [0; 5];
//! region.read(8, &mut bytes)?;
//! assert_eq!(&bytes, b"hello");
//! # Ok(())
//! # }
//! ```

mod core;
#[cfg(not(loom))]
pub mod deadlines;
#[cfg(not(loom))]
pub mod emulation;
mod error;
#[cfg(all(feature = "verbs", not(loom)))]
pub mod failover;
pub mod key;
#[cfg(not(loom))]
pub mod loopback;
pub mod mem;
pub mod model;
pub mod os;
#[cfg(not(loom))]
pub mod provider;
pub mod routes;
pub mod routing;
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
pub use self::core::completion_queue::{AttachError, CompletionQueue, QueuedCompletion};
pub use self::core::endpoint::{
    AsRegion, Completion, Endpoint, OpError, Operation, Pending, PostError, Read,
};
pub use self::core::link::Protocol;
pub use self::core::mapped::Mapped;
pub use self::core::membership::Membership;
pub use self::core::rdma_stream::RdmaStream;
pub use self::core::region::Region;
pub use self::core::segments::{Segment, Segments};
pub use self::core::{
    channel, endpoint, hold, link, mapped, parameters, rdma_stream, region, segments,
};
pub use key::{Access, Epoch, Partition, RegionId, RemoteKey};
pub use mem::DropGuard;
pub use test_knob::TestKnob;
pub use topology::{Direction, Hop, NodeId, Place, Torus};
