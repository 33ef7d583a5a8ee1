//! Parts of requests and replies.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};
use toroid_fabric::Place;
use toroid_model::as_text;
use toroid_model::ethernet::EthernetPath;
use toroid_model::link::Rate;
use toroid_model::placement::Policy;
use toroid_model::rdma::Rdma;

/// A pseudo terminal of a node for a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Terminal {
    /// Height in characters.
    pub rows: u16,
    /// Width in characters.
    pub columns: u16,
    /// Whether it is the command's standard error, too.
    pub error: bool,
}

/// A directory of the caller that a command in a node has as a mount of its own: files of the
/// caller belong to the node's root there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bind {
    /// Path of the directory at the caller.
    pub directory: String,
    /// Path of the directory in the node, created if absent.
    pub place: String,
    /// Whether nothing can be changed there.
    pub read_only: bool,
}

/// An allocation of free nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeAllocation {
    /// Number of nodes.
    pub count: u32,
    /// Placement of the nodes.
    pub placement: Policy,
    /// A node that they shall be near, when `placement` is compact.
    pub near: Option<String>,
    /// The domain into which they go.
    pub domain: Option<String>,
    /// Whether the domain is a new one.
    pub create: bool,
}

/// Properties of a new domain.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewDomain {
    /// At most 15 characters: it names an interface.
    pub name: String,
    /// Node sets of its first members.
    pub nodes: Vec<String>,
    /// IPv4 subnet `a.b.c.d/len`; chosen when absent.
    pub subnet: Option<String>,
    /// Members that it can have; 254 when absent, or its first members if they are more.
    #[serde(default)]
    pub capacity: Option<u32>,
    /// Node sets of those that may talk to full members only.
    pub limited: Vec<String>,
    /// Node sets of those whose interfaces do without offload.
    pub plain: Vec<String>,
    /// Node sets of those that have no interface of the kernel, but [`Request::Stack`](super::Request::Stack).
    pub stacks: Vec<String>,
    /// Node sets of those with a rate, as with [`Request::DomainRate`](super::Request::DomainRate).
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub rates: BTreeMap<Rate, Vec<String>>,
    /// Bytes; 9000 when absent.
    pub mtu: Option<u32>,
    /// Whether the owner of a node may add it.
    pub public: bool,
    /// Whether its members of different hosts talk over encrypted connections only.
    #[serde(default)]
    pub sealed: bool,
    /// Seconds after which members on hosts that are cut off have stopped; no fence when absent.
    #[serde(default)]
    pub fence: Option<u32>,
    /// Path of frames between members of one host.
    #[serde(default, skip_serializing_if = "EthernetPath::is_auto")]
    pub ethernet: EthernetPath,
    /// Owner, if not the caller; for administrators.
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
    /// Place of that node.
    #[serde(with = "as_text")]
    pub place: Place,
    /// The protocol.
    pub protocol: u16,
    /// Index of its word on the page of [`Reply::Fence`](super::Reply::Fence).
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
    /// Index of its word on the page of [`Reply::Fence`](super::Reply::Fence).
    pub fence: u32,
    /// RDMA device of this host, for operations on the node's memory, if the other end has one as
    /// well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<Rdma>,
}

/// Addresses of a node's stack. One end of a `SOCK_SEQPACKET` socket comes with it; each message is
/// a packet, a frame behind the 10 bytes of virtio-net's header. Received packets may lack
/// checksums, and are never longer than the MTU allows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackInfo {
    /// MAC address, the only permitted source address.
    pub mac: [u8; 6],
    /// The IPv4 address.
    pub ipv4: Ipv4Addr,
    /// Prefix length of the IPv4 address.
    pub prefix: u8,
    /// The IPv6 address.
    pub ipv6: Ipv6Addr,
    /// Prefix length of the IPv6 address.
    pub ipv6_prefix: u8,
    /// Bytes.
    pub mtu: u32,
}
