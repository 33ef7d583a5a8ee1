//! What tenants hold of the agent, counted from the state themselves.

use std::collections::BTreeSet;

use toroid_fabric::NodeId;
use toroid_model::quota::{Amounts, Resource, Tenant};
use toroid_model::refusal::Refusal;

use super::{Members, State};

impl Members {
    /// How many processes are attached in nodes, and how many bytes they have registered.
    pub(crate) fn totals(&self, within: impl Fn(NodeId) -> bool) -> (usize, u64) {
        let state = self.lock();
        let attached = state.attachments.values().filter(|a| within(a.node));
        let registered = state.registered.iter().filter(|(node, _)| within(**node));
        (attached.count(), registered.map(|(_, bytes)| bytes).sum())
    }
}

impl State {
    /// Refuses what would take a node or its owner above a limit.
    pub(super) fn check_quotas(&self, node: NodeId, more: &Amounts) -> Result<(), Refusal> {
        for tenant in self.directory.tenants(node) {
            // Most have no limits, and need no counting.
            if !self.directory.limits_in_force(tenant).is_empty() {
                self.directory
                    .check_quota(tenant, &self.used(tenant), more)?;
            }
        }
        Ok(())
    }

    /// What a tenant has.
    pub(crate) fn used(&self, tenant: Tenant) -> Amounts {
        let within = |node: NodeId| match tenant {
            Tenant::User(uid) => self.directory.owner_of(node) == Some(uid),
            Tenant::Node(only) => node == only,
        };
        let mut used = self.directory.used(tenant);
        let mut add = |resource, count: usize| {
            *used.entry(resource).or_default() += count as u64;
        };
        for attachment in self.attachments.values().filter(|a| within(a.node)) {
            add(Resource::Regions, attachment.regions.len());
            add(Resource::Descriptors, attachment.regions.len() + 1);
        }
        let opened = self.channels.values().filter(|c| within(c.ends[0].1));
        add(Resource::Rings, opened.count());
        let registered = self.registered.iter().filter(|(node, _)| within(**node));
        used.insert(Resource::Bytes, registered.map(|(_, bytes)| bytes).sum());
        used
    }
}

/// What a region of `len` bytes takes.
pub(super) fn of_region(len: u64) -> Amounts {
    Amounts::from([
        (Resource::Regions, 1),
        (Resource::Bytes, len),
        (Resource::Descriptors, 1),
    ])
}

/// What a channel takes of whoever opens it.
pub(super) fn of_channel() -> Amounts {
    Amounts::from([(Resource::Rings, 1)])
}

/// Tenants that have anything, in nodes or domains.
pub(crate) fn owners(directory: &toroid_model::directory::Directory) -> BTreeSet<u32> {
    let domains = directory.domains().map(|domain| domain.owner);
    let nodes = (0..directory.torus().nodes()).filter_map(|node| directory.owner_of(NodeId(node)));
    domains.chain(nodes).collect()
}
