//! Usage of tenants, counted from the state itself.

use std::collections::BTreeSet;

use toroid_fabric::NodeId;
use toroid_model::quota::{Amounts, Resource, Tenant};
use toroid_model::refusal::Refusal;

use super::{Members, State};

impl Members {
    /// Number of attached processes in nodes, and their registered bytes.
    pub(crate) fn totals(&self, within: impl Fn(NodeId) -> bool) -> (usize, u64) {
        let state = self.lock();
        let attached = state.attachments.values().filter(|a| within(a.node));
        let registered = state.registered.iter().filter(|(node, _)| within(**node));
        (attached.count(), registered.map(|(_, bytes)| bytes).sum())
    }
}

impl State {
    /// Refuses usage above a limit of a node or its owner.
    pub(super) fn check_quotas(&self, node: NodeId, more: &Amounts) -> Result<(), Refusal> {
        for tenant in self.directory.tenants(node) {
            // Most tenants have no limits, and need no counting.
            if !self.directory.limits_in_force(tenant).is_empty() {
                self.directory
                    .check_quota(tenant, &self.used(tenant), more)?;
            }
        }
        Ok(())
    }

    /// Usage of a tenant.
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

/// Usage of a region of `len` bytes.
pub(super) fn of_region(len: u64) -> Amounts {
    Amounts::from([
        (Resource::Regions, 1),
        (Resource::Bytes, len),
        (Resource::Descriptors, 1),
    ])
}

/// Usage of a channel, charged to the opening side.
pub(super) fn of_channel() -> Amounts {
    Amounts::from([(Resource::Rings, 1)])
}

/// Users that own nodes or domains.
pub(crate) fn owners(directory: &toroid_model::directory::Directory) -> BTreeSet<u32> {
    let domains = directory.domains().map(|domain| domain.owner);
    let nodes = (0..directory.torus().nodes()).filter_map(|node| directory.owner_of(NodeId(node)));
    domains.chain(nodes).collect()
}
