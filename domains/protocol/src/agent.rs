//! The agent's protocol: the messages between an agent and its clients.
//!
//! A connection is a Unix stream socket. Each message is a frame: payload length (u32), number of
//! descriptors (u16), zero (u16), all little endian, then the payload as JSON, with the descriptors
//! attached (`SCM_RIGHTS`). A client begins with [`Request::Hello`]. The agent answers requests in
//! order, each by one [`Reply`]; an [`Event`] may come between replies. `docs/agent-protocol.md`
//! documents the protocol.
//!
//! There are two kinds of socket. The *control socket* `agent.sock` in the state directory
//! administers. A *node socket*, abstract and named [`NODE_SOCKET`] in the network namespace of
//! each node, is how a process of the node attaches: which socket it came through is its
//! identity.

mod event;
mod groups;
mod reply;
mod types;
mod value;

use std::collections::BTreeMap;
use std::ops::Not;

use serde::{Deserialize, Serialize};
use toroid_fabric::{Access, Place, RemoteKey};
use toroid_model::as_text;
use toroid_model::directory::requests::RequestId;
use toroid_model::ethernet::EthernetPath;
use toroid_model::gateway::GatewayKind;
use toroid_model::host_key::PublicKey;
use toroid_model::link::{DomainLinks, Pair, Rate};
use toroid_model::quota::Resource;

pub use event::{Event, Message};
pub use reply::Reply;
pub use types::{Bind, ChannelInfo, NewDomain, NodeAllocation, RemoteInfo, StackInfo, Terminal};
pub use value::ReplyValue;

/// The version of this protocol. An agent and a client of different versions refuse each other.
pub const VERSION: u32 = 18;

/// The abstract name of the node socket.
pub const NODE_SOCKET: &str = "toroid-agent";

/// The most directories that a command may get.
pub const MAX_BINDS: usize = 8;

