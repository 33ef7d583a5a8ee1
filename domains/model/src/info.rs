//! Descriptions of an agent, of nodes and of domains.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use serde::{Deserialize, Serialize};
use toroid_fabric::{Place, Torus};

use crate::as_text;
use crate::directory::MemberSpec;
use crate::directory::revision::Revision;
use crate::ethernet::{DropReason, EthernetPath, OffloadKind};
use crate::gateway::GatewayKind;
use crate::host_key::PublicKey;
use crate::hosts::{Encryption, Provider};
use crate::link::{DomainLinks, LinkSpec, Pair, Rate, Routing};
use crate::placement::Figures;
use crate::quota::Amounts;
use crate::rdma::Rdma;
use crate::refusal::Refusal;

/// The state of the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Process id of the agent, in its own PID namespace.
    pub pid: u32,
    /// State directory.
    pub state: String,
    /// Directory of the durable data.
    pub data: String,
    /// The torus.
    #[serde(with = "as_text")]
    pub torus: Torus,
    /// The number of nodes that this host carries.
    pub nodes: u32,
    /// All hosts, in order of their names; none without other hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<HostInfo>,
    /// Whether this host reaches etcd, if it is a candidate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd: Option<EtcdState>,
    /// Present problem with etcd, or why this candidate does not stand for election.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_problem: Option<Refusal>,
    /// Revision of this host's copy of the directory, if there are other hosts. Administrators see
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<Revision>,
    /// Where the directory has moved, and what to write in this host's file, if that names a former
    /// place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub moved: Option<Refusal>,
    /// Provider between nodes of different hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub between_hosts: Option<Provider>,
    /// Encryption of data between hosts, except by RDMA devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encryption: Option<Encryption>,
    /// Cipher of the connections that this host opens, if they are encrypted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cipher: Option<String>,
    /// The RDMA device that is used for that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma: Option<Rdma>,
    /// The number of domains.
    pub domains: u32,
    /// The data path.
    pub provider: String,
    /// Name of the emulated torus whose links all domains share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<String>,
    /// `tap`; `stack` where interfaces of the kernel cannot be had, so that all members are stacks;
    /// or `none` when started without Ethernet.
    pub ethernet: String,
    /// Reason and remedy, if no member can have an interface of the kernel.
    pub no_taps: Option<Refusal>,
    /// Limits of each node.
    #[serde(default)]
    pub limits: Limits,
    /// Reason and remedy, if nodes have fewer limits than by default.
    #[serde(default)]
    pub no_limits: Option<Refusal>,
    /// Offloads that this kernel supports, for members with offload; none when started without
    /// offload.
    pub offload: Vec<OffloadKind>,
    /// Why no frames pass through the kernel alone, if that is so on this host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_kernel: Option<String>,
    /// Whether it runs without root.
    pub rootless: bool,
    /// Whether each node has users of its own, so that its root is unprivileged on the host.
    /// Otherwise nodes are separated for convenience, not against malice.
    pub private_users: bool,
    /// The driver's process id, absent when there is none.
    pub driver_pid: Option<u32>,
    /// Number of restarts of the driver.
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
    /// Bytes of regions with remote writers that the agent is about to compact into huge pages.
    /// Until then a shrink takes longer.
    #[serde(default)]
    pub compacting_bytes: u64,
}

/// Whether a candidate reaches etcd.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EtcdState {
    /// It does.
    Connected,
    /// The first answer has not come yet.
    Connecting,
    /// It does not, or etcd refuses its requests.
    Unreachable,
}

as_text::display_serde_name!(EtcdState);

/// Limits of a node; absent means no limit.
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
    /// Name.
    pub name: String,
    /// Address at which this host's agent reaches its agent: of this host's file, or else of the
    /// directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Whether its agent holds the directory.
    pub directory: bool,
    /// Whether it may lead with a directory on etcd.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub candidate: bool,
    /// Whether its agent is there.
    pub state: HostState,
    /// Whether frames get from driver to driver.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub frames: bool,
    /// Provider of the frames, if they pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frames_over: Option<Provider>,
    /// Frames to and from the host by RDMA devices since the start of the driver, with provider
    /// verbs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frames_by_rdma: Option<u64>,
    /// Whether the directory knows its key.
    #[serde(default)]
    pub admission: HostAdmission,
    /// Its public key: the admitted one, or the one that it showed when it was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<PublicKey>,
    /// Present problem of the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Whether the directory knows a host's key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostAdmission {
    /// It has never connected.
    #[default]
    New,
    /// It waits for `toroid host admit`.
    Pending,
    /// The directory has its key.
    Admitted,
    /// It was removed.
    Removed,
}

