//! Packets between two processes.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::core::hold::Hold;
use crate::key::Partition;
use crate::topology::NodeId;

/// The longest payload of a packet in bytes: 64 KiB, and the headers of an Ethernet frame that
/// carries as much (virtio-net 12, Ethernet 14, tag 4, rounded up).
pub const MAX_PAYLOAD: usize = 64 * 1024 + 128;

/// Why a packet was not sent or received. Each error names the party at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// No party: the peer has not made room yet. Wait and try again.
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
    /// Peer: its process has ended.
    #[error("the process at the other end is gone")]
    PeerDead,
    /// Network: the connection to the peer's host was cut, or that host was silent for too long.
    /// Packets in flight may have arrived or not. Another channel may succeed.
    #[error("the peer's host cannot be reached")]
    Unreachable,
    /// Peer: it broke the format of the channel, which is closed.
    #[error("the peer broke the channel's format")]
    Corrupt,
}

/// An ordered, reliable packet channel between a process here and one at a peer node.
///
/// Every packet carries a link header, which is checked before the payload: packets of another
/// partition, epoch, source or protocol are dropped and counted.
pub trait PacketChannel {
    /// The node at the other end.
    fn peer(&self) -> NodeId;

    /// The partition.
    fn partition(&self) -> Partition;

    /// Sends the concatenation of `parts` as one packet; never blocks.
    ///
    /// # Errors
    /// [`ChannelError::Full`], [`ChannelError::TooLong`]; how the channel ended.
    fn send(&mut self, parts: &[&[u8]]) -> Result<(), ChannelError> {
        self.send_held(parts, Hold::NONE)
    }

    /// As [`PacketChannel::send`]. The receiver does not see the packet before `hold` has ended.
    ///
    /// # Errors
    /// As [`PacketChannel::send`].
    fn send_held(&mut self, parts: &[&[u8]], hold: Hold) -> Result<(), ChannelError>;

    /// Replaces the contents of `into` by the next packet's payload; returns whether there was one.
    /// Never blocks. Packets that arrived before the peer's process ended can still be received.
    ///
    /// # Errors
    /// How the channel ended.
    fn receive(&mut self, into: &mut Vec<u8>) -> Result<bool, ChannelError> {
        Ok(self.receive_held(into)?.is_some())
    }

    /// As [`PacketChannel::receive`], but returns the hold of the packet, which the caller respects.
    /// An [`emulation::Channel`](crate::emulation::Channel) respects it itself.
    ///
    /// # Errors
    /// As [`PacketChannel::receive`].
    fn receive_held(&mut self, into: &mut Vec<u8>) -> Result<Option<Hold>, ChannelError>;

    /// Records the arrival of packets from another host, from which on their holds count. Callers
    /// that do not receive for some time call it meanwhile.
    ///
    /// # Errors
    /// How the channel ended.
    fn observe(&mut self) -> Result<(), ChannelError>;

    /// Polls briefly, then sleeps, until a packet has come, there is room after
    /// [`ChannelError::Full`], the channel has ended or `timeout` has passed. May return early.
    fn wait(&mut self, timeout: Duration);

    /// A descriptor that becomes readable when an armed channel has news, to wait for several
    /// channels with poll(2).
    fn wake_fd(&self) -> BorrowedFd<'_>;

    /// Asks the peer to signal [`PacketChannel::wake_fd`]. Returns false if there are news already:
    /// then do not sleep. Spurious wake-ups are possible.
    fn arm(&mut self) -> bool {
        self.arm_for(true)
    }

    /// As [`PacketChannel::arm`]. Without `packets`, only for room after [`ChannelError::Full`] and
    /// for the end of the channel: for callers that have no place for a packet.
    fn arm_for(&mut self, packets: bool) -> bool;

    /// Revokes [`PacketChannel::arm`] and empties the descriptor, after waking up.
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
