//! Allocation and release of nodes: Kittyhawk's `acquireNodes`, with a choice of their places.
//!
//! Pure: a directory becomes another, entirely or not at all.

use std::collections::BTreeSet;

use toroid_fabric::NodeId;

use crate::directory::{Change, Directory, DirectoryError, Domain, Wanted, full_members};
use crate::placement::{self, Policy, Wish};
use crate::quota::Exceeded;
use crate::refusal::{Refusal, RefusalKind};
use crate::rights::{Actor, Denied};

/// An allocation request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request {
    /// Number of nodes.
    pub count: usize,
    /// Placement of the nodes.
    pub policy: Policy,
    /// Node to which they shall be nearest; only with [`Policy::Compact`].
    pub near: Option<NodeId>,
    /// Destination of the nodes.
    pub destination: Destination,
    /// Seed of [`Policy::Random`].
    pub seed: u64,
}

/// Destination of allocated nodes.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Destination {
    /// Into no domain yet.
    #[default]
    None,
    /// An existing domain. The placement considers its members.
    Grow(String),
    /// A new domain.
    Create(String),
}

impl Destination {
    /// The domain's name, and whether it is to be created.
    pub fn parts(&self) -> (Option<String>, bool) {
        match self {
            Destination::None => (None, false),
            Destination::Grow(name) => (Some(name.clone()), false),
            Destination::Create(name) => (Some(name.clone()), true),
        }
    }
}

/// Result of an allocation.
#[derive(Clone, Debug, PartialEq)]
pub struct Allocated {
    /// The nodes.
    pub nodes: BTreeSet<NodeId>,
    /// Change of the destination domain.
    pub change: Option<Change>,
}

/// Why nothing was taken, or given back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AllocationError {
    /// Too few are free.
    #[error("{wanted} nodes are wanted, and {free} {are} free", are = if *free == 1 { "is" } else { "are" })]
    TooFew {
        /// Requested number.
        wanted: usize,
        /// Number of free nodes.
        free: usize,
    },
    /// None were asked for.
    #[error("0 nodes cannot be allocated")]
    None,
    /// Near, but apart.
    #[error("nodes near one cannot be {0}")]
    NearAndApart(Policy),
    /// A node owns nothing: only its domain's owner does.
    #[error("a node allocates for a domain that it manages, and none was named")]
    NoDomain,
    /// Free already.
    #[error("{0} cannot be given back, because nobody has allocated it")]
    NotAllocated(String),
    /// It has no right to.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// A tenant would pass a limit.
    #[error(transparent)]
    Exceeded(#[from] Exceeded),
    /// The domain cannot take them.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
}

impl From<AllocationError> for Refusal {
    fn from(error: AllocationError) -> Self {
        use AllocationError as E;
        let (kind, remedy) = match error {
            E::Denied(denied) => return denied.into(),
            E::Exceeded(exceeded) => return exceeded.into(),
            E::Directory(error) => return error.into(),
            E::TooFew { .. } => (
                RefusalKind::Exhausted,
                "ask for fewer, or give some back with `toroid free`",
            ),
            E::None => (RefusalKind::Invalid, "ask for 1 or more"),
            E::NearAndApart(_) => (
                RefusalKind::Invalid,
                "use --place compact, or leave one of the two out",
            ),
            E::NoDomain => (RefusalKind::Invalid, "name one with --domain"),
            E::NotAllocated(_) => (RefusalKind::NotFound, "see `toroid node ls`"),
        };
        Refusal::new(kind, error.to_string(), remedy)
    }
}

impl Directory {
    /// Nodes that belong to the agent and are in no domain.
    pub fn free_nodes(&self) -> BTreeSet<NodeId> {
        let all = (0..self.torus().nodes()).map(NodeId);
        all.filter(|node| self.is_free(*node)).collect()
    }

