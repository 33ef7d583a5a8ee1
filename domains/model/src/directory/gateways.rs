//! Gateways of domains.

use toroid_fabric::NodeId;

use super::{Directory, DirectoryError, Domain};
use crate::gateway::{Gateway, GatewayKind};
use crate::names::is_uplink_name;

/// Maximum number of gateways of a domain.
pub const MAX_GATEWAYS: usize = 8;

impl Directory {
    /// Domains with gateways.
    pub fn connected_domains(&self) -> impl Iterator<Item = &Domain> {
        self.domains.connected()
    }

    /// Connects a domain to the outside. Members prefer its earlier gateways.
    ///
    /// # Errors
    /// [`DirectoryError`].
    pub fn add_gateway(&mut self, name: &str, gateway: Gateway) -> Result<Domain, DirectoryError> {
        let Gateway { node, uplink, kind } = &gateway;
        let domain = self.domain(name)?;
        if !is_uplink_name(uplink) {
            return Err(DirectoryError::BadUplink(uplink.clone()));
        }
        if !domain.members.contains_key(node) {
            return Err(DirectoryError::NotMembers {
                domain: name.into(),
                nodes: self.places(&[*node].into()),
            });
        }
        if let Some(present) = domain.gateway_at(*node) {
            return Err(DirectoryError::HasGateway {
                domain: name.into(),
                node: self.places(&[present.node].into()),
                uplink: present.uplink.clone(),
            });
        }
        let is_bridge = *kind == GatewayKind::Bridge;
        let first = domain.gateways.first().filter(|_| is_bridge);
        if let Some(present) = domain.bridge().or(first) {
            return Err(DirectoryError::BridgeAlone {
                domain: name.into(),
                node: self.places(&[present.node].into()),
                uplink: present.uplink.clone(),
            });
        }
        if domain.gateways.len() >= MAX_GATEWAYS {
            return Err(DirectoryError::TooManyGateways(name.into()));
        }
        let present = self.connected_domains().flat_map(|other| {
            let gateways = other.gateways.iter();
            gateways.map(move |present| (other, present))
        });
        for (other, present) in present {
            // Two bridges would make one Ethernet of two domains.
            let is_same_host = self.host_of(present.node) == self.host_of(*node);
            if present.uplink == *uplink && is_same_host {
                return Err(DirectoryError::UplinkTaken {
                    uplink: uplink.clone(),
                    domain: other.name.clone(),
                });
            }
            // A kernel has one default route.
            let nat = GatewayKind::Nat;
            if present.node == *node && present.kind == nat && *kind == nat {
                return Err(DirectoryError::RoutesAlready {
                    node: self.places(&[*node].into()),
                    domain: other.name.clone(),
                });
            }
        }
        self.change(name, |domain| domain.gateways.push(gateway))
    }

