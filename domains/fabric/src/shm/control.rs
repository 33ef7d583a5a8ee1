//! Channels before they are opened: descriptors that an agent creates and passes to processes.

use std::io;
use std::os::fd::OwnedFd;

use super::ring::DATA_OFFSET;
use crate::core::channel::MAX_PAYLOAD;
use crate::mem::memfd::create_memory;
use crate::mem::waker::pipe;

/// Default bytes of a ring's data: three of the longest packets.
pub const RING_BYTES: usize = 256 * 1024;

/// Descriptors of one end of a channel, created by the agent and passed to a process.
#[derive(Debug)]
pub struct ChannelEnds {
    pub(super) outgoing: OwnedFd,
    pub(super) incoming: OwnedFd,
    pub(super) wake_peer: OwnedFd,
    pub(super) woken: OwnedFd,
    pub(super) wake_self: OwnedFd,
}

impl ChannelEnds {
    /// Number of descriptors of an end.
    pub const COUNT: usize = 5;

    /// Creates the two ends of a channel. `ring_bytes` is the size of each direction: a power of
    /// two, at least two of the longest packets.
    ///
    /// # Errors
    /// The system's: no descriptor left, no memory; `InvalidInput` for another size.
    pub fn create(ring_bytes: usize) -> io::Result<(ChannelEnds, ChannelEnds)> {
        if !ring_bytes.is_power_of_two() || ring_bytes < 2 * MAX_PAYLOAD {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let ring = || create_memory((DATA_OFFSET + ring_bytes) as u64);
        let (there, back) = (ring()?, ring()?);
        let (a_woken, a_by_b, a_by_a) = pipe()?;
        let (b_woken, b_by_a, b_by_b) = pipe()?;
        let a = ChannelEnds {
            outgoing: there.try_clone()?.into(),
            incoming: back.try_clone()?.into(),
            wake_peer: b_by_a,
            woken: a_woken,
            wake_self: a_by_a,
        };
        let b = ChannelEnds {
            outgoing: back.into(),
            incoming: there.into(),
            wake_peer: a_by_b,
            woken: b_woken,
            wake_self: b_by_b,
        };
        Ok((a, b))
    }

    /// The descriptors, in the order that [`ChannelEnds::from_fds`] expects.
    pub fn into_fds(self) -> [OwnedFd; Self::COUNT] {
        [
            self.outgoing,
            self.incoming,
            self.wake_peer,
            self.woken,
            self.wake_self,
        ]
    }

    /// Rebuilds an end from the descriptors of [`ChannelEnds::into_fds`].
    pub fn from_fds(fds: [OwnedFd; Self::COUNT]) -> Self {
        let [outgoing, incoming, wake_peer, woken, wake_self] = fds;
        ChannelEnds {
            outgoing,
            incoming,
            wake_peer,
            woken,
            wake_self,
        }
    }
}
