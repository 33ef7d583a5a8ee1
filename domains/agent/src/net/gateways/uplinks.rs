//! Present uplinks. Interfaces of the host come and go, and gateways are repaired when the kernel
//! reports a change: of an interface, or of the host's forwarding.

use std::collections::BTreeMap;

use toroid_model::directory::Domain;
use toroid_model::gateway::{Gateway, GatewayKind};
use toroid_netlink::Link;

use super::GatewayId;

/// Uplink of each gateway of this host, or the reason of its absence; and whether the host is a router.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Uplinks {
    pub(crate) links: BTreeMap<GatewayId, Result<Link, String>>,
    pub(crate) is_router: bool,
}

impl Uplinks {
    pub(crate) fn get(&self, id: GatewayId) -> Option<Result<&Link, &str>> {
        let uplink = self.links.get(&id)?;
        Some(uplink.as_ref().map_err(String::as_str))
    }

    /// Reason why nothing passes the uplink of a gateway.
    pub(crate) fn problem(&self, id: GatewayId) -> Option<String> {
        match self.get(id)? {
            Err(missing) => Some(missing.into()),
            Ok(link) if !link.up => Some(format!("{} is down", link.name)),
            Ok(link) if !link.has_carrier => Some(format!("{} has no carrier", link.name)),
            Ok(_) => None,
        }
    }

    /// Whether a gateway has a problem that it did not have before.
    pub(crate) fn fails_after(&self, before: &Uplinks) -> bool {
        let fails = |id: &GatewayId| self.problem(*id).is_some() && before.problem(*id).is_none();
        self.links.keys().any(fails)
    }

    /// Warning about a narrow uplink. A bridge reports no packet as too long, and only TCP
    /// negotiates a size.
    pub(crate) fn warning(&self, domain: &Domain, gateway: &Gateway) -> Option<String> {
        let link = self.get(GatewayId::of(domain, gateway))?.ok()?;
        let is_narrow = gateway.kind == GatewayKind::Bridge && link.mtu < domain.mtu;
        is_narrow.then(|| {
            format!(
                "members may send packets of {} bytes and {} takes {}: what is longer and not TCP \
                 is lost (too_long in `toroid domain drops {}`)",
                domain.mtu, link.name, link.mtu, domain.name
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use toroid_fabric::NodeId;

    use super::*;

    #[test]
    fn an_uplink_that_goes_down_is_a_new_problem_of_the_same_interface() {
        let up = Link {
            is_operational: true,
            index: 1,
            name: "eth1".into(),
            mac: vec![2; 6],
            mtu: 1500,
            queue_len: 1000,
            up: true,
            has_carrier: true,
        };
        let down = Link {
            up: false,
            ..up.clone()
        };
        let remade = Link {
            index: 2,
            ..up.clone()
        };
        assert!(down.is_same_interface(&up) && !remade.is_same_interface(&up));
        let of = |link: &Link| {
            let (domain, node) = (1, NodeId(1));
            Uplinks {
                links: [(GatewayId { domain, node }, Ok(link.clone()))].into(),
                is_router: false,
            }
        };
        let (up, down) = (of(&up), of(&down));
        assert!(down.fails_after(&up) && down.fails_after(&Uplinks::default()));
        assert!(!down.fails_after(&down) && !up.fails_after(&down));
    }
}
