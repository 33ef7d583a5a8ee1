//! Events of the agent, and messages to a client.

use serde::{Deserialize, Serialize};
use toroid_fabric::RemoteKey;
use toroid_model::as_text;
use toroid_model::link::LinkModel;

use super::{ChannelInfo, Reply};

/// An event that the agent sends unasked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// On the control socket, once for a request that takes longer: the agent waits for another to
    /// lead.
    Waiting,
    /// On the session of a command, last: it has ended.
    Exited {
        /// Exit status, or 128 + the signal that killed the command.
        status: i32,
    },
    /// Membership of a domain changed. Processes answer with
    /// [`Request::Ack`](super::Request::Ack) after they have dropped all objects of the nodes that
    /// left.
    Epoch {
        /// The partition.
        partition: u32,
        /// New epoch.
        epoch: u32,
        /// Nodes that are no longer members.
        left: Vec<u32>,
    },
    /// Links of this node in a domain, when it attaches, resumes or joins, and whenever they change.
    /// One descriptor: the clocks ([`toroid_fabric::model::SharedClocks`]), unless all links are the
    /// machine's. If routes are chosen, a second one: their records
    /// ([`toroid_fabric::routing::RouteRecords`]).
    Links {
        /// The partition.
        partition: u32,
        /// Their model, without links that do not concern the node; null: the machine's.
        model: Option<LinkModel>,
    },
    /// A node that left may have mapped this region, so the region migrates to fresh memory. Two
    /// descriptors: the memory, and the table of chunks that are resident there. A third, the
    /// memory read-only, if this connection has opened the region and may write. The next
    /// [`Request::Ack`](super::Request::Ack) states that nothing is written to the old memory any
    /// more; its mapping is dropped soon after.
    Move {
        /// Key of the region.
        #[serde(with = "as_text")]
        key: RemoteKey,
    },
    /// Chunks of a migrating region are resident, among them the requested ones.
    Arrived {
        /// Key of the region.
        #[serde(with = "as_text")]
        key: RemoteKey,
    },
    /// All chunks of a moving region have arrived.
    Moved {
        /// Key of the region.
        #[serde(with = "as_text")]
        key: RemoteKey,
    },
    /// This process did not acknowledge in time: its grants in this partition have ended.
    Fenced {
        /// The partition.
        partition: u32,
    },
    /// A peer connected to a listener of this connection. The descriptors of
    /// [`toroid_fabric::shm::ChannelEnds`] come with it.
    Incoming(ChannelInfo),
    /// The owner of an opened region has gone or has freed it, or a region could not be moved.
    RegionGone {
        /// Key of the region.
        #[serde(with = "as_text")]
        key: RemoteKey,
    },
    /// The process at the other end of a channel has gone, or has ended the channel.
    ChannelGone {
        /// [`ChannelInfo::id`].
        id: u64,
    },
}

/// A message to a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
// A message is short-lived, and few are queued.
#[allow(clippy::large_enum_variant)]
pub enum Message {
    /// An answer.
    Reply(Reply),
    /// News.
    Event(Event),
}
