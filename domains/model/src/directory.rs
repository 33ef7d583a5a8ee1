//! Who is a member of what: domains, their epochs, numbers and subnets, and names of nodes.
//!
//! Pure state: nothing here does I/O or looks at the time. A change is one method call that
//! either happens entirely or not at all. A clone is cheap, because domains are shared until
//! they change: whoever makes a change durable makes it on a clone first.
//!
//! [`records`] has the form in which a store keeps it.

mod error;
mod hosts;
mod quota;
pub mod records;
pub mod transition;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use error::DirectoryError;
use serde::Serialize;
use toroid_fabric::{NodeId, Torus};

use crate::addressing::Subnet;
use crate::gateway::{Gateway, GatewayKind};
use crate::names::{is_alias, is_domain_name, is_uplink_name};
use crate::nodeset::{self, Names, NodeSetError};
use crate::quota::{Amounts, Resource, Tenant};

/// The MTU of a domain unless asked otherwise, in bytes.
pub const DEFAULT_MTU: u32 = 9000;

/// The smallest MTU in bytes: what IPv6 needs.
pub const MIN_MTU: u32 = 1280;

/// The largest MTU in bytes: what IPv4 can say, less an Ethernet header.
pub const MAX_MTU: u32 = 65_521;

/// The most further names of one node. Each is in the hosts file of every fellow member.
pub const MAX_ALIASES: usize = 16;

/// A domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Its name.
    pub name: String,
    /// Its number: not 0, unique at a time.
    pub id: u16,
    /// Grows whenever a member leaves; a reused number starts above the last.
    pub epoch: u32,
    /// The uid of its owner.
    pub owner: u32,
    /// Bytes.
    pub mtu: u32,
    /// Where its IPv4 addresses come from.
    pub subnet: Subnet,
    /// Its members.
    pub members: BTreeMap<NodeId, MemberSpec>,
    /// Nodes whose processes may grow and shrink it.
    pub managers: BTreeSet<NodeId>,
    /// Whether whoever owns a node may join with it.
    pub public: bool,
    /// Whether nodes that are in another such domain, too, may forward packets between the two, and
    /// members may announce themselves as routers.
    pub forward: bool,
    /// Where it is connected to the outside.
    pub gateway: Option<Gateway>,
    /// In which epoch members came that were not there from the first one on. Who knows the domain as
    /// it was earlier can tell that such a member has left in between.
    pub since: BTreeMap<NodeId, u32>,
}

impl Domain {
    /// Whether two members may talk to each other: one of them must be a full one.
    pub fn may_talk(&self, a: NodeId, b: NodeId) -> bool {
        match (self.members.get(&a), self.members.get(&b)) {
            (Some(of_a), Some(of_b)) => a == b || !(of_a.limited && of_b.limited),
            _ => false,
        }
    }

    /// The kind of a member; of another node, that of a full member.
    pub fn spec(&self, node: NodeId) -> MemberSpec {
        self.members.get(&node).copied().unwrap_or_default()
    }

    /// Its members.
    pub fn nodes(&self) -> BTreeSet<NodeId> {
        self.members.keys().copied().collect()
    }
}

/// Kind of a membership. By default: a full member, with offloads, with an interface of the kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MemberSpec {
    /// The member communicates with full members only.
    pub limited: bool,
    /// The interface passes no GSO packets and no partial checksums.
    #[serde(rename = "plain", skip_serializing_if = "std::ops::Not::not")]
    pub no_offload: bool,
    /// The member has no interface of the kernel: one process of the node may have the link, with
    /// an IP stack of its own.
    #[serde(rename = "stack", skip_serializing_if = "std::ops::Not::not")]
    pub userspace_stack: bool,
}

/// A membership change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The domain after it.
    pub domain: Domain,
    /// Who was no member before.
    pub joined: BTreeSet<NodeId>,
    /// Who is no member any more.
    pub left: BTreeSet<NodeId>,
}

