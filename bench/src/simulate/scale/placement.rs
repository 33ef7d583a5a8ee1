//! Where servers and clients are.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use toroid_fabric::NodeId;
use toroid_fabric::routes::{RouterId, TorusNetwork};

/// Where servers are, and which server a client asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Placement {
    /// Servers and clients are at random nodes, and each get asks a random server, as in the paper.
    Random,
    /// Servers have the first half of the torus; each get asks a random server.
    Compact,
    /// Each client has a server of its own, which is a neighbour.
    Nearest,
}

/// Why a text is no placement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("\"{0}\" is no placement: write random, compact or nearest")]
pub struct UnknownPlacement(String);

/// The nodes of a job.
#[derive(Debug)]
pub struct Nodes {
    pub servers: Vec<NodeId>,
    /// As many. A client's own server has the same place.
    pub clients: Vec<NodeId>,
}

impl Placement {
    /// Placements without an option.
    pub const DEFAULT: [Placement; 2] = [Placement::Random, Placement::Nearest];

    /// Half of the nodes of a torus of an even size in x as servers, the others as clients.
    pub fn nodes(self, torus: &TorusNetwork, random: &mut fastrand::Rng) -> Nodes {
        let [x, y, z] = torus.sizes();
        let mut all: Vec<NodeId> = (0..x * y * z).map(NodeId).collect();
        match self {
            Placement::Random => random.shuffle(&mut all),
            Placement::Compact => {}
            // Servers have even places in x, and the client of each is behind it.
            Placement::Nearest => {
                all.sort_by_key(|node| torus.place(RouterId(node.0))[0] % 2);
            }
        }
        let clients = all.split_off(all.len() / 2);
        Nodes {
            servers: all,
            clients,
        }
    }

    /// The server that a client asks for its `get`th item. The choice depends on these numbers only,
    /// so all levels of detail have the same gets.
    pub fn server(self, nodes: &Nodes, client: usize, get: u32, seed: u64) -> NodeId {
        if self == Placement::Nearest {
            return nodes.servers[client];
        }
        let number = (client as u64) << 32 | u64::from(get);
        let mut random =
            fastrand::Rng::with_seed(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        nodes.servers[random.usize(..nodes.servers.len())]
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Placement::Random => "random",
            Placement::Compact => "compact",
            Placement::Nearest => "nearest",
        })
    }
}

impl FromStr for Placement {
    type Err = UnknownPlacement;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "random" => Ok(Placement::Random),
            "compact" => Ok(Placement::Compact),
            "nearest" => Ok(Placement::Nearest),
            _ => Err(UnknownPlacement(text.into())),
        }
    }
}

impl Serialize for Placement {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use toroid_fabric::routes::Topology;

    use super::*;

    #[test]
    fn each_node_has_one_role_and_the_nearest_server_is_a_neighbour() {
        let torus = TorusNetwork::new([4, 2, 2]).unwrap();
        let mut random = fastrand::Rng::with_seed(1);
        for placement in [Placement::Random, Placement::Compact, Placement::Nearest] {
            let nodes = placement.nodes(&torus, &mut random);
            assert_eq!(nodes.servers.len(), nodes.clients.len());
            let mut all: Vec<u32> = nodes
                .servers
                .iter()
                .chain(&nodes.clients)
                .map(|node| node.0)
                .collect();
            all.sort_unstable();
            assert!(all.into_iter().eq(0..16), "{placement}");
            for (n, client) in nodes.clients.iter().enumerate() {
                let server = placement.server(&nodes, n, 0, 1);
                let hops = torus.distance(torus.router(*client), torus.router(server));
                assert!(
                    placement != Placement::Nearest || hops == 1,
                    "{client} {server}"
                );
            }
        }
    }
}
