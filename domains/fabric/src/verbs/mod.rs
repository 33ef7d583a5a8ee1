//! The `verbs` provider: RDMA devices (RoCE, InfiniBand, iWARP) through libibverbs.
//!
//! * [`device`]: selection of device, port, GID and partition key.
//! * [`control`]: a [`ProtectionDomain`] for each partition, registered memory, and queue pairs
//!   before they are [connected](control::Prepared).
//! * [`queue_pair`], [`channel`]: the data path.
//! * [`rdma_stream`]: bytes between two trusted processes.
//! * [`crate::core::parameters`]: parameters that two sides exchange to connect.
//! * [`completion`]: statuses of completions as errors.
//!
//! The device checks keys, bounds and rights. A queue pair checks them before, by the parameters of
//! the peer, because a device ends the whole queue pair at the first error and does not report the
//! reason. Access ends when the target side drops its queue pair and its
//! [exports](control::Export).
//!
//! The raw bindings of the crate `ibverbs` are used: its safe interface has one port, one partition
//! key and no one-sided operations.

mod buffer;
mod chain;
pub mod channel;
pub mod completion;
mod connection;
pub mod control;
pub mod device;
mod flow;
mod objects;
mod pinning;
pub mod queue_pair;
pub mod rdma_stream;
mod receive;
pub mod region;
mod requests;
mod steps;
pub(crate) mod watch;
mod window;

pub use crate::core::parameters::{ConnectionParameters, RdmaStreamParameters, RegionParameters};
pub use channel::Channel;
pub use completion::Counters;
pub use connection::Closer;
pub use control::{Answering, Export, Prepared, PreparedChannel, ProtectionDomain};
pub use device::{Device, DeviceError, Selection};
pub use queue_pair::QueuePair;
pub use rdma_stream::PreparedRdmaStream;
pub use receive::CHANNEL_BYTES;
pub use region::RemoteRegion;
