//! Gateways: where a domain is connected to the outside.

use std::fmt;

use serde::{Deserialize, Serialize};
use toroid_fabric::NodeId;

/// The longest name of an interface in bytes.
const MAX_NAME: usize = 15;

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

/// Whether an interface of the host that is called so can be an uplink. Names that would mean
/// something else in a rule of nftables or in a path cannot.
pub fn is_uplink_name(name: &str) -> bool {
    let plain = |c: u8| c.is_ascii_alphanumeric() || b"-_.:@~+".contains(&c);
    (1..=MAX_NAME).contains(&name.len())
        && name.bytes().all(plain)
        && !["lo", ".", "..", "all", "default"].contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_mean_more_are_no_uplinks() {
        for name in ["eth0", "enp3s0f1", "br-lan", "eth0.7", "veth@1"] {
            assert!(is_uplink_name(name), "{name}");
        }
        for name in [
            "",
            "lo",
            "..",
            "eth*",
            "a b",
            "a\"b",
            "a/b",
            "a\\b",
            "sixteen-letters-",
        ] {
            assert!(!is_uplink_name(name), "{name}");
        }
    }

    #[test]
    fn a_kind_is_read_as_it_is_printed() {
        for kind in [GatewayKind::Nat, GatewayKind::Bridge] {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert!("router".parse::<GatewayKind>().is_err());
    }
}
