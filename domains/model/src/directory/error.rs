//! Why a directory refuses a change, for programs and, with the remedy, for people.

use std::net::SocketAddr;

use toroid_fabric::Place;

use super::{MAX_ALIASES, MAX_FENCE, MAX_GATEWAYS, MAX_LINKS, MAX_MTU, MIN_FENCE, MIN_MTU};
use crate::addressing::{Subnet, SubnetError};
use crate::limits::MAX_HOSTS;
use crate::link::{LinkError, Rate};
use crate::names::{MAX_LABEL, MAX_NAME, RESERVED_NAMES};
use crate::nodeset::NodeSetError;
use crate::refusal::{Refusal, RefusalKind};

/// Why a change was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DirectoryError {
    /// Not fit for an interface or the end of a host name.
    #[error("\"{0}\" cannot name a domain, whose name is also that of its interfaces")]
    BadName(String),
    /// Another host carries nodes.
    #[error("{nodes}: carried by host {host} already")]
    Carried {
        /// The nodes.
        nodes: String,
        /// The host.
        host: String,
    },
    /// No host carries nodes.
    #[error("no host carries {0} yet")]
    NotCarried(String),
    /// Not fit for a host name.
    #[error("\"{0}\" cannot be an alias, which is also a host name")]
    BadAlias(String),
    /// No node has it.
    #[error("no node is called {0}")]
    NoSuchAlias(String),
    /// A domain of that name is there.
    #[error("a domain called {0} exists already")]
    DomainExists(String),
    /// Another node has that alias.
    #[error("{alias} is already the name of node {place}")]
    AliasExists {
        /// The alias.
        alias: String,
        /// Present owner of the alias.
        place: Place,
    },
    /// The node has as many as it may.
    #[error("node {0} has {MAX_ALIASES} aliases, and may have no more")]
    TooManyAliases(String),
    /// No admitted host has that name.
    #[error("no host called {0} is admitted")]
    NoSuchHost(String),
    /// No other host can reach the address.
    #[error("host {host} has told address {address}, which {why}")]
    BadAddress {
        /// The host.
        host: String,
        /// The address.
        address: SocketAddr,
        /// Mistake in the address.
        why: &'static str,
    },
    /// There are as many hosts as may be.
    #[error("{MAX_HOSTS} hosts are admitted, and there may be no more")]
    TooManyHosts,
    /// No domain has that name.
    #[error("no domain is called {0}")]
    NoSuchDomain(String),
    /// None of the nodes to remove is a member.
    #[error("no node of {nodes} is a member of domain {domain}")]
    NotMembers {
        /// The domain.
        domain: String,
        /// The nodes.
        nodes: String,
    },
    /// The present kind of membership differs from the wanted one; the nodes must leave first.
    #[error("{nodes} are {present} members of domain {domain}")]
    OtherMembership {
        /// The domain.
        domain: String,
        /// The nodes.
        nodes: String,
        /// `full` or `limited`, `offloading` or `plain`, `interface` or `stack`.
        present: &'static str,
    },
    /// The present rate of members differs from the wanted one.
    #[error("{nodes} are members of domain {domain} with another rate than {rate}")]
    OtherRate {
        /// The domain.
        domain: String,
        /// The nodes.
        nodes: String,
        /// The wanted rate.
        rate: Rate,
    },
    /// They cannot manage the domain: they are no members, and not its owner's.
    #[error("{nodes}: neither members of domain {domain} nor its owner's")]
    NotEligible {
        /// The domain.
        domain: String,
        /// The nodes.
        nodes: String,
    },
    /// The name cannot be that of an interface to an external network.
    #[error("\"{0}\" cannot be an uplink")]
    BadUplink(String),
    /// The domain is connected to the outside at the node.
    #[error("domain {domain} has a gateway at node {node} already, through {uplink}")]
    HasGateway {
        /// The domain.
        domain: String,
        /// Node of the gateway.
        node: String,
        /// Interface of the gateway.
        uplink: String,
    },
    /// The domain has a bridge, or is to have one beside another gateway.
    #[error(
        "a bridge is the only gateway of its domain, because two bridges to one network are a \
         loop, and domain {domain} has a gateway at node {node} through {uplink}"
    )]
    BridgeAlone {
        /// The domain.
        domain: String,
        /// Node of the present gateway.
        node: String,
        /// Interface of the present gateway.
        uplink: String,
    },
    /// The domain has as many gateways as it can have.
    #[error("domain {0} has {MAX_GATEWAYS} gateways, and can have no more")]
    TooManyGateways(String),
    /// A domain is connected through it.
    #[error("{uplink} is already the uplink of domain {domain}")]
    UplinkTaken {
        /// The interface.
        uplink: String,
        /// The domain.
        domain: String,
    },
    /// The node leads another domain outside.
    #[error("node {node} is already the gateway of domain {domain}, and has one way out")]
    RoutesAlready {
        /// The node.
        node: String,
        /// The other domain.
        domain: String,
    },
    /// The domain is not connected to the outside there.
    #[error("node {node} is no gateway of domain {domain}")]
    NoGateway {
        /// The domain.
        domain: String,
        /// The node.
        node: String,
    },
    /// The links are the machine's already.
    #[error(
        "the links {} of domain {domain} have no properties of their own",
        pair.as_ref().map_or_else(String::new, |pair| format!("between {pair} "))
    )]
    NoLink {
        /// The domain.
        domain: String,
        /// The pair of a single link, as text.
        pair: Option<String>,
    },
    /// A link cannot be so.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The domain has as many single links as it may.
    #[error("domain {0} may have {MAX_LINKS} links with properties of their own")]
    TooManyLinks(String),
    /// Outside the possible.
    #[error("an MTU of {0} bytes is not possible")]
    BadMtu(u32),
    /// Outside the sensible.
    #[error("a fence of {0} s is not possible")]
    BadFence(u32),
    /// The domain has no addresses for so many members.
    #[error("domain {domain} has IPv4 addresses for {capacity} members, and not for {members}")]
    Full {
        /// The domain.
        domain: String,
        /// The most members that it can have.
        capacity: u32,
        /// Members that it would have.
        members: usize,
    },
    /// The subnet cannot serve the members.
    #[error(transparent)]
    Subnet(#[from] SubnetError),
    /// Another domain has addresses of that subnet.
    #[error("subnet {subnet} overlaps {taken} of domain {domain}")]
    SubnetTaken {
        /// Wanted subnet.
        subnet: Subnet,
        /// The other.
        taken: Subnet,
        /// Domain with that subnet.
        domain: String,
    },
    /// The subnet overlaps that of a domain that the caller does not see.
    #[error("subnet {0} overlaps one that is in use")]
    SubnetInUse(Subnet),
    /// All subnets or numbers are in use.
    #[error("all {0} for domains are in use")]
    Exhausted(&'static str),
    /// A node set names nothing.
    #[error(transparent)]
    Nodes(#[from] NodeSetError),
}

impl From<DirectoryError> for Refusal {
    fn from(error: DirectoryError) -> Self {
        use DirectoryError as E;
        let (kind, remedy) = match error {
            E::Nodes(error) => return error.into(),
            E::BadName(_) => (
                RefusalKind::Invalid,
                format!(
                    "use 1 to {MAX_NAME} of a-z, 0-9, - and _, beginning and ending with a letter \
                     or digit, and none of {}",
                    RESERVED_NAMES.join(", ")
                ),
            ),
            E::BadAlias(_) => (
                RefusalKind::Invalid,
                format!(
                    "use 1 to {MAX_LABEL} of a-z, 0-9 and -, beginning with a letter, ending with \
                     a letter or digit, and not localhost"
                ),
            ),
            E::Carried { .. } => (
                RefusalKind::Exists,
                "let one host carry each node: see `nodes` in the files for `toroid up --config`"
                    .into(),
            ),
            E::NotCarried(_) => (
                RefusalKind::NotFound,
                "start the agent of the host that carries them; see `toroid node ls`".into(),
            ),
            E::DomainExists(_) => (
                RefusalKind::Exists,
                "choose another name, or change it with `toroid domain grow`".into(),
            ),
            E::AliasExists { .. } => (RefusalKind::Exists, "choose another".into()),
            E::TooManyAliases(_) => (
                RefusalKind::Exhausted,
                "use one of those that it has; see `toroid node ls`".into(),
            ),
            E::NoSuchAlias(_) => (RefusalKind::NotFound, "see `toroid node ls`".into()),
            E::NoSuchHost(_) => (RefusalKind::NotFound, "see `toroid host ls`".into()),
            E::BadAddress { .. } => (
                RefusalKind::Invalid,
                "write `address` in its file: where the other hosts reach its agent".into(),
            ),
            E::TooManyHosts => (
                RefusalKind::Exhausted,
                "let fewer hosts carry more nodes each, or `toroid host remove` those that are gone"
                    .into(),
            ),
            E::NoSuchDomain(_) => (RefusalKind::NotFound, "see `toroid domain ls`".into()),
            E::NotMembers { ref domain, .. } => (
                RefusalKind::NotFound,
                format!("see `toroid domain show {domain}`"),
            ),
            E::OtherMembership { ref domain, .. } => (
                RefusalKind::Exists,
                format!("take them out first with `toroid domain shrink {domain}`"),
            ),
            E::OtherRate {
                ref domain,
                ref nodes,
                rate,
            } => (
                RefusalKind::Exists,
                format!("change it with `toroid domain set {domain} {nodes} --rate {rate}`"),
            ),
            E::NotEligible { ref domain, .. } => (
                RefusalKind::Denied,
                format!("take them in first with `toroid domain grow {domain}`"),
            ),
            E::BadUplink(_) => (
                RefusalKind::Invalid,
                "name an interface of the host that leads outside; see `ip link`".into(),
            ),
            E::HasGateway {
                ref domain,
                ref node,
                ..
            }
            | E::BridgeAlone {
                ref domain,
                ref node,
                ..
            } => (
                RefusalKind::Exists,
                format!("end it first with `toroid gateway rm {node} -d {domain}`"),
            ),
            E::TooManyGateways(ref domain) => (
                RefusalKind::Exhausted,
                format!("remove one first with `toroid gateway rm NODE -d {domain}`"),
            ),
            E::UplinkTaken { .. } => (
                RefusalKind::Exists,
                "choose another interface, such as a VLAN of this one; see `toroid gateway ls`"
                    .into(),
            ),
            E::RoutesAlready { ref domain, .. } => (
                RefusalKind::Exists,
                format!("choose another member, or --bridge, or one that is not in {domain}"),
            ),
            E::NoGateway { .. } => (RefusalKind::NotFound, "see `toroid gateway ls`".into()),
            E::NoLink { ref domain, .. } => (
                RefusalKind::NotFound,
                format!("see `toroid link show -d {domain}`"),
            ),
            E::Link(error) => return error.into(),
            E::TooManyLinks(ref domain) => (
                RefusalKind::Exhausted,
                format!("give the others those of all links: `toroid link set -d {domain}`"),
            ),
            E::BadMtu(_) => (
                RefusalKind::Invalid,
                format!("choose one from {MIN_MTU} to {MAX_MTU}"),
            ),
            E::BadFence(_) => (
                RefusalKind::Invalid,
                format!("choose {MIN_FENCE} to {MAX_FENCE} seconds, or off"),
            ),
            E::Full { members, .. } => (
                RefusalKind::Exhausted,
                format!("create a domain with --capacity {members} or more"),
            ),
            E::Subnet(SubnetError::TooSmall { .. }) => (
                RefusalKind::Invalid,
                "choose another, leave --subnet out, or name the most members: --capacity".into(),
            ),
            E::Subnet(_) => (
                RefusalKind::Invalid,
                "choose another, or leave --subnet out".into(),
            ),
            E::SubnetTaken { .. } | E::SubnetInUse(_) => (
                RefusalKind::Exists,
                "choose another, or leave --subnet out".into(),
            ),
            E::Exhausted(_) => (RefusalKind::Exhausted, "remove a domain".into()),
        };
        Refusal::new(kind, error.to_string(), remedy)
    }
}
