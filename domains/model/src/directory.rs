//! Domains, their members, epochs, numbers and subnets, and names of nodes.
//!
//! Pure state: no I/O and no clock. A change is one method call that happens entirely or not at
//! all. A clone is cheap, because domains are shared until they change, and the cost of a change
//! does not depend on the number of other domains. To make a change durable, apply it to a clone
//! first.
//!
//! [`records`] has the form in which a store keeps it.

mod addresses;
mod aliases;
mod domain;
mod domains;
mod error;
mod fence;
mod gateways;
mod host_addresses;
mod host_keys;
mod hosts;
mod links;
pub mod moved;
mod ownership;
mod quota;
mod rates;
pub mod records;
pub mod requests;
pub mod revision;
#[cfg(test)]
pub(crate) mod sample;
mod subnets;
pub mod transition;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use addresses::Addresses;
pub use domain::{Change, Domain, MemberSpec, Wanted};
pub use domain::{by_rate, full_members, members, members_with, rates};
pub use error::DirectoryError;
pub use fence::{Fence, MAX_FENCE, MIN_FENCE};
pub use gateways::MAX_GATEWAYS;
pub use links::MAX_LINKS;
pub use ownership::Ownership;
use toroid_fabric::{NodeId, Torus};

use crate::ethernet::EthernetPath;
use crate::host_key::PublicKey;
use crate::link::DomainLinks;
use crate::names::is_domain_name;
use crate::nodeset::{self, Names, NodeSetError};
use crate::quota::{Amounts, Tenant};
use crate::shared_map::SharedMap;
use domains::Domains;
use moved::Moved;
use records::FORMAT;
use requests::{MadeRequest, RequestId};
use revision::{EndedTerm, Revision};

/// Default MTU of a domain in bytes.
pub const DEFAULT_MTU: u32 = 9000;

/// Smallest MTU in bytes: the minimum of IPv6.
pub const MIN_MTU: u32 = 1280;

/// Largest MTU in bytes: the limit of IPv4 less an Ethernet header.
pub const MAX_MTU: u32 = 65_521;

/// Maximum number of aliases of a node. The hosts file of every fellow member contains them.
pub const MAX_ALIASES: usize = 16;

/// All domains and aliases of a fabric.
#[derive(Clone, Debug)]
pub struct Directory {
    torus: Torus,
    domains: Domains,
    aliases: Arc<BTreeMap<String, NodeId>>,
    /// The same by node.
    names: SharedMap<(NodeId, Arc<str>), ()>,
    /// Owners and consents of nodes that differ from a free node.
    ownerships: Arc<BTreeMap<NodeId, Ownership>>,
    /// Limits of tenants.
    limits: Arc<BTreeMap<Tenant, Amounts>>,
    /// Nodes of each host, if there are several hosts.
    hosts: Arc<BTreeMap<String, BTreeSet<NodeId>>>,
    /// Host of each node in `hosts`.
    carriers: SharedMap<NodeId, Arc<str>>,
    /// Keys of each admitted host; none for a removed one.
    host_keys: Arc<BTreeMap<String, Vec<PublicKey>>>,
    /// Address of each host that has told one.
    host_addresses: Arc<BTreeMap<String, SocketAddr>>,
    /// Digest of the pre-shared key that a removed host had.
    spent_secret: Option<Arc<str>>,
    /// The next number that no domain has had; 0 when there is none.
    next_id: u16,
    /// Numbers of removed domains and their last epochs, the oldest first. The keys only order
    /// them.
    freed: SharedMap<u64, (u16, u32)>,
    /// Key in `freed` of each number there.
    freed_at: SharedMap<u16, u64>,
    /// First of the smallest candidates of the search for a free subnet, so that these are reused
    /// late.
    next_subnet: u32,
    /// Absent if no agent has led the directory.
    revision: Option<Revision>,
    /// Terms before the present one, oldest first.
    ended_terms: Arc<[EndedTerm]>,
    /// Whether some records are of a later revision.
    is_partial: bool,
    /// The last move to another place.
    moved: Option<Arc<Moved>>,
    /// Requests whose changes were made lately.
    requests: SharedMap<RequestId, Arc<MadeRequest>>,
    /// Version of the form of its records.
    format: u32,
    /// User without default limits, besides root: the user of the agent. Not a record.
    administrator: u32,
    /// Default limit of registered bytes of other users. Not a record.
    default_bytes: Option<u64>,
}