    /// Takes free nodes, which from now on belong to the actor, or to the owner of the domain
    /// that the actor, a node, manages; and puts them where they shall go.
    ///
    /// # Errors
    /// [`AllocationError`]; the directory may then be changed and must be thrown away.
    pub fn allocate(
        &mut self,
        actor: Actor,
        request: &Request,
    ) -> Result<Allocated, AllocationError> {
        if request.count == 0 {
            return Err(AllocationError::None);
        }
        if request.near.is_some() && request.policy != Policy::Compact {
            return Err(AllocationError::NearAndApart(request.policy));
        }
        let (owner, fellows) = match (&request.destination, actor.uid()) {
            (Destination::Grow(name), uid) => {
                let domain = actor.named(self, name)?;
                // Before the nodes are looked for, which takes a while.
                actor.may_grow(self, domain, &BTreeSet::new())?;
                (uid.unwrap_or(domain.owner), domain.nodes())
            }
            (_, Some(uid)) => (uid, BTreeSet::new()),
            (_, None) => return Err(AllocationError::NoDomain),
        };
        let free = self.free_nodes();
        let wish = Wish {
            count: request.count,
            policy: request.policy,
            near: request.near,
            fellows,
            seed: request.seed,
        };
        let too_few = AllocationError::TooFew {
            wanted: request.count,
            free: free.len(),
        };
        let nodes = placement::choose(self.torus(), &free, &wish).ok_or(too_few)?;
        self.check_owned_nodes(owner, nodes.len())?;
        self.give(&nodes, Some(owner));
        if let (Destination::Grow(name), Actor::Node(_)) = (&request.destination, actor) {
            self.note_taken(&nodes, name);
        }
        if request.destination != Destination::None {
            self.check_memberships(&nodes)?;
        }
        let change = match &request.destination {
            Destination::None => None,
            Destination::Grow(name) => {
                actor.may_grow(self, self.domain(name)?, &nodes)?;
                Some(self.grow(name, &nodes)?)
            }
            Destination::Create(name) => {
                let wanted = Wanted {
                    name: name.clone(),
                    members: full_members(nodes.iter().copied()),
                    owner,
                    ..Wanted::default()
                };
                self.check_owned_domains(&wanted)?;
                Some(self.create(wanted)?)
            }
        };
        Ok(Allocated { nodes, change })
    }

    /// Whether an actor may give nodes back.
    ///
    /// # Errors
    /// [`AllocationError::NotAllocated`], and [`AllocationError::Denied`].
    pub fn check_release(
        &self,
        actor: Actor,
        nodes: &BTreeSet<NodeId>,
    ) -> Result<(), AllocationError> {
        if let Some(node) = nodes.iter().find(|node| self.owner_of(**node).is_none()) {
            let place = self.places(&[*node].into());
            return Err(AllocationError::NotAllocated(place));
        }
        match actor {
            Actor::Node(manager) => self.check_managed(manager, nodes),
            _ => Ok(actor.may_use(self, nodes)?),
        }
    }

