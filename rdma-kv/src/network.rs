//! What the store asks of a communication domain.

use toroid_client::member::{Domain, MemberError};
use toroid_fabric::provider::{Channel, QueuePair};
use toroid_fabric::{Access, Endpoint, Mapped, NodeId, PacketChannel, Region, RemoteKey};

/// Memory, queue pairs and packets of one domain.
pub trait Network {
    /// Its queue pairs. What lies in peers' regions that are mapped can be borrowed.
    type Endpoint: Endpoint<Remote: Mapped>;
    /// Its packet channels.
    type Channel: PacketChannel;

    /// Registers zeroed memory.
    ///
    /// # Errors
    /// [`MemberError`].
    fn alloc(&self, len: u64, access: Access) -> Result<Region, MemberError>;

    /// Opens a peer's region; returns it and its bytes.
    ///
    /// # Errors
    /// [`MemberError`].
    fn open(&self, key: RemoteKey, access: Access) -> Result<(Remote<Self>, u64), MemberError>;

    /// A queue pair to a peer.
    ///
    /// # Errors
    /// [`MemberError`].
    fn endpoint(&self, peer: NodeId) -> Result<Self::Endpoint, MemberError>;
}

/// A peer's region, as the queue pairs of a network use it.
pub type Remote<N> = <<N as Network>::Endpoint as Endpoint>::Remote;

/// Operations that a queue pair holds: a client's get posts few, a server one.
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
