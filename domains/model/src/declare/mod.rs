//! The declarative form: who shall be a member of what, in a file.
//!
//! ```toml
//! [domain.blue]                   # becomes exactly this
//! nodes = ["0,0,0", "1-3,0,0", "db"]
//! limited = ["3,0,0"]             # absent: none
//! plain = ["3,0,0"]               # absent: none
//! stacks = ["3,0,0"]              # absent: none
//! managers = ["0,0,0"]            # absent: none
//! public = true                   # absent: false
//! forward = true                  # absent: false
//! subnet = "10.64.3.0/24"         # absent: as it is, or chosen
//! mtu = 9000                      # absent: as it is, or 9000
//! owner = "alice"                 # absent: as it is, or who applies the file
//!
//! [gateway.blue]                  # its way outside, or another than it has
//! node = "0,0,0"
//! uplink = "eth1"
//! kind = "bridge"                 # absent: nat
//!
//! [alias]
//! db = "1,1,0"
//!
//! [owner]                         # of nodes
//! "*,1,0" = "alice"
//!
//! [quota.alice]                   # exactly these limits; or of nodes: [quota."*,*,*"]
//! domains = 8
//! bytes = 4_294_967_296
//! ```
//!
//! [`parse`] reads it and says of everything that is wrong on which line it is. [`Declaration`]
//! is also what an agent has, as text ([`std::fmt::Display`]), so that what was dumped can be
//! applied again. [`plan()`] is the difference between the two.

mod parse;
mod plan;
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use toroid_fabric::Place;

use crate::addressing::Subnet;
use crate::directory::MemberSpec;
use crate::gateway::GatewayKind;
use crate::quota::Amounts;

pub use crate::settings::Problem;
pub use parse::{Surroundings, parse, read};
pub use plan::{Step, plan};

/// What a file says or an agent has.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Declaration {
    /// By name.
    pub domains: BTreeMap<String, Declared>,
    /// Connections to the outside, by domain.
    pub gateways: BTreeMap<String, DeclaredGateway>,
    /// Further names of nodes.
    pub aliases: BTreeMap<String, Place>,
    /// The uids that own nodes, where it is not the agent's.
    pub owners: BTreeMap<Place, u32>,
    /// What users and nodes may have. Who is not in it has no limits.
    pub quotas: BTreeMap<Holder, Amounts>,
}

/// Whose quota it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Holder {
    /// A user's.
    User(u32),
    /// A node's.
    Node(Place),
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::User(uid) => uid.fmt(f),
            Holder::Node(place) => place.fmt(f),
        }
    }
}

/// A domain.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Declared {
    /// Where the file says so.
    pub lines: DeclaredLines,
    /// Its members.
    pub members: BTreeMap<Place, MemberSpec>,
    /// Nodes whose processes may change it.
    pub managers: BTreeSet<Place>,
    /// Whether whoever owns a node may join with it.
    pub public: bool,
    /// Whether its members may be routers.
    pub forward: bool,
    /// Its IPv4 subnet.
    pub subnet: Option<Subnet>,
    /// Bytes.
    pub mtu: Option<u32>,
    /// The uid of its owner.
    pub owner: Option<u32>,
}

/// Lines of a file, from 1; 0 for what an agent has, and for what the file does not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeclaredLines {
    /// Of the domain's table.
    pub domain: usize,
    /// Of its subnet.
    pub subnet: usize,
    /// Of its MTU.
    pub mtu: usize,
}

/// Where a domain is connected to the outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeclaredGateway {
    /// The member at which it is.
    pub node: Place,
    /// The host's interface that leads outside.
    pub uplink: String,
    /// What passes.
    pub kind: GatewayKind,
}

#[cfg(test)]
mod tests;
