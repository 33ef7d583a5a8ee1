//! Simulated fabrics by name: a network, its profile and a level of detail.

use std::fmt;
use std::str::FromStr;

use clap::ValueEnum;
use serde::Serialize;
use toroid_fabric::routes::{Dragonfly, NetworkError, Topology, TorusNetwork};
use toroid_fabric::routes::{LinkId, LinkKind, Network as Shape};

use crate::memory;
use crate::sim::chunks::ChunkNetwork;
use crate::sim::packets::PacketNetwork;
use crate::sim::{Network, Profile, SimulationError};

/// Groups of the preset `aries`: 1,920 nodes.
const ARIES_GROUPS: u32 = 5;

/// Sizes of the preset `bgp`: 512 nodes.
const BGP_SIZES: [u32; 3] = [8; 3];

/// A network with the costs of its parts. The text form is `aries`, `bgp`, or the form of a
/// [network](Shape): a torus then has the costs of `bgp`, a dragonfly those of `aries`.
#[derive(Clone, Debug)]
pub struct Fabric {
    pub shape: Shape,
    pub profile: Profile,
    text: String,
}

/// Detail of a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// Chunks of messages on the clocks of links: fast, without buffers.
    #[default]
    Chunks,
    /// Packets with buffers and credits: shows stalls, on which adaptive routing acts.
    Packets,
}

impl Fabric {
    /// An idle fabric. `chunk` is the length of chunks in bytes.
    ///
    /// # Errors
    /// The simulation does not fit into the memory of this machine.
    pub fn build(
        &self,
        level: Level,
        chunk: u64,
        seed: u64,
    ) -> Result<Box<dyn Network>, SimulationError> {
        let (shape, profile) = (self.shape.clone(), self.profile.clone());
        let memory = memory::available().unwrap_or(u64::MAX);
        Ok(match level {
            Level::Chunks => Box::new(ChunkNetwork::new(shape, profile, chunk, seed, memory)?),
            Level::Packets => Box::new(PacketNetwork::new(shape, profile, seed, memory)?),
        })
    }

    pub fn nodes(&self) -> u32 {
        self.shape.nodes()
    }

    /// A link as text: its routers, and its kind in a dragonfly.
    pub fn link(&self, link: LinkId) -> String {
        let ends = self.shape.ends(link);
        let kind = match self.shape.kind(link) {
            LinkKind::Row => " (row)",
            LinkKind::Column => " (column)",
            LinkKind::Global => " (global)",
            LinkKind::Torus => "",
        };
        format!("router {} to {}{kind}", ends.from.0, ends.to.0)
    }
}

impl FromStr for Fabric {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let shape = match text {
            "aries" => Shape::Dragonfly(Dragonfly::aries(ARIES_GROUPS)?),
            "bgp" => Shape::Torus(TorusNetwork::new(BGP_SIZES)?),
            other => other.parse()?,
        };
        let profile = match shape {
            Shape::Torus(_) => Profile::bgp(),
            Shape::Dragonfly(_) => Profile::aries(),
        };
        let text = text.to_owned();
        Ok(Fabric {
            shape,
            profile,
            text,
        })
    }
}

impl fmt::Display for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_and_shapes_are_fabrics() {
        let nodes = |text: &str| text.parse::<Fabric>().unwrap().nodes();
        assert_eq!(["aries", "bgp"].map(nodes), [1920, 512]);
        assert_eq!(["torus:4x3x2", "dragonfly:3"].map(nodes), [24, 1152]);
        let profile = |text: &str| text.parse::<Fabric>().unwrap().profile.name;
        assert_eq!(profile("torus:1x1x2"), "bgp");
        assert!("torus:0x1x1".parse::<Fabric>().is_err());
        assert!("mesh:2x2".parse::<Fabric>().is_err());
    }
}
