//! Gateways: where a domain is connected to the outside.

use serde::{Deserialize, Serialize};
use toroid_fabric::NodeId;

/// A connection of a domain to an external network, with a node as `N`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Gateway<N = NodeId> {
    /// Member at which the gateway is. The gateway ends when that member leaves.
    pub node: N,
    /// Interface of the host to the external network.
    pub uplink: String,
    /// Traffic that passes.
    pub kind: GatewayKind,
}

/// Traffic that passes a gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GatewayKind {
    /// Connections that members begin, by IPv4: outside they are all the host's.
    #[default]
    Nat,
    /// Frames: domain and external network are one Ethernet.
    Bridge,
}

crate::as_text::display_serde_name!(GatewayKind);

impl std::str::FromStr for GatewayKind {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        crate::as_text::variant(text).ok_or("write \"nat\" or \"bridge\"")
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
