//! The declarative form of domains, gateways, names, owners and quotas, in a file.
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
//! sealed = true                   # absent: false
//! fence = 10                      # seconds; absent: off
//! ethernet = "driver"             # or kernel; absent: auto
//! subnet = "10.64.3.0/24"         # absent: as it is, or chosen
//! capacity = 1000                 # members that it can have; absent: 254, or the nodes
//! mtu = 9000                      # absent: as it is, or 9000
//! owner = "alice"                 # absent: as it is, or who applies the file
//!
//! [domain.blue.rate]              # rate limits of members; absent: none
//! "1-3,0,0" = "1Gbit"
//!
//! [domain.blue.link]              # all links; absent: as the machine has them
//! latency = "+5us"
//! rate = "10Gbit"
//!
//! [domain.blue.link."0,0,0>db"]   # a single link, in this direction
//! loss = "0.1%"
//!
//! [[gateway.blue]]                # exactly these ways outside, in order of preference
//! node = "0,0,0"                  # a single one may be [gateway.blue]
//! uplink = "eth1"
//! kind = "nat"                    # or bridge; absent: nat
//!
//! [[gateway.blue]]
//! node = "1,0,0"
//! uplink = "eth2"
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
//! [`parse`] reads the form and reports every mistake with its line. A [`Declaration`] also
//! describes the state of an agent, as text ([`std::fmt::Display`]), so that a dump can be applied
//! again. [`plan()`] is the difference between two declarations.

mod parse;
mod plan;
mod step;
mod text;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use toroid_fabric::Place;

use crate::addressing::Subnet;
use crate::directory::MemberSpec;
use crate::ethernet::EthernetPath;
use crate::gateway::Gateway;
use crate::link::DomainLinks;
use crate::quota::Amounts;

pub use crate::settings::Problem;
pub use parse::{Surroundings, parse, read};
pub use plan::plan;
pub use step::Step;

/// Content of a file, or state of an agent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Declaration {
    /// Domains, by name.
    pub domains: BTreeMap<String, Declared>,
    /// Connections to the outside in order of preference, by domain.
    pub gateways: BTreeMap<String, Vec<DeclaredGateway>>,
    /// Further names of nodes.
    pub aliases: BTreeMap<String, Place>,
    /// The uids that own nodes, where it is not the agent's.
    pub owners: BTreeMap<Place, u32>,
    /// Limits of users and nodes. Others are unlimited.
    pub quotas: BTreeMap<Holder, Amounts>,
}

/// A user or a node with a quota.
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
    /// Lines of the file.
    pub lines: DeclaredLines,
    /// Members.
    pub members: BTreeMap<Place, MemberSpec>,
    /// Nodes whose processes may grow and shrink it.
    pub managers: BTreeSet<Place>,
    /// Whether the owner of a node may add it.
    pub public: bool,
    /// Whether its members may be routers.
    pub forward: bool,
    /// Whether its members of different hosts talk over encrypted connections only.
    pub sealed: bool,
    /// Length of its fence in seconds.
    pub fence: Option<u32>,
    /// Path of frames between members of one host.
    pub ethernet: EthernetPath,
    /// IPv4 subnet.
    pub subnet: Option<Subnet>,
    /// In a file, members for which it shall have addresses. In the state of an agent, those for
    /// which it has some; absent if all nodes can be members.
    pub capacity: Option<u32>,
    /// Bytes.
    pub mtu: Option<u32>,
    /// The uid of its owner.
    pub owner: Option<u32>,
    /// Links between members.
    pub links: DomainLinks<Place>,
}

/// Lines of a file, from 1; 0 for the state of an agent, and for absent keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeclaredLines {
    /// Line of the domain's table.
    pub domain: usize,
    /// Line of its subnet.
    pub subnet: usize,
    /// Line of its capacity.
    pub capacity: usize,
    /// Line of its MTU.
    pub mtu: usize,
}

/// A gateway of a domain.
pub type DeclaredGateway = Gateway<Place>;

#[cfg(test)]
mod tests;
