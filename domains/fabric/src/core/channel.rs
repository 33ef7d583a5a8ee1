//! Packets between two processes: what a consumer of the fabric asks of a channel.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::key::Partition;
use crate::topology::NodeId;

/// The longest payload of a packet in bytes: 64 KiB, and the headers of an Ethernet frame that
/// carries as much (virtio-net 12, Ethernet 14, tag 4, rounded up).
pub const MAX_PAYLOAD: usize = 64 * 1024 + 128;

/// Why a packet was not sent or received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// Nobody: the peer has not made room yet. Wait and try again.
    #[error("the channel is full")]
    Full,
    /// Caller: longer than [`MAX_PAYLOAD`].
    #[error("a packet of {len} bytes is too long: at most {MAX_PAYLOAD} fit")]
    TooLong {
        /// Bytes given.
        len: usize,
    },
    /// Policy: one of the two nodes has left the domain.
    #[error("the channel was revoked: one of the two nodes has left the domain")]
    Revoked,
    /// Peer: its process has gone.
    #[error("the process at the other end is gone")]
    PeerDead,
    /// Network: the connection to the peer's host was cut, or it has been silent for too long. What
    /// was sent may have arrived or not. Another channel may get through.
    #[error("the peer's host cannot be reached")]
    Unreachable,
    /// Peer: it wrote what no correct peer writes; the channel is closed.
    #[error("the peer broke the channel's format")]
    Corrupt,
}

/// An ordered, reliable packet channel between a process here and one at a peer node.
///
/// Every packet carries a link header, checked before the payload is looked at: what is not of
/// the channel's partition, epochs, source and protocol is dropped and counted.
pub trait PacketChannel {
    /// The node at the other end.
    fn peer(&self) -> NodeId;

    /// The partition.
    fn partition(&self) -> Partition;

    /// Sends the concatenation of `parts` as one packet; never blocks.
    ///
    /// # Errors
    /// [`ChannelError::Full`], [`ChannelError::TooLong`], and how the channel ended.
    fn send(&mut self, parts: &[&[u8]]) -> Result<(), ChannelError>;

    /// Replaces the contents of `into` by the next packet's payload; returns whether there was
    /// one. Never blocks. What arrived before the peer's process ended can still be received.
    ///
    /// # Errors
    /// How the channel ended.
    fn receive(&mut self, into: &mut Vec<u8>) -> Result<bool, ChannelError>;

    /// Spins briefly, then sleeps, until there is a packet, room after [`ChannelError::Full`],
    /// the end of the channel, or `timeout` has passed. May return early.
    fn wait(&mut self, timeout: Duration);

    /// A descriptor that becomes readable when an armed channel wants attention, for waiting on
    /// many with poll(2).
    fn wake_fd(&self) -> BorrowedFd<'_>;

    /// Asks the peer to signal [`PacketChannel::wake_fd`]; returns whether to sleep: if not,
    /// something is there already. Spurious wake-ups are possible.
    fn arm(&mut self) -> bool;

    /// Takes the request back and empties the descriptor, after waking up.
    fn disarm(&mut self);
}

/// Bytes of a packet that consists of `parts`.
pub(crate) fn total_len(parts: &[&[u8]]) -> Result<usize, ChannelError> {
    let len = parts.iter().map(|part| part.len()).sum();
    if len <= MAX_PAYLOAD {
        Ok(len)
    } else {
        Err(ChannelError::TooLong { len })
    }
}
