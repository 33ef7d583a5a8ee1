//! Gateways of the host, brought in line with the directory. [`super::ways`] chooses among several.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use toroid_fabric::NodeId;
use toroid_model::addressing;
use toroid_model::directory::{Directory, Domain};
use toroid_model::gateway::{Gateway, GatewayKind};
use toroid_model::info::GatewayInfo;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_model::rights::Actor;
use toroid_netlink::{Link, LinkChanges, Netlink, NetlinkError};
use toroid_protocol::driver::{PortError, Uplink};

use super::changes::usable_node;
use super::host::Host;
use crate::net::gateways::nat_link::{self, NatLinkError};
use crate::net::gateways::nft::NftError;
use crate::net::gateways::uplinks::Uplinks;
use crate::net::gateways::{GatewayError, GatewayId};

/// Shortest interval between two checks of uplinks, however often the host's interfaces change.
const PAUSE: Duration = Duration::from_millis(200);

/// A gateway at a node of this host, and its domain.
struct Connection {
    domain: Domain,
    gateway: Gateway,
}

impl Connection {
    fn id(&self) -> GatewayId {
        GatewayId::of(&self.domain, &self.gateway)
    }
}

impl Host {
    /// Checks that this host has the uplink and the interface of a gateway at one of its nodes. Whether
    /// the domain may have one is for the leader to decide.
    pub(crate) fn check_gateway(&self, name: &str, gateway: &Gateway) -> Result<(), Refusal> {
        self.can_have_gateways()?;
        let domain = self.members.directory(|d| d.domain(name).cloned());
        let checked = self.uplink(gateway).map_err(GatewayError::from);
        checked
            .and_then(|_| domain.map_or(Ok(()), |domain| self.check_kernel(&domain, gateway)))
            .map_err(|error| refusal(&error))
    }

    /// Connects a domain to the outside. All members have their routes when this returns. The host
    /// of a node that another one carries makes the gateway when it gets the change.
    pub(super) fn add_gateway(
        &self,
        actor: Actor,
        name: &str,
        node: &str,
        uplink: &str,
        kind: GatewayKind,
    ) -> Result<Domain, Refusal> {
        actor.may_administer("connect domains to the outside")?;
        let ((domain, gateway), directory) = self.members.plan(|directory| {
            let node = usable_node(directory, actor, node)?;
            if self.node(node).is_some() {
                self.can_have_gateways()?;
            }
            let uplink = uplink.into();
            let gateway = Gateway { node, uplink, kind };
            let domain = directory.add_gateway(name, gateway.clone())?;
            Ok::<_, Refusal>((domain, gateway))
        })?;
        let connected = self
            .connect(&domain, &gateway)
            .map_err(|error| refusal(&error))
            .and_then(|()| self.lead_members(&domain, Some(gateway.node)))
            .and_then(|()| self.members.adopt(directory));
        if let Err(refusal) = connected {
            let before = self.members.directory(|d| d.domain(name).cloned());
            if let Ok(before) = before
                && let Err(refusal) = self.lead_members(&before, None)
            {
                tracing::warn!("{refusal}");
            }
            self.settle_gateways();
            return Err(refusal);
        }
        // The gateway's node may have been made anew in the meantime.
        self.settle_gateways();
        Ok(domain)
    }

    /// Disconnects a domain from the outside at a node.
    pub(super) fn remove_gateway(
        &self,
        actor: Actor,
        name: &str,
        node: &str,
    ) -> Result<Domain, Refusal> {
        actor.may_administer("disconnect domains from the outside")?;
        let domain = self.edit(|directory| {
            let node = usable_node(directory, actor, node)?;
            Ok(directory.remove_gateway(name, node)?)
        })?;
        // The gateway has ended: a member that does not get the change only loses its packets.
        if let Err(refusal) = self.lead_members(&domain, None) {
            tracing::warn!("{refusal}");
        }
        self.settle_gateways();
        Ok(domain)
    }

