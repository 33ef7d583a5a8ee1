//! The memories of a region, and the nodes that may have each of them mapped.
//!
//! A grant is a fact about one memory. It outlives the connection of the process that was granted
//! it, because a descriptor can be handed on and a mapping stays. It ends only with the memory: the
//! region moves away from it, and all of its bytes have been copied.
//!
//! So a region that moves has two memories that count. Members use the *present* one. The *source* is
//! copied to it, and a former member that can still write the source writes what members read later.
//! [`Memories`] is all that the decisions of a change depend on: whether the region has to move, and
//! whether the change has to wait until nobody can write the source. It has no I/O, so a model
//! checks every history of two nodes.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use toroid_fabric::NodeId;

/// The nodes that may have one memory mapped, each with whether for writing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Vec<(u32, bool)>", into = "Vec<(u32, bool)>")]
pub(crate) struct Holders(BTreeMap<NodeId, bool>);

/// The holders of the memories of one region.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Memories {
    present: Holders,
    /// Only while the region moves.
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
    /// Those of a region of an earlier agent, with a source if the region moves.
    pub(crate) fn inherited(present: Holders, source: Option<Holders>) -> Self {
        Memories { present, source }
    }

    pub(crate) fn present(&self) -> &Holders {
        &self.present
    }

    pub(crate) fn source(&self) -> Option<&Holders> {
        self.source.as_ref()
    }

    /// A process of a node is granted the present memory.
    pub(crate) fn grant(&mut self, node: NodeId, writes: bool) {
        *self.present.0.entry(node).or_default() |= writes;
    }

    /// Whether the region has to move when these nodes leave: they could read what is newer.
    pub(super) fn must_migrate(&self, leavers: &BTreeSet<NodeId>) -> bool {
        self.present.any(leavers)
    }

    /// Whether these nodes may write the present memory.
    pub(super) fn is_written_by(&self, nodes: &BTreeSet<NodeId>) -> bool {
        self.present.any_writer(nodes)
    }

    /// Whether a change that takes the region away from these nodes has to wait until nobody can
    /// write the source, or until all of it has been copied. It does not matter which change began
    /// the move.
    pub(super) fn must_shut_out(&self, nodes: &BTreeSet<NodeId>) -> bool {
        let source = self.source.as_ref();
        source.is_some_and(|source| source.any_writer(nodes))
    }

    /// The region moves to fresh memory, which only those who stay are granted. The move before
    /// must have ended.
    pub(super) fn begin_migration(&mut self, stayers: Holders) {
        self.source = Some(std::mem::replace(&mut self.present, stayers));
    }

    /// All of the source has been copied.
    pub(super) fn end_migration(&mut self) {
        self.source = None;
    }
}

#[cfg(test)]
mod tests;
