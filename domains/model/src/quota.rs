//! Resources of an agent that a user or a node may have, and their limits.
//!
//! [`Directory`](crate::directory::Directory) counts and refuses.
//!
//! A node's processes are charged to the node and to the node's owner; a domain to its owner;
//! a membership to the node. What has no limit is limited by the host alone.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use toroid_fabric::NodeId;

use crate::refusal::{Refusal, RefusalKind};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// Of a user: domains that it owns. Of a node: those that it is in.
    Domains,
    /// Allocated by processes in nodes.
    Regions,
    /// Of those regions.
    Bytes,
    /// Packet channels, charged to whoever opens them: a ring to send and one to receive at each
    /// end.
    Rings,
    /// What the agent keeps open: one for each attached process and each region.
    Descriptors,
    /// Of a user: those that belong to it. Of a node: none.
    Nodes,
    /// Of a user: IPv4 addresses in the subnets of the domains that it owns. Of a node: none.
    Addresses,
}

/// What users may have who are no administrators and have no other limit. Generous for one; not
/// enough to leave nothing to others.
pub const DEFAULTS: [(Resource, u64); 6] = [
    (Resource::Domains, 64),
    (Resource::Regions, 65_536),
    (Resource::Rings, 65_536),
    (Resource::Descriptors, 131_072),
    (Resource::Nodes, 256),
    // A sixteenth of the range from which the agent chooses.
    (Resource::Addresses, 1 << 18),
];

/// Whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tenant {
    /// A user, in all of its nodes together.
    User(u32),
    /// A node, whoever owns it.
    Node(NodeId),
}

/// So much of each; what is missing is 0 of what is used, and no limit of limits.
pub type Amounts = BTreeMap<Resource, u64>;

/// A limit that would be passed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{tenant} has {used} of at most {limit} {resource}, and {more} more are too many")]
pub struct Exceeded {
    /// Whose limit, for people.
    pub tenant: String,
    /// Of what.
    pub resource: Resource,
    /// How much it has.
    pub used: u64,
    /// How much was asked for besides.
    pub more: u64,
    /// How much it may have.
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

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Resource::Domains => "domains",
            Resource::Regions => "regions",
            Resource::Bytes => "bytes",
            Resource::Rings => "rings",
            Resource::Descriptors => "descriptors",
            Resource::Nodes => "nodes",
            Resource::Addresses => "addresses",
        })
    }
}
