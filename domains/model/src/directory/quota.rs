//! Quotas: resources of the directory that a tenant uses, and limits on them.

use std::collections::BTreeSet;

use toroid_fabric::NodeId;

use super::{Directory, Wanted};
use crate::addressing::Subnet;
use crate::quota::{Amounts, DEFAULTS, Exceeded, Resource, Tenant};

impl Directory {
    /// Refuses to take a tenant, which uses `used`, above its limits.
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

    /// Refuses one more domain of a user beyond its limits.
    ///
    /// # Errors
    /// [`Exceeded`].
    pub fn check_owned_domains(&self, wanted: &Wanted) -> Result<(), Exceeded> {
        let tenant = Tenant::User(wanted.owner);
        let chosen = || Subnet::candidate(self.capacity_of(wanted), 0);
        let subnet = wanted.subnet.unwrap_or_else(chosen);
        let mut more = one_domain();
        more.insert(Resource::Addresses, subnet.addresses());
        self.check_quota(tenant, &self.used(tenant), &more)
    }

    /// Refuses more nodes than the limit of a user.
    ///
    /// # Errors
    /// [`Exceeded`].
    pub fn check_owned_nodes(&self, owner: u32, more: usize) -> Result<(), Exceeded> {
        let tenant = Tenant::User(owner);
        let more = Amounts::from([(Resource::Nodes, more as u64)]);
        self.check_quota(tenant, &self.used(tenant), &more)
    }

    /// Refuses one more membership of nodes beyond their limits.
    ///
    /// # Errors
    /// [`Exceeded`].
    pub fn check_memberships(&self, nodes: &BTreeSet<NodeId>) -> Result<(), Exceeded> {
        nodes.iter().try_for_each(|node| {
            let tenant = Tenant::Node(*node);
            self.check_quota(tenant, &self.used(tenant), &one_domain())
        })
    }

    /// Resources of the directory that a tenant uses: domains, addresses and nodes.
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

    /// Tenants that are charged for a node: the node, and its owner if it has one.
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
    use crate::directory::sample::owned;
    use crate::refusal::{Refusal, RefusalKind};

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
    fn an_ordinary_user_has_default_limits() {
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
        assert_eq!(
            directory.check_owned_domains(&owned("next", 7, &[])),
            Ok(())
        );
        assert_eq!(directory.check_memberships(&nodes(0)), Ok(()));
        directory.create(owned("blue", 7, &[0])).unwrap();
        assert!(
            directory
                .check_owned_domains(&owned("next", 7, &[]))
                .is_err()
        );
        assert!(directory.check_memberships(&nodes(0)).is_err());
        assert_eq!(
            directory.check_owned_domains(&owned("next", 8, &[])),
            Ok(())
        );
        assert_eq!(directory.check_memberships(&nodes(1)), Ok(()));
    }

    /// Two users with 64 domains of 65,536 addresses each once left no subnet to others.
    #[test]
    fn one_user_leaves_addresses_to_others() {
        let mut directory = Directory::new("2x1x1".parse().unwrap());
        let subnet = |n: u32| -> Subnet { format!("10.{}.0.0/16", 64 + n).parse().unwrap() };
        let wide = |n, owner| Wanted {
            subnet: Some(subnet(n)),
            ..owned(&format!("wide{n}"), owner, &[])
        };
        for n in 0..4 {
            assert_eq!(directory.check_owned_domains(&wide(n, 7)), Ok(()));
            directory.create(wide(n, 7)).unwrap();
        }
        for wanted in [wide(4, 7), owned("next", 7, &[])] {
            let error = directory.check_owned_domains(&wanted).unwrap_err();
            assert_eq!(
                (error.resource, error.limit),
                (Resource::Addresses, 1 << 18)
            );
        }
        assert_eq!(directory.check_owned_domains(&wide(4, 8)), Ok(()));
        let limits = [(Resource::Addresses, Some(1 << 20))].into();
        directory.limit(&[Tenant::User(7)], &limits);
        assert_eq!(directory.check_owned_domains(&wide(4, 7)), Ok(()));
    }
}