as_text::display_serde_name!(HostAdmission);

/// Whether another host's agent is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostState {
    /// This host.
    Here,
    /// The two have a session.
    Connected,
    /// They have none.
    Away,
    /// The agent that holds the directory knows.
    Unknown,
}

as_text::display_serde_name!(HostState);

/// Resources and limits of a user or a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct QuotaInfo {
    /// Uid, for a user.
    pub user: Option<u32>,
    /// Place, for a node.
    pub node: Option<String>,
    /// The host that counts, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Amounts in use there.
    pub used: Amounts,
    /// The limits that were set.
    pub limits: Amounts,
    /// Limits in force, with the defaults of users; only the host limits an absent resource.
    pub in_force: Amounts,
}

/// Frames of a member that reached no receiver, since the interface was made or the driver was
/// started.
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
    /// Number by reason; an absent one is 0.
    pub dropped: BTreeMap<DropReason, u64>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Number.
    pub id: u32,
    /// Place.
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
    /// Name, also of its interfaces.
    pub name: String,
    /// Number: the partition of its packets, and two bytes of its members' MAC addresses.
    pub id: u32,
    /// The age of its membership.
    pub epoch: u32,
    /// The uid of its owner.
    pub owner: u32,
    /// Bytes.
    pub mtu: u32,
    /// IPv4 subnet `a.b.c.d/len`.
    pub subnet: String,
    /// The most members that the subnet has addresses for; absent if all nodes can be members.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<u32>,
    /// Whether the owner of a node may add it.
    pub public: bool,
    /// Places of the nodes whose processes may change it.
    pub managers: Vec<String>,
    /// Whether nodes that are in another such domain, too, may forward packets between the two, and
    /// members may announce themselves as routers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub forward: bool,
    /// Whether its members of different hosts talk over encrypted connections only.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sealed: bool,
    /// Length of its fence in seconds; absent without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence: Option<u32>,
    /// Whether a host may not have the fence, or have a longer one.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fence_pending: bool,
    /// Path of frames between members of one host, as it was set.
    #[serde(default)]
    pub ethernet: EthernetPath,
    /// Why no frames between members of this host pass through the kernel alone; absent where those
    /// do that need nothing else.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub without_kernel: Option<String>,
    /// Hosts that were cut off at the last shrink, and where the fence has stopped all members.
    /// In the reply to a shrink only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cut_off: Vec<String>,
    /// The first of its gateways.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<GatewayInfo>,
    /// All connections to external networks, in order of preference.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gateways: Vec<GatewayInfo>,
    /// Links between members, without those that are the machine's.
    #[serde(default, skip_serializing_if = "DomainLinks::is_empty")]
    pub links: DomainLinks<Place>,
    /// Size and distances of its members.
    #[serde(flatten)]
    pub figures: Figures,
    /// In order of their node numbers.
    pub members: Vec<MemberInfo>,
}

/// Links of a domain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkReport {
    /// The domain.
    pub domain: String,
    /// Name of the torus whose links all domains share, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric: Option<String>,
    /// One-way latency of RDMA on this machine, in nanoseconds. It is part of a latency without `+`.
    pub rdma_base_ns: u64,
    /// Rate of long RDMA reads on this machine, in bytes per second; absent if it cannot be measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rdma_base_rate: Option<u64>,
    /// One-way latency of Ethernet between two members here, measured as by `toroid ping` before any
    /// links were emulated. All latencies come on top.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ethernet_base_ns: Option<u64>,
    /// Transfers that no rate delayed, because the table of clocks was full.
    #[serde(default)]
    pub without_clock: u64,
    /// Links with equal properties together, or requested ones.
    pub links: Vec<LinkInfo>,
}

/// Links with equal properties, and their transfers from this host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LinkInfo {
    /// The link; absent for all links that are in no other entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pair: Option<Pair<Place>>,
    /// Its properties.
    pub link: LinkSpec,
    /// One-sided operations and packets of channels.
    pub rdma: Lateness,
    /// Frames.
    pub ethernet: Lateness,
    /// Transfers that found a clock which some process had set beyond any backlog.
    pub clamped: u64,
    /// Frames by path; absent without a gateway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<Flows>,
    /// Choice of routes; absent unless the domain has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing: Option<RoutingInfo>,
}

