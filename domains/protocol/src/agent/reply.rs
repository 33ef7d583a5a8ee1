//! Replies of the agent.

use std::collections::BTreeMap;
use std::ops::Not;

use serde::{Deserialize, Serialize};
use toroid_fabric::{Place, RemoteKey, Torus};
use toroid_model::as_text;
use toroid_model::audit::AuditEvent;
use toroid_model::info::{
    DomainInfo, DomainMembers, LinkReport, MemberDrops, NodeInfo, QuotaInfo, ShrinkNeeds, Status,
};
use toroid_model::refusal::Refusal;

use super::{ChannelInfo, RemoteInfo, StackInfo};
// Of the documentation alone.
#[cfg(doc)]
use super::{Event, Request, VERSION};

/// A reply of the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "reply", rename_all = "snake_case")]
pub enum Reply {
    /// To [`Request::Hello`].
    Welcome {
        /// The agent's [`VERSION`].
        version: u32,
        /// The agent's process id, in its own namespace.
        pid: u32,
    },
    /// The request was carried out.
    Done,
    /// The request failed and changed nothing.
    Error(Refusal),
    /// On the control socket: the agent is starting again. The client connects anew, and repeats
    /// the request.
    Again {
        /// Whether another agent may have carried out the request, a [`Request::Once`]. Otherwise
        /// none has begun it.
        #[serde(default, skip_serializing_if = "Not::not")]
        begun: bool,
    },
    /// To [`Request::Status`].
    Status(Box<Status>),
    /// To [`Request::NodeList`].
    Nodes {
        /// In order of their number.
        nodes: Vec<NodeInfo>,
    },
    /// To [`Request::NodeAlloc`].
    Allocated {
        /// The places of the nodes, in order of their numbers.
        nodes: Vec<String>,
        /// The domain into which they went, as it is now.
        domain: Option<DomainInfo>,
    },
    /// The domain as it is now.
    Domain(DomainInfo),
    /// To [`Request::ShrinkNeeds`].
    ShrinkNeeds(ShrinkNeeds),
    /// To [`Request::DomainList`].
    Domains {
        /// In order of their names.
        domains: Vec<DomainInfo>,
    },
    /// To [`Request::Events`].
    Events {
        /// In order of their numbers, not necessarily all that there are.
        events: Vec<AuditEvent>,
        /// Number of the next event.
        next: u64,
    },
    /// To [`Request::QuotaShow`].
    Quotas {
        /// Users first, then nodes, in order; first those of this host.
        quotas: Vec<QuotaInfo>,
        /// Hosts whose part is missing, and why.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        missing: BTreeMap<String, String>,
    },
    /// To [`Request::Links`].
    Links(LinkReport),
    /// To [`Request::DomainDrops`].
    Drops {
        /// In order of their numbers.
        members: Vec<MemberDrops>,
        /// Hosts whose part is missing, and why.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        missing: BTreeMap<String, String>,
    },
    /// To [`Request::Exec`], with one descriptor: a connection to the node, or to a relay for one on
    /// another host. There the caller sends [`Request::Descriptors`] within 10 s, may then send
    /// [`Request::Signal`], and receives [`Event::Exited`]. Closing the connection ends the command;
    /// the connection breaks off when the node ends. The agent takes no part in it.
    Started,
    /// To [`Request::Descriptors`], with one descriptor: the master of the command's terminal.
    Terminal,
    /// To [`Request::Whoami`].
    Whoami {
        /// The torus.
        #[serde(with = "as_text")]
        torus: Torus,
        /// The number of this node.
        node: u32,
        /// Place of the node.
        #[serde(with = "as_text")]
        place: Place,
        /// The domains of which it is a member.
        domains: Vec<String>,
    },
    /// To [`Request::Ticket`].
    Ticket {
        /// Number of this attached process.
        attachment: u64,
        /// Secret that proves the attachment.
        secret: String,
    },
    /// To [`Request::Resume`]. Objects that are not listed have ended. An [`Event::Move`] for each
    /// migrating region and an [`Event::Epoch`] for each domain follow.
    Resumed {
        /// The numbers in the keys of regions that the process has allocated or opened.
        regions: Vec<u64>,
        /// [`ChannelInfo::id`] of its channels.
        channels: Vec<u64>,
        /// Partition and protocol of its listeners.
        listeners: Vec<(u32, u16)>,
        /// The domains of its node.
        domains: Vec<DomainMembers>,
    },
    /// To [`Request::Alloc`] and [`Request::Open`].
    Region {
        /// The region's key.
        #[serde(with = "as_text")]
        key: RemoteKey,
        /// Length in bytes.
        len: u64,
        /// Index of its word on the page of [`Reply::Fence`].
        fence: u32,
        /// Whether the region migrates. Then descriptors of its old memory and of the table of
        /// chunks follow the first one, both read-only.
        moving: bool,
    },
    /// To [`Request::Fence`].
    Fence,
    /// To [`Request::Connect`].
    Channel(ChannelInfo),
    /// To [`Request::Reach`]: this host carries it.
    Here,
    /// To [`Request::Reach`] and [`Request::Connect`]: another host carries it. A connection comes
    /// with it.
    #[serde(rename = "far")]
    Remote(RemoteInfo),
    /// To [`Request::Open`]: another host carries the region's node. The region is to be opened
    /// there, over a connection from [`Request::Reach`].
    Elsewhere,
    /// To [`Request::Stack`].
    Stack(StackInfo),
    /// To [`Request::Lookup`].
    Listeners {
        /// Their places, in order of their node numbers, as texts.
        places: Vec<String>,
    },
}
