//! The nodes of a job's ranks.

use std::fmt;
use std::str::FromStr;

use toroid_fabric::NodeId;

/// A rule by which ranks are given nodes, one each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Placement {
    /// The first nodes, in their order: neighbours.
    Compact,
    /// Nodes at equal distances in their order over the whole fabric.
    Spread,
    /// Nodes by chance.
    Random,
    /// These nodes.
    Nodes(Vec<u32>),
}

/// Why ranks have no nodes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    #[error(
        "\"{0}\" is no placement: write compact, spread, random, or node numbers such as 0,4,8"
    )]
    Unknown(String),
    #[error(
        "{ranks} ranks do not fit into a fabric of {nodes} nodes: choose a larger fabric or fewer"
    )]
    TooMany { ranks: usize, nodes: u32 },
    #[error("the placement has {named} nodes for {ranks} ranks: name a node for each")]
    Count { named: usize, ranks: usize },
    #[error("the placement has node {node}, and the fabric has the nodes 0 to {last}")]
    Outside { node: u32, last: u32 },
    #[error("the placement has node {0} twice: a node has one rank")]
    Twice(u32),
}

impl Placement {
    /// The node of each rank.
    pub fn nodes(
        &self,
        ranks: usize,
        nodes: u32,
        seed: u64,
    ) -> Result<Vec<NodeId>, PlacementError> {
        let count = u32::try_from(ranks).ok().filter(|count| *count <= nodes);
        let count = count.ok_or(PlacementError::TooMany { ranks, nodes })?;
        let numbers: Vec<u32> = match self {
            Placement::Compact => (0..count).collect(),
            Placement::Spread => {
                let at = |rank: u32| u64::from(rank) * u64::from(nodes) / u64::from(count);
                (0..count).map(|rank| at(rank) as u32).collect()
            }
            Placement::Random => {
                let mut all: Vec<u32> = (0..nodes).collect();
                fastrand::Rng::with_seed(seed).shuffle(&mut all);
                all.truncate(ranks);
                all
            }
            Placement::Nodes(named) => {
                check(named, ranks, nodes)?;
                named.clone()
            }
        };
        Ok(numbers.into_iter().map(NodeId).collect())
    }
}

fn check(named: &[u32], ranks: usize, nodes: u32) -> Result<(), PlacementError> {
    if named.len() != ranks {
        let named = named.len();
        return Err(PlacementError::Count { named, ranks });
    }
    if let Some(&node) = named.iter().find(|node| **node >= nodes) {
        let last = nodes.saturating_sub(1);
        return Err(PlacementError::Outside { node, last });
    }
    let mut sorted = named.to_vec();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => Err(PlacementError::Twice(pair[0])),
        None => Ok(()),
    }
}

impl FromStr for Placement {
    type Err = PlacementError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "compact" => Ok(Placement::Compact),
            "spread" => Ok(Placement::Spread),
            "random" => Ok(Placement::Random),
            list => {
                let nodes: Option<Vec<u32>> =
                    list.split(',').map(|node| node.parse().ok()).collect();
                let unknown = || PlacementError::Unknown(list.to_owned());
                nodes.map(Placement::Nodes).ok_or_else(unknown)
            }
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Placement::Compact => f.write_str("compact"),
            Placement::Spread => f.write_str("spread"),
            Placement::Random => f.write_str("random"),
            Placement::Nodes(nodes) => {
                let nodes: Vec<String> = nodes.iter().map(u32::to_string).collect();
                f.write_str(&nodes.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(text: &str, ranks: usize, nodes: u32) -> Result<Vec<u32>, String> {
        let placement: Placement = text
            .parse()
            .map_err(|error: PlacementError| error.to_string())?;
        let placed = placement
            .nodes(ranks, nodes, 1)
            .map_err(|error| error.to_string())?;
        Ok(placed.into_iter().map(|node| node.0).collect())
    }

    #[test]
    fn each_rank_has_a_node_of_its_own() {
        assert_eq!(nodes("compact", 3, 8), Ok(vec![0, 1, 2]));
        assert_eq!(nodes("spread", 3, 8), Ok(vec![0, 2, 5]));
        assert_eq!(nodes("7,0,3", 3, 8), Ok(vec![7, 0, 3]));
        let mut random = nodes("random", 8, 8).unwrap();
        assert_eq!(nodes("random", 8, 8).unwrap(), random);
        random.sort_unstable();
        assert_eq!(random, [0, 1, 2, 3, 4, 5, 6, 7]);
    }

    #[test]
    fn placements_that_do_not_fit_are_named() {
        for (text, ranks, error) in [
            ("near", 2, "\"near\" is no placement: write compact, spread"),
            ("random", 9, "9 ranks do not fit into a fabric of 8 nodes"),
            ("1,2", 3, "the placement has 2 nodes for 3 ranks"),
            (
                "1,8",
                2,
                "the placement has node 8, and the fabric has the nodes 0 to 7",
            ),
            ("1,2,1", 3, "the placement has node 1 twice"),
        ] {
            let found = nodes(text, ranks, 8).unwrap_err();
            assert!(found.starts_with(error), "{found}");
        }
    }
}
