//! The agent's protocol: what its clients send and get, in types.
//!
//! A connection is a Unix stream socket. Each message is a frame: payload length (u32), number of
//! descriptors (u16), zero (u16), all little endian, then the payload as JSON, with the
//! descriptors attached (`SCM_RIGHTS`). A client speaks first with [`Request::Hello`]; requests
//! are answered in order, each by one [`Reply`]; an [`Event`] may come between replies.
//! `docs/agent-protocol.md` has it for readers.
//!
//! There are two kinds of socket. The *control socket* `agent.sock` in the state directory
//! administers. A *node socket*, abstract and named [`NODE_SOCKET`] in the network namespace of
//! each node, is how a process of the node attaches: which socket it came through is its
//! identity.

mod groups;
mod types;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use toroid_fabric::{Access, Place, RemoteKey, Torus};
use toroid_model::as_text;
use toroid_model::audit::AuditEvent;
use toroid_model::gateway::GatewayKind;
use toroid_model::info::{
    DomainInfo, DomainMembers, MemberDrops, NodeInfo, QuotaInfo, ShrinkNeeds, Status,
};
use toroid_model::quota::Resource;
use toroid_model::refusal::Refusal;

pub use types::{Bind, ChannelInfo, FarInfo, NewDomain, NodeAllocation, StackInfo, Terminal};

/// The version of this protocol. An agent and a client of different versions refuse each other.
pub const VERSION: u32 = 11;

/// The abstract name of the node socket.
pub const NODE_SOCKET: &str = "toroid-agent";

/// The most directories that a command may get.
pub const MAX_BINDS: usize = 8;

