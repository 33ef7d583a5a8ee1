//! Resources of an agent that a user or a node may have, and their limits.
//!
//! [`Directory`](crate::directory::Directory) counts and refuses.
//!
//! The processes of a node are charged to the node and to its owner, a domain to its owner, a
//! membership to the node. Only the host limits a resource without a limit.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use toroid_fabric::NodeId;

use crate::refusal::{Refusal, RefusalKind};

/// A counted resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// Of a user: domains that it owns. Of a node: its memberships.
    Domains,
    /// Allocated by processes in nodes.
    Regions,
    /// Bytes of these regions.
    Bytes,
    /// Packet channels, charged to the node that opens them: two rings at each end.
    Rings,
    /// Descriptors that the agent keeps open: one for each attached process and each region.
    Descriptors,
    /// Of a user: nodes that it owns. Of a node: none.
    Nodes,
    /// Of a user: IPv4 addresses in the subnets of the domains that it owns. Of a node: none.
    Addresses,
}

/// Limits of users without others, except administrators. Generous for one user; one user cannot
/// exhaust the host.
pub const DEFAULTS: [(Resource, u64); 6] = [
    (Resource::Domains, 64),
    (Resource::Regions, 65_536),
    (Resource::Rings, 65_536),
    (Resource::Descriptors, 131_072),
    (Resource::Nodes, 256),
    // A sixteenth of the range from which the agent chooses.
    (Resource::Addresses, 1 << 18),
];

/// A user or a node to which resources are charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tenant {
    /// A user, in all of its nodes together.
    User(u32),
    /// A node of any owner.
    Node(NodeId),
}

/// Amount of each resource. An absent one is 0 if it is a usage, and unlimited if it is a limit.
pub type Amounts = BTreeMap<Resource, u64>;

/// A limit that would be passed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{tenant} has {used} of at most {limit} {resource}, and {more} more are too many")]
pub struct Exceeded {
    /// Tenant, as text.
    pub tenant: String,
    /// Resource.
    pub resource: Resource,
    /// Amount in use.
    pub used: u64,
    /// Amount requested besides.
    pub more: u64,
    /// Limit.
    pub limit: u64,
}

impl From<Exceeded> for Refusal {
    fn from(exceeded: Exceeded) -> Self {
        let remedy = format!(
            "give some back, or let an administrator raise it with `toroid quota set {} --{}`",
            exceeded.tenant.rsplit(' ').next().unwrap_or_default(),
            exceeded.resource
        );
        Refusal::new(RefusalKind::Exhausted, exceeded.to_string(), remedy)
    }
}

impl Resource {
    /// Each once.
    pub const ALL: [Resource; 7] = [
        Resource::Domains,
        Resource::Regions,
        Resource::Bytes,
        Resource::Rings,
        Resource::Descriptors,
        Resource::Nodes,
        Resource::Addresses,
    ];
}

crate::as_text::display_serde_name!(Resource);
