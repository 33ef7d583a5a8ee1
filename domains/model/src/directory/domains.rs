//! All domains of a directory, found by name, number, subnet and member.

use std::sync::Arc;

use toroid_fabric::NodeId;

use super::Domain;
use crate::addressing::Subnet;
use crate::shared_map::SharedMap;

/// All domains. No two have the same number, or an address in common.
#[derive(Clone, Debug, Default)]
pub(super) struct Domains {
    by_name: SharedMap<Arc<str>, Arc<Domain>>,
    by_id: SharedMap<u16, Arc<str>>,
    /// By the first address of the subnet.
    by_subnet: SharedMap<u32, Arc<str>>,
    /// Of each 64 [`Subnet::blocks`], a bit for each that is in use.
    blocks: SharedMap<u32, u64>,
    /// Memberships, with the name of the domain.
    by_node: SharedMap<(NodeId, Arc<str>), ()>,
    /// Names of those with a fence.
    fenced: SharedMap<Arc<str>, ()>,
    /// Names of those with gateways.
    connected: SharedMap<Arc<str>, ()>,
}

/// A domain that differs between two versions, or is only in one of them.
#[derive(Debug)]
pub(super) struct Difference<'d> {
    pub(super) name: &'d str,
    pub(super) old: Option<&'d Domain>,
    pub(super) new: Option<&'d Domain>,
}

impl Domains {
    pub(super) fn get(&self, name: &str) -> Option<&Domain> {
        self.by_name.get(name).map(Arc::as_ref)
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// In order of names.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Domain> {
        self.by_name.values().map(Arc::as_ref)
    }

    pub(super) fn by_id(&self, id: u32) -> Option<&Domain> {
        let name = self.by_id.get(&u16::try_from(id).ok()?)?;
        self.get(name)
    }

    /// Domains of a node, in order of names.
    pub(super) fn of(&self, node: NodeId) -> impl Iterator<Item = &Domain> {
        let its = self.by_node.iter_from(&(node, Arc::from("")));
        let its = its.take_while(move |((member, _), ())| *member == node);
        its.filter_map(|((_, name), ())| self.get(name))
    }

    /// Domains with a fence, in order of names.
    pub(super) fn fenced(&self) -> impl Iterator<Item = &Domain> {
        self.fenced.iter().filter_map(|(name, ())| self.get(name))
    }

    /// Domains with gateways, in order of names.
    pub(super) fn connected(&self) -> impl Iterator<Item = &Domain> {
        self.connected
            .iter()
            .filter_map(|(name, ())| self.get(name))
    }

    /// A domain that has an address of this subnet.
    pub(super) fn overlapping(&self, subnet: Subnet) -> Option<&Domain> {
        let last = u64::from(subnet.base().to_bits()) + subnet.addresses() - 1;
        let last = u32::try_from(last).unwrap_or(u32::MAX);
        // Others begin later, or end before this one begins.
        let (_, name) = self.by_subnet.last_up_to(&last)?;
        let domain = self.get(name)?;
        domain.subnet.overlaps(&subnet).then_some(domain)
    }

    /// Whether no domain has an address of this subnet, which is one of [`Subnet::candidates`]. Much
    /// faster than [`Domains::overlapping`], and for a search among thousands.
    pub(super) fn is_free(&self, candidate: Subnet) -> bool {
        let is_used = |block| {
            let (key, bit) = bit(block);
            self.blocks.get(&key).is_some_and(|bits| bits & bit != 0)
        };
        !candidate.blocks().any(is_used)
    }

    /// Notes which blocks of a subnet are in use now.
    fn note_use(&mut self, subnet: Subnet) {
        for block in subnet.blocks() {
            let (key, bit) = bit(block);
            let others = self.blocks.get(&key).copied().unwrap_or_default() & !bit;
            let is_used = self.overlapping(Subnet::candidate(1, block)).is_some();
            self.blocks
                .insert(key, others | if is_used { bit } else { 0 });
        }
    }

    /// Adds a domain, or replaces the one of its name.
    pub(super) fn put(&mut self, domain: Domain) {
        let name: Arc<str> = domain.name.as_str().into();
        let before = self.by_name.get(&name).cloned();
        let key = |domain: &Domain| (domain.id, domain.subnet);
        let old = before.as_deref();
        let has_moved = old.map(key) != Some(key(&domain));
        if has_moved {
            if let Some((id, subnet)) = old.map(key) {
                self.by_id.remove(&id);
                self.by_subnet.remove(&subnet.base().to_bits());
            }
            let (id, subnet) = key(&domain);
            self.by_id.insert(id, Arc::clone(&name));
            self.by_subnet
                .insert(subnet.base().to_bits(), Arc::clone(&name));
        }
        let was_member = |node: &&NodeId| old.is_some_and(|old| old.members.contains_key(node));
        for node in domain.members.keys().filter(|node| !was_member(node)) {
            self.by_node.insert((*node, Arc::clone(&name)), ());
        }
        let left = |node: &&NodeId| !domain.members.contains_key(node);
        for node in old.iter().flat_map(|old| old.members.keys()).filter(left) {
            self.by_node.remove(&(*node, Arc::clone(&name)));
        }
        for (index, has) in [
            (&mut self.fenced, domain.fence.is_some()),
            (&mut self.connected, !domain.gateways.is_empty()),
        ] {
            if has {
                index.insert(Arc::clone(&name), ());
            } else {
                index.remove(&name);
            }
        }
        let subnet = domain.subnet;
        self.by_name.insert(name, Arc::new(domain));
        if has_moved {
            for subnet in old.map(|old| old.subnet).into_iter().chain([subnet]) {
                self.note_use(subnet);
            }
        }
    }

    /// Removes a domain.
    pub(super) fn take(&mut self, name: &str) -> Option<Arc<Domain>> {
        let domain = self.by_name.remove(name)?;
        let name: Arc<str> = name.into();
        self.by_id.remove(&domain.id);
        self.by_subnet.remove(&domain.subnet.base().to_bits());
        self.fenced.remove(&name);
        self.connected.remove(&name);
        for node in domain.members.keys() {
            self.by_node.remove(&(*node, Arc::clone(&name)));
        }
        self.note_use(domain.subnet);
        Some(domain)
    }

    /// Differences from an older version, in order of names. The cost depends on the differences.
    pub(super) fn differences<'d>(&'d self, old: &'d Self) -> impl Iterator<Item = Difference<'d>> {
        let all = self.by_name.differences(&old.by_name).into_iter();
        all.map(|(name, old, new)| Difference {
            name,
            old: old.map(Arc::as_ref),
            new: new.map(Arc::as_ref),
        })
    }
}

/// Key of a block in `blocks`, and its bit there.
fn bit(block: u32) -> (u32, u64) {
    (block / 64, 1 << (block % 64))
}
