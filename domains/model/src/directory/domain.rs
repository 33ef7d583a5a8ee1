//! A domain, its members, and changes of both.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use serde::Serialize;
use toroid_fabric::NodeId;

use super::Fence;
use super::addresses::Addresses;
use crate::addressing::Subnet;
use crate::ethernet::EthernetPath;
use crate::gateway::{Gateway, GatewayKind};
use crate::link::{DomainLinks, Rate};

/// A domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Name.
    pub name: String,
    /// Number: not 0, unique among present domains.
    pub id: u16,
    /// Grows whenever a member leaves; a reused number starts above the last.
    pub epoch: u32,
    /// The uid of its owner.
    pub owner: u32,
    /// Bytes.
    pub mtu: u32,
    /// Subnet of its IPv4 addresses.
    pub subnet: Subnet,
    /// Indexes of addresses in the subnet; `None` if it has one for each node of the torus, which
    /// then has the index of its number.
    pub(super) addresses: Option<Addresses>,
    /// Members, by node.
    pub members: BTreeMap<NodeId, MemberSpec>,
    /// Nodes whose processes may grow and shrink it.
    pub managers: BTreeSet<NodeId>,
    /// Whether the owner of a node may add it.
    pub public: bool,
    /// Whether nodes that are in another such domain, too, may forward packets between the two, and
    /// members may announce themselves as routers.
    pub forward: bool,
    /// Whether its members of different hosts talk over encrypted connections only.
    pub sealed: bool,
    /// Whether members on hosts that are cut off stop by themselves, and when.
    pub fence: Option<Fence>,
    /// Path of frames between members of one host.
    pub ethernet: EthernetPath,
    /// Connections to external networks, in order of preference: NAT gateways, or one bridge.
    pub gateways: Vec<Gateway>,
    /// Links between members.
    pub links: DomainLinks,
    /// Epoch in which a member joined, for members later than the first epoch. A host with an older
    /// copy of the domain recognizes by it that such a member has left in between.
    pub since: BTreeMap<NodeId, u32>,
}

impl Domain {
    /// Whether two members may communicate: one of them must be a full member.
    pub fn may_talk(&self, a: NodeId, b: NodeId) -> bool {
        match (self.members.get(&a), self.members.get(&b)) {
            (Some(of_a), Some(of_b)) => a == b || !(of_a.limited && of_b.limited),
            _ => false,
        }
    }

    /// The IPv4 address of a member, the same as long as it is one. Nodes that have never been
    /// members may have none.
    pub fn address(&self, member: NodeId) -> Option<Ipv4Addr> {
        let index = match &self.addresses {
            Some(addresses) => *addresses.indexes().get(&member)?,
            None => member.0,
        };
        Some(self.subnet.address(index))
    }

    /// Why no frames between members of one host may pass through the kernel alone, as a reason of the
    /// domain's own.
    pub fn without_kernel(&self) -> Option<&'static str> {
        if self.ethernet == EthernetPath::Driver {
            Some("the domain has --ethernet driver")
        } else if !self.links.is_empty() {
            Some("its links have a model")
        } else {
            self.fence.map(|_| "it has a fence")
        }
    }

    /// Its gateway at a node.
    pub fn gateway_at(&self, node: NodeId) -> Option<&Gateway> {
        self.gateways.iter().find(|gateway| gateway.node == node)
    }

    /// Its bridge, which has no gateway beside it.
    pub fn bridge(&self) -> Option<&Gateway> {
        let mut bridges = self.gateways.iter();
        bridges.find(|gateway| gateway.kind == GatewayKind::Bridge)
    }

    /// NAT gateways that a member may use, in order of preference.
    pub fn ways_out(&self, member: NodeId) -> impl Iterator<Item = &Gateway> {
        let is_way = move |gateway: &&Gateway| {
            gateway.kind == GatewayKind::Nat && self.may_talk(gateway.node, member)
        };
        self.gateways.iter().filter(is_way)
    }

    /// The most members that it has addresses for; `None` if all nodes can be members.
    pub fn capacity(&self) -> Option<u32> {
        self.addresses.as_ref().map(|_| self.subnet.capacity())
    }

    /// The kind of a member; of another node, that of a full member.
    pub fn spec(&self, node: NodeId) -> MemberSpec {
        self.members.get(&node).copied().unwrap_or_default()
    }

    /// Nodes of all members.
    pub fn nodes(&self) -> BTreeSet<NodeId> {
        self.members.keys().copied().collect()
    }
}

