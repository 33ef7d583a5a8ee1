//! Memory that processes share: mappings, copies, and the migration of regions to fresh memory.
//!
//! [`memfd`] creates sealed memory and read-only descriptors for an agent. When a node leaves,
//! regions migrate to fresh memory: [`copier`] is the agent's part of a migration, [`memory`] and
//! [`faults`] are the part of the processes. A [`fence`] ends the grants of a process that does not
//! take part. [`compaction`] makes the migration of large memory fast.

use std::any::Any;
use std::sync::Arc;

pub mod compaction;
pub mod copier;
pub(crate) mod copy;
pub mod device_registrations;
pub mod faults;
pub mod fence;
mod forked_syscall;
pub(crate) mod mapping;
pub mod memfd;
pub mod memory;
mod migration;
mod migration_table;
pub(crate) mod nontemporal;
pub(crate) mod populate;
pub mod status;
mod userfaultfd;
#[cfg(not(loom))]
pub mod waker;

pub use compaction::Compaction;
pub use copier::Copier;
pub use memory::Memory;
pub use migration_table::CHUNK;
pub use status::Status;
#[cfg(not(loom))]
pub use waker::Waker;

/// A value whose drop tells the agent that a resource is no longer used.
pub type DropGuard = Arc<dyn Any + Send + Sync>;
