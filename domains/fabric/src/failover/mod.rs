//! The provider for hosts with RDMA devices: the data path of [`verbs`](crate::verbs) where that
//! works, and of [`tcp`](crate::tcp) otherwise.

pub mod channel;
mod channel_path;
pub mod control;
mod paths;
pub mod queue_pair;
mod retry;

pub use channel::Channel;
pub use channel_path::{NoResources, ResourceSource, Resources};
pub use control::Target;
pub use paths::Paths;
pub use queue_pair::QueuePair;
