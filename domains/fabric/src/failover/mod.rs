//! The provider for hosts with RDMA devices: the data path of [`verbs`](crate::verbs) where that
//! works, and of [`tcp`](crate::tcp) otherwise.

pub mod channel;
pub mod queue_pair;

pub use channel::{Channel, NoResources, ResourceSource, Resources};
pub use queue_pair::{Paths, QueuePair};