/// Kind of a membership. Default: a full member with offloads and an interface of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemberSpec {
    /// The member communicates with full members only.
    pub limited: bool,
    /// The interface passes no GSO packets and no partial checksums.
    #[serde(rename = "plain", skip_serializing_if = "std::ops::Not::not")]
    pub no_offload: bool,
    /// The member has no interface of the kernel. One process of the node may have the link, with a
    /// userspace stack.
    #[serde(rename = "stack", skip_serializing_if = "std::ops::Not::not")]
    pub userspace_stack: bool,
    /// Most bytes per second that the member may send, and read and write in the memory of members
    /// on other hosts; `None`: as many as it can. Unlike the others, this can change during the
    /// membership.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
}

impl MemberSpec {
    /// Why frames of the member may not pass through the kernel alone, if that is so.
    pub fn without_kernel(self) -> Option<&'static str> {
        [
            (self.limited, "is a limited member"),
            (self.no_offload, "does without offload"),
            (self.userspace_stack, "has a userspace stack"),
            (self.rate.is_some(), "has a rate"),
        ]
        .into_iter()
        .find_map(|(is_so, why)| is_so.then_some(why))
    }

    /// Whether a member can become the other without leaving the domain in between.
    pub fn is_same_kind(self, other: MemberSpec) -> bool {
        let rate = other.rate;
        MemberSpec { rate, ..self } == other
    }
}

/// A membership change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The domain after it.
    pub domain: Domain,
    /// New members.
    pub joined: BTreeSet<NodeId>,
    /// Former members.
    pub left: BTreeSet<NodeId>,
}

/// Properties of a new domain.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Name.
    pub name: String,
    /// First members.
    pub members: BTreeMap<NodeId, MemberSpec>,
    /// Subnet, chosen when absent.
    pub subnet: Option<Subnet>,
    /// Members for which it shall have addresses; when absent,
    /// [`DEFAULT_CAPACITY`](crate::addressing::DEFAULT_CAPACITY) or those that it begins with.
    pub capacity: Option<u32>,
    /// Bytes, [`DEFAULT_MTU`](super::DEFAULT_MTU) when absent.
    pub mtu: Option<u32>,
    /// The uid of its owner.
    pub owner: u32,
    /// Whether the owner of a node may add it.
    pub public: bool,
    /// Whether its members of different hosts talk over encrypted connections only.
    pub sealed: bool,
    /// Length of its fence in seconds.
    pub fence: Option<u32>,
    /// Path of frames between members of one host.
    pub ethernet: EthernetPath,
}

/// Members out of sets: full members, and those to which each field of [`MemberSpec`] applies, with
/// the rates of some of them.
pub fn members<K: Copy + Ord>(
    full: &BTreeSet<K>,
    limited: &BTreeSet<K>,
    no_offload: &BTreeSet<K>,
    userspace_stack: &BTreeSet<K>,
    rates: &BTreeMap<K, Rate>,
) -> BTreeMap<K, MemberSpec> {
    let all = [full, limited, no_offload, userspace_stack]
        .into_iter()
        .flatten();
    let spec = |node: &K| MemberSpec {
        limited: limited.contains(node),
        no_offload: no_offload.contains(node),
        userspace_stack: userspace_stack.contains(node),
        rate: rates.get(node).copied(),
    };
    all.map(|node| (*node, spec(node))).collect()
}

/// Full members.
pub fn full_members<K: Ord>(nodes: impl IntoIterator<Item = K>) -> BTreeMap<K, MemberSpec> {
    let member = |node| (node, MemberSpec::default());
    nodes.into_iter().map(member).collect()
}

/// Rates of the members that have one.
pub fn rates<K: Copy + Ord>(members: &BTreeMap<K, MemberSpec>) -> BTreeMap<K, Rate> {
    let rates = members.iter();
    let rates = rates.filter_map(|(node, spec)| Some((*node, spec.rate?)));
    rates.collect()
}

/// Members that have a rate, by their rates.
pub fn by_rate<K, C: Default + Extend<K>>(
    members: impl IntoIterator<Item = (K, Option<Rate>)>,
) -> BTreeMap<Rate, C> {
    let mut by_rate = BTreeMap::<Rate, C>::new();
    for (member, rate) in members {
        if let Some(rate) = rate {
            by_rate.entry(rate).or_default().extend([member]);
        }
    }
    by_rate
}

/// Members whose kind fulfils a condition.
pub fn members_with<K: Copy + Ord>(
    members: &BTreeMap<K, MemberSpec>,
    is_wanted: impl Fn(&MemberSpec) -> bool,
) -> BTreeSet<K> {
    let wanted = members.iter().filter(|(_, spec)| is_wanted(spec));
    wanted.map(|(node, _)| *node).collect()
}
