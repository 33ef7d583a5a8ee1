//! Hosts and their nodes, if there are several hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use toroid_fabric::NodeId;

use super::{Directory, DirectoryError, Domain};
use crate::quota::Tenant;

impl Directory {
    /// Nodes of each host; empty if one host carries all.
    pub fn hosts(&self) -> &BTreeMap<String, BTreeSet<NodeId>> {
        &self.hosts
    }

    /// The host that carries a node.
    pub fn host_of(&self, node: NodeId) -> Option<&str> {
        self.carriers.get(&node).map(AsRef::as_ref)
    }

    /// Whether any host carries a node.
    pub fn is_carried(&self, node: NodeId) -> bool {
        self.hosts.is_empty() || self.host_of(node).is_some()
    }

    /// Notes that a host carries these nodes and no others.
    ///
    /// # Errors
    /// [`DirectoryError::Carried`] when another one does.
    pub fn claim(&mut self, host: &str, nodes: &BTreeSet<NodeId>) -> Result<(), DirectoryError> {
        let other = |node: &NodeId| self.host_of(*node).filter(|other| *other != host);
        if let Some(other) = nodes.iter().find_map(other) {
            let theirs = self.hosts.get(other).cloned().unwrap_or_default();
            return Err(DirectoryError::Carried {
                nodes: self.places(&(nodes & &theirs)),
                host: other.into(),
            });
        }
        if self.hosts.get(host) != Some(nodes) {
            self.set_host(host, Some(nodes.clone()));
        }
        Ok(())
    }

    /// Assigns nodes to a host, also if other hosts carried them.
    pub fn take_over(&mut self, host: &str, nodes: &BTreeSet<NodeId>) {
        let theirs = self
            .hosts
            .iter()
            .filter(|(other, theirs)| other.as_str() != host && !theirs.is_disjoint(nodes));
        let rest = theirs.map(|(other, theirs)| (other.clone(), theirs - nodes));
        for (other, rest) in rest.collect::<Vec<_>>() {
            self.set_host(&other, Some(rest));
        }
        self.set_host(host, Some(nodes.clone()));
    }

    /// Notes the nodes of a host, which no other host has, or forgets the host.
    pub(super) fn set_host(&mut self, host: &str, nodes: Option<BTreeSet<NodeId>>) {
        for node in self.hosts.get(host).into_iter().flatten() {
            self.carriers.remove(node);
        }
        let name: Arc<str> = host.into();
        for node in nodes.iter().flatten() {
            self.carriers.insert(*node, Arc::clone(&name));
        }
        let hosts = Arc::make_mut(&mut self.hosts);
        match nodes {
            Some(nodes) => hosts.insert(host.into(), nodes),
            None => hosts.remove(host),
        };
    }

    /// Refuses nodes that no host carries.
    ///
    /// # Errors
    /// [`DirectoryError::NotCarried`].
    pub fn check_carried(&self, nodes: &BTreeSet<NodeId>) -> Result<(), DirectoryError> {
        let mut nowhere = nodes.clone();
        nowhere.retain(|node| !self.is_carried(*node));
        if nowhere.is_empty() {
            Ok(())
        } else {
            Err(DirectoryError::NotCarried(self.places(&nowhere)))
        }
    }

    /// The hosts on which something is to be done before `self`, which was `old`, is in effect.
    pub fn concerned_since(&self, old: &Directory) -> BTreeSet<String> {
        let mut nodes = BTreeSet::new();
        for difference in self.domains.differences(&old.domains) {
            let versions = difference.old.into_iter().chain(difference.new);
            nodes.extend(versions.flat_map(|domain| domain.members.keys()));
        }
        nodes.extend(self.given_since(old));
        nodes.extend(self.renamed_since(old));
        // Each host has sessions of its own with the others.
        let mut everywhere = self.host_keys != old.host_keys;
        for tenant in self.limited_since(old) {
            match tenant {
                // Each host counts the resources of a user.
                Tenant::User(_) => everywhere = true,
                Tenant::Node(node) => drop(nodes.insert(node)),
            }
        }
        if everywhere {
            return self.hosts.keys().cloned().collect();
        }
        let hosts = nodes.iter().filter_map(|node| self.host_of(*node));
        hosts.map(str::to_owned).collect()
    }

    /// The other hosts with members of the domains of a host's nodes.
    pub fn hosts_sharing_with(&self, host: &str) -> BTreeSet<String> {
        let nodes = self.hosts.get(host).into_iter().flatten();
        let domains = nodes.flat_map(|node| self.domains_of(*node));
        let domains: BTreeMap<u16, &Domain> = domains.map(|domain| (domain.id, domain)).collect();
        let members = domains.values().flat_map(|domain| domain.members.keys());
        let hosts = members.filter_map(|node| self.host_of(*node));
        hosts
            .filter(|its| *its != host)
            .map(str::to_owned)
            .collect()
    }

    /// Nodes that another host carries than before, or none.
    pub fn moved_since(&self, old: &Directory) -> BTreeSet<NodeId> {
        let moved = self.carriers.differences(&old.carriers);
        moved.into_iter().map(|(node, _, _)| *node).collect()
    }

    /// Nodes with another owner than before.
    pub fn given_since(&self, old: &Directory) -> BTreeSet<NodeId> {
        if Arc::ptr_eq(&self.ownerships, &old.ownerships) {
            return BTreeSet::new();
        }
        let all = self.ownerships.keys().chain(old.ownerships.keys());
        let is_given = |node: &&NodeId| self.owner_of(**node) != old.owner_of(**node);
        all.filter(is_given).copied().collect()
    }

