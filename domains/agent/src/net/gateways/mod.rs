//! Gateways: domains that are connected to the outside.
//!
//! The directory has the wanted gateways. `Host::settle_gateways` makes them, after every change of
//! the directory or of a node that may concern one, and when an agent starts: existing ones are
//! used, repaired or removed. [`nat_link`] is the way out by address translation, [`journal`] its
//! record for an agent's successor; bridges are made by the driver. [`uplinks`] may change at any
//! time.

mod journal;
pub(crate) mod nat_link;
pub(crate) mod nft;
pub(crate) mod uplinks;

use std::collections::BTreeMap;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use toroid_fabric::NodeId;
use toroid_model::directory::Domain;
use toroid_model::gateway::{Gateway, GatewayKind};
use toroid_netlink::Link;

use journal::Journal;
use nat_link::{Inside, NatLink, NatLinkError};
use uplinks::Uplinks;

/// Failure of a gateway.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GatewayError {
    #[error(transparent)]
    NatLink(#[from] NatLinkError),
    #[error("cannot keep in mind what is done: {0}")]
    Journal(#[from] io::Error),
    #[error("the node is not there")]
    NoNode,
    #[error("the node has no interface in domain {0}, so its kernel has no packets to translate")]
    Stack(String),
    #[error("{0}")]
    Bridge(String),
}

/// Present gateways of a host.
#[derive(Debug)]
pub(crate) struct Gateways {
    state: Mutex<State>,
    /// Problems by domain. Readers do not wait for gateways in the making.
    problems: Mutex<BTreeMap<u16, String>>,
    /// Uplinks as of the last settling.
    seen: Mutex<Uplinks>,
    /// Locked while gateways are settled, so that the newest directory wins.
    settling: Mutex<()>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) journal: Journal,
    /// Working gateways, by domain.
    pub(crate) open: BTreeMap<u16, Open>,
}

/// A working gateway and the parts it was made of.
#[derive(Debug)]
pub(crate) struct Open {
    gateway: Gateway,
    /// Network namespace of its node.
    network: Arc<OwnedFd>,
    uplink: Link,
    /// Whether the host was a router.
    is_router: bool,
}

/// Undoes the changes of a killed agent in the host.
pub(crate) fn clear(state: &Path) -> io::Result<()> {
    let mut journal = Journal::open(state);
    for domain in journal.domains() {
        if let Some(nat_link) = journal.get(domain) {
            nat_link.close(None);
        }
        journal.remove(domain)?;
    }
    Ok(())
}

/// Next hop of a member's packets to the outside.
pub(crate) fn way_out(domain: &Domain, member: NodeId) -> Option<Ipv4Addr> {
    let gateway = domain.gateway.as_ref()?;
    let is_led = gateway.kind == GatewayKind::Nat && domain.may_talk(gateway.node, member);
    domain.address(gateway.node).filter(|_| is_led)
}

impl Gateways {
    pub(crate) fn new(state: &Path) -> Self {
        let state = State {
            journal: Journal::open(state),
            open: BTreeMap::new(),
        };
        Gateways {
            state: Mutex::new(state),
            problems: Mutex::default(),
            seen: Mutex::default(),
            settling: Mutex::default(),
        }
    }

    pub(crate) fn settle(&self) -> MutexGuard<'_, ()> {
        self.settling.lock()
    }

    pub(crate) fn seen(&self) -> MutexGuard<'_, Uplinks> {
        self.seen.lock()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(crate) fn problems(&self) -> MutexGuard<'_, BTreeMap<u16, String>> {
        self.problems.lock()
    }
}

impl State {
    /// Opens a gateway, unless an equal one is open.
    pub(crate) fn open(
        &mut self,
        domain: &Domain,
        gateway: &Gateway,
        network: Arc<OwnedFd>,
        uplink: &Link,
    ) -> Result<(), GatewayError> {
        let is_router = nat_link::is_router();
        let is_it = |open: &Open| {
            let of_these = open.gateway == *gateway && open.uplink == *uplink;
            let here = Arc::ptr_eq(&open.network, &network) && open.is_router == is_router;
            of_these && here
        };
        if self.open.get(&domain.id).is_some_and(is_it) {
            return Ok(());
        }
        if gateway.kind == GatewayKind::Nat {
            self.open_nat_link(domain, gateway, &network, is_router)?;
        }
        let open = Open {
            gateway: gateway.clone(),
            network,
            uplink: uplink.clone(),
            is_router,
        };
        self.open.insert(domain.id, open);
        Ok(())
    }

    fn open_nat_link(
        &mut self,
        domain: &Domain,
        gateway: &Gateway,
        network: &OwnedFd,
        is_router: bool,
    ) -> Result<(), GatewayError> {
        let fits =
            |present: &&NatLink| present.leads_to(&gateway.uplink) && present.is_whole(network);
        let mut nat_link = match self.journal.get(domain.id).filter(fits) {
            Some(present) => present.clone(),
            None => {
                self.close(domain.id)?;
                NatLink::create(&gateway.uplink, network)?
            }
        };
        nat_link.note_uplink();
        self.journal.put(domain.id, nat_link.clone())?;
        let inside = Inside {
            interface: &domain.name,
            subnet: domain.subnet,
            network,
        };
        Ok(nat_link.open(inside, is_router)?)
    }

    /// Closes a gateway, if there is one.
    pub(crate) fn close(&mut self, domain: u16) -> io::Result<()> {
        let open = self.open.remove(&domain);
        if let Some(nat_link) = self.journal.get(domain) {
            nat_link.close(open.as_ref().map(|open| &*open.network));
        }
        self.journal.remove(domain)
    }
}