/// Choice of routes through an emulated torus, since it was set or a member left.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RoutingInfo {
    /// The mode, `auto` or `off`.
    pub mode: Routing,
    /// One-sided operations and packets of channels.
    pub rdma: RouteCounters,
    /// Frames.
    pub ethernet: RouteCounters,
}

/// Counts of the routers of senders.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RouteCounters {
    /// Messages on which the policy decided.
    pub decisions: u64,
    /// Decisions for another mode than the one before.
    pub switches: u64,
    /// Bytes of messages too small for a decision.
    pub skipped_bytes: u64,
    /// Messages.
    pub messages: u64,
    /// Share of messages on a non-minimal route, from 0 to 1.
    pub share_non_minimal: f64,
    /// By mode; without modes that no message had.
    pub modes: BTreeMap<String, ModeCounters>,
}

/// Counters of a network card, for the messages of one mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ModeCounters {
    /// Bytes of messages.
    pub bytes: u64,
    /// Flits of requests.
    pub request_flits: u64,
    /// Cycles of 1.25 ns for which messages waited at links.
    pub stalled_cycles: u64,
    /// Packets of 64 bytes.
    pub packets: u64,
    /// Sum of the round trips of packets.
    pub latency_ns: u64,
}

/// Paths of frames of flows with a gateway, since links got their first properties or a member
/// left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flows {
    /// Frames through the gateway, lost ones as well.
    pub gateway: u64,
    /// Frames without the detour.
    pub direct: u64,
    /// Changes from the gateway to the direct path.
    pub switches: u64,
}

/// How late transfers left links, since these got their first properties or a member left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lateness {
    /// Transfers.
    pub transfers: u64,
    /// Transfers that left late by more than 1 us and 1 % of the time that they took.
    pub late: u64,
    /// Median lateness in nanoseconds, to 19 %.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Processor time spent on waiting, in nanoseconds.
    pub cpu_ns: u64,
}

/// A gateway of a domain.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GatewayInfo {
    /// The member at which it is.
    #[serde(with = "as_text")]
    pub node: Place,
    /// The host's interface that leads outside.
    pub uplink: String,
    /// Traffic that passes.
    pub kind: GatewayKind,
    /// Whether members of the agent's host go out there, if they may use all gateways; absent without
    /// members there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_use: Option<bool>,
    /// Why nothing passes at present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Traffic that does not pass unexpectedly, as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
}

/// Work of a shrink at this moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShrinkNeeds {
    /// The places of the nodes that would leave.
    pub leaving: Vec<String>,
    /// Attached processes of remaining members, which must acknowledge the change or be fenced.
    pub acknowledging: Vec<Acknowledging>,
    /// Regions that would migrate to fresh memory, because a leaver may have them mapped.
    pub moving: Vec<Moving>,
    /// Regions that would end with their owner.
    pub ending: Vec<Ending>,
    /// Packet channels that would end. One between two hosts counts on both.
    pub ending_channels: u32,
    /// The most memory that it takes until all has moved, in bytes, on all hosts together.
    pub extra_bytes: u64,
    /// Hosts whose part is missing, and why.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub missing: BTreeMap<String, String>,
}

/// Attached processes of a node that stays.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Acknowledging {
    /// Place of the node.
    pub node: String,
    /// Number of processes.
    pub processes: u32,
}

/// Regions of a node that would move.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moving {
    /// The place of their owner.
    pub node: String,
    /// Whether a leaver may have them mapped for writing. The change then completes after nothing
    /// can write to them, or all is copied; other regions are copied later.
    pub written: bool,
    /// Number of regions.
    pub regions: u32,
    /// Their bytes.
    pub bytes: u64,
}

/// Regions of a node that would end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ending {
    /// The place of their owner.
    pub node: String,
    /// Number of regions.
    pub regions: u32,
    /// Their bytes.
    pub bytes: u64,
}

/// Members of a domain.
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
    /// Place of the node.
    #[serde(with = "as_text")]
    pub node: Place,
    /// The host that carries it, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
    /// Whether it may talk to full members only.
    pub limited: bool,
    /// Whether its interface does without offload.
    pub plain: bool,
    /// Whether the member has a link for one process instead of an interface of the kernel. If the
    /// kernel has no interfaces, no member has one.
    pub stack: bool,
    /// Rate limit of the member; absent: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Interface; absent without Ethernet, and for a stack.
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
            rate: self.rate,
        }
    }
}