    pub(crate) fn can_have_gateways(&self) -> Result<(), Refusal> {
        let impossible = |message, remedy| Refusal::new(RefusalKind::Invalid, message, remedy);
        if self.identity.rootless {
            return Err(impossible(
                "the agent of an ordinary user has no interfaces of the host",
                "start one as root",
            ));
        }
        if self.driver.is_none() {
            return Err(impossible(
                "the agent runs without Ethernet",
                "start it without --no-ethernet",
            ));
        }
        Ok(())
    }

    /// Opens a gateway, if it is at a node of this host, before it is in the directory.
    fn connect(&self, domain: &Domain, gateway: &Gateway) -> Result<(), GatewayError> {
        if self.node(gateway.node).is_none() {
            return Ok(());
        }
        let uplink = self.uplink(gateway)?;
        let new = Connection {
            domain: domain.clone(),
            gateway: gateway.clone(),
        };
        match gateway.kind {
            GatewayKind::Nat => self.open_gateway(&new, &uplink),
            GatewayKind::Bridge => {
                let mut connections = self.connections();
                let id = new.id();
                connections.push(new);
                let uplinks = self.uplinks(&connections);
                match self.bridge(&connections, &uplinks).remove(&id) {
                    Some(problem) => Err(GatewayError::Bridge(problem)),
                    None => Ok(()),
                }
            }
        }
    }

    /// Makes the driver bridge these domains to their uplinks, and no others. Returns the problems.
    fn bridge(&self, connections: &[Connection], uplinks: &Uplinks) -> BTreeMap<GatewayId, String> {
        let Some(driver) = &self.driver else {
            return BTreeMap::new();
        };
        let uplink = |connection: &Connection| {
            let Connection { domain, gateway } = connection;
            let link = uplinks.get(connection.id())?.ok()?;
            (gateway.kind == GatewayKind::Bridge).then(|| Uplink {
                domain_id: domain.id.into(),
                node: gateway.node.0,
                index: link.index,
                ifname: gateway.uplink.clone(),
                mtu: domain.mtu,
                limited: domain.spec(gateway.node).limited,
            })
        };
        let uplinks: Vec<Uplink> = connections.iter().filter_map(uplink).collect();
        let has_some = !uplinks.is_empty();
        if !driver.set_uplinks(uplinks) && !has_some {
            return BTreeMap::new();
        }
        let ids: BTreeSet<GatewayId> = connections.iter().map(Connection::id).collect();
        let problem = |error: PortError| {
            let domain = u16::try_from(error.domain_id).ok()?;
            let node = NodeId(error.node);
            let id = GatewayId { domain, node };
            ids.contains(&id).then_some((id, error.message))
        };
        match driver.sync() {
            Ok(errors) => errors.into_iter().filter_map(problem).collect(),
            Err(error) => ids.iter().map(|id| (*id, error.to_string())).collect(),
        }
    }

    /// Gateways of this host. Those of other hosts are made by their agents.
    fn connections(&self) -> Vec<Connection> {
        let directory = self.members.directory(Directory::clone);
        let of = |domain: &Domain| {
            let gateways = domain.gateways.iter();
            let ours = gateways.filter(|gateway| self.node(gateway.node).is_some());
            let connection = |gateway: &Gateway| Connection {
                domain: domain.clone(),
                gateway: gateway.clone(),
            };
            ours.map(connection).collect::<Vec<_>>()
        };
        directory.connected_domains().flat_map(of).collect()
    }

    /// Checks that the kernel has the member's interface, if it is to translate addresses.
    fn check_kernel(&self, domain: &Domain, gateway: &Gateway) -> Result<(), GatewayError> {
        let is_stack = self.interfaces.is_stack(domain, gateway.node);
        if gateway.kind == GatewayKind::Nat && is_stack {
            return Err(GatewayError::Stack(domain.name.clone()));
        }
        Ok(())
    }

