//! A network of either shape, by a text.

use std::fmt;
use std::str::FromStr;

use super::{Dragonfly, Ends, LinkId, LinkKind, Path, RouterId, Step, Topology, TorusNetwork};
use crate::topology::NodeId;

/// Why a text or sizes make no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// The text has another form.
    #[error(
        "\"{0}\" is no network: write torus:8x8x8, dragonfly:GROUPS, or \
         dragonfly:GROUPSxCHASSISxROUTERSxNODES, with :LINKS for the global links of a pair of groups"
    )]
    Unknown(String),
    /// A size is 0.
    #[error("a network has no size of 0: write sizes from 1 on")]
    Zero,
    /// More nodes than are possible.
    #[error(
        "the network is too large: at most {0} nodes, and 65536 in a dimension or at a router, are possible"
    )]
    TooLarge(u64),
    /// More routers than are possible.
    #[error(
        "the dragonfly is too large: at most {0} routers in groups of 4096, with at most 256 a chassis, are \
         possible"
    )]
    TooManyRouters(u64),
    /// More global links than ports.
    #[error(
        "{groups} groups of this size can have at most {most} global links a pair: write fewer links, \
         fewer groups, or larger groups"
    )]
    #[allow(missing_docs)]
    TooManyGlobalLinks { groups: u32, most: u32 },
}

/// A network of either shape, for callers that read the shape from a text.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Network {
    Torus(TorusNetwork),
    Dragonfly(Dragonfly),
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Network::Torus(torus) => {
                let [x, y, z] = torus.sizes();
                write!(f, "torus:{x}x{y}x{z}")
            }
            Network::Dragonfly(dragonfly) => {
                let [groups, chassis, routers, nodes] = dragonfly.sizes();
                write!(f, "dragonfly:{groups}x{chassis}x{routers}x{nodes}")?;
                match dragonfly.global_links() {
                    0 => Ok(()),
                    links => write!(f, ":{links}"),
                }
            }
        }
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || NetworkError::Unknown(text.into());
        let (kind, sizes) = text.split_once(':').ok_or_else(unknown)?;
        let (sizes, links) = match sizes.split_once(':') {
            Some((sizes, links)) => (sizes, Some(links.parse().map_err(|_| unknown())?)),
            None => (sizes, None),
        };
        let sizes: Option<Vec<u32>> = sizes.split('x').map(|size| size.parse().ok()).collect();
        match (kind, sizes.ok_or_else(unknown)?.as_slice(), links) {
            ("torus", &[x, y, z], None) => Ok(Network::Torus(TorusNetwork::new([x, y, z])?)),
            ("dragonfly", &[groups], links) => Ok(Network::Dragonfly(Dragonfly::new(
                [groups, 6, 16, 4],
                links,
            )?)),
            ("dragonfly", &[groups, chassis, routers, nodes], links) => {
                let sizes = [groups, chassis, routers, nodes];
                Ok(Network::Dragonfly(Dragonfly::new(sizes, links)?))
            }
            _ => Err(unknown()),
        }
    }
}

/// Calls a function of the shape.
macro_rules! of_shape {
    ($network:ident, $shape:ident => $call:expr) => {
        match $network {
            Network::Torus($shape) => $call,
            Network::Dragonfly($shape) => $call,
        }
    };
}

impl Topology for Network {
    fn nodes(&self) -> u32 {
        of_shape!(self, shape => shape.nodes())
    }

    fn routers(&self) -> u32 {
        of_shape!(self, shape => shape.routers())
    }

    fn router(&self, node: NodeId) -> RouterId {
        of_shape!(self, shape => shape.router(node))
    }

    fn links(&self) -> u32 {
        of_shape!(self, shape => shape.links())
    }

    fn ends(&self, link: LinkId) -> Ends {
        of_shape!(self, shape => shape.ends(link))
    }

    fn kind(&self, link: LinkId) -> LinkKind {
        of_shape!(self, shape => shape.kind(link))
    }

    fn channels(&self) -> u8 {
        of_shape!(self, shape => shape.channels())
    }

    fn distance(&self, from: RouterId, to: RouterId) -> u32 {
        of_shape!(self, shape => shape.distance(from, to))
    }

    fn minimal(&self, from: RouterId, to: RouterId, choice: u64) -> Path {
        of_shape!(self, shape => shape.minimal(from, to, choice))
    }

    fn non_minimal(&self, from: RouterId, to: RouterId, choice: u64) -> Path {
        of_shape!(self, shape => shape.non_minimal(from, to, choice))
    }

    fn divert(&self, path: &Path, is_minimal: bool, choice: u64) -> Option<Path> {
        of_shape!(self, shape => shape.divert(path, is_minimal, choice))
    }

    fn step(&self, path: &mut Path) -> Option<Step> {
        of_shape!(self, shape => shape.step(path))
    }

    fn hops(&self, path: &Path) -> u32 {
        of_shape!(self, shape => shape.hops(path))
    }
}