/// What a client asks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// First on every connection. Reply: [`Reply::Welcome`].
    Hello {
        /// [`VERSION`].
        version: u32,
    },
    /// Either socket. Reply: [`Reply::Status`].
    Status,
    /// Either socket. Reply: [`Reply::Nodes`].
    NodeList,
    /// Control socket. Gives a node a further name. Reply: [`Reply::Done`].
    NodeAlias {
        /// The node.
        node: String,
        /// A host name label.
        alias: String,
    },
    /// Control socket. Takes a further name away from its node. Reply: [`Reply::Done`].
    NodeUnalias {
        /// The name.
        alias: String,
    },
    /// Control socket, for administrators. Gives nodes to a user. Reply: [`Reply::Done`].
    NodeChown {
        /// Node sets.
        nodes: Vec<String>,
        /// A uid, or null: back to the agent, free for all.
        owner: Option<u32>,
    },
    /// Control socket. Lets the owner of a domain place nodes of the caller in it, or no longer.
    /// Reply: [`Reply::Done`].
    NodeConsent {
        /// Node sets.
        nodes: Vec<String>,
        /// The domain.
        domain: String,
        /// No longer.
        withdraw: bool,
    },
    /// Either socket; a node must name a domain that it manages. Takes free nodes, all or none:
    /// they belong to the caller, or to the owner of the domain that the caller manages. Reply:
    /// [`Reply::Allocated`].
    NodeAlloc(NodeAllocation),
    /// Either socket; a node may free what was allocated for domains that it manages. The nodes
    /// leave all their domains and are free again. Reply: [`Reply::Done`].
    NodeFree {
        /// Node sets.
        nodes: Vec<String>,
    },
    /// Control socket. What was changed and denied, as far as it concerns the caller. Reply:
    /// [`Reply::Events`].
    Events {
        /// From this number on.
        since: u64,
        /// Whether to wait some seconds for something to happen.
        wait: bool,
    },
    /// Either socket. What tenants have and may have: those named, or all that concern the
    /// caller. Reply: [`Reply::Quotas`].
    QuotaShow {
        /// A uid.
        user: Option<u32>,
        /// Node sets.
        nodes: Vec<String>,
    },
    /// Control socket, for administrators. Sets limits, or lifts those that are null; others
    /// stay. Reply: [`Reply::Done`].
    QuotaSet {
        /// A uid.
        user: Option<u32>,
        /// Node sets.
        nodes: Vec<String>,
        /// By resource.
        limits: BTreeMap<Resource, Option<u64>>,
    },
    /// Control socket. In effect everywhere when [`Reply::Domain`] comes.
    DomainCreate(NewDomain),
    /// Either socket; a node must be a manager of the domain. Reply: [`Reply::Domain`].
    DomainGrow {
        /// The domain.
        name: String,
        /// Node sets.
        nodes: Vec<String>,
        /// Whether they may talk to full members only.
        limited: bool,
        /// Whether their interfaces do without offload.
        plain: bool,
        /// Whether they have no interface of the kernel, but [`Request::Stack`].
        stack: bool,
    },
    /// Either socket; a node must be a manager of the domain. Reply: [`Reply::Domain`], when
    /// the remaining processes have acknowledged.
    DomainShrink {
        /// The domain.
        name: String,
        /// Node sets.
        nodes: Vec<String>,
    },
    /// Either socket, from who may shrink the domain. Changes nothing. Reply:
    /// [`Reply::ShrinkNeeds`].
    ShrinkNeeds {
        /// The domain.
        name: String,
        /// Node sets.
        nodes: Vec<String>,
    },
    /// Control socket. Reply: [`Reply::Done`].
    DomainRemove {
        /// The domain.
        name: String,
    },
    /// Control socket. Lets processes of nodes grow and shrink a domain, or no longer. Reply:
    /// [`Reply::Domain`].
    DomainManage {
        /// The domain.
        name: String,
        /// Node sets.
        nodes: Vec<String>,
        /// No longer.
        revoke: bool,
    },
    /// Control socket. Changes what is not null. Reply: [`Reply::Domain`].
    DomainSet {
        /// The domain.
        name: String,
        /// Whether whoever owns a node may join with it.
        public: Option<bool>,
        /// Whether it has routers.
        #[serde(default)]
        forward: Option<bool>,
        /// The uid of its owner; for administrators.
        owner: Option<u32>,
    },
    /// Control socket, for administrators. Connects a domain to the outside. In effect for all
    /// members when [`Reply::Domain`] comes.
    GatewayAdd {
        /// The member at which it is.
        node: String,
        /// The domain.
        domain: String,
        /// The host's interface that leads outside.
        uplink: String,
        /// What passes.
        kind: GatewayKind,
    },
    /// Control socket, for administrators. Reply: [`Reply::Domain`].
    GatewayRemove {
        /// The member at which it is.
        node: String,
        /// The domain.
        domain: String,
    },
    /// Either socket; a node sees its own domains. Reply: [`Reply::Domains`].
    DomainList,
    /// Either socket; a node sees its own domains. Reply: [`Reply::Domain`].
    DomainShow {
        /// The domain.
        name: String,
    },
    /// Either socket; of other people's nodes only who owns the domain is told. Reply:
    /// [`Reply::Drops`].
    DomainDrops {
        /// The domain.
        name: String,
    },
    /// Control socket. Starts a command in a node. Reply: [`Reply::Started`] with the command's
    /// session.
    Exec {
        /// The node.
        node: String,
        /// Program and arguments; the program is searched in `PATH` of `env`.
        argv: Vec<String>,
        /// The whole environment.
        env: Vec<(String, String)>,
        /// Working directory.
        cwd: String,
        /// Where the program was found, if its descriptor comes along.
        #[serde(default)]
        program: Option<String>,
        /// A pseudo terminal of the node's that the command gets as its controlling terminal, its
        /// standard input and its standard output.
        #[serde(default)]
        terminal: Option<Terminal>,
        /// Directories of the caller that the command gets, at most [`MAX_BINDS`].
        #[serde(default)]
        binds: Vec<Bind>,
    },
    /// First on the session of a command, with its descriptors: its standard input, output and
    /// error; opened with `O_PATH`, its working directory and its program, or neither, for when the
    /// node's users cannot get there by name; opened for reading, the directories of its `binds`.
    /// Reply: [`Reply::Terminal`] if the command gets a terminal, otherwise none, but for an error.
    Descriptors,
    /// On the session of a command: to its process group. No reply.
    Signal {
        /// Its number.
        signal: i32,
    },
    /// Control socket. Ends the agent, its nodes and driver. Reply: [`Reply::Done`] when all
    /// have ended.
    Down,

    /// Node socket. Reply: [`Reply::Whoami`].
    Whoami,
    /// Node socket. Asks for what this process can come back with when the agent was killed and
    /// another has taken over. Reply: [`Reply::Ticket`].
    Ticket,
    /// Node socket, first after [`Request::Hello`]. The process is back; it lists what it has heard
    /// that it holds, and all else that it was granted ends. Reply: [`Reply::Resumed`]; whatever
    /// was not answered before is to be asked again.
    Resume {
        /// That of the ticket.
        attachment: u64,
        /// That of the ticket.
        secret: String,
        /// The numbers in the keys of the regions that it has allocated.
        regions: Vec<u64>,
        /// [`ChannelInfo::id`] of its channels.
        channels: Vec<u64>,
        /// Partition and protocol of its listeners.
        listeners: Vec<(u32, u16)>,
    },
    /// Node socket. Allocates a region that belongs to this connection and ends with it.
    /// Reply: [`Reply::Region`] with one descriptor, readable and writable.
    Alloc {
        /// The domain it belongs to.
        domain: String,
        /// Bytes, not 0.
        len: u64,
        /// What peers may do, as the bits of [`Access`].
        #[serde(with = "access_bits")]
        access: Access,
    },
    /// Node socket. Frees a region of this connection; who opened it gets
    /// [`Event::RegionGone`]. Reply: [`Reply::Done`].
    Free {
        /// Its key.
        #[serde(with = "as_text")]
        key: RemoteKey,
    },
    /// Node socket. Asks for access to a peer's region. Reply: [`Reply::Region`] with one
    /// descriptor, read-only unless a right that writes was asked for; or [`Reply::Elsewhere`] when
    /// another host carries the peer.
    Open {
        /// The key that its owner published.
        #[serde(with = "as_text")]
        key: RemoteKey,
        /// The rights wanted; the owner must have given all of them.
        #[serde(with = "access_bits")]
        access: Access,
    },
    /// Node socket. Accepts connections to `protocol` on this node in `domain` from now on;
    /// each comes as [`Event::Incoming`]. Reply: [`Reply::Done`].
    Listen {
        /// The domain.
        domain: String,
        /// One listener per (node, domain, protocol).
        protocol: u16,
    },
    /// Node socket. Ends a listener of this connection. Reply: [`Reply::Done`].
    Unlisten {
        /// The domain.
        domain: String,
        /// The protocol.
        protocol: u16,
    },
    /// Node socket. Asks how to operate on a member's memory. Reply: [`Reply::Here`] when this host
    /// carries it, otherwise [`Reply::Far`] with one descriptor: a connection to who serves its
    /// memory ([`toroid_fabric::tcp::QueuePair`]).
    Reach {
        /// The domain.
        domain: String,
        /// The member's place.
        #[serde(with = "as_text")]
        place: Place,
    },
    /// Node socket. Opens a packet channel to whoever listens. Reply: [`Reply::Channel`] with
    /// the descriptors of [`toroid_fabric::shm::ChannelEnds`]; or [`Reply::Far`] with one descriptor
    /// ([`toroid_fabric::tcp::Channel`]) when another host carries the peer.
    Connect {
        /// The domain.
        domain: String,
        /// The peer's place.
        #[serde(with = "as_text")]
        place: Place,
        /// What the peer listens for.
        protocol: u16,
    },
    /// Node socket. Ends a channel of this connection, at either end; the process at the other
    /// gets [`Event::ChannelGone`]. Reply: [`Reply::Done`], also when it has ended already.
    Disconnect {
        /// [`ChannelInfo::id`].
        id: u64,
    },
    /// Node socket. Asks for the addresses of this node in a domain where its interface is a
    /// stack, and for the cable to the Ethernet driver. One process of the node has it, until it
    /// closes its end. Reply: [`Reply::Stack`] with one descriptor.
    Stack {
        /// The domain.
        domain: String,
    },
    /// Node socket. Which members listen for `protocol`? Reply: [`Reply::Listeners`].
    Lookup {
        /// The domain.
        domain: String,
        /// The protocol.
        protocol: u16,
    },
    /// Node socket. Asks for the page on which the agent fences what this connection is granted.
    /// Reply: [`Reply::Fence`] with one descriptor, read-only.
    Fence,
    /// Node socket. A thread waits for a chunk of a region that moves. No reply, but
    /// [`Event::Arrived`].
    Fetch {
        /// The region's key.
        #[serde(with = "as_text")]
        key: RemoteKey,
        /// Which [`toroid_fabric::mem::CHUNK`] of it.
        chunk: u64,
    },
    /// Node socket. Acknowledges [`Event::Epoch`] and each [`Event::Move`] before it. No reply.
    Ack {
        /// The partition.
        partition: u32,
        /// The epoch.
        epoch: u32,
    },
}

