//! Files of the state directory about gateways. The journal has the NAT links: their traces in the
//! host outlive the agent, and its successor removes them. Another file has the gateways that the
//! members of this host do not use, because a successor goes on with the same.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use toroid_fabric::NodeId;

use super::GatewayId;
use super::nat_link::NatLink;
use crate::store::ownership;

/// The journal.
const FILE: &str = "gateways.json";

/// The file of unused gateways.
const UNUSED: &str = "gateways-unused.json";

/// Node of a gateway in the journal of a former release, which named the domain only.
const FORMER: NodeId = NodeId(u32::MAX);

/// NAT links of an agent, by gateway.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    nat_links: BTreeMap<GatewayId, NatLink>,
}

impl Journal {
    /// Opens the journal of a state directory. A file in another format, as of another release,
    /// counts as empty.
    pub(crate) fn open(state: &Path) -> Self {
        let path = state.join(FILE);
        let kept = fs::read(&path).ok();
        let kept: Option<BTreeMap<String, NatLink>> =
            kept.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        let kept = kept.unwrap_or_default().into_iter();
        let nat_links = kept.filter_map(|(key, nat_link)| Some((read_key(&key)?, nat_link)));
        Journal {
            path,
            nat_links: nat_links.collect(),
        }
    }

    pub(crate) fn get(&self, id: GatewayId) -> Option<&NatLink> {
        self.nat_links.get(&id)
    }

    pub(crate) fn ids(&self) -> Vec<GatewayId> {
        self.nat_links.keys().copied().collect()
    }

    /// Enters a NAT link, before it is made.
    pub(crate) fn put(&mut self, id: GatewayId, nat_link: NatLink) -> io::Result<()> {
        if self.nat_links.get(&id) == Some(&nat_link) {
            return Ok(());
        }
        self.nat_links.insert(id, nat_link);
        self.write()
    }

    /// Removes a NAT link, after it is gone.
    pub(crate) fn remove(&mut self, id: GatewayId) -> io::Result<()> {
        match self.nat_links.remove(&id) {
            Some(_) => self.write(),
            None => Ok(()),
        }
    }

    /// Gives the NAT link of a domain the identifier of its gateway, if a former release made it: a
    /// domain had one gateway then.
    pub(crate) fn identify(&mut self, id: GatewayId) {
        let former = GatewayId { node: FORMER, ..id };
        if let Some(nat_link) = self.nat_links.remove(&former) {
            self.nat_links.insert(id, nat_link);
        }
    }

    fn write(&self) -> io::Result<()> {
        if self.nat_links.is_empty() {
            return fs::remove_file(&self.path);
        }
        let nat_links = self.nat_links.iter();
        let nat_links = nat_links.map(|(id, its)| (format!("{}/{}", id.domain, id.node.0), its));
        let nat_links: BTreeMap<String, &NatLink> = nat_links.collect();
        ownership::replace(&self.path, &serde_json::to_vec(&nat_links)?)
    }
}

fn read_key(key: &str) -> Option<GatewayId> {
    let (domain, node) = match key.split_once('/') {
        Some((domain, node)) => (domain, NodeId(node.parse().ok()?)),
        None => (key, FORMER),
    };
    let domain = domain.parse().ok()?;
    Some(GatewayId { domain, node })
}

/// Reads which gateways a predecessor did not use.
pub(super) fn read_unused(state: &Path) -> Vec<GatewayId> {
    let kept = fs::read(state.join(UNUSED)).ok();
    let unused: Option<Vec<(u16, u32)>> =
        kept.and_then(|bytes| serde_json::from_slice(&bytes).ok());
    let id = |(domain, node)| GatewayId {
        domain,
        node: NodeId(node),
    };
    unused.unwrap_or_default().into_iter().map(id).collect()
}

/// Keeps which gateways are not used, for a successor.
pub(super) fn write_unused(state: &Path, unused: &BTreeSet<GatewayId>) -> io::Result<()> {
    let path = state.join(UNUSED);
    if !unused.is_empty() {
        let unused: Vec<(u16, u32)> = unused.iter().map(|id| (id.domain, id.node.0)).collect();
        return ownership::replace(&path, &serde_json::to_vec(&unused)?);
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As a release wrote it that knew one gateway for each domain.
    #[test]
    fn a_nat_link_of_a_former_release_is_that_of_the_gateway() {
        let state = tempfile::tempdir().unwrap();
        let link = r#"{"number":3,"tag":7,"uplink":"eth1","opened":true}"#;
        fs::write(state.path().join(FILE), format!(r#"{{"7":{link}}}"#)).unwrap();
        let mut journal = Journal::open(state.path());
        let node = NodeId(2);
        let id = GatewayId { domain: 7, node };
        let former = journal.get(GatewayId { node: FORMER, ..id }).cloned();
        journal.identify(id);
        assert!(former.is_some());
        assert_eq!(journal.get(id).cloned(), former);
        assert_eq!(journal.ids(), [id]);
        journal.write().unwrap();
        assert_eq!(Journal::open(state.path()).ids(), [id]);
    }

    #[test]
    fn a_successor_knows_the_unused_gateways() {
        let state = tempfile::tempdir().unwrap();
        let id = |node| GatewayId {
            domain: 1,
            node: NodeId(node),
        };
        assert_eq!(read_unused(state.path()), []);
        write_unused(state.path(), &[id(1), id(2)].into()).unwrap();
        assert_eq!(read_unused(state.path()), [id(1), id(2)]);
        write_unused(state.path(), &[].into()).unwrap();
        write_unused(state.path(), &[].into()).unwrap();
        assert_eq!(read_unused(state.path()), []);
    }
}
