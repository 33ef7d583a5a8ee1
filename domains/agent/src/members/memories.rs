//! Memories of a region, and the nodes that may have each of them mapped.
//!
//! A grant is a fact about one memory. It outlives the connection of the process that got it,
//! because a descriptor can be passed on and a mapping stays. A grant ends only with its memory:
//! the region migrates, and all bytes have been copied.
//!
//! So a migrating region has two memories that count. Members use the *present* one. The *source*
//! is copied to it, and a former member that can still write the source writes bytes that members
//! read later. All decisions of a change depend on [`Memories`] only: whether the region must
//! migrate, and whether the change waits until no leaver can write the source. The type has no I/O,
//! so a model checks every history of two nodes.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use toroid_fabric::NodeId;

/// Nodes that may have one memory mapped, each with whether for writing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Vec<(u32, bool)>", into = "Vec<(u32, bool)>")]
pub(crate) struct Holders(BTreeMap<NodeId, bool>);

/// Holders of the memories of one region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Memories {
    present: Holders,
    /// Only during a migration.
    source: Option<Holders>,
}

impl Holders {
    fn any(&self, of: &BTreeSet<NodeId>) -> bool {
        self.0.keys().any(|node| of.contains(node))
    }

    fn any_writer(&self, of: &BTreeSet<NodeId>) -> bool {
        let is_one = |(node, writes): (&NodeId, &bool)| *writes && of.contains(node);
        self.0.iter().any(is_one)
    }
}

impl FromIterator<(NodeId, bool)> for Holders {
    fn from_iter<T: IntoIterator<Item = (NodeId, bool)>>(grants: T) -> Self {
        let mut holders = Holders::default();
        for (node, writes) in grants {
            *holders.0.entry(node).or_default() |= writes;
        }
        holders
    }
}

impl From<Vec<(u32, bool)>> for Holders {
    fn from(kept: Vec<(u32, bool)>) -> Self {
        let grants = kept.into_iter();
        grants
            .map(|(node, writes)| (NodeId(node), writes))
            .collect()
    }
}

impl From<Holders> for Vec<(u32, bool)> {
    fn from(holders: Holders) -> Self {
        let grants = holders.0.into_iter();
        grants.map(|(node, writes)| (node.0, writes)).collect()
    }
}

impl Memories {
    /// Restores the memories of a region of an earlier agent, with a source during a migration.
    pub(crate) fn inherited(present: Holders, source: Option<Holders>) -> Self {
        Memories { present, source }
    }

    pub(crate) fn present(&self) -> &Holders {
        &self.present
    }

    pub(crate) fn source(&self) -> Option<&Holders> {
        self.source.as_ref()
    }

    /// Grants the present memory to a node.
    pub(crate) fn grant(&mut self, node: NodeId, writes: bool) {
        *self.present.0.entry(node).or_default() |= writes;
    }

    /// Whether the region must migrate when these nodes leave: they could read newer bytes.
    pub(super) fn must_migrate(&self, leavers: &BTreeSet<NodeId>) -> bool {
        self.present.any(leavers)
    }

    /// Whether one of these nodes may write the present memory.
    pub(super) fn is_written_by(&self, nodes: &BTreeSet<NodeId>) -> bool {
        self.present.any_writer(nodes)
    }

    /// Whether a change that removes these nodes must wait until none of them can write the source,
    /// or all of it has been copied. The change that began the migration does not matter.
    pub(super) fn must_shut_out(&self, nodes: &BTreeSet<NodeId>) -> bool {
        let source = self.source.as_ref();
        source.is_some_and(|source| source.any_writer(nodes))
    }

    /// Begins a migration to fresh memory, which only remaining nodes are granted. An earlier
    /// migration must have ended.
    pub(super) fn begin_migration(&mut self, stayers: Holders) {
        self.source = Some(std::mem::replace(&mut self.present, stayers));
    }

    /// Ends the migration: all of the source has been copied.
    pub(super) fn end_migration(&mut self) {
        self.source = None;
    }
}

#[cfg(test)]
mod tests;
