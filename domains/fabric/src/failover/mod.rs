//! The provider for hosts with RDMA devices: the data path of [`verbs`](crate::verbs) where that
//! works, and of [`tcp`](crate::tcp) otherwise.

pub mod channel;
pub mod queue_pair;

pub use channel::{HybridChannel, Means, NoMeans, Source};
pub use queue_pair::{Hybrid, Ways};
