//! Owners of nodes, their consents, and the limits of tenants.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use toroid_fabric::NodeId;

use super::{Directory, DirectoryError, Domain};
use crate::quota::{Amounts, Resource, Tenant};

/// Owner and consents of a node, also the form of its record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ownership {
    /// Uid of the owner; `None` for a node of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<u32>,
    /// Names of the domains in which the owner lets others place the node.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub consents: BTreeSet<String>,
    /// Domain whose manager has allocated the node, and may free it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken_for: Option<String>,
}

impl Directory {
    /// Owner of a node; `None` for a node of the agent.
    pub fn owner_of(&self, node: NodeId) -> Option<u32> {
        self.ownerships.get(&node)?.owner
    }

    /// The nodes of a user, in order.
    pub fn nodes_of(&self, owner: u32) -> impl Iterator<Item = NodeId> {
        let its = self.ownerships.iter();
        its.filter(move |(_, ownership)| ownership.owner == Some(owner))
            .map(|(node, _)| *node)
    }

    /// Whether a node belongs to the agent and is in no domain. A node without a host is not free.
    pub fn is_free(&self, node: NodeId) -> bool {
        let is_nobodys = self.owner_of(node).is_none() && self.domains_of(node).next().is_none();
        is_nobodys && self.is_carried(node)
    }

    /// Whether the owner of a node lets others place it in a domain.
    pub fn has_consented(&self, node: NodeId, domain: &str) -> bool {
        let ownership = self.ownerships.get(&node);
        ownership.is_some_and(|ownership| ownership.consents.contains(domain))
    }

    /// The domains in which the owner of a node lets others place it, in order.
    pub fn consents_of(&self, node: NodeId) -> impl Iterator<Item = &str> {
        let ownership = self.ownerships.get(&node);
        let consents = ownership.into_iter().flat_map(|o| &o.consents);
        consents.map(String::as_str)
    }

    /// Gives nodes to a user, or back to the agent. The consents, managements and aliases of given
    /// nodes end, so a new owner gets no rights of the former one. Memberships stay.
    pub fn give(&mut self, nodes: &BTreeSet<NodeId>, owner: Option<u32>) {
        let mut given = nodes.clone();
        given.retain(|node| self.owner_of(*node) != owner);
        self.amend(&given, |ownership| {
            *ownership = Ownership {
                owner,
                ..Ownership::default()
            };
        });
        let names = given.iter().flat_map(|node| self.aliases_of(*node));
        for alias in names.map(str::to_owned).collect::<Vec<_>>() {
            self.take_alias(&alias);
        }
        let is_managed = |domain: &&Domain| !domain.managers.is_disjoint(&given);
        let managed: Vec<Domain> = self.domains().filter(is_managed).cloned().collect();
        for mut domain in managed {
            domain.managers = &domain.managers - &given;
            self.domains.put(domain);
        }
    }

    /// Records that a manager allocated nodes for a domain.
    pub fn note_taken(&mut self, nodes: &BTreeSet<NodeId>, domain: &str) {
        self.amend(nodes, |ownership| ownership.taken_for = Some(domain.into()));
    }

    /// Domain for which a manager allocated a node.
    pub fn taken_for(&self, node: NodeId) -> Option<&str> {
        self.ownerships.get(&node)?.taken_for.as_deref()
    }

    /// Notes that the owners of nodes let others place them in a domain, or no longer.
    ///
    /// # Errors
    /// [`DirectoryError::NoSuchDomain`].
    pub fn consent(
        &mut self,
        nodes: &BTreeSet<NodeId>,
        domain: &str,
        withdraw: bool,
    ) -> Result<(), DirectoryError> {
        self.domain(domain)?;
        self.amend(nodes, |ownership| {
            if withdraw {
                ownership.consents.remove(domain)
            } else {
                ownership.consents.insert(domain.into())
            };
        });
        Ok(())
    }

    pub(super) fn amend(&mut self, nodes: &BTreeSet<NodeId>, change: impl Fn(&mut Ownership)) {
        if nodes.is_empty() {
            return;
        }
        let ownerships = Arc::make_mut(&mut self.ownerships);
        for node in nodes {
            change(ownerships.entry(*node).or_default());
        }
        ownerships.retain(|_, ownership| *ownership != Ownership::default());
    }

    /// Limits of a tenant.
    pub fn limits_of(&self, tenant: Tenant) -> Amounts {
        self.limits.get(&tenant).cloned().unwrap_or_default()
    }

    /// The tenants that have limits, in order.
    pub fn limited_tenants(&self) -> impl Iterator<Item = Tenant> {
        self.limits.keys().copied()
    }

    /// Sets or lifts limits of tenants; those that are not named stay as they are.
    pub fn limit(&mut self, tenants: &[Tenant], limits: &BTreeMap<Resource, Option<u64>>) {
        let all = Arc::make_mut(&mut self.limits);
        for tenant in tenants {
            let amounts = all.entry(*tenant).or_default();
            for (resource, limit) in limits {
                match limit {
                    Some(limit) => amounts.insert(*resource, *limit),
                    None => amounts.remove(resource),
                };
            }
        }
        all.retain(|_, amounts| !amounts.is_empty());
    }
}
