//! The terms that the plans of several commands share.

use serde::{Deserialize, Serialize};

/// Bytes of a long write to a TCP stream.
pub const LONG_WRITE: usize = 128 * 1024;

/// One-sided operations in flight when they are pipelined.
pub const PIPELINE: u32 = 32;

/// Bytes of a hot working set: keys times size.
pub const HOT_BYTES: u64 = 1 << 20;

/// Bytes of a cold working set.
pub const COLD_BYTES: u64 = 1 << 30;

/// The way of the bytes between two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Path {
    /// Two nodes, by the interfaces of their domain.
    Ethernet,
    /// Two nodes, by one-sided operations; of the store, sets are messages.
    Rdma,
    /// Two processes of one node, by its loopback interface.
    Loopback,
    /// Two nodes, by a pair of the kernel's own interfaces.
    Veth,
    /// One process, by the processor alone.
    Memcpy,
    /// The interfaces of a domain, in the command `ether`.
    Toroid,
    /// A [relay](crate::relay), the limit of a driver in user space.
    Relay,
    /// Sockets in the member's process, over the domain's link.
    Smoltcp,
    /// The store's server, by memcached's protocol over loopback.
    ToroidTcp,
    /// Debian's memcached over loopback.
    MemcachedTcp,
    /// Debian's memcached over a unix socket.
    MemcachedUnix,
}

/// Whether the working set fits the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkingSet {
    /// At most [`HOT_BYTES`].
    Hot,
    /// [`COLD_BYTES`], used in uniform random order.
    Cold,
}

/// The time that a run may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Effort {
    /// As short as it makes sense.
    Quick,
    /// The usual time.
    Default,
    /// Longer, with less noise.
    Full,
}

impl Effort {
    /// The first value for a quick run, the second for others.
    pub fn quick_or<T>(self, quick: T, other: T) -> T {
        match self {
            Effort::Quick => quick,
            Effort::Default | Effort::Full => other,
        }
    }
}