/// What the agent answers.
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
    /// The request was carried out; there is nothing to tell.
    Done,
    /// The request failed and changed nothing.
    Error(Refusal),
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
        /// From where to ask on.
        next: u64,
    },
    /// To [`Request::QuotaShow`].
    Quotas {
        /// Users first, then nodes, in order.
        quotas: Vec<QuotaInfo>,
    },
    /// To [`Request::DomainDrops`].
    Drops {
        /// In order of their numbers.
        members: Vec<MemberDrops>,
    },
    /// To [`Request::Exec`], with one descriptor: a connection to the node, on which the caller
    /// sends [`Request::Descriptors`] within 10 s, may then send [`Request::Signal`], and receives
    /// [`Event::Exited`]. Closing it ends the command; it breaks off when the node dies. The agent
    /// has no part in it.
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
        /// Its place.
        #[serde(with = "as_text")]
        place: Place,
        /// The domains of which it is a member.
        domains: Vec<String>,
    },
    /// To [`Request::Ticket`].
    Ticket {
        /// The number of this process among the attached ones.
        attachment: u64,
        /// What proves it.
        secret: String,
    },
    /// To [`Request::Resume`]. What is not listed has ended. Behind it come an [`Event::Move`] for
    /// each of its regions that moves and an [`Event::Epoch`] for each domain.
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
        /// Its bytes.
        len: u64,
        /// Its word on the page of [`Reply::Fence`].
        fence: u32,
        /// Whether it moves; then descriptors of its old memory and of the table of chunks come
        /// after the first one, both read-only.
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
    Far(FarInfo),
    /// To [`Request::Open`]: another host carries the region's node. It is to be opened there, over
    /// a connection that [`Request::Reach`] gives.
    Elsewhere,
    /// To [`Request::Stack`].
    Stack(StackInfo),
    /// To [`Request::Lookup`].
    Listeners {
        /// Their places, in order of their node numbers, as texts.
        places: Vec<String>,
    },
}

