//! How one-sided operations fail.

use crate::key::Access;

/// Why an operation did not happen. Each error names the party at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OpError {
    /// Caller: the range does not lie within the region.
    #[error("{len} bytes at offset {offset} are outside a region of {limit} bytes")]
    OutOfBounds {
        /// First byte of the range.
        offset: u64,
        /// Bytes asked for.
        len: u64,
        /// Bytes of the region.
        limit: u64,
    },
    /// Caller: an atomic needs an offset that is a multiple of 8.
    #[error("atomics need an offset that is a multiple of 8, not {offset}")]
    Misaligned {
        /// The offset given.
        offset: u64,
    },
    /// Caller: the region was not opened with this right.
    #[error("the region was opened without the right {needed:?}")]
    MissingRight {
        /// The right that the operation needs.
        needed: Access,
    },
    /// Caller: the region belongs to another node or partition than the queue pair; or the key is
    /// not, or no longer, valid at the peer's device.
    #[error("the key is not one of the node and partition that this queue pair leads to")]
    WrongKey,
    /// Caller: the region is on another host, out of reach of the processor. Use a queue pair.
    #[error("the region is not mapped here: it is read and written through a queue pair")]
    NotMapped,
    /// Policy: this node, or the region's, is no longer a member of the partition.
    #[error("access revoked: one of the two nodes has left the domain")]
    Revoked,
    /// Peer: the process that owned the region has gone, or freed it.
    #[error("the region's owner is gone")]
    PeerDead,
    /// Network: the connection to the peer's host was cut, or that host was silent for too long. The
    /// operation may have happened or not. Another queue pair may succeed.
    #[error("the peer's host cannot be reached")]
    Unreachable,
    /// Peer: its host broke the protocol; the connection was cut.
    #[error("the peer's host broke the protocol")]
    Corrupt,
    /// Caller: an earlier operation failed and ended the queue pair. This operation may have happened
    /// or not.
    #[error("the queue pair ended with an earlier operation's error")]
    Flushed,
    /// Provider: the device failed, with a status (`enum ibv_wc_status`) that has no other meaning
    /// here.
    #[error("the device reports status {status}")]
    Device {
        /// The status.
        status: u32,
    },
    /// System: it did not accept the operation, or could not register the local memory.
    #[error("the system refuses: {}", std::io::Error::from_raw_os_error(*errno))]
    System {
        /// The error number.
        errno: i32,
    },
}