impl Directory {
    /// A directory without domains.
    pub fn new(torus: Torus) -> Self {
        Directory {
            torus,
            domains: Domains::default(),
            aliases: Arc::default(),
            names: SharedMap::default(),
            ownerships: Arc::default(),
            limits: Arc::default(),
            hosts: Arc::default(),
            carriers: SharedMap::default(),
            host_keys: Arc::default(),
            host_addresses: Arc::default(),
            spent_secret: None,
            next_id: 1,
            freed: SharedMap::default(),
            freed_at: SharedMap::default(),
            next_subnet: 0,
            revision: None,
            ended_terms: Arc::default(),
            is_partial: false,
            moved: None,
            requests: SharedMap::default(),
            format: FORMAT,
            administrator: 0,
            default_bytes: None,
        }
    }

    /// Makes a user the administrator, besides root, of a host with so much memory in bytes. Each
    /// other user may register half of it: twice as much is needed while regions move.
    pub fn administer(&mut self, uid: u32, memory: u64) {
        self.administrator = uid;
        self.default_bytes = Some(memory / 2);
    }

    /// Default limit of registered bytes of a user, if known.
    pub fn default_bytes(&self) -> Option<u64> {
        self.default_bytes
    }

    /// The administrator, besides root.
    pub fn administrator(&self) -> u32 {
        self.administrator
    }

    /// The torus.
    pub fn torus(&self) -> Torus {
        self.torus
    }

    /// All domains, in order of their names.
    pub fn domains(&self) -> impl Iterator<Item = &Domain> {
        self.domains.iter()
    }

    /// The domain with this name.
    ///
    /// # Errors
    /// [`DirectoryError::NoSuchDomain`].
    pub fn domain(&self, name: &str) -> Result<&Domain, DirectoryError> {
        let missing = || DirectoryError::NoSuchDomain(name.into());
        self.domains.get(name).ok_or_else(missing)
    }

    /// The domain with this number.
    pub fn domain_by_id(&self, id: u32) -> Option<&Domain> {
        self.domains.by_id(id)
    }

    /// The domains of which `node` is a member, in order of their names.
    pub fn domains_of(&self, node: NodeId) -> impl Iterator<Item = &Domain> {
        self.domains.of(node)
    }

    /// The nodes that are in any of `sets`.
    ///
    /// # Errors
    /// [`NodeSetError`].
    pub fn resolve(&self, sets: &[String]) -> Result<BTreeSet<NodeId>, NodeSetError> {
        nodeset::resolve(sets, self.torus, self)
    }

    /// Creates a domain.
    ///
    /// # Errors
    /// [`DirectoryError`].
    pub fn create(&mut self, wanted: Wanted) -> Result<Change, DirectoryError> {
        if !is_domain_name(&wanted.name) {
            return Err(DirectoryError::BadName(wanted.name));
        }
        if self.domains.contains(&wanted.name) {
            return Err(DirectoryError::DomainExists(wanted.name));
        }
        let mtu = wanted.mtu.unwrap_or(DEFAULT_MTU);
        if !(MIN_MTU..=MAX_MTU).contains(&mtu) {
            return Err(DirectoryError::BadMtu(mtu));
        }
        wanted.fence.map_or(Ok(()), Fence::check)?;
        let capacity = self.capacity_of(&wanted);
        if wanted.members.len() > capacity as usize {
            return Err(DirectoryError::Full {
                domain: wanted.name,
                capacity,
                members: wanted.members.len(),
            });
        }
        let subnet = match wanted.subnet {
            Some(subnet) => self.check_subnet(subnet, capacity)?,
            None => self.choose_subnet(capacity)?,
        };
        let is_indexed = self.is_indexed(subnet);
        let addresses = is_indexed.then(|| Addresses::of(wanted.members.keys().copied()));
        let (id, epoch) = self.take_id()?;
        let members = wanted.members;
        let since = |node: &NodeId| (*node, epoch);
        let domain = Domain {
            name: wanted.name,
            id,
            epoch,
            owner: wanted.owner,
            mtu,
            subnet,
            addresses,
            managers: BTreeSet::new(),
            public: wanted.public,
            forward: false,
            sealed: wanted.sealed,
            fence: wanted.fence.map(Fence::first),
            ethernet: wanted.ethernet,
            gateways: Vec::new(),
            links: DomainLinks::default(),
            since: match epoch {
                1 => BTreeMap::new(),
                // The number was that of another domain.
                _ => members.keys().map(since).collect(),
            },
            members,
        };
        self.domains.put(domain.clone());
        Ok(Change {
            joined: domain.nodes(),
            domain,
            left: BTreeSet::new(),
        })
    }

    /// Adds nodes to a domain as full members; those that are it stay so.
    ///
    /// # Errors
    /// [`DirectoryError::NoSuchDomain`], [`DirectoryError::OtherMembership`].
    pub fn grow(&mut self, name: &str, nodes: &BTreeSet<NodeId>) -> Result<Change, DirectoryError> {
        self.admit(name, nodes, MemberSpec::default())
    }