/// What the agent says unasked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// On the session of a command, last: it has ended.
    Exited {
        /// Its exit status, or 128 + the signal that killed it.
        status: i32,
    },
    /// Membership of a domain changed. Processes answer with [`Request::Ack`] after they have
    /// dropped what belongs to the nodes that left.
    Epoch {
        /// The partition.
        partition: u32,
        /// Its new epoch.
        epoch: u32,
        /// Nodes that are no longer members.
        left: Vec<u32>,
    },
    /// A node left that may have mapped this region, so it changes to fresh memory: two
    /// descriptors, of the memory and of the table of chunks that have arrived there; a third of
    /// the memory, read-only, if this connection may write and has opened it. The next
    /// [`Request::Ack`] says that nothing is written to the old memory any more; its mapping is
    /// dropped soon after.
    Move {
        /// Its key.
        #[serde(with = "as_text")]
        key: RemoteKey,
    },
    /// Chunks of a moving region have arrived, among them what was asked for.
    Arrived {
        /// Its key.
        #[serde(with = "as_text")]
        key: RemoteKey,
    },
    /// All chunks of a moving region have arrived.
    Moved {
        /// Its key.
        #[serde(with = "as_text")]
        key: RemoteKey,
    },
    /// This process did not acknowledge in time: what it was granted in this partition has ended.
    Fenced {
        /// The partition.
        partition: u32,
    },
    /// A peer connected to a listener of this connection. The descriptors of
    /// [`toroid_fabric::shm::ChannelEnds`] come with it.
    Incoming(ChannelInfo),
    /// The owner of an opened region has gone or has freed it, or a region could not be moved.
    RegionGone {
        /// Its key.
        #[serde(with = "as_text")]
        key: RemoteKey,
    },
    /// The process at the other end of a channel has gone, or has ended the channel.
    ChannelGone {
        /// [`ChannelInfo::id`].
        id: u64,
    },
}

/// What a client receives: an answer or news.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Message {
    /// An answer.
    Reply(Reply),
    /// News.
    Event(Event),
}

/// Access flags as their bits; unknown ones are refused.
mod access_bits {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use toroid_fabric::Access;

    pub(super) fn serialize<S: Serializer>(value: &Access, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u8(value.bits())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Access, D::Error> {
        Access::from_bits(u8::deserialize(from)?)
            .ok_or_else(|| D::Error::custom("unknown access flags"))
    }
}
