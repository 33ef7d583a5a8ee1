//! Nodes and domains of unit tests.

use std::collections::BTreeSet;

use toroid_fabric::NodeId;

use super::{Wanted, full_members};

pub(crate) fn nodes(numbers: &[u32]) -> BTreeSet<NodeId> {
    numbers.iter().copied().map(NodeId).collect()
}

/// A domain of root with full members.
pub(crate) fn wanted(name: &str, members: &[u32]) -> Wanted {
    Wanted {
        name: name.into(),
        members: full_members(nodes(members)),
        ..Wanted::default()
    }
}

/// A domain of user `owner` with full members.
pub(crate) fn owned(name: &str, owner: u32, members: &[u32]) -> Wanted {
    Wanted {
        owner,
        ..wanted(name, members)
    }
}