    /// Ends a domain's connection to the outside at a node.
    ///
    /// # Errors
    /// [`DirectoryError::NoSuchDomain`], [`DirectoryError::NoGateway`].
    pub fn remove_gateway(&mut self, name: &str, node: NodeId) -> Result<Domain, DirectoryError> {
        let missing = DirectoryError::NoGateway {
            domain: name.into(),
            node: self.places(&[node].into()),
        };
        if self.domain(name)?.gateway_at(node).is_none() {
            return Err(missing);
        }
        self.change(name, |domain| {
            domain.gateways.retain(|gateway| gateway.node != node);
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::sample::{nodes, wanted};
    use crate::directory::{MemberSpec, Wanted, full_members};

    fn gateway(node: u32, uplink: &str, kind: GatewayKind) -> Gateway {
        Gateway {
            node: NodeId(node),
            uplink: uplink.into(),
            kind,
        }
    }

    fn nat(node: u32) -> Gateway {
        gateway(node, &format!("eth{node}"), GatewayKind::Nat)
    }

    fn bridge(node: u32) -> Gateway {
        gateway(node, &format!("eth{node}"), GatewayKind::Bridge)
    }

    fn directory() -> Directory {
        let mut directory = Directory::new("4x4x1".parse().unwrap());
        let members: Vec<u32> = (0..12).collect();
        directory.create(wanted("blue", &members)).unwrap();
        directory.create(wanted("red", &[0, 1])).unwrap();
        directory
    }

    fn at(directory: &Directory, name: &str) -> Vec<u32> {
        let gateways = directory.domain(name).unwrap().gateways.iter();
        gateways.map(|gateway| gateway.node.0).collect()
    }

    #[test]
    fn gateways_stay_in_the_order_of_their_addition() {
        let mut directory = directory();
        for node in [5, 1, 3] {
            directory.add_gateway("blue", nat(node)).unwrap();
        }
        assert_eq!(at(&directory, "blue"), [5, 1, 3]);
        directory.remove_gateway("blue", NodeId(5)).unwrap();
        directory.add_gateway("blue", nat(5)).unwrap();
        assert_eq!(at(&directory, "blue"), [1, 3, 5]);
        directory.shrink("blue", &nodes(&[3, 4])).unwrap();
        assert_eq!(at(&directory, "blue"), [1, 5]);
        let error = directory.remove_gateway("blue", NodeId(3)).unwrap_err();
        assert!(matches!(error, DirectoryError::NoGateway { .. }), "{error}");
        // The records keep the order.
        let read = Directory::from_records(&directory.records()).unwrap();
        assert_eq!(at(&read, "blue"), [1, 5]);
    }

    #[test]
    fn domains_with_gateways_are_found_among_all() {
        let mut directory = directory();
        let connected = |directory: &Directory| -> Vec<String> {
            let connected = directory.connected_domains();
            connected.map(|domain| domain.name.clone()).collect()
        };
        assert!(connected(&directory).is_empty());
        directory.add_gateway("blue", nat(5)).unwrap();
        directory.add_gateway("red", nat(1)).unwrap();
        assert_eq!(connected(&directory), ["blue", "red"]);
        let read = Directory::from_records(&directory.records()).unwrap();
        assert_eq!(connected(&read), ["blue", "red"]);
        directory.shrink("blue", &nodes(&[5])).unwrap();
        assert_eq!(connected(&directory), ["red"]);
        directory.remove("red").unwrap();
        assert!(connected(&directory).is_empty());
    }

    #[test]
    fn a_bridge_has_no_gateway_beside_it() {
        let is_alone = |result: Result<Domain, DirectoryError>| {
            let error = result.unwrap_err();
            assert!(
                matches!(error, DirectoryError::BridgeAlone { .. }),
                "{error}"
            );
            assert!(error.to_string().contains("a loop"), "{error}");
        };
        let mut directory = directory();
        directory.add_gateway("blue", bridge(0)).unwrap();
        is_alone(directory.add_gateway("blue", bridge(1)));
        is_alone(directory.add_gateway("blue", nat(1)));
        directory.remove_gateway("blue", NodeId(0)).unwrap();
        directory.add_gateway("blue", nat(1)).unwrap();
        is_alone(directory.add_gateway("blue", bridge(0)));
        // Of another domain it is none.
        directory.add_gateway("red", bridge(0)).unwrap();
    }

    #[test]
    fn nodes_uplinks_and_numbers_of_gateways_are_limited() {
        let mut directory = directory();
        directory.add_gateway("blue", nat(0)).unwrap();
        let error = directory
            .add_gateway("blue", gateway(0, "eth9", GatewayKind::Nat))
            .unwrap_err();
        assert!(
            matches!(error, DirectoryError::HasGateway { .. }),
            "{error}"
        );
        let taken = |result: Result<Domain, DirectoryError>| {
            let error = result.unwrap_err();
            assert!(
                matches!(error, DirectoryError::UplinkTaken { .. }),
                "{error}"
            );
        };
        taken(directory.add_gateway("blue", gateway(1, "eth0", GatewayKind::Nat)));
        taken(directory.add_gateway("red", gateway(1, "eth0", GatewayKind::Nat)));
        let error = directory
            .add_gateway("red", gateway(0, "eth9", GatewayKind::Nat))
            .unwrap_err();
        assert!(
            matches!(error, DirectoryError::RoutesAlready { .. }),
            "{error}"
        );
        for node in 1..8 {
            directory.add_gateway("blue", nat(node)).unwrap();
        }
        let error = directory.add_gateway("blue", nat(8)).unwrap_err();
        assert_eq!(error, DirectoryError::TooManyGateways("blue".into()));
    }

    #[test]
    fn a_limited_member_has_the_gateways_at_full_ones() {
        let mut directory = Directory::new("4x1x1".parse().unwrap());
        let limited = MemberSpec {
            limited: true,
            ..MemberSpec::default()
        };
        let mut members = full_members([NodeId(0), NodeId(3)]);
        members.extend([(NodeId(1), limited), (NodeId(2), limited)]);
        let blue = Wanted {
            members,
            ..wanted("blue", &[])
        };
        directory.create(blue).unwrap();
        for node in [1, 3] {
            directory.add_gateway("blue", nat(node)).unwrap();
        }
        let blue = directory.domain("blue").unwrap();
        let of = |member| -> Vec<u32> {
            let ways = blue.ways_out(NodeId(member));
            ways.map(|gateway| gateway.node.0).collect()
        };
        assert_eq!([of(0), of(2)], [vec![1, 3], vec![3]]);
    }
}
