//! A memcached-compatible store whose gets are one-sided reads.
//!
//! A server keeps all items in memory that clients may read: an index and the items themselves. An RDMA
//! [`Client`] gets a value by reading that memory, without the server's CPU, and changes values by
//! messages. Memcached clients use the same store over TCP.
//!
//! # Example
//!
//! Gets and sets, in a process that runs inside a node (`toroid exec`) whose domain has a server:
//!
//! ```no_run
//! use toroid_client::member::Member;
//! use toroid_kv::Client;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let domain = Member::attach()?.domain_or_only(None)?;
//! let mut client = Client::connect(&domain, None)?;
//! client.set(b"greeting", 0, 0, b"hello")?;
//! let value = client.get(b"greeting")?.expect("it was set");
//! assert_eq!(value.data, b"hello");
//!
//! // Without a copy: the bytes stay in the server's memory.
//! let view = client.borrow(b"greeting")?.expect("it was set");
//! let sum = view.fold(0u64, |sum, block| *sum += block.iter().map(|byte| u64::from(*byte)).sum::<u64>())?;
//! # let _ = sum;
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//!
//! * `client` (default): [`Client`] and [`View`].
//! * `server`: the modules `server` and `proxy`.
//! * `cli`: the command `toroid-kv`.
//! * `unsafe-variants`: leaves out checks that a test names. Values may then be wrong.
//!
//! # Modules
//!
//! From the bottom up; each depends on those before it:
//!
//! * `protocol`: what clients and servers agree on: layout of the memory, messages, hazard pointers.
//! * `network`: operations that client and server need of a domain.
//! * `client`: gets by its `reader`, changes by messages.
//! * `store`: items, their index and memory, without I/O; `operations`: the commands on them.
//! * `text`: memcached's protocol, without I/O.
//! * `server`: sockets, RDMA clients and the clock; `proxy`: memcached's protocol in front of a client.

#![forbid(unsafe_code)]

#[cfg(feature = "client")]
mod client;
mod network;
#[cfg(feature = "server")]
mod number;
#[cfg_attr(
    not(feature = "server"),
    allow(dead_code, unused_imports, reason = "a client uses one side of it")
)]
mod protocol;
#[cfg(feature = "server")]
pub mod proxy;
#[cfg(feature = "server")]
pub mod server;
#[cfg(feature = "server")]
mod store;
#[cfg(feature = "server")]
mod text;
#[cfg(feature = "unsafe-variants")]
pub mod variants;

#[cfg(test)]
mod testing;

#[cfg(feature = "client")]
pub use client::{
    Client, ClientError, Consistency, Outcome, ReaderStats, Ticket, Value, ValueRef, View,
    ViewError, WINDOW, content_key,
};
pub use network::{Network, Remote};
pub use protocol::change::{Change, Delta, Mode, Stored};
pub use protocol::layout::Location;
pub use protocol::messages::{INLINE_LIMIT, PROTOCOL, Refusal};

/// Parts of the implementation for this workspace's fuzz targets and model. No stable interface.
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod internals {
    pub use crate::client::reader;
    pub use crate::protocol::{geometry, layout, messages};
    pub use crate::proxy::{ProxyConversation, Upstream, UpstreamError};
    pub use crate::store::{Store, operations};
    pub use crate::text::{Conversation, Next, Wants};
}