    /// Nodes whose aliases differ from those before, and the fellow members, which use these names.
    pub(super) fn renamed_since(&self, old: &Directory) -> BTreeSet<NodeId> {
        if Arc::ptr_eq(&self.aliases, &old.aliases) {
            return BTreeSet::new();
        }
        let ours = self.aliases.iter();
        let ours = ours.filter(|(alias, node)| old.aliases.get(*alias) != Some(*node));
        let theirs = old.aliases.iter();
        let theirs = theirs.filter(|(alias, node)| self.aliases.get(*alias) != Some(*node));
        let mut nodes: BTreeSet<NodeId> = ours.chain(theirs).map(|(_, node)| *node).collect();
        let domains: Vec<&Domain> = nodes.iter().flat_map(|n| self.domains_of(*n)).collect();
        nodes.extend(domains.into_iter().flat_map(|domain| domain.members.keys()));
        nodes
    }

    /// Tenants whose limits differ.
    fn limited_since(&self, old: &Directory) -> BTreeSet<Tenant> {
        let all = self.limits.keys().chain(old.limits.keys());
        let differs = |tenant: &&Tenant| self.limits.get(tenant) != old.limits.get(tenant);
        all.filter(differs).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::sample::{nodes, wanted};
    use crate::quota::Resource;

    fn two_hosts() -> Directory {
        let mut directory = Directory::new("2x2x2".parse().unwrap());
        directory.claim("a", &nodes(&[0, 1])).unwrap();
        directory.claim("b", &nodes(&[2, 3])).unwrap();
        directory
    }

    #[test]
    fn a_node_is_carried_by_one_host() {
        let mut directory = Directory::new("2x2x2".parse().unwrap());
        assert!(directory.is_free(NodeId(7)) && directory.is_carried(NodeId(7)));
        directory = two_hosts();
        let error = directory.claim("c", &nodes(&[3, 4])).unwrap_err();
        assert!(error.to_string().contains("host b"), "{error}");
        directory.claim("b", &nodes(&[3])).unwrap();
        directory.claim("c", &nodes(&[2, 4])).unwrap();
        assert_eq!(directory.host_of(NodeId(2)), Some("c"));
        assert!(!directory.is_free(NodeId(7)) && directory.is_free(NodeId(4)));
        directory.check_carried(&nodes(&[0, 4])).unwrap();
        let error = directory.check_carried(&nodes(&[0, 7])).unwrap_err();
        assert_eq!(error, DirectoryError::NotCarried("1,1,1".into()));
        directory.take_over("a", &nodes(&[0, 3]));
        assert_eq!(directory.host_of(NodeId(3)), Some("a"));
    }

    /// All hosts once looked at all domains whenever a host began to follow.
    #[test]
    fn only_nodes_of_another_host_than_before_have_moved() {
        let before = two_hosts();
        let mut now = before.clone();
        now.claim("a", &nodes(&[0, 1])).unwrap();
        assert_eq!(now.moved_since(&before), nodes(&[]));
        now.claim("a", &nodes(&[0, 5])).unwrap();
        now.take_over("c", &nodes(&[3, 6]));
        assert_eq!(now.moved_since(&before), nodes(&[1, 3, 5, 6]));
        assert_eq!(before.moved_since(&now), nodes(&[1, 3, 5, 6]));
    }

    #[test]
    fn a_change_concerns_the_hosts_of_present_and_former_members() {
        let before = two_hosts();
        let concerned = |old: &Directory, new: &Directory| {
            let hosts = new.concerned_since(old).into_iter();
            hosts.collect::<Vec<String>>().join(" ")
        };
        let mut directory = before.clone();
        directory.create(wanted("blue", &[0, 2])).unwrap();
        assert_eq!(concerned(&before, &directory), "a b");
        assert_eq!(concerned(&directory, &before), "a b");
        let mut shrunk = directory.clone();
        shrunk.shrink("blue", &nodes(&[2])).unwrap();
        assert_eq!(concerned(&directory, &shrunk), "a b");
        let mut given = shrunk.clone();
        given.give(&nodes(&[3]), Some(1000));
        assert_eq!(concerned(&shrunk, &given), "b");
        directory.claim("c", &nodes(&[4])).unwrap();
        let sharing = |host| Vec::from_iter(directory.hosts_sharing_with(host)).join(" ");
        assert_eq!(["a", "b", "c"].map(sharing), ["b", "a", ""]);
    }

    #[test]
    fn an_alias_concerns_hosts_of_fellow_members_and_a_limit_hosts_that_count() {
        let mut before = two_hosts();
        before.create(wanted("blue", &[0, 2])).unwrap();
        let concerned = |change: &dyn Fn(&mut Directory)| {
            let mut now = before.clone();
            change(&mut now);
            let both = [now.concerned_since(&before), before.concerned_since(&now)];
            assert_eq!(both[0], both[1]);
            Vec::from_iter(both[0].clone()).join(" ")
        };
        assert_eq!(concerned(&|_| ()), "");
        assert_eq!(concerned(&|d| d.add_alias(NodeId(1), "x").unwrap()), "a");
        assert_eq!(concerned(&|d| d.add_alias(NodeId(0), "x").unwrap()), "a b");
        let limits = BTreeMap::from([(Resource::Regions, Some(1))]);
        let limit = |tenant| concerned(&|directory| directory.limit(&[tenant], &limits));
        assert_eq!(limit(Tenant::Node(NodeId(3))), "b");
        assert_eq!(limit(Tenant::User(1000)), "a b");
    }
}