    /// Adds nodes to a domain as members of one kind. Present members of this kind stay, and keep
    /// their rates: a present member must have the rate of `spec`, if that has one.
    ///
    /// # Errors
    /// As [`Directory::grow`].
    pub fn admit(
        &mut self,
        name: &str,
        nodes: &BTreeSet<NodeId>,
        spec: MemberSpec,
    ) -> Result<Change, DirectoryError> {
        let domain = self.domain(name)?;
        type Field = (fn(&MemberSpec) -> bool, [&'static str; 2]);
        let fields: [Field; 3] = [
            (|spec| spec.limited, ["full", "limited"]),
            (|spec| spec.no_offload, ["offloading", "plain"]),
            (|spec| spec.userspace_stack, ["interface", "stack"]),
        ];
        for (field, names) in fields {
            let wanted = field(&spec);
            let others = members_with(&domain.members, |present| field(present) != wanted);
            let others = &others & nodes;
            if !others.is_empty() {
                return Err(DirectoryError::OtherMembership {
                    domain: name.into(),
                    nodes: self.places(&others),
                    present: names[usize::from(!wanted)],
                });
            }
        }
        let rate = spec.rate;
        rate.map_or(Ok(()), |rate| self.check_rate(domain, nodes, rate))?;
        let joined = nodes - &domain.nodes();
        let mut addresses = domain.addresses.clone();
        if let (Some(addresses), Some(capacity)) = (&mut addresses, domain.capacity()) {
            let admitted = addresses.admit(&joined, &domain.members, capacity);
            admitted.ok_or_else(|| DirectoryError::Full {
                domain: name.into(),
                capacity,
                members: domain.members.len() + joined.len(),
            })?;
        }
        let domain = self.change(name, |domain| {
            domain.addresses = addresses;
            let joined = || joined.iter();
            domain.members.extend(joined().map(|node| (*node, spec)));
            if domain.epoch > 1 {
                let epoch = domain.epoch;
                domain.since.extend(joined().map(|node| (*node, epoch)));
            }
        })?;
        Ok(Change {
            domain,
            joined,
            left: BTreeSet::new(),
        })
    }

    /// Takes nodes out of a domain and raises its epoch; nodes that are no members are passed
    /// over. A gateway goes with its node, and a link model of a pair with either node.
    ///
    /// # Errors
    /// [`DirectoryError::NoSuchDomain`], and [`DirectoryError::NotMembers`] when none is.
    pub fn shrink(
        &mut self,
        name: &str,
        nodes: &BTreeSet<NodeId>,
    ) -> Result<Change, DirectoryError> {
        let left = self.leavers(name, nodes)?;
        let domain = self.change(name, |domain| {
            domain.members.retain(|node, _| !left.contains(node));
            domain.since.retain(|node, _| !left.contains(node));
            if let Some(addresses) = &mut domain.addresses {
                addresses.leave(&left, domain.epoch);
            }
            domain.retain_links();
            domain
                .gateways
                .retain(|gateway| !left.contains(&gateway.node));
            domain.epoch += 1;
        })?;
        Ok(Change {
            domain,
            joined: BTreeSet::new(),
            left,
        })
    }

    /// Takes nodes out of all their domains.
    ///
    /// # Errors
    /// None: each of these domains has one of the nodes.
    pub fn leave_all(&mut self, nodes: &BTreeSet<NodeId>) -> Result<Vec<Change>, DirectoryError> {
        let has_some = |domain: &&Domain| domain.members.keys().any(|node| nodes.contains(node));
        let theirs = self.domains().filter(has_some);
        let names: Vec<String> = theirs.map(|domain| domain.name.clone()).collect();
        names.iter().map(|name| self.shrink(name, nodes)).collect()
    }

    /// Members that a shrink by `nodes` would remove.
    ///
    /// # Errors
    /// As [`Directory::shrink`].
    pub fn leavers(
        &self,
        name: &str,
        nodes: &BTreeSet<NodeId>,
    ) -> Result<BTreeSet<NodeId>, DirectoryError> {
        let left = &self.domain(name)?.nodes() & nodes;
        if !left.is_empty() {
            return Ok(left);
        }
        Err(DirectoryError::NotMembers {
            domain: name.into(),
            nodes: self.places(nodes),
        })
    }

    /// The places of nodes, for people.
    pub fn places(&self, nodes: &BTreeSet<NodeId>) -> String {
        let places = nodes.iter().filter_map(|node| self.torus.place(*node));
        let places: Vec<String> = places.map(|place| place.to_string()).collect();
        places.join(" ")
    }

    /// Removes a domain: all leave, and its name, number and subnet are free again.
    ///
    /// # Errors
    /// [`DirectoryError::NoSuchDomain`].
    pub fn remove(&mut self, name: &str) -> Result<Change, DirectoryError> {
        let missing = || DirectoryError::NoSuchDomain(name.into());
        let domain = self.domains.take(name).ok_or_else(missing)?;
        let mut domain = Arc::unwrap_or_clone(domain);
        domain.epoch += 1;
        let last = self.freed.last().map_or(0, |(order, _)| *order);
        self.free_id(last + 1, domain.id, domain.epoch);
        let names_it = |ownership: &Ownership| {
            ownership.consents.contains(name) || ownership.taken_for.as_deref() == Some(name)
        };
        let concerned = self.ownerships.iter();
        let concerned = concerned.filter(|(_, ownership)| names_it(ownership));
        let concerned: BTreeSet<NodeId> = concerned.map(|(node, _)| *node).collect();
        self.amend(&concerned, |ownership| {
            ownership.consents.remove(name);
            ownership.taken_for.take_if(|domain| domain == name);
        });
        let left = std::mem::take(&mut domain.members).into_keys().collect();
        Ok(Change {
            domain,
            joined: BTreeSet::new(),
            left,
        })
    }

    /// Lets processes of nodes grow and shrink a domain, or no longer.
    ///
    /// # Errors
    /// [`DirectoryError::NoSuchDomain`], [`DirectoryError::NotEligible`].
    pub fn manage(
        &mut self,
        name: &str,
        nodes: &BTreeSet<NodeId>,
        revoke: bool,
    ) -> Result<Domain, DirectoryError> {
        let domain = self.domain(name)?;
        let mut others = nodes - &domain.nodes();
        others.retain(|node| self.owner_of(*node) != Some(domain.owner));
        if !revoke && !others.is_empty() {
            return Err(DirectoryError::NotEligible {
                domain: name.into(),
                nodes: self.places(&others),
            });
        }
        self.change(name, |domain| {
            domain.managers = if revoke {
                &domain.managers - nodes
            } else {
                &domain.managers | nodes
            };
        })
    }

    /// Changes access, routing and owner of a domain; `None` keeps a property.
    ///
    /// # Errors
    /// [`DirectoryError::NoSuchDomain`].
    pub fn set(
        &mut self,
        name: &str,
        public: Option<bool>,
        forward: Option<bool>,
        owner: Option<u32>,
    ) -> Result<Domain, DirectoryError> {
        self.change(name, |domain| {
            domain.public = public.unwrap_or(domain.public);
            domain.forward = forward.unwrap_or(domain.forward);
            domain.owner = owner.unwrap_or(domain.owner);
        })
    }

    /// Lets members of different hosts talk over encrypted connections only, or over any.
    ///
    /// # Errors
    /// [`DirectoryError::NoSuchDomain`].
    pub fn seal(&mut self, name: &str, sealed: bool) -> Result<Domain, DirectoryError> {
        self.change(name, |domain| domain.sealed = sealed)
    }

    /// Sets the path of frames between members of one host.
    ///
    /// # Errors
    /// [`DirectoryError::NoSuchDomain`].
    pub fn set_ethernet(
        &mut self,
        name: &str,
        ethernet: EthernetPath,
    ) -> Result<Domain, DirectoryError> {
        self.change(name, |domain| domain.ethernet = ethernet)
    }

    /// Changes a domain, except for its name. Returns the domain after that.
    fn change(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut Domain),
    ) -> Result<Domain, DirectoryError> {
        let mut domain = self.domain(name)?.clone();
        change(&mut domain);
        self.domains.put(domain.clone());
        Ok(domain)
    }

    fn free_id(&mut self, order: u64, id: u16, epoch: u32) {
        self.freed.insert(order, (id, epoch));
        self.freed_at.insert(id, order);
    }

    /// A number and the epoch to begin with.
    fn take_id(&mut self) -> Result<(u16, u32), DirectoryError> {
        if self.next_id != 0 {
            let id = self.next_id;
            self.next_id = self.next_id.wrapping_add(1);
            return Ok((id, 1));
        }
        let exhausted = DirectoryError::Exhausted("numbers");
        let first = self.freed.first().map(|(order, freed)| (*order, *freed));
        let (order, (id, epoch)) = first.ok_or(exhausted)?;
        self.freed.remove(&order);
        self.freed_at.remove(&id);
        Ok((id, epoch + 1))
    }
}

impl Names for Directory {
    fn alias(&self, alias: &str) -> Option<NodeId> {
        self.aliases.get(alias).copied()
    }

    fn members(&self, domain: &str) -> Option<BTreeSet<NodeId>> {
        Some(self.domain(domain).ok()?.nodes())
    }
}

#[cfg(test)]
mod tests;
