//! The `loopback` provider: a fabric within one process, for tests, examples and doctests.
//!
//! A [`Network`] stands for the agents: it keeps the members of one partition, their exported
//! regions and their listeners. Memory, queue pairs and channels are those of [`shm`](crate::shm),
//! so code that runs on loopback meets the same bounds, rights and errors.
//!
//! ```
//! use toroid_fabric::loopback::Network;
//! use toroid_fabric::provider::Provider;
//! use toroid_fabric::{Access, Mapped, NodeId, Partition};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let network = Network::new(Partition(7));
//! let (owner, peer) = (network.join(NodeId(0)), network.join(NodeId(1)));
//! let region = owner.alloc(4096, Access::REMOTE_READ)?;
//! region.write(0, b"hello")?;
//!
//! let key = region.remote_key().ok_or("it is exported")?;
//! let remote = peer.open(key, Access::REMOTE_READ)?;
//! let mut bytes = [0; 5];
//! remote.read(0, &mut bytes)?;
//! assert_eq!(&bytes, b"hello");
//!
//! network.leave(NodeId(1));
//! assert!(remote.read(0, &mut bytes).is_err());
//! # Ok(())
//! # }
//! ```

mod control;

pub use control::{Error, Listener, Network, Node};

pub use crate::shm::{Channel, QueuePair, RemoteRegion};
