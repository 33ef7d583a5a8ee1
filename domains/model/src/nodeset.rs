//! Node sets: how people name nodes. `1,0,0`, `0-3,0,0`, `*,*,1`, an alias, or `@blue` for the
//! members of a domain.

use std::collections::{BTreeSet, HashSet};

use toroid_fabric::{NodeId, Place, Torus};

use crate::refusal::{Refusal, RefusalKind};

/// The most sets that are named at once: more than the largest torus has nodes. Resolving them
/// takes a while, during which others wait.
pub const MAX_SETS: usize = 4096;

/// Names that a node set may refer to.
pub trait Names {
    /// The node with this alias.
    fn alias(&self, alias: &str) -> Option<NodeId>;

    /// The members of this domain.
    fn members(&self, domain: &str) -> Option<BTreeSet<NodeId>>;
}

/// Why a text names no nodes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NodeSetError {
    /// Three parts, but not all are `n`, `n-m` or `*`.
    #[error("\"{0}\" is not a node set")]
    Malformed(String),
    /// Nodes that the torus does not have.
    #[error("node {set} is outside the torus {torus}")]
    Outside {
        /// As given.
        set: String,
        /// The torus.
        torus: Torus,
    },
    /// Neither a place nor an alias.
    #[error("no node is called {0}")]
    NoSuchNode(String),
    /// `@NAME` of no domain.
    #[error("no domain is called {0}")]
    NoSuchDomain(String),
    /// More than [`MAX_SETS`].
    #[error("{0} node sets are too many at once")]
    TooMany(usize),
    /// A change of given members without any.
    #[error("no node is given")]
    Empty,
}

impl From<NodeSetError> for Refusal {
    fn from(error: NodeSetError) -> Self {
        let (kind, remedy) = match &error {
            NodeSetError::Malformed(_) => (
                RefusalKind::Invalid,
                "write 1,0,0 or 0-3,0,0 or *,*,1 or an alias or @DOMAIN",
            ),
            NodeSetError::Outside { .. } | NodeSetError::NoSuchNode(_) => {
                (RefusalKind::NotFound, "see `toroid node ls`")
            }
            NodeSetError::NoSuchDomain(_) => (RefusalKind::NotFound, "see `toroid domain ls`"),
            NodeSetError::TooMany(_) => (
                RefusalKind::Invalid,
                "name 4096 at most; write 0-3,0,0 for several nodes, or *,*,*",
            ),
            NodeSetError::Empty => (RefusalKind::Invalid, "name one node at least"),
        };
        Refusal::new(kind, error.to_string(), remedy)
    }
}

/// The nodes that are in any of `sets`.
///
/// # Errors
/// [`NodeSetError`], for the first set that names something that is not there.
pub fn resolve(
    sets: &[String],
    torus: Torus,
    names: &impl Names,
) -> Result<BTreeSet<NodeId>, NodeSetError> {
    if sets.len() > MAX_SETS {
        return Err(NodeSetError::TooMany(sets.len()));
    }
    let mut nodes = BTreeSet::new();
    let mut named = HashSet::new();
    for set in sets.iter().filter(|set| named.insert(*set)) {
        if let Some(domain) = set.strip_prefix('@') {
            let members = names.members(domain);
            nodes.extend(members.ok_or_else(|| NodeSetError::NoSuchDomain(domain.into()))?);
        } else if set.contains(',') {
            nodes.extend(pattern(set, torus)?);
        } else {
            let node = names.alias(set);
            nodes.insert(node.ok_or_else(|| NodeSetError::NoSuchNode(set.clone()))?);
        }
    }
    Ok(nodes)
}

