//! What an agent tells of itself, of nodes and of domains.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};
use toroid_fabric::{Place, Torus};

use crate::as_text;
use crate::directory::MemberSpec;
use crate::ethernet::{DropReason, OffloadKind};
use crate::gateway::GatewayKind;
use crate::hosts::Provider;
use crate::placement::Figures;
use crate::quota::Amounts;
use crate::rdma::Rdma;
use crate::refusal::Refusal;

/// The state of the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Its process id, in its own namespace.
    pub pid: u32,
    /// Its state directory.
    pub state: String,
    /// Where what outlives it is kept.
    pub data: String,
    /// The torus.
    #[serde(with = "as_text")]
    pub torus: Torus,
    /// The number of nodes that this host carries.
    pub nodes: u32,
    /// All hosts, in order of their names; none when this is the only one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostInfo>,
    /// What connects nodes of different hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub between_hosts: Option<Provider>,
    /// The RDMA device that is used for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<Rdma>,
    /// The number of domains.
    pub domains: u32,
    /// The data path.
    pub provider: String,
    /// `tap`; `stack` where interfaces of the kernel cannot be had, so that all members are stacks;
    /// or `none` when started without Ethernet.
    pub ethernet: String,
    /// Where all members are stacks: why, and what to do to have interfaces of the kernel.
    pub no_taps: Option<Refusal>,
    /// What each node takes of this host at most.
    #[serde(default)]
    pub limits: Limits,
    /// Where nodes have fewer limits than by default: why, and what to do.
    #[serde(default)]
    pub no_limits: Option<Refusal>,
    /// What interfaces may leave undone in packets, unless their membership is plain: what this
    /// kernel can, or nothing when started without offload.
    pub offload: Vec<OffloadKind>,
    /// Whether it runs without root.
    pub rootless: bool,
    /// Whether each node has users of its own, so that its root is nobody on the host. Otherwise
    /// nodes are separated for convenience, not against malice.
    pub private_users: bool,
    /// The driver's process id, absent when there is none.
    pub driver_pid: Option<u32>,
    /// How often the driver was restarted.
    pub driver_restarts: u32,
    /// The process for connections with other hosts, if there are any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapter_pid: Option<u32>,
    /// Processes attached through node sockets.
    pub attached: u32,
    /// Registered bytes.
    pub registered_bytes: u64,
    /// Bytes on their way to fresh memory, because a node left that may have had them mapped:
    /// until they have arrived they take up memory twice.
    pub moving_bytes: u64,
    /// Bytes of regions that others may write in which the agent is about to look for what can be in
    /// huge pages: until it has, a shrink takes longer.
    #[serde(default)]
    pub compacting_bytes: u64,
}

/// What a node takes of its host at most; absent is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Bytes of memory and swap, of processes and of files in memory.
    pub memory: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u32>,
}

/// A host of several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostInfo {
    /// Its name.
    pub name: String,
    /// Where its agent listens to the others.
    pub address: String,
    /// Whether its agent holds the directory.
    pub directory: bool,
    /// Whether its agent is there.
    pub state: HostState,
    /// Whether frames get from driver to driver.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub frames: bool,
    /// What they go by, if they do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frames_over: Option<Provider>,
    /// How many have gone there and come from there by RDMA devices, where the provider is verbs, since the
    /// driver was started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frames_by_rdma: Option<u64>,
    /// What is wrong with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Whether another host's agent is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostState {
    /// It is this one.
    Here,
    /// The two have a session.
    Connected,
    /// They have none.
    Away,
    /// The agent that holds the directory knows.
    Unknown,
}

impl fmt::Display for HostState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            HostState::Here => "here",
            HostState::Connected => "connected",
            HostState::Away => "away",
            HostState::Unknown => "unknown",
        })
    }
}

/// What a tenant has and may have: a user or a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuotaInfo {
    /// Its uid, if it is a user.
    pub user: Option<u32>,
    /// Its place, if it is a node.
    pub node: Option<String>,
    /// What it has.
    pub used: Amounts,
    /// The limits that were set.
    pub limits: Amounts,
    /// Those in force, with the defaults of users; what is missing is limited by the host alone.
    pub in_force: Amounts,
}