/// What a new domain shall be.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Its name.
    pub name: String,
    /// Its first members.
    pub members: BTreeMap<NodeId, MemberSpec>,
    /// Its subnet, chosen when absent.
    pub subnet: Option<Subnet>,
    /// Bytes, [`DEFAULT_MTU`] when absent.
    pub mtu: Option<u32>,
    /// The uid of its owner.
    pub owner: u32,
    /// Whether whoever owns a node may join with it.
    pub public: bool,
}

/// Members out of sets: full members, and those to which each field of [`MemberSpec`] applies.
pub fn members<K: Copy + Ord>(
    full: &BTreeSet<K>,
    limited: &BTreeSet<K>,
    no_offload: &BTreeSet<K>,
    userspace_stack: &BTreeSet<K>,
) -> BTreeMap<K, MemberSpec> {
    let all = [full, limited, no_offload, userspace_stack]
        .into_iter()
        .flatten();
    let spec = |node: &K| MemberSpec {
        limited: limited.contains(node),
        no_offload: no_offload.contains(node),
        userspace_stack: userspace_stack.contains(node),
    };
    all.map(|node| (*node, spec(node))).collect()
}

/// Full members.
pub fn full_members<K: Ord>(nodes: impl IntoIterator<Item = K>) -> BTreeMap<K, MemberSpec> {
    let member = |node| (node, MemberSpec::default());
    nodes.into_iter().map(member).collect()
}

/// The members of one kind.
pub fn members_with<K: Copy + Ord>(
    members: &BTreeMap<K, MemberSpec>,
    is_wanted: impl Fn(&MemberSpec) -> bool,
) -> BTreeSet<K> {
    let wanted = members.iter().filter(|(_, spec)| is_wanted(spec));
    wanted.map(|(node, _)| *node).collect()
}

/// To whom a node belongs, and in which domains its owner lets others place it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ownership {
    /// The uid of its owner; `None` for a free node, which belongs to the agent.
    pub owner: Option<u32>,
    /// Names of domains.
    pub consents: BTreeSet<String>,
    /// The domain whose manager has taken it, and may give it back.
    pub taken_for: Option<String>,
}

/// All domains and aliases of a fabric.
#[derive(Clone, Debug)]
pub struct Directory {
    torus: Torus,
    domains: BTreeMap<String, Arc<Domain>>,
    aliases: Arc<BTreeMap<String, NodeId>>,
    /// Of nodes that are not simply free.
    ownerships: Arc<BTreeMap<NodeId, Ownership>>,
    /// Of those who have limits.
    limits: Arc<BTreeMap<Tenant, Amounts>>,
    /// Which nodes are carried by which host, where there are several.
    hosts: Arc<BTreeMap<String, BTreeSet<NodeId>>>,
    /// The next number that no domain has had; 0 when there is none.
    next_id: u16,
    /// Numbers of removed domains and their last epochs, the oldest first. The keys only order
    /// them.
    freed: Arc<BTreeMap<u64, (u16, u32)>>,
    /// Where the search for a free subnet begins, so that subnets are reused late.
    next_subnet: u32,
    /// The user who, besides root, has no default limits. It is that of the agent, and no record.
    administrator: u32,
    /// How many bytes others may register unless a limit says otherwise; no record either.
    default_bytes: Option<u64>,
}

