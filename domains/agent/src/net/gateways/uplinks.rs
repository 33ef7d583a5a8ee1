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
