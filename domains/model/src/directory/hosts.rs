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
        let mut hosts = self.hosts.iter();
        let (host, _) = hosts.find(|(_, nodes)| nodes.contains(&node))?;
        Some(host)
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
        for (other, theirs) in &*self.hosts {
            let both = nodes & theirs;
            if other != host && !both.is_empty() {
                return Err(DirectoryError::Carried {
                    nodes: self.places(&both),
                    host: other.clone(),
                });
            }
        }
        if self.hosts.get(host) != Some(nodes) {
            Arc::make_mut(&mut self.hosts).insert(host.into(), nodes.clone());
        }
        Ok(())
    }

    /// Assigns nodes to a host, also if other hosts carried them.
    pub fn take_over(&mut self, host: &str, nodes: &BTreeSet<NodeId>) {
        let hosts = Arc::make_mut(&mut self.hosts);
        for theirs in hosts.values_mut() {
            theirs.retain(|node| !nodes.contains(node));
        }
        hosts.insert(host.into(), nodes.clone());
    }

    /// Forgets hosts that are not among these.
    pub fn keep_hosts(&mut self, is_one: impl Fn(&str) -> bool) {
        if self.hosts.keys().any(|host| !is_one(host)) {
            Arc::make_mut(&mut self.hosts).retain(|host, _| is_one(host));
        }
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
        let mut add = |domain: &Domain| nodes.extend(domain.members.keys());
        for domain in self.domains() {
            let before = old.domain(&domain.name).ok();
            if before != Some(domain) {
                add(domain);
                before.into_iter().for_each(&mut add);
            }
        }
        let is_gone = |domain: &&Domain| self.domain(&domain.name).is_err();
        old.domains().filter(is_gone).for_each(&mut add);
        let all = self.ownerships.keys().chain(old.ownerships.keys());
        nodes.extend(all.filter(|node| self.owner_of(**node) != old.owner_of(**node)));
        nodes.extend(self.renamed_since(old));
        let mut everywhere = false;
        for tenant in self.limited_since(old) {
            match tenant {
                // Each host counts the resources of a user.
                Tenant::User(_) => everywhere = true,
                Tenant::Node(node) => drop(nodes.insert(node)),
            }
        }
        let concerns = |its: &BTreeSet<NodeId>| everywhere || !its.is_disjoint(&nodes);
        let hosts = self.hosts.iter().filter(|(_, its)| concerns(its));
        hosts.map(|(host, _)| host.clone()).collect()
    }

    /// Nodes whose aliases differ from those before, and the fellow members, which use these names.
    fn renamed_since(&self, old: &Directory) -> BTreeSet<NodeId> {
        let ours = self.aliases.iter();
        let ours = ours.filter(|(alias, node)| old.aliases.get(*alias) != Some(*node));
        let theirs = old.aliases.iter();
        let theirs = theirs.filter(|(alias, node)| self.aliases.get(*alias) != Some(*node));
        let mut nodes: BTreeSet<NodeId> = ours.chain(theirs).map(|(_, node)| *node).collect();
        let is_in = |domain: &&Domain| domain.members.keys().any(|node| nodes.contains(node));
        let fellows: Vec<&Domain> = self.domains().filter(is_in).collect();
        nodes.extend(fellows.into_iter().flat_map(|domain| domain.members.keys()));
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
        directory.keep_hosts(|host| host != "c");
        assert_eq!(directory.host_of(NodeId(2)), None);
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
