//! What the store asks of a communication domain.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use toroid_client::member::{Domain, Listener, MemberError};
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

/// Channels that clients open to a server.
pub trait Accept {
    /// What they are.
    type Channel: PacketChannel;

    /// The next one, if there is one now.
    ///
    /// # Errors
    /// [`MemberError`] when there will be no more.
    fn accept(&self) -> Result<Option<Self::Channel>, MemberError>;

    /// Readable while there is one.
    fn wake_fd(&self) -> BorrowedFd<'_>;
}

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

impl Accept for Listener {
    type Channel = Channel;

    fn accept(&self) -> Result<Option<Channel>, MemberError> {
        Listener::accept(self, Duration::ZERO)
    }

    fn wake_fd(&self) -> BorrowedFd<'_> {
        Listener::wake_fd(self)
    }
}
