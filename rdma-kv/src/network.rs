//! Operations that client and server need of a communication domain.

use toroid_client::member::{Domain, MemberError};
use toroid_fabric::emulation::{Channel, QueuePair};
use toroid_fabric::{Access, Endpoint, Mapped, NodeId, PacketChannel, Region, RemoteKey};

/// Memory, queue pairs and packets of one domain.
pub trait Network {
    /// Queue pairs. Mapped regions of peers can be borrowed from.
    type Endpoint: Endpoint<Remote: Mapped>;
    /// Packet channels.
    type Channel: PacketChannel;

    /// Registers zeroed memory.
    ///
    /// # Errors
    /// [`MemberError`].
    fn alloc(&self, len: u64, access: Access) -> Result<Region, MemberError>;

    /// Opens a region of a peer; returns it with its length in bytes.
    ///
    /// # Errors
    /// [`MemberError`].
    fn open(&self, key: RemoteKey, access: Access) -> Result<(Remote<Self>, u64), MemberError>;

    /// Opens a queue pair to a peer.
    ///
    /// # Errors
    /// [`MemberError`].
    fn endpoint(&self, peer: NodeId) -> Result<Self::Endpoint, MemberError>;
}

/// A peer's region, as queue pairs of the network `N` use it.
pub type Remote<N> = <<N as Network>::Endpoint as Endpoint>::Remote;

/// Operations under way on a queue pair: a get posts few, the server one.
const DEPTH: usize = 16;

impl Network for Domain {
    type Endpoint = QueuePair;
    type Channel = Channel;

    fn alloc(&self, len: u64, access: Access) -> Result<Region, MemberError> {
        Domain::alloc(self, len, access)
    }

    fn open(&self, key: RemoteKey, access: Access) -> Result<(Remote<Self>, u64), MemberError> {
        let region = Domain::open(self, key, access)?;
        let len = region.len();
        Ok((region, len))
    }

    fn endpoint(&self, peer: NodeId) -> Result<QueuePair, MemberError> {
        let place = self.member().torus().place(peer);
        let place = place.ok_or_else(|| MemberError::no_such_node(peer.0))?;
        self.queue_pair(place, DEPTH)
    }
}
