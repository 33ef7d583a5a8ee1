//! The agent of a host. It holds the host's nodes and decides which nodes may communicate.
//!
//! ```text
//!   toroid ── agent.sock ──┐                       ┌── Ethernet driver
//!                          ├── server ── host ─────┼── node 0,0,0 ── its processes
//!   member ─ node socket ──┘   (a thread per       └── node 1,0,0 ── its processes
//!                              connection)
//! ```
//!
//! Each node and the driver hold one end of a liveness socket, whose other end the agent and the
//! file descriptor store hold. They end when the agent lets go of them, or when both have ended.
//! They outlive an agent that was killed, until the next agent takes them over.
//!
//! [`run`] is the agent itself; [`roles`] lets one binary be all processes that it needs.
//! [`doctor`] checks a machine.
//!
//! | folder | concern |
//! |---|---|
//! | `start` | an agent's begin and end: its directories, takeover from a killed one, background |
//! | `server` | connections of clients to the control socket and to node sockets |
//! | `sessions` | sessions with the agents of other hosts |
//! | `control` | when a change is decided, sent to followers and answered |
//! | `core` | the host, and changes of membership, names and rights |
//! | `members` | attached processes: their regions, channels and listeners, and revocation |
//! | `nodes` | namespaces, users and control groups of nodes, and commands in them |
//! | `exec` | relays of commands in nodes of other hosts |
//! | `net` | the Ethernet driver, and gateways to the outside |
//! | `cluster` | the other hosts: leader and followers, tickets, problems |
//! | `proxy` | the target proxy, a process that serves peers on other hosts |
//! | `fdstore` | the file descriptor store, which outlives the agent |
//! | `leases` | the host's lease, and when members of fenced domains stop |
//! | `channel` | encrypted connections between hosts |
//! | [`hollow`] | followers without nodes, for measurements |
//! | [`simulation`] | clusters on virtual time, for tests of `control` |
//! | [`store`] | records on disk: the directory of domains, the audit log |

#![forbid(unsafe_code)]

mod channel;
mod cluster;
mod config;
mod control;
mod core;
pub mod doctor;
mod emulation;
mod error;
mod exec;
mod fdstore;
mod gate;
pub mod hollow;
mod interfaces;
mod leases;
mod members;
mod net;
mod nodes;
mod process;
mod proxy;
mod random;
pub mod roles;
mod server;
mod sessions;
mod slots;
mod start;
pub mod store;
mod threads;

pub use channel::secret::read_private;
pub use config::Config;
pub use control::simulation;
pub use emulation::{DEFAULT_PRECISION, ProfileError, read_profile};
pub use error::AgentError;
pub use interfaces::tun_remedy;
pub use nodes::cgroups::{DEFAULT_PIDS, clear as clear_groups};
pub use nodes::trial;
pub use start::state_dir::{Left, clear_stale, is_held};
pub use start::{background, run};

/// Whether this build can have a directory on etcd.
pub const HAS_ETCD: bool = cfg!(feature = "etcd");