/// Frames that a member sent through its interface and that reached nobody, since the interface
/// is there or the driver was started.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberDrops {
    /// The member, unless it is about a host.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        with = "as_text::optional"
    )]
    pub node: Option<Place>,
    /// Another host, if it is about frames that its driver has sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Whether it is about frames from outside, which came to its domain by the gateway there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub outside: bool,
    /// How many for which reason; what is missing is 0.
    pub dropped: BTreeMap<DropReason, u64>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Its number.
    pub id: u32,
    /// Its place.
    #[serde(with = "as_text")]
    pub place: Place,
    /// The host that carries it, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Further names, if the caller may see them.
    pub aliases: Vec<String>,
    /// The uid of its owner; absent if it belongs to another user, and the caller sees no domain of
    /// which it is a member.
    pub owner: Option<u32>,
    /// Whether it was given to its owner; otherwise it belongs to the agent.
    pub allocated: bool,
    /// Whether it belongs to the agent and is in no domain, so that it can be allocated.
    pub free: bool,
    /// The domains of which it is a member, as far as the caller may see them.
    pub domains: Vec<String>,
    /// The domains in which its owner lets others place it.
    pub consents: Vec<String>,
    /// The process that holds its namespaces, in the agent's namespace; absent for a node of another
    /// host or of another user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
}

/// A domain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DomainInfo {
    /// Its name, also of its interfaces.
    pub name: String,
    /// Its number: the partition of its packets, and two bytes of its members' MACs.
    pub id: u32,
    /// The age of its membership.
    pub epoch: u32,
    /// The uid of its owner.
    pub owner: u32,
    /// Bytes.
    pub mtu: u32,
    /// IPv4 subnet `a.b.c.d/len`.
    pub subnet: String,
    /// Whether whoever owns a node may join with it.
    pub public: bool,
    /// The places of the nodes whose processes may change it.
    pub managers: Vec<String>,
    /// Whether nodes that are in another such domain, too, may forward packets between the two, and
    /// members may announce themselves as routers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forward: bool,
    /// Where it is connected to the outside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<GatewayInfo>,
    /// How far apart its members are.
    #[serde(flatten)]
    pub figures: Figures,
    /// In order of their node numbers.
    pub members: Vec<MemberInfo>,
}

/// Where a domain is connected to the outside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GatewayInfo {
    /// The member at which it is.
    #[serde(with = "as_text")]
    pub node: Place,
    /// The host's interface that leads outside.
    pub uplink: String,
    /// What passes.
    pub kind: GatewayKind,
    /// Why nothing passes at present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// What does not pass, though one might expect it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// What taking nodes out of a domain would need at this moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShrinkNeeds {
    /// The places of the nodes that would leave.
    pub leaving: Vec<String>,
    /// Who stays and must acknowledge it, or be cut off from the domain.
    pub acknowledging: Vec<Acknowledging>,
    /// What would move to fresh memory, because a leaver may have it mapped.
    pub moving: Vec<Moving>,
    /// What would end with its owner.
    pub ending: Vec<Ending>,
    /// Packet channels that would end.
    pub ending_channels: u32,
    /// The most memory that it takes until all has moved, in bytes.
    pub extra_bytes: u64,
}

/// Attached processes of a node that stays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Acknowledging {
    /// Its place.
    pub node: String,
    /// How many.
    pub processes: u32,
}

/// Regions of a node that would move.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moving {
    /// The place of their owner.
    pub node: String,
    /// Whether a leaver may have them mapped for writing: then the change is complete when nobody
    /// can write them any more, or all is copied. The others are copied after it.
    pub written: bool,
    /// How many.
    pub regions: u32,
    /// Their bytes.
    pub bytes: u64,
}

/// Regions of a node that would end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ending {
    /// The place of their owner.
    pub node: String,
    /// How many.
    pub regions: u32,
    /// Their bytes.
    pub bytes: u64,
}

/// Who is in a domain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DomainMembers {
    /// The domain's number.
    pub partition: u32,
    /// The age of its membership.
    pub epoch: u32,
    /// The numbers of the nodes.
    pub members: Vec<u32>,
}

/// A node in a domain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberInfo {
    /// Its place.
    #[serde(with = "as_text")]
    pub node: Place,
    /// The host that carries it, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Whether it may talk to full members only.
    pub limited: bool,
    /// Whether its interface does without offload.
    pub plain: bool,
    /// Whether the domain gives it no interface of the kernel, but a link for one of the node's processes. Where the
    /// kernel has none to give, nobody has one.
    pub stack: bool,
    /// Its interface, absent when the agent runs without Ethernet, and for a stack.
    pub ifname: Option<String>,
    /// `06:dd:dd:xx:yy:zz`.
    pub mac: String,
    /// In the domain's subnet.
    pub ipv4: Ipv4Addr,
    /// A unique local address.
    pub ipv6: Ipv6Addr,
}

impl MemberInfo {
    /// The kind of the membership.
    pub fn spec(&self) -> MemberSpec {
        MemberSpec {
            limited: self.limited,
            no_offload: self.plain,
            userspace_stack: self.stack,
        }
    }
}
