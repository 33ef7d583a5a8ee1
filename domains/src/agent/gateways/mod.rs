//! Gateways: domains that are connected to the outside.
//!
//! The directory says which there shall be. [`Host::settle_gateways`] makes it so, after every change of
//! the directory or of a node that may concern one, and when an agent begins: whatever was
//! there before is used, mended or taken back. [`passage`] is the way out by address translation,
//! [`ledger`] what an agent's successor must know of it; bridges are the driver's.

mod ledger;
mod nft;
mod passage;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fabric::NodeId;

use super::changes::usable_node;
use super::host::Host;
use crate::addressing;
use crate::directory::{Directory, Domain};
use crate::driver_protocol::{PortError, Uplink};
use crate::gateway::{Gateway, GatewayKind};
use crate::netlink::{Netlink, NetlinkError};
use crate::protocol::{GatewayInfo, Refusal, RefusalKind};
use crate::rights::Actor;
use ledger::Ledger;
use nft::NftError;
use passage::{Inside, Passage, PassageError};

/// Why a gateway does not work.
#[derive(Debug, thiserror::Error)]
enum GatewayError {
    #[error(transparent)]
    Passage(#[from] PassageError),
    #[error("cannot keep in mind what is done: {0}")]
    Ledger(#[from] io::Error),
    #[error("the node is not there")]
    NoNode,
    #[error("{0}")]
    Bridge(String),
}

/// The gateways of a host as they are.
#[derive(Debug)]
pub(super) struct Gateways {
    books: Mutex<Books>,
    /// Why some do not work, by domain. Who asks does not wait for those that are just made.
    problems: Mutex<BTreeMap<u16, String>>,
}

#[derive(Debug)]
struct Books {
    ledger: Ledger,
    /// Those that work, by domain, and the network of each node.
    open: BTreeMap<u16, (Gateway, Arc<OwnedFd>)>,
}

/// Takes back what an agent that has gone had changed of the host.
pub(super) fn clear(state: &Path) -> io::Result<()> {
    let mut ledger = Ledger::open(state);
    for domain in ledger.domains() {
        if let Some(passage) = ledger.get(domain) {
            passage.close(None);
        }
        ledger.remove(domain)?;
    }
    Ok(())
}

/// The address by which a member's packets leave the domain.
pub(super) fn way_out(domain: &Domain, member: NodeId) -> Option<Ipv4Addr> {
    let gateway = domain.gateway.as_ref()?;
    let is_led = gateway.kind == GatewayKind::Nat && domain.may_talk(gateway.node, member);
    is_led.then(|| domain.subnet.address(gateway.node))
}

impl Gateways {
    pub(super) fn new(state: &Path) -> Self {
        let books = Books {
            ledger: Ledger::open(state),
            open: BTreeMap::new(),
        };
        Gateways {
            books: Mutex::new(books),
            problems: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn problems(&self) -> MutexGuard<'_, BTreeMap<u16, String>> {
        self.problems.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Books {
    /// Opens a gateway unless it is open.
    fn open(&mut self, domain: &Domain, network: Arc<OwnedFd>) -> Result<(), GatewayError> {
        let Some(gateway) = &domain.gateway else {
            return Ok(());
        };
        let is_it =
            |open: &(Gateway, Arc<OwnedFd>)| open.0 == *gateway && Arc::ptr_eq(&open.1, &network);
        if self.open.get(&domain.id).is_some_and(is_it) {
            return Ok(());
        }
        if gateway.kind == GatewayKind::Nat {
            self.open_passage(domain, gateway, &network)?;
        }
        self.open.insert(domain.id, (gateway.clone(), network));
        Ok(())
    }

    fn open_passage(
        &mut self,
        domain: &Domain,
        gateway: &Gateway,
        network: &OwnedFd,
    ) -> Result<(), GatewayError> {
        let fits =
            |present: &&Passage| present.leads_to(&gateway.uplink) && present.is_whole(network);
        let mut passage = match self.ledger.get(domain.id).filter(fits) {
            Some(present) => present.clone(),
            None => {
                self.close(domain.id)?;
                Passage::create(&gateway.uplink, network)?
            }
        };
        passage.note_uplink();
        self.ledger.put(domain.id, passage.clone())?;
        let inside = Inside {
            interface: &domain.name,
            subnet: domain.subnet,
            network,
        };
        Ok(passage.open(inside)?)
    }

    /// Closes a gateway, if it is there.
    fn close(&mut self, domain: u16) -> io::Result<()> {
        let open = self.open.remove(&domain);
        if let Some(passage) = self.ledger.get(domain) {
            passage.close(open.as_ref().map(|(_, network)| &**network));
        }
        self.ledger.remove(domain)
    }
}

impl Host {
    /// Connects a domain to the outside; all members know their way when this returns.
    pub(super) fn add_gateway(
        &self,
        actor: Actor,
        name: &str,
        node: &str,
        uplink: &str,
        kind: GatewayKind,
    ) -> Result<Domain, Refusal> {
        actor.may_administer("connect domains to the outside")?;
        self.can_have_gateways()?;
        let (domain, directory) = self.members.plan(|directory| {
            let node = usable_node(directory, actor, node)?;
            let uplink = uplink.into();
            let gateway = Gateway { node, uplink, kind };
            Ok::<_, Refusal>(directory.add_gateway(name, gateway)?)
        })?;
        let connected = self
            .connect(&domain)
            .map_err(|error| refusal(&error))
            .and_then(|()| self.lead_members(&domain))
            .and_then(|()| self.members.adopt(directory));
        if let Err(refusal) = connected {
            let before = self.members.directory(|d| d.domain(name).cloned());
            if let Ok(before) = before
                && let Err(refusal) = self.lead_members(&before)
            {
                tracing::warn!("{refusal}");
            }
            self.settle_gateways();
            return Err(refusal);
        }
        // Its node may have been made anew in the meantime.
        self.settle_gateways();
        Ok(domain)
    }

    /// Ends that.
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
        // It has ended: who does not hear of it sends its packets to nobody.
        if let Err(refusal) = self.lead_members(&domain) {
            tracing::warn!("{refusal}");
        }
        self.settle_gateways();
        Ok(domain)
    }

    fn can_have_gateways(&self) -> Result<(), Refusal> {
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

    /// Opens a gateway that the directory does not have yet.
    fn connect(&self, domain: &Domain) -> Result<(), GatewayError> {
        let Some(gateway) = &domain.gateway else {
            return Ok(());
        };
        let mut host = Netlink::open().map_err(PassageError::from)?;
        let uplink = passage::find_uplink(&mut host, &gateway.uplink)?;
        if self.is_of_member(&uplink.mac) {
            return Err(PassageError::Inside(gateway.uplink.clone()).into());
        }
        match gateway.kind {
            GatewayKind::Nat => self.open_gateway(domain),
            GatewayKind::Bridge => {
                let mut domains = self.connected_domains();
                domains.push(domain.clone());
                match self.bridge(&domains).remove(&domain.id) {
                    Some(problem) => Err(GatewayError::Bridge(problem)),
                    None => Ok(()),
                }
            }
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

    /// Lets the driver bridge domains, and no others, to their uplinks; returns what is wrong with
    /// which.
    fn bridge(&self, domains: &[Domain]) -> BTreeMap<u16, String> {
        let Some(driver) = &self.driver else {
            return BTreeMap::new();
        };
        let uplink = |domain: &Domain| {
            let gateway = domain.gateway.as_ref()?;
            (gateway.kind == GatewayKind::Bridge).then(|| Uplink {
                domain_id: domain.id.into(),
                node: gateway.node.0,
                ifname: gateway.uplink.clone(),
                mtu: domain.mtu,
                limited: domain.limited.contains(&gateway.node),
            })
        };
        let uplinks: Vec<Uplink> = domains.iter().filter_map(uplink).collect();
        let has_some = !uplinks.is_empty();
        if !driver.set_uplinks(uplinks) && !has_some {
            return BTreeMap::new();
        }
        let problem = |error: PortError| {
            let id = u16::try_from(error.domain_id).ok()?;
            let gateway = domains.iter().find(|domain| domain.id == id)?;
            let is_there = gateway.gateway.as_ref()?.node.0 == error.node;
            is_there.then_some((id, error.message))
        };
        match driver.sync() {
            Ok(errors) => errors.into_iter().filter_map(problem).collect(),
            Err(error) => {
                let problem = |domain: &Domain| (domain.id, error.to_string());
                domains.iter().map(problem).collect()
            }
        }
    }

    fn connected_domains(&self) -> Vec<Domain> {
        self.members.directory(|directory: &Directory| {
            let connected = directory.domains().filter(|d| d.gateway.is_some());
            connected.cloned().collect()
        })
    }

    fn open_gateway(&self, domain: &Domain) -> Result<(), GatewayError> {
        let gateway = domain.gateway.as_ref();
        let node = gateway.and_then(|gateway| self.node(gateway.node));
        let network = node.ok_or(GatewayError::NoNode)?.network();
        self.gateways.lock().open(domain, network)
    }

    /// Makes gateways as the directory has them. What cannot be is told who asks for the domain.
    pub(super) fn settle_gateways(&self) {
        let wanted = self.connected_domains();
        let problems = self.bridge(&wanted);
        self.settle_passages(&wanted, problems);
    }

    /// The same for those that depend on their nodes, one of which was made anew.
    pub(super) fn reopen_gateways(&self) {
        let wanted = self.connected_domains();
        let is_bridge = |domain: &Domain| {
            let gateway = domain.gateway.as_ref();
            gateway.is_some_and(|gateway| gateway.kind == GatewayKind::Bridge)
        };
        let bridges: BTreeSet<u16> = wanted
            .iter()
            .filter(|domain| is_bridge(domain))
            .map(|domain| domain.id)
            .collect();
        let mut problems = self.gateways.problems().clone();
        problems.retain(|domain, _| bridges.contains(domain));
        self.settle_passages(&wanted, problems);
    }

    fn settle_passages(&self, wanted: &[Domain], mut problems: BTreeMap<u16, String>) {
        let ids: BTreeSet<u16> = wanted.iter().map(|domain| domain.id).collect();
        let mut books = self.gateways.lock();
        let present = books.ledger.domains().into_iter();
        let present: BTreeSet<u16> = present.chain(books.open.keys().copied()).collect();
        for extra in present.difference(&ids) {
            if let Err(error) = books.close(*extra) {
                tracing::warn!("cannot forget a gateway: {error}");
            }
        }
        drop(books);
        for domain in wanted {
            if let Err(error) = self.open_gateway(domain) {
                problems.insert(domain.id, error.to_string());
            }
            if let Some(problem) = problems.get(&domain.id) {
                tracing::warn!("the gateway of {}: {problem}", domain.name);
            }
        }
        *self.gateways.problems() = problems;
    }

    /// The gateway of a domain as clients see it.
    pub(super) fn describe_gateway(&self, domain: &Domain) -> Option<GatewayInfo> {
        let gateway = domain.gateway.as_ref()?;
        Some(GatewayInfo {
            node: self.torus.place(gateway.node)?,
            uplink: gateway.uplink.clone(),
            kind: gateway.kind,
            problem: self.gateways.problems().get(&domain.id).cloned(),
        })
    }
}

fn refusal(error: &GatewayError) -> Refusal {
    use PassageError as P;
    let (kind, remedy) = match error {
        GatewayError::Passage(P::Netlink(NetlinkError::NoSuchLink(_))) => (
            RefusalKind::NotFound,
            "name an interface of the host that leads outside; see `ip link`",
        ),
        GatewayError::Passage(P::Inside(_)) => (
            RefusalKind::Invalid,
            "name an interface of the host that leads outside; see `ip link`",
        ),
        GatewayError::Passage(P::Rules(NftError::Missing)) => (
            RefusalKind::Failed,
            "install it (of Debian the package nftables), or use --bridge",
        ),
        GatewayError::Passage(P::Exhausted) => (RefusalKind::Exhausted, "remove one"),
        GatewayError::Passage(P::Rules(_) | P::Forwarding { .. }) => (
            RefusalKind::Failed,
            "the kernel must have nftables with NAT, and let this container use them; or use \
             --bridge",
        ),
        _ => (RefusalKind::Failed, "see agent.log in the state directory"),
    };
    Refusal::new(kind, error.to_string(), remedy)
}
