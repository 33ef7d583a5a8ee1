//! How much of the agent one user and one node may have.
//!
//! A node's processes are charged to the node and to the node's owner; a domain to its owner;
//! a membership to the node. What has no limit is limited by the host alone.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};
use toroid_fabric::NodeId;

use crate::addressing::Subnet;
use crate::directory::Directory;
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

impl Directory {
    /// Refuses what would take a tenant, who has `used`, above its limits.
    ///
    /// # Errors
    /// [`Exceeded`].
    pub fn check_quota(
        &self,
        tenant: Tenant,
        used: &Amounts,
        more: &Amounts,
    ) -> Result<(), Exceeded> {
        let limits = self.limits_in_force(tenant);
        for (resource, more) in more {
            let used = used.get(resource).copied().unwrap_or_default();
            let Some(limit) = limits.get(resource).copied() else {
                continue;
            };
            if used.saturating_add(*more) > limit {
                return Err(Exceeded {
                    tenant: self.name_of(tenant),
                    resource: *resource,
                    used,
                    more: *more,
                    limit,
                });
            }
        }
        Ok(())
    }

    /// Refuses one more domain, with this subnet or one that the agent chooses, of a user who has
    /// enough.
    ///
    /// # Errors
    /// [`Exceeded`].
    pub fn check_owned_domains(&self, owner: u32, subnet: Option<Subnet>) -> Result<(), Exceeded> {
        let tenant = Tenant::User(owner);
        let subnet = subnet.unwrap_or_else(|| Subnet::candidate(self.torus(), 0));
        let mut more = one_domain();
        more.insert(Resource::Addresses, subnet.addresses());
        self.check_quota(tenant, &self.used(tenant), &more)
    }

    /// Refuses so many more nodes of a user who has enough.
    ///
    /// # Errors
    /// [`Exceeded`].
    pub fn check_owned_nodes(&self, owner: u32, more: usize) -> Result<(), Exceeded> {
        let tenant = Tenant::User(owner);
        let more = Amounts::from([(Resource::Nodes, more as u64)]);
        self.check_quota(tenant, &self.used(tenant), &more)
    }

    /// Refuses one more membership of nodes of which one has enough.
    ///
    /// # Errors
    /// [`Exceeded`].
    pub fn check_memberships(&self, nodes: &BTreeSet<NodeId>) -> Result<(), Exceeded> {
        nodes.iter().try_for_each(|node| {
            let tenant = Tenant::Node(*node);
            self.check_quota(tenant, &self.used(tenant), &one_domain())
        })
    }

    /// What a tenant has of the directory: domains, addresses and nodes.
    pub fn used(&self, tenant: Tenant) -> Amounts {
        let (domains, nodes, addresses) = match tenant {
            Tenant::User(uid) => {
                let owned = || self.domains().filter(|domain| domain.owner == uid);
                let addresses = owned().map(|domain| domain.subnet.addresses()).sum();
                (owned().count(), self.nodes_of(uid).count(), addresses)
            }
            Tenant::Node(node) => (self.domains_of(node).count(), 0, 0),
        };
        Amounts::from([
            (Resource::Domains, domains as u64),
            (Resource::Nodes, nodes as u64),
            (Resource::Addresses, addresses),
        ])
    }

    /// The limits of a tenant: those that were set, and of an ordinary user the [`DEFAULTS`] and
    /// [`Directory::default_bytes`].
    pub fn limits_in_force(&self, tenant: Tenant) -> Amounts {
        let is_ordinary =
            matches!(tenant, Tenant::User(uid) if uid != 0 && uid != self.administrator());
        let mut limits: Amounts = if is_ordinary {
            let bytes = self.default_bytes().map(|bytes| (Resource::Bytes, bytes));
            DEFAULTS.into_iter().chain(bytes).collect()
        } else {
            Amounts::new()
        };
        limits.extend(self.limits_of(tenant));
        limits
    }

    /// The tenants of what happens in a node: itself and its owner, if it has one.
    pub fn tenants(&self, node: NodeId) -> impl Iterator<Item = Tenant> {
        let owner = self.owner_of(node).map(Tenant::User);
        owner.into_iter().chain([Tenant::Node(node)])
    }

    fn name_of(&self, tenant: Tenant) -> String {
        match tenant {
            Tenant::User(uid) => format!("uid {uid}"),
            Tenant::Node(node) => format!("node {}", self.places(&[node].into())),
        }
    }
}

