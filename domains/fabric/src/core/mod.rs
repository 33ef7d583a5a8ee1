//! The consumer's view of every provider: regions, operations, packets.

pub(crate) mod busy_poll;
pub mod channel;
pub mod completion_queue;
mod contention;
pub mod endpoint;
pub mod hold;
pub mod link;
pub mod mapped;
pub mod membership;
pub mod parameters;
pub(crate) mod peer_link;
pub mod rdma_stream;
pub mod region;
pub mod segments;
