//! Terms shared by the plans of several commands.

use clap::Args;
use serde::{Deserialize, Serialize};

/// Bytes of a long write to a TCP stream.
pub const LONG_WRITE: usize = 128 * 1024;

/// One-sided operations in flight when they are pipelined.
pub const PIPELINE: u32 = 32;

/// Bytes of a hot working set: keys times size.
pub const HOT_BYTES: u64 = 1 << 20;

/// Bytes of a cold working set.
pub const COLD_BYTES: u64 = 1 << 30;

/// The path of bytes between two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Path {
    /// Two nodes, over the interfaces of their domain.
    Ethernet,
    /// Two nodes, by one-sided operations; sets of the store are messages.
    Rdma,
    /// Two processes of one node, over its loopback interface.
    Loopback,
    /// Two nodes, over a kernel veth pair.
    Veth,
    /// A node and an external host, through a gateway with address translation.
    Nat,
    /// A node and an external host, through a bridge. In `ether`, two nodes over a bridge of the
    /// kernel.
    Bridge,
    /// One process, `memcpy`.
    Memcpy,
    /// The interfaces of a domain, in `ether`, by its driver.
    Toroid,
    /// The same, through the kernel alone.
    ToroidKernel,
    /// A [relay](crate::relay), the limit of a userspace driver.
    Relay,
    /// Userspace stacks in the members' processes, over the domain's link.
    Smoltcp,
    /// The store's server, by memcached's protocol over loopback.
    ToroidTcp,
    /// Debian's memcached over loopback.
    MemcachedTcp,
    /// Debian's memcached over a unix socket.
    MemcachedUnix,
}

/// Size of a working set against the caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkingSet {
    /// At most [`HOT_BYTES`].
    Hot,
    /// [`COLD_BYTES`], used in uniform random order.
    Cold,
}

// Not a doc comment, which would replace the texts of the commands.
#[derive(Args, Clone, Debug)]
pub struct Common {
    /// Print one JSON object instead of tables.
    #[arg(long)]
    pub json: bool,

    /// Quick run (one minute).
    #[arg(long)]
    quick: bool,
}

impl Common {
    pub fn effort(&self) -> Effort {
        if self.quick {
            Effort::Quick
        } else {
            Effort::Default
        }
    }
}

/// The chosen values, each once, by default all: a row that is measured twice could not be compared.
pub fn or_all<T: Copy + PartialEq>(chosen: &[T], all: &[T]) -> Vec<T> {
    let chosen = if chosen.is_empty() { all } else { chosen };
    let mut once = Vec::with_capacity(chosen.len());
    for value in chosen {
        if !once.contains(value) {
            once.push(*value);
        }
    }
    once
}

/// Duration class of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Effort {
    /// The shortest useful run.
    Quick,
    /// The usual duration.
    Default,
    /// Longer, with less noise.
    Full,
}

impl Effort {
    /// `quick` for a quick run, `other` otherwise.
    pub fn quick_or<T>(self, quick: T, other: T) -> T {
        if self == Effort::Quick { quick } else { other }
    }

    /// The value for this effort.
    pub fn pick<T>(self, quick: T, default: T, full: T) -> T {
        match self {
            Effort::Quick => quick,
            Effort::Default => default,
            Effort::Full => full,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chosen_values_are_taken_once_in_their_order_and_all_without_a_choice() {
        assert_eq!(or_all(&[3, 1, 3, 1], &[1, 2, 3]), [3, 1]);
        assert_eq!(or_all(&[], &[1, 2, 3]), [1, 2, 3]);
    }
}