    /// Checks that managers allocated the nodes for a domain that `manager` manages, and that they
    /// are in no domain of others.
    fn check_managed(
        &self,
        manager: NodeId,
        nodes: &BTreeSet<NodeId>,
    ) -> Result<(), AllocationError> {
        let is_ours = |node: NodeId| {
            let taken_for = self.taken_for(node).and_then(|name| self.domain(name).ok());
            let is_managed = |domain: &Domain| {
                domain.managers.contains(&manager) && self.owner_of(node) == Some(domain.owner)
            };
            taken_for.is_some_and(is_managed) && self.domains_of(node).all(is_managed)
        };
        let others: BTreeSet<NodeId> = nodes.iter().copied().filter(|n| !is_ours(*n)).collect();
        if others.is_empty() {
            Ok(())
        } else {
            Err(Denied::NodesOfOthers {
                nodes: self.places(&others),
                actor: self.places(&[manager].into()),
            }
            .into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::sample::{nodes, owned};
    use crate::quota::{Resource, Tenant};

    const ADMIN: Actor = Actor::Administrator(0);
    const ALICE: Actor = Actor::User(1000);
    const BOB: Actor = Actor::User(1001);

    /// Four nodes; `blue` of 1000 has node 0, which manages it and belongs to 1000.
    fn directory() -> Directory {
        let mut directory = Directory::new("4x1x1".parse().unwrap());
        directory.give(&nodes(&[0]), Some(1000));
        directory.create(owned("blue", 1000, &[0])).unwrap();
        directory.manage("blue", &nodes(&[0]), false).unwrap();
        directory
    }

    fn request(count: usize, destination: Destination) -> Request {
        Request {
            count,
            destination,
            ..Request::default()
        }
    }

    fn blue() -> Destination {
        Destination::Grow("blue".into())
    }

    #[test]
    fn allocated_nodes_belong_to_the_caller() {
        let mut directory = directory();
        let taken = directory.allocate(BOB, &request(2, Destination::None));
        assert_eq!(taken.unwrap().nodes, nodes(&[1, 2]));
        assert_eq!(directory.owner_of(NodeId(1)), Some(1001));
        assert_eq!(directory.free_nodes(), nodes(&[3]));
        directory.check_release(BOB, &nodes(&[1])).unwrap();
        directory.give(&nodes(&[1]), None);
        assert_eq!(directory.free_nodes(), nodes(&[1, 3]));
    }

    #[test]
    fn nodes_allocated_by_an_administrator_are_not_free() {
        let mut directory = directory();
        let taken = directory.allocate(ADMIN, &request(3, Destination::None));
        assert_eq!(taken.unwrap().nodes.len(), 3);
        assert!(directory.free_nodes().is_empty());
    }

    #[test]
    fn a_domain_grows_by_the_node_next_to_its_members() {
        let mut directory = directory();
        directory.give(&nodes(&[1]), Some(1001));
        let taken = directory.allocate(ALICE, &request(1, blue())).unwrap();
        assert_eq!(taken.nodes, nodes(&[3]), "the torus wraps around");
        let change = taken.change.unwrap();
        assert_eq!(change.joined, taken.nodes);
        assert_eq!(change.domain.nodes(), nodes(&[0, 3]));
        assert_eq!(directory.owner_of(NodeId(3)), Some(1000));
    }

    #[test]
    fn a_new_domain_belongs_to_the_caller() {
        let mut directory = directory();
        let red = Destination::Create("red".into());
        directory.allocate(BOB, &request(3, red)).unwrap();
        let red = directory.domain("red").unwrap();
        assert_eq!((red.owner, red.members.len()), (1001, 3));
    }

    #[test]
    fn a_node_takes_and_gives_for_the_domain_that_it_manages() {
        let mut directory = directory();
        let manager = Actor::Node(NodeId(0));
        let taken = directory.allocate(manager, &request(1, blue())).unwrap();
        assert_eq!(directory.owner_of(NodeId(1)), Some(1000));
        directory.check_release(manager, &taken.nodes).unwrap();
        // A node of the owner that no manager allocated.
        directory.give(&nodes(&[2]), Some(1000));
        directory.grow("blue", &nodes(&[2])).unwrap();
        let denied = directory.check_release(manager, &nodes(&[2]));
        assert!(
            matches!(denied, Err(AllocationError::Denied(_))),
            "{denied:?}"
        );
        let nowhere = directory.allocate(manager, &request(1, Destination::None));
        assert_eq!(nowhere.unwrap_err(), AllocationError::NoDomain);
        let other = directory.allocate(Actor::Node(NodeId(1)), &request(1, blue()));
        assert!(
            matches!(other, Err(AllocationError::Denied(_))),
            "{other:?}"
        );
    }

    #[test]
    fn refusals_name_kind_and_amount() {
        let said = |actor: Actor, request: &Request| {
            let error = directory().allocate(actor, request).unwrap_err();
            Refusal::from(error)
        };
        let too_many = said(BOB, &request(4, Destination::None));
        assert_eq!(too_many.kind, RefusalKind::Exhausted);
        assert_eq!(too_many.message, "4 nodes are wanted, and 3 are free");
        let none = said(BOB, &request(0, Destination::None));
        assert_eq!(none.kind, RefusalKind::Invalid);
        assert_eq!(said(BOB, &request(1, blue())).kind, RefusalKind::NotFound);
        let mut limited = directory();
        limited.limit(
            &[Tenant::User(1001)],
            &[(Resource::Domains, Some(0))].into(),
        );
        let red = Destination::Create("red".into());
        let exceeded = limited.allocate(BOB, &request(1, red)).unwrap_err();
        assert!(
            matches!(exceeded, AllocationError::Exceeded(_)),
            "{exceeded}"
        );
        let red = Destination::Grow("red".into());
        assert_eq!(said(BOB, &request(1, red)).kind, RefusalKind::NotFound);
        let exists = Destination::Create("blue".into());
        assert_eq!(said(BOB, &request(1, exists)).kind, RefusalKind::Exists);
        let apart = Request {
            near: Some(NodeId(0)),
            policy: Policy::Spread,
            ..request(1, Destination::None)
        };
        assert_eq!(said(BOB, &apart).kind, RefusalKind::Invalid);
        let free = directory().check_release(BOB, &nodes(&[2])).unwrap_err();
        assert_eq!(Refusal::from(free).kind, RefusalKind::NotFound);
        let others = directory().check_release(BOB, &nodes(&[0])).unwrap_err();
        assert_eq!(Refusal::from(others).kind, RefusalKind::Denied);
    }
}
