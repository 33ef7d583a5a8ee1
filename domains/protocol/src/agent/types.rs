//! Parts of requests and replies.

use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};
use toroid_fabric::Place;
use toroid_model::as_text;
use toroid_model::placement::Policy;
use toroid_model::rdma::Rdma;

/// A pseudo terminal of a node for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Terminal {
    /// Its height in characters.
    pub rows: u16,
    /// Its width in characters.
    pub columns: u16,
    /// Whether it is the command's standard error, too.
    pub error: bool,
}

/// A directory of the caller that a command in a node has as a mount of its own: files of the
/// caller belong to the node's root there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bind {
    /// Its path, as the caller names it.
    pub directory: String,
    /// The path in the node. It is made if need be.
    pub place: String,
    /// Whether nothing can be changed there.
    pub read_only: bool,
}

/// Which free nodes to take, and what for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeAllocation {
    /// How many.
    pub count: u32,
    /// How they shall lie.
    pub placement: Policy,
    /// A node that they shall be near, when `placement` is compact.
    pub near: Option<String>,
    /// The domain into which they go.
    pub domain: Option<String>,
    /// Whether that is a new one.
    pub create: bool,
}

/// What a new domain shall be.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewDomain {
    /// At most 15 characters: it names an interface.
    pub name: String,
    /// Node sets of its first members.
    pub nodes: Vec<String>,
    /// IPv4 subnet `a.b.c.d/len`; chosen when absent.
    pub subnet: Option<String>,
    /// Node sets of those that may talk to full members only.
    pub limited: Vec<String>,
    /// Node sets of those whose interfaces do without offload.
    pub plain: Vec<String>,
    /// Node sets of those that have no interface of the kernel, but [`Request::Stack`](super::Request::Stack).
    pub stacks: Vec<String>,
    /// Bytes; 9000 when absent.
    pub mtu: Option<u32>,
    /// Whether whoever owns a node may join with it.
    pub public: bool,
    /// Its owner when that is not the caller, for which the caller must be an administrator.
    pub owner: Option<u32>,
}

/// One end of a packet channel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChannelInfo {
    /// Unique for the life of the agent.
    pub id: u64,
    /// The domain's name.
    pub domain: String,
    /// The domain's partition.
    pub partition: u32,
    /// The epoch in which it was made.
    pub epoch: u32,
    /// The node at the other end.
    pub peer: u32,
    /// Its place.
    #[serde(with = "as_text")]
    pub place: Place,
    /// The protocol.
    pub protocol: u16,
    /// Its word on the page of [`Reply::Fence`](super::Reply::Fence).
    pub fence: u32,
}

/// A connection to a node that another host carries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RemoteInfo {
    /// The domain's partition.
    pub partition: u32,
    /// The epoch in which it was made.
    pub epoch: u32,
    /// The node at the other end.
    pub peer: u32,
    /// Its word on the page of [`Reply::Fence`](super::Reply::Fence).
    pub fence: u32,
    /// The RDMA device of this host, for operations on the node's memory: the other end can tell
    /// whether it has one as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<Rdma>,
}

/// What a process needs to be a node's end of the link in a domain. With it comes one end of a
/// `SOCK_SEQPACKET` socket; each message is a packet, a frame behind the 10 bytes of virtio-net's
/// header. Packets that arrive may lack checksums, and are never longer than the MTU allows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackInfo {
    /// The MAC address, the only one that it may send from.
    pub mac: [u8; 6],
    /// The IPv4 address.
    pub ipv4: Ipv4Addr,
    /// Its prefix length.
    pub prefix: u8,
    /// The IPv6 address.
    pub ipv6: Ipv6Addr,
    /// Its prefix length.
    pub ipv6_prefix: u8,
    /// Bytes.
    pub mtu: u32,
}
