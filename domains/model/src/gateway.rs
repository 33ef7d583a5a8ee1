//! Gateways: where a domain is connected to the outside.

use std::fmt;

use serde::{Deserialize, Serialize};
use toroid_fabric::NodeId;

/// A connection of a domain to the outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gateway {
    /// The member at which it is. It ends when that leaves.
    pub node: NodeId,
    /// The host's interface that leads outside.
    pub uplink: String,
    /// What passes.
    pub kind: GatewayKind,
}

/// What passes a gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GatewayKind {
    /// Connections that members begin, by IPv4: outside they are all the host's.
    #[default]
    Nat,
    /// Frames: domain and outside are one Ethernet.
    Bridge,
}

impl fmt::Display for GatewayKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            GatewayKind::Nat => "nat",
            GatewayKind::Bridge => "bridge",
        })
    }
}

impl std::str::FromStr for GatewayKind {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "nat" => Ok(GatewayKind::Nat),
            "bridge" => Ok(GatewayKind::Bridge),
            _ => Err("write \"nat\" or \"bridge\""),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_read_as_it_is_printed() {
        for kind in [GatewayKind::Nat, GatewayKind::Bridge] {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert!("router".parse::<GatewayKind>().is_err());
    }
}
