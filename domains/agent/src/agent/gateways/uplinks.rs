//! Uplinks as they are at this moment. They are the host's, so they come and go, and gateways are mended
//! when the kernel says that something has changed: an interface, or whether the host is a router.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use toroid_model::addressing;
use toroid_model::directory::{Directory, Domain};
use toroid_model::gateway::{Gateway, GatewayKind};
use toroid_netlink::{Link, LinkChanges, Netlink};

use super::passage::{self, PassageError};
use crate::agent::host::Host;

/// After one look the next comes no sooner than this, however much changes on the host.
const PAUSE: Duration = Duration::from_millis(200);

/// The uplink of each domain that is connected, or why there is none, and whether the host is a
/// router.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Uplinks {
    links: BTreeMap<u16, Result<Link, String>>,
    is_router: bool,
}

impl Uplinks {
    pub(super) fn get(&self, domain: u16) -> Option<Result<&Link, &str>> {
        let uplink = self.links.get(&domain)?;
        Some(uplink.as_ref().map_err(String::as_str))
    }

    /// Why nothing passes a domain's uplink, however good the gateway is.
    pub(super) fn problem(&self, domain: u16) -> Option<String> {
        match self.get(domain)? {
            Err(missing) => Some(missing.into()),
            Ok(link) if !link.up => Some(format!("{} is down", link.name)),
            Ok(link) if !link.has_carrier => Some(format!("{} has no carrier", link.name)),
            Ok(_) => None,
        }
    }

    /// What passes less than one might expect. A bridge tells nobody that a packet was too long, and
    /// only those who speak TCP ask each other before.
    pub(super) fn warning(&self, domain: &Domain) -> Option<String> {
        let gateway = domain.gateway.as_ref()?;
        let link = self.get(domain.id)?.ok()?;
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

impl Host {
    /// The interface of the host that shall be an uplink.
    pub(super) fn uplink(&self, gateway: &Gateway) -> Result<Link, PassageError> {
        let mut host = Netlink::open()?;
        let uplink = passage::find_uplink(&mut host, &gateway.uplink)?;
        if self.is_of_member(&uplink.mac) {
            Err(PassageError::Inside(gateway.uplink.clone()))
        } else {
            Ok(uplink)
        }
    }

    /// Those of these domains.
    pub(super) fn uplinks(&self, domains: &[Domain]) -> Uplinks {
        let uplink = |domain: &Domain| {
            let uplink = self.uplink(domain.gateway.as_ref()?);
            Some((domain.id, uplink.map_err(|error| error.to_string())))
        };
        Uplinks {
            links: domains.iter().filter_map(uplink).collect(),
            is_router: passage::is_router(),
        }
    }

    /// Whether an interface with this MAC is a member's. One in 64 that a kernel chooses begins like
    /// one.
    fn is_of_member(&self, mac: &[u8]) -> bool {
        let mac: Option<[u8; 6]> = mac.try_into().ok();
        let Some((domain, place)) = mac.and_then(addressing::parse_mac) else {
            return false;
        };
        let node = self.torus.node(place);
        self.members.directory(|directory: &Directory| {
            let domain = directory.domain_by_id(domain.into());
            domain.is_some_and(|domain| node.is_some_and(|node| domain.members.contains(&node)))
        })
    }
}

/// Mends gateways whenever uplinks have changed, until the agent ends.
pub(in crate::agent) fn watch(host: &Arc<Host>, changes: &LinkChanges) {
    loop {
        if let Err(error) = changes.wait() {
            return tracing::warn!("gateways are not mended any longer: {error}");
        }
        if host.is_ending() {
            return;
        }
        host.heed_uplinks();
        thread::sleep(PAUSE);
    }
}