impl Directory {
    /// A directory without domains.
    pub fn new(torus: Torus) -> Self {
        Directory {
            torus,
            domains: BTreeMap::new(),
            aliases: Arc::default(),
            ownerships: Arc::default(),
            limits: Arc::default(),
            hosts: Arc::default(),
            next_id: 1,
            freed: Arc::default(),
            next_subnet: 0,
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

    /// How many bytes users may register who have no limit, if that is known.
    pub fn default_bytes(&self) -> Option<u64> {
        self.default_bytes
    }

    /// Who administers it, besides root.
    pub fn administrator(&self) -> u32 {
        self.administrator
    }

    /// The torus.
    pub fn torus(&self) -> Torus {
        self.torus
    }

    /// All domains, in order of their names.
    pub fn domains(&self) -> impl Iterator<Item = &Domain> {
        self.domains.values().map(Arc::as_ref)
    }

    /// The domain with this name.
    ///
    /// # Errors
    /// [`DirectoryError::NoSuchDomain`].
    pub fn domain(&self, name: &str) -> Result<&Domain, DirectoryError> {
        let missing = || DirectoryError::NoSuchDomain(name.into());
        self.domains.get(name).map(Arc::as_ref).ok_or_else(missing)
    }

    /// The domain with this number.
    pub fn domain_by_id(&self, id: u32) -> Option<&Domain> {
        self.domains().find(|domain| u32::from(domain.id) == id)
    }

    /// The domains of which `node` is a member, in order of their names.
    pub fn domains_of(&self, node: NodeId) -> impl Iterator<Item = &Domain> {
        self.domains()
            .filter(move |domain| domain.members.contains_key(&node))
    }

    /// The aliases of `node`, in order.
    pub fn aliases_of(&self, node: NodeId) -> impl Iterator<Item = &str> {
        let its = move |entry: &(&String, &NodeId)| *entry.1 == node;
        self.aliases
            .iter()
            .filter(its)
            .map(|(alias, _)| alias.as_str())
    }

    /// The nodes that are in any of `sets`.
    ///
    /// # Errors
    /// [`NodeSetError`].
    pub fn resolve(&self, sets: &[String]) -> Result<BTreeSet<NodeId>, NodeSetError> {
        nodeset::resolve(sets, self.torus, self)
    }

    /// Gives a node a further name, unless it has it already.
    ///
    /// # Errors
    /// [`DirectoryError::BadAlias`], [`DirectoryError::AliasExists`] and
    /// [`DirectoryError::TooManyAliases`].
    pub fn add_alias(&mut self, node: NodeId, alias: &str) -> Result<(), DirectoryError> {
        if !is_alias(alias) {
            return Err(DirectoryError::BadAlias(alias.into()));
        }
        if !self.aliases.contains_key(alias) && self.aliases_of(node).count() >= MAX_ALIASES {
            return Err(DirectoryError::TooManyAliases(self.places(&[node].into())));
        }
        let aliases = Arc::make_mut(&mut self.aliases);
        let owner = *aliases.entry(alias.into()).or_insert(node);
        match self.torus.place(owner) {
            Some(place) if owner != node => Err(DirectoryError::AliasExists {
                alias: alias.into(),
                place,
            }),
            _ => Ok(()),
        }
    }

    /// Takes a name from its node, which it returns.
    ///
    /// # Errors
    /// [`DirectoryError::NoSuchAlias`].
    pub fn remove_alias(&mut self, alias: &str) -> Result<NodeId, DirectoryError> {
        let removed = Arc::make_mut(&mut self.aliases).remove(alias);
        removed.ok_or_else(|| DirectoryError::NoSuchAlias(alias.into()))
    }

    /// Creates a domain.
    ///
    /// # Errors
    /// [`DirectoryError`].
    pub fn create(&mut self, wanted: Wanted) -> Result<Change, DirectoryError> {
        if !is_domain_name(&wanted.name) {
            return Err(DirectoryError::BadName(wanted.name));
        }
        if self.domains.contains_key(&wanted.name) {
            return Err(DirectoryError::DomainExists(wanted.name));
        }
        let mtu = wanted.mtu.unwrap_or(DEFAULT_MTU);
        if !(MIN_MTU..=MAX_MTU).contains(&mtu) {
            return Err(DirectoryError::BadMtu(mtu));
        }
        let subnet = match wanted.subnet {
            Some(subnet) => self.check_subnet(subnet)?,
            None => self.choose_subnet()?,
        };
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
            managers: BTreeSet::new(),
            public: wanted.public,
            forward: false,
            gateway: None,
            since: match epoch {
                1 => BTreeMap::new(),
                // Its number was another domain's.
                _ => members.keys().map(since).collect(),
            },
            members,
        };
        let shared = Arc::new(domain.clone());
        self.domains.insert(domain.name.clone(), shared);
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

    /// Adds nodes to a domain as members of one kind. Members of this kind stay members.
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
        let domain = self.domain_mut(name)?;
        let joined = nodes - &domain.nodes();
        domain
            .members
            .extend(joined.iter().map(|node| (*node, spec)));
        if domain.epoch > 1 {
            let epoch = domain.epoch;
            domain
                .since
                .extend(joined.iter().map(|node| (*node, epoch)));
        }
        Ok(Change {
            domain: domain.clone(),
            joined,
            left: BTreeSet::new(),
        })
    }

    /// Takes nodes out of a domain and raises its epoch; nodes that are no members are passed
    /// over. A gateway goes with its node.
    ///
    /// # Errors
    /// [`DirectoryError::NoSuchDomain`], and [`DirectoryError::NotMembers`] when none is.
    pub fn shrink(
        &mut self,
        name: &str,
        nodes: &BTreeSet<NodeId>,
    ) -> Result<Change, DirectoryError> {
        let left = self.leavers(name, nodes)?;
        let domain = self.domain_mut(name)?;
        domain.members.retain(|node, _| !left.contains(node));
        domain.since.retain(|node, _| !left.contains(node));
        domain
            .gateway
            .take_if(|gateway| left.contains(&gateway.node));
        domain.epoch += 1;
        Ok(Change {
            domain: domain.clone(),
            joined: BTreeSet::new(),
            left,
        })
    }

    /// Which nodes a shrink by `nodes` would take out.
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
        let domain = self.domains.remove(name).ok_or_else(missing)?;
        let mut domain = Arc::unwrap_or_clone(domain);
        domain.epoch += 1;
        let freed = Arc::make_mut(&mut self.freed);
        let last = freed.last_key_value().map_or(0, |(order, _)| *order);
        freed.insert(last + 1, (domain.id, domain.epoch));
        let everywhere: BTreeSet<NodeId> = self.ownerships.keys().copied().collect();
        self.amend(&everywhere, |ownership| {
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

    /// To whom a node belongs; `None` for a free node, which belongs to the agent.
    pub fn owner_of(&self, node: NodeId) -> Option<u32> {
        self.ownerships.get(&node)?.owner
    }

    /// The nodes of a user, in order.
    pub fn nodes_of(&self, owner: u32) -> impl Iterator<Item = NodeId> {
        let its = self.ownerships.iter();
        its.filter(move |(_, ownership)| ownership.owner == Some(owner))
            .map(|(node, _)| *node)
    }

    /// Whether a node belongs to nobody but the agent, and is in no domain. One that no host carries
    /// is not there.
    pub fn is_free(&self, node: NodeId) -> bool {
        let is_nobodys = self.owner_of(node).is_none() && self.domains_of(node).next().is_none();
        is_nobodys && self.is_carried(node)
    }

    /// Whether the owner of a node lets others place it in a domain.
    pub fn has_consented(&self, node: NodeId, domain: &str) -> bool {
        let ownership = self.ownerships.get(&node);
        ownership.is_some_and(|ownership| ownership.consents.contains(domain))
    }

    /// The domains in which the owner of a node lets others place it, in order.
    pub fn consents_of(&self, node: NodeId) -> impl Iterator<Item = &str> {
        let ownership = self.ownerships.get(&node);
        let consents = ownership.into_iter().flat_map(|o| &o.consents);
        consents.map(String::as_str)
    }

    /// Gives nodes to a user, or back to the agent. What their owners before had consented to
    /// is void, what they managed they manage no longer, and their further names are gone: whoever
    /// gets a node gets nobody's rights with it. In the domains in which they are they stay.
    pub fn give(&mut self, nodes: &BTreeSet<NodeId>, owner: Option<u32>) {
        let mut given = nodes.clone();
        given.retain(|node| self.owner_of(*node) != owner);
        self.amend(&given, |ownership| {
            *ownership = Ownership {
                owner,
                ..Ownership::default()
            };
        });
        if self.aliases.values().any(|node| given.contains(node)) {
            Arc::make_mut(&mut self.aliases).retain(|_, node| !given.contains(node));
        }
        for domain in self.domains.values_mut() {
            if !domain.managers.is_disjoint(&given) {
                let domain = Arc::make_mut(domain);
                domain.managers = &domain.managers - &given;
            }
        }
    }

    /// Notes that nodes were taken for a domain by one of its managers.
    pub fn note_taken(&mut self, nodes: &BTreeSet<NodeId>, domain: &str) {
        self.amend(nodes, |ownership| ownership.taken_for = Some(domain.into()));
    }

    /// The domain for which one of its managers took a node.
    pub fn taken_for(&self, node: NodeId) -> Option<&str> {
        self.ownerships.get(&node)?.taken_for.as_deref()
    }

    /// Notes that the owners of nodes let others place them in a domain, or no longer.
    ///
    /// # Errors
    /// [`DirectoryError::NoSuchDomain`].
    pub fn consent(
        &mut self,
        nodes: &BTreeSet<NodeId>,
        domain: &str,
        withdraw: bool,
    ) -> Result<(), DirectoryError> {
        self.domain(domain)?;
        self.amend(nodes, |ownership| {
            if withdraw {
                ownership.consents.remove(domain)
            } else {
                ownership.consents.insert(domain.into())
            };
        });
        Ok(())
    }

    fn amend(&mut self, nodes: &BTreeSet<NodeId>, change: impl Fn(&mut Ownership)) {
        if nodes.is_empty() {
            return;
        }
        let ownerships = Arc::make_mut(&mut self.ownerships);
        for node in nodes {
            change(ownerships.entry(*node).or_default());
        }
        ownerships.retain(|_, ownership| *ownership != Ownership::default());
    }

    /// How much a tenant may have.
    pub fn limits_of(&self, tenant: Tenant) -> Amounts {
        self.limits.get(&tenant).cloned().unwrap_or_default()
    }

    /// The tenants that have limits, in order.
    pub fn limited_tenants(&self) -> impl Iterator<Item = Tenant> {
        self.limits.keys().copied()
    }

    /// Sets or lifts limits of tenants; those that are not named stay as they are.
    pub fn limit(&mut self, tenants: &[Tenant], limits: &BTreeMap<Resource, Option<u64>>) {
        let all = Arc::make_mut(&mut self.limits);
        for tenant in tenants {
            let amounts = all.entry(*tenant).or_default();
            for (resource, limit) in limits {
                match limit {
                    Some(limit) => amounts.insert(*resource, *limit),
                    None => amounts.remove(resource),
                };
            }
        }
        all.retain(|_, amounts| !amounts.is_empty());
    }

    /// Lets processes of nodes grow and shrink a domain, or no longer.
    ///
    /// # Errors
    /// [`DirectoryError::NoSuchDomain`], [`DirectoryError::Strangers`].
    pub fn manage(
        &mut self,
        name: &str,
        nodes: &BTreeSet<NodeId>,
        revoke: bool,
    ) -> Result<Domain, DirectoryError> {
        let domain = self.domain(name)?;
        let mut strangers = nodes - &domain.nodes();
        strangers.retain(|node| self.owner_of(*node) != Some(domain.owner));
        if !revoke && !strangers.is_empty() {
            return Err(DirectoryError::Strangers {
                domain: name.into(),
                nodes: self.places(&strangers),
            });
        }
        let domain = self.domain_mut(name)?;
        domain.managers = if revoke {
            &domain.managers - nodes
        } else {
            &domain.managers | nodes
        };
        Ok(domain.clone())
    }

    /// Changes whether a domain is public, whether it has routers, and whose it is; what is `None` stays.
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
        let domain = self.domain_mut(name)?;
        domain.public = public.unwrap_or(domain.public);
        domain.forward = forward.unwrap_or(domain.forward);
        domain.owner = owner.unwrap_or(domain.owner);
        Ok(domain.clone())
    }

    /// Connects a domain to the outside.
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
        if let Some(present) = &domain.gateway {
            return Err(DirectoryError::HasGateway {
                domain: name.into(),
                node: self.places(&[present.node].into()),
                uplink: present.uplink.clone(),
            });
        }
        for other in self.domains() {
            let Some(present) = &other.gateway else {
                continue;
            };
            // Two bridges would make one Ethernet of two domains.
            if present.uplink == *uplink {
                return Err(DirectoryError::UplinkTaken {
                    uplink: uplink.clone(),
                    domain: other.name.clone(),
                });
            }
            // A kernel has one way out.
            let nat = GatewayKind::Nat;
            if present.node == *node && present.kind == nat && *kind == nat {
                return Err(DirectoryError::RoutesAlready {
                    node: self.places(&[*node].into()),
                    domain: other.name.clone(),
                });
            }
        }
        let domain = self.domain_mut(name)?;
        domain.gateway = Some(gateway);
        Ok(domain.clone())
    }

    /// Ends a domain's connection to the outside, if it is at this node.
    ///
    /// # Errors
    /// [`DirectoryError::NoSuchDomain`], [`DirectoryError::NoGateway`].
    pub fn remove_gateway(&mut self, name: &str, node: NodeId) -> Result<Domain, DirectoryError> {
        let missing = DirectoryError::NoGateway {
            domain: name.into(),
            node: self.places(&[node].into()),
        };
        let domain = self.domain_mut(name)?;
        match domain.gateway.take_if(|gateway| gateway.node == node) {
            Some(_) => Ok(domain.clone()),
            None => Err(missing),
        }
    }

    fn domain_mut(&mut self, name: &str) -> Result<&mut Domain, DirectoryError> {
        let missing = || DirectoryError::NoSuchDomain(name.into());
        self.domains
            .get_mut(name)
            .map(Arc::make_mut)
            .ok_or_else(missing)
    }

    /// A number and the epoch to begin with.
    fn take_id(&mut self) -> Result<(u16, u32), DirectoryError> {
        if self.next_id != 0 {
            let id = self.next_id;
            self.next_id = self.next_id.wrapping_add(1);
            return Ok((id, 1));
        }
        let exhausted = DirectoryError::Exhausted("numbers");
        let freed = Arc::make_mut(&mut self.freed);
        let (_, (id, epoch)) = freed.pop_first().ok_or(exhausted)?;
        Ok((id, epoch + 1))
    }

    fn check_subnet(&self, subnet: Subnet) -> Result<Subnet, DirectoryError> {
        subnet.check_for(self.torus)?;
        match self.who_has(subnet) {
            None => Ok(subnet),
            Some(other) => Err(DirectoryError::SubnetTaken {
                subnet,
                taken: other.subnet,
                domain: other.name.clone(),
            }),
        }
    }

    fn choose_subnet(&mut self) -> Result<Subnet, DirectoryError> {
        let count = Subnet::candidates(self.torus);
        let mut turn = (self.next_subnet..count).chain(0..self.next_subnet);
        let candidate = |n| Subnet::candidate(self.torus, n);
        let free = turn.find(|n| self.who_has(candidate(*n)).is_none());
        let n = free.ok_or(DirectoryError::Exhausted("subnets"))?;
        let subnet = candidate(n);
        self.next_subnet = (n + 1) % count;
        Ok(subnet)
    }

    fn who_has(&self, subnet: Subnet) -> Option<&Domain> {
        self.domains()
            .find(|domain| domain.subnet.overlaps(&subnet))
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