    fn open_gateway(&self, connection: &Connection, uplink: &Link) -> Result<(), GatewayError> {
        let Connection { domain, gateway } = connection;
        self.check_kernel(domain, gateway)?;
        let node = self.node(gateway.node).ok_or(GatewayError::NoNode)?;
        let mut state = self.gateways.lock();
        state.open(domain, gateway, node.network(), uplink)
    }

    /// Brings gateways in line with the directory. Problems are shown with their domains.
    pub(crate) fn settle_gateways(&self) {
        let settling = self.gateways.settle();
        if self.is_ending() {
            return;
        }
        let wanted = self.connections();
        let uplinks = self.uplinks(&wanted);
        self.settle_all(&wanted, uplinks);
        drop(settling);
    }

    /// Does the same if uplinks have changed. Their routes may have.
    fn heed_uplinks(&self) {
        let settling = self.gateways.settle();
        let wanted = self.connections();
        let uplinks = self.uplinks(&wanted);
        if !self.is_ending() && *self.gateways.seen() != uplinks {
            self.settle_all(&wanted, uplinks);
        }
        self.gateways.lock().follow_routes();
        drop(settling);
    }

    fn settle_all(&self, wanted: &[Connection], uplinks: Uplinks) {
        // Members leave a gateway before the others are looked after, which takes a while.
        let fails = uplinks.fails_after(&self.gateways.seen());
        if fails {
            *self.gateways.seen() = uplinks.clone();
            self.rethink_ways();
        }
        let problems = self.bridge(wanted, &uplinks);
        self.settle_nat_links(wanted, &uplinks, problems);
        *self.gateways.seen() = uplinks;
        self.rethink_ways();
    }

    /// Does the same for NAT gateways after a node was made anew.
    pub(crate) fn reopen_gateways(&self) {
        let settling = self.gateways.settle();
        if self.is_ending() {
            return;
        }
        let wanted = self.connections();
        let bridges = wanted
            .iter()
            .filter(|its| its.gateway.kind == GatewayKind::Bridge);
        let bridges: BTreeSet<GatewayId> = bridges.map(Connection::id).collect();
        let mut problems = self.gateways.problems().clone();
        problems.retain(|id, _| bridges.contains(id));
        let uplinks = self.gateways.seen().clone();
        self.settle_nat_links(&wanted, &uplinks, problems);
        self.rethink_ways();
        drop(settling);
    }

    fn settle_nat_links(
        &self,
        wanted: &[Connection],
        uplinks: &Uplinks,
        mut problems: BTreeMap<GatewayId, String>,
    ) {
        let ids: BTreeSet<GatewayId> = wanted.iter().map(Connection::id).collect();
        let mut state = self.gateways.lock();
        ids.iter().for_each(|id| state.journal.identify(*id));
        let present = state.journal.ids().into_iter();
        let present: BTreeSet<GatewayId> = present.chain(state.open.keys().copied()).collect();
        for extra in present.difference(&ids) {
            if let Err(error) = state.close(*extra) {
                tracing::warn!("cannot forget a gateway: {error}");
            }
        }
        drop(state);
        for connection in wanted {
            let id = connection.id();
            if let Some(Ok(uplink)) = uplinks.get(id)
                && let Err(error) = self.open_gateway(connection, uplink)
            {
                problems.insert(id, error.to_string());
            }
            let problem = problems.get(&id).cloned();
            if let Some(problem) = problem.or_else(|| uplinks.problem(id)) {
                let (name, node) = (&connection.domain.name, connection.gateway.node);
                tracing::warn!("the gateway of {name} at {node}: {problem}");
            }
        }
        *self.gateways.problems() = problems;
    }

