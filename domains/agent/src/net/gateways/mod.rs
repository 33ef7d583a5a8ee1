//! Gateways: domains that are connected to the outside.
//!
//! The directory has the wanted gateways. `Host::settle_gateways` makes them, after every change of
//! the directory or of a node that may concern one, and when an agent starts: existing ones are
//! used, repaired or removed. [`nat_link`] is the way out by address translation, [`journal`] its
//! record for an agent's successor; bridges are made by the driver. [`uplinks`] may change at any
//! time. Of several gateways of a domain, [`ways`] chooses the one that members use.

mod journal;
pub(crate) mod nat_link;
pub(crate) mod nft;
mod policy;
pub(crate) mod uplinks;
pub(crate) mod ways;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use parking_lot::{Mutex, MutexGuard};
use toroid_fabric::NodeId;
use toroid_model::directory::Domain;
use toroid_model::gateway::{Gateway, GatewayKind};
use toroid_netlink::Link;

use journal::Journal;
use nat_link::{Inside, NatLink, NatLinkError};
use uplinks::Uplinks;
use ways::{Sight, Ways};

/// A gateway of a domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GatewayId {
    /// Number of the domain.
    pub(crate) domain: u16,
    pub(crate) node: NodeId,
}

impl GatewayId {
    pub(crate) fn of(domain: &Domain, gateway: &Gateway) -> Self {
        GatewayId {
            domain: domain.id,
            node: gateway.node,
        }
    }
}

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

/// Present gateways of a host, and those of other hosts as seen from this one.
#[derive(Debug)]
pub(crate) struct Gateways {
    directory: PathBuf,
    state: Mutex<State>,
    /// Problems of gateways of this host. Readers do not wait for gateways in the making.
    problems: Mutex<BTreeMap<GatewayId, String>>,
    /// Problems of gateways of other hosts, as these have reported them.
    reported: Mutex<BTreeMap<String, BTreeMap<GatewayId, String>>>,
    /// Lock order: before the directory and the state of the driver.
    ways: Mutex<Ways>,
    /// Uplinks as of the last settling.
    seen: Mutex<Uplinks>,
    /// Locked while gateways are settled, so that the newest directory wins.
    settling: Mutex<()>,
}

#[derive(Debug)]
pub(crate) struct State {
    pub(crate) journal: Journal,
    /// Working gateways.
    pub(crate) open: BTreeMap<GatewayId, Open>,
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
    for id in journal.ids() {
        if let Some(nat_link) = journal.get(id) {
            nat_link.close(None);
        }
        journal.remove(id)?;
    }
    journal::write_unused(state, &BTreeSet::new())
}

/// Next hop of a member's packets to the outside. A gateway's node is its own.
pub(crate) fn way_out(domain: &Domain, member: NodeId, ways: &Ways) -> Option<Ipv4Addr> {
    let others = || domain.address(ways.choose(domain, member)?.node);
    own_way_out(domain, member).or_else(others)
}

/// The address of a member that is a gateway and translates addresses.
pub(crate) fn own_way_out(domain: &Domain, member: NodeId) -> Option<Ipv4Addr> {
    let own = domain.gateway_at(member)?;
    domain
        .address(member)
        .filter(|_| own.kind == GatewayKind::Nat)
}

impl Gateways {
    /// Opens the files of a state directory.
    pub(crate) fn new(directory: &Path) -> Self {
        let state = State {
            journal: Journal::open(directory),
            open: BTreeMap::new(),
        };
        Gateways {
            directory: directory.into(),
            state: Mutex::new(state),
            problems: Mutex::default(),
            reported: Mutex::default(),
            ways: Mutex::new(Ways::without(journal::read_unused(directory))),
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

    pub(crate) fn problems(&self) -> MutexGuard<'_, BTreeMap<GatewayId, String>> {
        self.problems.lock()
    }

    pub(crate) fn reported(&self) -> MutexGuard<'_, BTreeMap<String, BTreeMap<GatewayId, String>>> {
        self.reported.lock()
    }

    /// The ways out of domains, which stay as they are until the guard is dropped. Threads that tell
    /// the driver about ports hold the guard meanwhile, so that the newest way wins.
    pub(crate) fn ways(&self) -> MutexGuard<'_, Ways> {
        self.ways.lock()
    }

    /// Looks at all gateways of domains with several. Returns those that are not used any more, those
    /// that are used again, and the time to look again.
    pub(crate) fn look(
        &self,
        all: &BTreeMap<GatewayId, Sight>,
        now: Instant,
    ) -> ([BTreeSet<GatewayId>; 2], Option<Instant>) {
        let mut ways = self.ways.lock();
        let before = ways.given_up();
        let next = ways.look(all, now);
        let after = ways.given_up();
        drop(ways);
        if before != after
            && let Err(error) = journal::write_unused(&self.directory, &after)
        {
            tracing::warn!("cannot keep in mind which gateways are not used: {error}");
        }
        ([&after - &before, &before - &after], next)
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
            let of_these = open.gateway == *gateway && open.uplink.is_same_interface(uplink);
            let here = Arc::ptr_eq(&open.network, &network) && open.is_router == is_router;
            of_these && here
        };
        let id = GatewayId::of(domain, gateway);
        if self.open.get(&id).is_some_and(is_it) {
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
        self.open.insert(id, open);
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
        let id = GatewayId::of(domain, gateway);
        let mut nat_link = match self.journal.get(id).filter(fits) {
            Some(present) => present.clone(),
            None => {
                self.close(id)?;
                NatLink::create(&gateway.uplink, network)?
            }
        };
        nat_link.note_uplink();
        self.journal.put(id, nat_link.clone())?;
        let inside = Inside {
            interface: &domain.name,
            subnet: domain.subnet,
            network,
        };
        Ok(nat_link.open(inside, is_router)?)
    }

    /// Lets packets of all NAT links go by the present routes of their uplinks.
    pub(crate) fn follow_routes(&self) {
        for (id, open) in &self.open {
            if let Some(nat_link) = self.journal.get(*id) {
                nat_link.follow_routes(open.uplink.index);
            }
        }
    }

    /// Closes a gateway, if there is one.
    pub(crate) fn close(&mut self, id: GatewayId) -> io::Result<()> {
        let open = self.open.remove(&id);
        if let Some(nat_link) = self.journal.get(id) {
            nat_link.close(open.as_ref().map(|open| &*open.network));
        }
        self.journal.remove(id)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use toroid_model::directory::{Directory, Wanted, full_members};

    use super::*;

    /// A directory with domain `blue` of nodes 0 to 3, with gateways at 1 and 2.
    pub(crate) fn connected() -> Directory {
        let mut directory = Directory::new("4x1x1".parse().unwrap());
        let wanted = Wanted {
            name: "blue".into(),
            members: full_members((0..4).map(NodeId)),
            ..Wanted::default()
        };
        directory.create(wanted).unwrap();
        for node in [1, 2] {
            let gateway = Gateway {
                node: NodeId(node),
                uplink: format!("eth{node}"),
                kind: GatewayKind::Nat,
            };
            directory.add_gateway("blue", gateway).unwrap();
        }
        directory
    }
}