/// A request of a client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// First on every connection. Reply: [`Reply::Welcome`].
    Hello {
        /// [`VERSION`].
        version: u32,
    },
    /// Either socket. A change that is made once, however often it is repeated with this identifier
    /// within a minute. Reply: that of the change, or [`Reply::Again`].
    Once {
        /// Random identifier.
        #[serde(with = "as_text")]
        id: RequestId,
        /// Whether an earlier attempt may have made it, whose reply did not come.
        #[serde(default, skip_serializing_if = "Not::not")]
        again: bool,
        /// The change.
        change: Box<Request>,
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
    /// Either socket; a node may free nodes that were allocated for domains that it manages. The
    /// nodes leave all their domains and are free again. Reply: [`Reply::Done`].
    NodeFree {
        /// Node sets.
        nodes: Vec<String>,
    },
    /// Control socket. Changes and denials that concern the caller. Reply: [`Reply::Events`].
    Events {
        /// Number of the first event.
        since: u64,
        /// Whether to wait some seconds for something to happen.
        wait: bool,
    },
    /// Either socket. Resources and limits of tenants: those named, or all that concern the caller.
    /// Reply: [`Reply::Quotas`].
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
        /// Limits by resource.
        limits: BTreeMap<Resource, Option<u64>>,
    },
    /// Control socket, for administrators. Admits a host with this key to the directory. Reply:
    /// [`Reply::Done`].
    HostAdmit {
        /// The host.
        host: String,
        /// Its public key.
        key: PublicKey,
    },
    /// Control socket, for administrators. Takes the nodes of a host out of all domains, and ends
    /// what the host has open. Reply: [`Reply::Done`], when all other hosts have done so.
    HostRemove {
        /// The host.
        host: String,
    },
    /// Control socket, for administrators. Gives this host a new key pair. Reply: [`Reply::Done`].
    HostRotate {
        /// Between agents: the keys of the asking host from now on. From a client: none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        keys: Vec<PublicKey>,
    },
    /// Control socket, for administrators. Moves the directory. Reply: [`Reply::Done`].
    DirectoryMove {
        /// `etcd`, or a host.
        to: String,
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
        /// Rate limit of each new member; absent: none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        rate: Option<Rate>,
    },
    /// Either socket; a node must be a manager of the domain. Reply: [`Reply::Domain`], when
    /// the remaining processes have acknowledged; [`Reply::Done`] if it is repeated after the caller
    /// has left by it.
    DomainShrink {
        /// The domain.
        name: String,
        /// Node sets.
        nodes: Vec<String>,
    },
    /// Either socket; the caller must have the right to shrink the domain. Changes nothing. Reply:
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
    /// Control socket. Changes the properties that are not null. Reply: [`Reply::Domain`].
    DomainSet {
        /// The domain.
        name: String,
        /// Whether the owner of a node may add it.
        public: Option<bool>,
        /// Whether it has routers.
        #[serde(default)]
        forward: Option<bool>,
        /// Whether its members of different hosts talk over encrypted connections only.
        #[serde(default)]
        sealed: Option<bool>,
        /// Seconds after which members on hosts that are cut off have stopped; 0: no fence.
        #[serde(default)]
        fence: Option<u32>,
        /// Path of frames between members of one host.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ethernet: Option<EthernetPath>,
        /// The uid of its owner; for administrators.
        owner: Option<u32>,
    },
    /// Control socket. Changes the rate limit of members. In effect for their present connections,
    /// too, when [`Reply::Domain`] comes.
    DomainRate {
        /// The domain.
        name: String,
        /// Node sets of members.
        nodes: Vec<String>,
        /// Rate limit of each; null: none.
        rate: Option<Rate>,
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
        /// Traffic that passes.
        kind: GatewayKind,
    },
    /// Control socket, for administrators. Reply: [`Reply::Domain`].
    GatewayRemove {
        /// The member at which it is.
        node: String,
        /// The domain.
        domain: String,
    },
    /// Control socket, for the owner of the domain. Gives links between members these properties,
    /// in the order of [`Reply::Domain`]: in effect for the driver, and sent to all attached
    /// processes.
    LinkSet {
        /// The domain.
        domain: String,
        /// The properties.
        links: DomainLinks<Place>,
        /// Whether all other properties stay. Otherwise they become the machine's.
        keep: bool,
    },
    /// Control socket, for the owner of the domain. Ends the properties of links likewise. Reply:
    /// [`Reply::Domain`].
    LinkRemove {
        /// The domain.
        domain: String,
        /// Single links; none: all links of the domain.
        pairs: Vec<Pair<Place>>,
    },
    /// Either socket; a node sees its own domains. Reply: [`Reply::Links`].
    Links {
        /// The domain.
        domain: String,
        /// Single links; none: all links, those with equal properties together.
        pairs: Vec<Pair<Place>>,
    },
    /// Either socket; a node sees its own domains. Reply: [`Reply::Domains`].
    DomainList,
    /// Either socket; a node sees its own domains. Reply: [`Reply::Domain`].
    DomainShow {
        /// The domain.
        name: String,
    },
    /// Either socket; only the owner of the domain hears of other owners' nodes. Reply:
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
        /// Path of the program, if its descriptor comes along.
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
        /// Number of the signal.
        signal: i32,
    },
    /// Control socket. Ends the agent, its nodes and driver. Reply: [`Reply::Done`], after that.
    Down,

    /// Node socket. Reply: [`Reply::Whoami`].
    Whoami,
    /// Node socket. Requests the ticket with which this process resumes its attachment at another
    /// agent. Reply: [`Reply::Ticket`].
    Ticket,
    /// Node socket, first after [`Request::Hello`]. Resumes an attachment. The process lists its
    /// objects; all other grants to it end. Reply: [`Reply::Resumed`]; the process then repeats
    /// unanswered requests.
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
    /// Node socket. Allocates a region that belongs to this connection and ends with it. Reply:
    /// [`Reply::Region`] with one descriptor, readable and writable.
    Alloc {
        /// The domain it belongs to.
        domain: String,
        /// Bytes, not 0.
        len: u64,
        /// Rights of peers, as the bits of [`Access`].
        #[serde(with = "access_bits")]
        access: Access,
    },
    /// Node socket. Frees a region of this connection; processes that opened it get
    /// [`Event::RegionGone`]. Reply: [`Reply::Done`].
    Free {
        /// Key of the region.
        #[serde(with = "as_text")]
        key: RemoteKey,
    },
    /// Node socket. Requests access to a peer's region. Reply: [`Reply::Region`] with one
    /// descriptor, read-only unless a right to write was requested; or [`Reply::Elsewhere`] when
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
    /// Node socket. Requests the path to a member's memory. Reply: [`Reply::Here`] when this host
    /// carries the member, otherwise [`Reply::Remote`] with one descriptor: a connection to its
    /// target proxy ([`toroid_fabric::tcp::QueuePair`]).
    Reach {
        /// The domain.
        domain: String,
        /// The member's place.
        #[serde(with = "as_text")]
        place: Place,
    },
    /// Node socket. Opens a packet channel to a listener. Reply: [`Reply::Channel`] with the
    /// descriptors of [`toroid_fabric::shm::ChannelEnds`]; or [`Reply::Remote`] with one descriptor
    /// ([`toroid_fabric::tcp::Channel`]) when another host carries the peer.
    Connect {
        /// The domain.
        domain: String,
        /// The peer's place.
        #[serde(with = "as_text")]
        place: Place,
        /// Protocol of the listener.
        protocol: u16,
    },
    /// Node socket. Ends a channel of this connection, at either end; the process at the other
    /// gets [`Event::ChannelGone`]. Reply: [`Reply::Done`], also when it has ended already.
    Disconnect {
        /// [`ChannelInfo::id`].
        id: u64,
    },
    /// Node socket. Requests the addresses of this node in a domain where its interface is a stack,
    /// and the stack socket of the Ethernet driver. One process of the node has it, until the
    /// process closes its end. Reply: [`Reply::Stack`] with one descriptor.
    Stack {
        /// The domain.
        domain: String,
    },
    /// Node socket. Requests the members that listen for `protocol`. Reply: [`Reply::Listeners`].
    Lookup {
        /// The domain.
        domain: String,
        /// The protocol.
        protocol: u16,
    },
    /// Node socket. Requests the page on which the agent fences the grants of this connection.
    /// Reply: [`Reply::Fence`] with one descriptor, read-only.
    Fence,
    /// Node socket. A thread waits for a chunk of a region that moves. No reply, but
    /// [`Event::Arrived`].
    Fetch {
        /// The region's key.
        #[serde(with = "as_text")]
        key: RemoteKey,
        /// Index of the [`toroid_fabric::mem::CHUNK`] in the region.
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