    /// Describes a gateway of a domain for clients.
    fn describe_gateway(&self, domain: &Domain, gateway: &Gateway) -> Option<GatewayInfo> {
        let first = self.gateways.ways().first(domain);
        Some(GatewayInfo {
            node: self.torus.place(gateway.node)?,
            uplink: gateway.uplink.clone(),
            kind: gateway.kind,
            in_use: self
                .has_members(domain)
                .then(|| first == Some(gateway.node)),
            problem: self.gateway_problem(domain, gateway),
            warning: self.gateways.seen().warning(domain, gateway),
        })
    }

    /// Describes the gateways of a domain in order of preference.
    pub(super) fn describe_gateways(&self, domain: &Domain) -> Vec<GatewayInfo> {
        let gateways = domain.gateways.iter();
        let described = gateways.filter_map(|gateway| self.describe_gateway(domain, gateway));
        described.collect()
    }

    /// Why nothing passes a gateway of this host.
    pub(crate) fn own_problem(&self, id: GatewayId) -> Option<String> {
        let problem = self.gateways.problems().get(&id).cloned();
        problem.or_else(|| self.gateways.seen().problem(id))
    }

    /// Interface of the host that a gateway uses as its uplink.
    fn uplink(&self, gateway: &Gateway) -> Result<Link, NatLinkError> {
        let mut host = Netlink::open()?;
        let uplink = nat_link::find_uplink(&mut host, &gateway.uplink)?;
        if self.is_of_member(&uplink.mac) {
            Err(NatLinkError::Inside(gateway.uplink.clone()))
        } else {
            Ok(uplink)
        }
    }

    /// Uplinks of these gateways.
    fn uplinks(&self, connections: &[Connection]) -> Uplinks {
        let uplink = |connection: &Connection| {
            let uplink = self.uplink(&connection.gateway);
            (connection.id(), uplink.map_err(|error| error.to_string()))
        };
        Uplinks {
            links: connections.iter().map(uplink).collect(),
            is_router: nat_link::is_router(),
        }
    }

    /// Whether an interface with this MAC is a member's. One in 64 of the kernel's random MACs
    /// begins like a member's.
    fn is_of_member(&self, mac: &[u8]) -> bool {
        let mac: Option<[u8; 6]> = mac.try_into().ok();
        let Some((domain, place)) = mac.and_then(addressing::parse_mac) else {
            return false;
        };
        let node = self.torus.node(place);
        self.members.directory(|directory: &Directory| {
            let domain = directory.domain_by_id(domain.into());
            domain.is_some_and(|domain| node.is_some_and(|node| domain.members.contains_key(&node)))
        })
    }
}

/// Repairs gateways whenever uplinks have changed, until the agent ends.
pub(crate) fn watch(host: &Arc<Host>, changes: &LinkChanges) {
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

fn refusal(error: &GatewayError) -> Refusal {
    use NatLinkError as P;
    let (kind, remedy) = match error {
        GatewayError::NatLink(P::Netlink(NetlinkError::NoSuchLink(_))) => (
            RefusalKind::NotFound,
            "name an interface of the host that leads outside; see `ip link`",
        ),
        GatewayError::NatLink(P::Inside(_)) => (
            RefusalKind::Invalid,
            "name an interface of the host that leads outside; see `ip link`",
        ),
        GatewayError::NatLink(P::Rules(NftError::Missing)) => (
            RefusalKind::Failed,
            "install it (of Debian the package nftables), or use --bridge",
        ),
        GatewayError::Stack(_) => (
            RefusalKind::Invalid,
            "choose a member that is no stack, or use --bridge, which needs no kernel",
        ),
        GatewayError::NatLink(P::Exhausted) => (RefusalKind::Exhausted, "remove one"),
        GatewayError::NatLink(P::Rules(_) | P::Setting { .. }) => (
            RefusalKind::Failed,
            "the kernel must have nftables with NAT, and let this container use them; or use \
             --bridge",
        ),
        _ => (RefusalKind::Failed, "see agent.log in the state directory"),
    };
    Refusal::new(kind, error.to_string(), remedy)
}