fn one_domain() -> Amounts {
    Amounts::from([(Resource::Domains, 1)])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::Wanted;

    #[test]
    fn a_limit_is_reached_and_not_passed() {
        let mut directory = Directory::new("2x1x1".parse().unwrap());
        let tenant = Tenant::Node(NodeId(1));
        let limits = [(Resource::Bytes, Some(100)), (Resource::Rings, Some(0))].into();
        directory.limit(&[tenant], &limits);
        let bytes = |bytes| Amounts::from([(Resource::Bytes, bytes)]);
        let check = |used, more| directory.check_quota(tenant, &bytes(used), &bytes(more));
        assert_eq!(check(60, 40), Ok(()));
        let refusal = Refusal::from(check(60, 41).unwrap_err());
        assert_eq!(refusal.kind, RefusalKind::Exhausted);
        assert_eq!(
            refusal.to_string(),
            "node 1,0,0 has 60 of at most 100 bytes, and 41 more are too many; give some back, or \
             let an administrator raise it with `toroid quota set 1,0,0 --bytes`"
        );
        assert!(check(60, u64::MAX).is_err());
        let one = Amounts::from([(Resource::Regions, 1), (Resource::Rings, 1)]);
        let error = directory.check_quota(tenant, &Amounts::new(), &one);
        assert_eq!(error.unwrap_err().resource, Resource::Rings);
        directory.limit(&[tenant], &[(Resource::Bytes, None)].into());
        assert_eq!(
            directory.check_quota(tenant, &bytes(60), &bytes(99)),
            Ok(())
        );
        assert!(directory.limits_of(tenant).contains_key(&Resource::Rings));
    }

    #[test]
    fn an_ordinary_user_has_limits_that_nobody_has_set() {
        let mut directory = Directory::new("2x1x1".parse().unwrap());
        directory.administer(1000, 1 << 30);
        for tenant in [Tenant::User(0), Tenant::User(1000), Tenant::Node(NodeId(0))] {
            assert_eq!(directory.limits_in_force(tenant), Amounts::new());
        }
        let alice = Tenant::User(1001);
        let mut defaults = Amounts::from(DEFAULTS);
        defaults.insert(Resource::Bytes, 1 << 29);
        assert_eq!(directory.limits_in_force(alice), defaults);
        let bytes = |count| Amounts::from([(Resource::Bytes, count)]);
        let check = |count| directory.check_quota(alice, &bytes(0), &bytes(count));
        assert!(check(1 << 29).is_ok() && check((1 << 29) + 1).is_err());
        assert_eq!(directory.limits_of(alice), Amounts::new());
        assert_eq!(directory.check_owned_nodes(1001, 256), Ok(()));
        assert!(directory.check_owned_nodes(1001, 257).is_err());
        directory.limit(&[alice], &[(Resource::Nodes, Some(1))].into());
        directory.give(&[NodeId(0)].into(), Some(1001));
        assert!(directory.check_owned_nodes(1001, 1).is_err());
        assert_eq!(directory.used(alice)[&Resource::Nodes], 1);
    }

    #[test]
    fn domains_count_for_their_owner_and_memberships_for_nodes() {
        let mut directory = Directory::new("2x1x1".parse().unwrap());
        let limits = [(Resource::Domains, Some(1))].into();
        directory.limit(&[Tenant::User(7), Tenant::Node(NodeId(0))], &limits);
        let nodes = |n| BTreeSet::from([NodeId(n)]);
        assert_eq!(directory.check_owned_domains(7, None), Ok(()));
        assert_eq!(directory.check_memberships(&nodes(0)), Ok(()));
        let wanted = Wanted {
            name: "blue".into(),
            owner: 7,
            members: nodes(0),
            ..Wanted::default()
        };
        directory.create(wanted).unwrap();
        assert!(directory.check_owned_domains(7, None).is_err());
        assert!(directory.check_memberships(&nodes(0)).is_err());
        assert_eq!(directory.check_owned_domains(8, None), Ok(()));
        assert_eq!(directory.check_memberships(&nodes(1)), Ok(()));
    }

    /// Two users with 64 domains of 65,536 addresses each once left no subnet to others.
    #[test]
    fn one_user_leaves_addresses_to_others() {
        let mut directory = Directory::new("2x1x1".parse().unwrap());
        let subnet = |n: u32| -> Subnet { format!("10.{}.0.0/16", 64 + n).parse().unwrap() };
        for n in 0..4 {
            assert_eq!(directory.check_owned_domains(7, Some(subnet(n))), Ok(()));
            let wanted = Wanted {
                name: format!("wide{n}"),
                owner: 7,
                subnet: Some(subnet(n)),
                ..Wanted::default()
            };
            directory.create(wanted).unwrap();
        }
        for subnet in [Some(subnet(4)), None] {
            let error = directory.check_owned_domains(7, subnet).unwrap_err();
            assert_eq!(
                (error.resource, error.limit),
                (Resource::Addresses, 1 << 18)
            );
        }
        assert_eq!(directory.check_owned_domains(8, Some(subnet(4))), Ok(()));
        let limits = [(Resource::Addresses, Some(1 << 20))].into();
        directory.limit(&[Tenant::User(7)], &limits);
        assert_eq!(directory.check_owned_domains(7, Some(subnet(4))), Ok(()));
    }
}