fn pattern(set: &str, torus: Torus) -> Result<Vec<NodeId>, NodeSetError> {
    let malformed = || NodeSetError::Malformed(set.into());
    let outside = || NodeSetError::Outside {
        set: set.into(),
        torus,
    };
    let parts: Vec<&str> = set.split(',').map(str::trim).collect();
    let [x, y, z] = <[&str; 3]>::try_from(parts).map_err(|_| malformed())?;
    let [size_x, size_y, size_z] = torus.sizes();
    let span = |part, size| {
        let (first, last) = span(part, size).ok_or_else(malformed)?;
        let last = u8::try_from(last).map_err(|_| outside())?;
        let first = u8::try_from(first).map_err(|_| outside())?;
        Ok(first..=last)
    };
    let (x, y, z) = (span(x, size_x)?, span(y, size_y)?, span(z, size_z)?);
    let mut nodes = Vec::new();
    for z in z {
        for y in y.clone() {
            for x in x.clone() {
                let node = torus.node(Place { x, y, z });
                nodes.push(node.ok_or_else(outside)?);
            }
        }
    }
    Ok(nodes)
}

/// First and last coordinate of `n`, `n-m` or `*`.
fn span(part: &str, size: u16) -> Option<(u16, u16)> {
    if part == "*" {
        return Some((0, size - 1));
    }
    let (first, last) = part.split_once('-').unwrap_or((part, part));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last).then_some((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed;

    impl Names for Fixed {
        fn alias(&self, alias: &str) -> Option<NodeId> {
            (alias == "head").then_some(NodeId(5))
        }

        fn members(&self, domain: &str) -> Option<BTreeSet<NodeId>> {
            (domain == "blue").then(|| [NodeId(1), NodeId(7)].into())
        }
    }

    fn nodes(sets: &[&str]) -> Result<Vec<u32>, NodeSetError> {
        let sets: Vec<String> = sets.iter().map(ToString::to_string).collect();
        let torus = "2x2x2".parse().unwrap();
        Ok(resolve(&sets, torus, &Fixed)?.iter().map(|n| n.0).collect())
    }

    #[test]
    fn every_form_names_its_nodes() {
        assert_eq!(nodes(&[]), Ok(vec![]));
        assert_eq!(nodes(&["1,0,0"]), Ok(vec![1]));
        assert_eq!(nodes(&["0-1,1,0"]), Ok(vec![2, 3]));
        assert_eq!(nodes(&["*,*,1"]), Ok(vec![4, 5, 6, 7]));
        assert_eq!(nodes(&["0, *, 0-1"]), Ok(vec![0, 2, 4, 6]));
        assert_eq!(nodes(&["head"]), Ok(vec![5]));
        assert_eq!(nodes(&["@blue", "0,0,0", "1,0,0"]), Ok(vec![0, 1, 7]));
    }

    #[test]
    fn the_largest_torus_has_its_last_node() {
        let torus = "256x1x1".parse().unwrap();
        let all = resolve(&["*,*,*".into()], torus, &Fixed).unwrap();
        assert_eq!(all.len(), 256);
    }

    /// Regression: hundreds of thousands of sets in one request delayed all other requests.
    #[test]
    fn so_many_sets_are_read_and_no_more() {
        let mut sets = vec!["*,*,*".to_owned(); MAX_SETS];
        let torus = "2x2x2".parse().unwrap();
        assert_eq!(resolve(&sets, torus, &Fixed).unwrap().len(), 8);
        sets.push("0,0,0".into());
        let error = resolve(&sets, torus, &Fixed).unwrap_err();
        assert_eq!(error, NodeSetError::TooMany(MAX_SETS + 1));
    }

    #[test]
    fn errors_name_missing_nodes() {
        for set in [
            "1,0", "1,0,0,0", "a,0,0", "1-,0,0", "1-0,0,0", "-1,0,0", ",,",
        ] {
            assert_eq!(nodes(&[set]), Err(NodeSetError::Malformed(set.into())));
        }
        for set in ["2,0,0", "0-2,0,0", "0,0,300", "0,0,256-300"] {
            let torus = "2x2x2".parse().unwrap();
            let error = NodeSetError::Outside {
                set: set.into(),
                torus,
            };
            assert_eq!(nodes(&[set]), Err(error));
        }
        let error = NodeSetError::NoSuchNode("tail".into());
        assert_eq!(nodes(&["1,0,0", "tail"]), Err(error));
        assert_eq!(nodes(&[""]), Err(NodeSetError::NoSuchNode("".into())));
        let error = NodeSetError::NoSuchDomain("red".into());
        assert_eq!(nodes(&["@red"]), Err(error));
    }
}
