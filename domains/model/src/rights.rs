//! Rights to change domains and nodes. Pure: an actor and a directory go in, a verdict comes out.
//!
//! | | administrator | owner of the domain | owner of the node | manager of the domain |
//! |---|---|---|---|---|
//! | create a domain with a node | yes | | yes | |
//! | grow a domain by a node | yes | if its owner has consented | if the domain is public | free nodes, and as its owner |
//! | shrink a domain by a node | yes | yes | yes | yes |
//! | remove a domain, change its rights | yes | yes | | |
//! | run commands in a node, name it, consent | yes | | yes | |
//! | give nodes away, set quotas, end the agent | yes | | | |
//!
//! A manager is a node: processes of any user in the node act for it, never as administrators.

use std::collections::BTreeSet;
use std::fmt;

use toroid_fabric::NodeId;

use crate::addressing::Subnet;
use crate::directory::{Directory, DirectoryError, Domain};
use crate::nodeset::{self, Names, NodeSetError};
use crate::refusal::{Refusal, RefusalKind};

/// The shortest prefix of the subnet of a domain, except for administrators.
pub const SHORTEST_PREFIX: u8 = 16;

/// Origin of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Actor {
    /// Root, or the user of the agent.
    Administrator(u32),
    /// Another user of the host.
    User(u32),
    /// A process in a node.
    Node(NodeId),
}

/// Why not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Denied {
    /// Only the owner of the domain may.
    #[error("domain {domain} belongs to uid {owner}, not to {actor}")]
    DomainOfAnother {
        /// The domain.
        domain: String,
        /// Uid of its owner.
        owner: u32,
        /// Caller.
        actor: String,
    },
    /// Only the owners of the nodes may.
    #[error("{nodes} {are} not {actor}'s", are = are(nodes))]
    NodesOfOthers {
        /// The nodes.
        nodes: String,
        /// Caller.
        actor: String,
    },
    /// Only with the consent of the nodes' owners.
    #[error("{nodes} {are} not {actor}'s, and {owners} not consented to domain {domain}", are = are(nodes), owners = if several(nodes) { "their owners have" } else { "its owner has" })]
    NoConsent {
        /// The nodes.
        nodes: String,
        /// The domain.
        domain: String,
        /// Caller.
        actor: String,
    },
    /// The node is no manager of the domain.
    #[error("{node} does not manage domain {domain}")]
    NoManager {
        /// The node's place.
        node: String,
        /// The domain.
        domain: String,
    },
    /// Only an administrator may have so many.
    #[error("{subnet} has more addresses than {actor}, who is no administrator, may take")]
    TooManyAddresses {
        /// Caller.
        actor: String,
        /// Requested subnet.
        subnet: Subnet,
    },
    /// Only an administrator may.
    #[error("{actor} is no administrator of this agent, who alone may {what}")]
    NotAdministrator {
        /// Caller.
        actor: String,
        /// Refused action, as a verb and its object.
        what: &'static str,
    },
}

fn several(nodes: &str) -> bool {
    nodes.contains(' ')
}

fn are(nodes: &str) -> &'static str {
    if several(nodes) { "are" } else { "is" }
}

impl From<Denied> for Refusal {
    fn from(denied: Denied) -> Self {
        let remedy = match &denied {
            Denied::DomainOfAnother { .. } => "ask its owner or an administrator".into(),
            Denied::NodesOfOthers { .. } => {
                "ask an administrator for them (`toroid node chown`)".into()
            }
            Denied::NoConsent { nodes, domain, .. } => {
                let owners = if several(nodes) {
                    "their owners"
                } else {
                    "its owner"
                };
                format!("let {owners} run `toroid node consent {nodes} -d {domain}`")
            }
            Denied::NoManager { node, domain } => {
                format!("let the domain's owner run `toroid domain manage {domain} {node}`")
            }
            Denied::TooManyAddresses { .. } => {
                format!("choose a prefix of {SHORTEST_PREFIX} or more, or leave --subnet out")
            }
            Denied::NotAdministrator { .. } => {
                "use sudo, or start an agent of your own with `toroid up`".into()
            }
        };
        Refusal::new(RefusalKind::Denied, denied.to_string(), remedy)
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Actor::Administrator(uid) | Actor::User(uid) => write!(f, "uid {uid}"),
            Actor::Node(node) => write!(f, "{node}"),
        }
    }
}

impl Actor {
    /// Whether it may create a domain with these nodes.
    ///
    /// # Errors
    /// [`Denied`], as for all that follow.
    pub fn may_create(
        &self,
        directory: &Directory,
        nodes: &BTreeSet<NodeId>,
    ) -> Result<(), Denied> {
        match self {
            Actor::Node(_) => self.may_administer("create domains"),
            _ => self.may_use(directory, nodes),
        }
    }

    /// Whether it may add nodes to a domain. Present members need no right.
    pub fn may_grow(
        &self,
        directory: &Directory,
        domain: &Domain,
        nodes: &BTreeSet<NodeId>,
    ) -> Result<(), Denied> {
        let new = nodes - &domain.nodes();
        let consented = |node: NodeId| directory.has_consented(node, &domain.name);
        let lacking: BTreeSet<NodeId> = match *self {
            Actor::Administrator(_) => return Ok(()),
            Actor::User(uid) if domain.owner == uid => {
                let may = |node| directory.owner_of(node) == Some(uid) || consented(node);
                new.into_iter().filter(|node| !may(*node)).collect()
            }
            Actor::User(_) if domain.public => return self.may_use(directory, &new),
            Actor::User(_) => return Err(self.not_of(domain)),
            Actor::Node(node) => {
                manages(directory, domain, node)?;
                let may = |node| {
                    let owner = directory.owner_of(node);
                    directory.is_free(node) || owner == Some(domain.owner) || consented(node)
                };
                new.into_iter().filter(|node| !may(*node)).collect()
            }
        };
        if lacking.is_empty() {
            Ok(())
        } else {
            Err(Denied::NoConsent {
                nodes: directory.places(&lacking),
                domain: domain.name.clone(),
                actor: self.to_string(),
            })
        }
    }

    /// Whether it may remove nodes from a domain. Other nodes than members need no right.
    pub fn may_shrink(
        &self,
        directory: &Directory,
        domain: &Domain,
        nodes: &BTreeSet<NodeId>,
    ) -> Result<(), Denied> {
        let leaving = nodes & &domain.nodes();
        match *self {
            Actor::Administrator(_) => Ok(()),
            Actor::User(uid) if domain.owner == uid => Ok(()),
            Actor::User(uid) => {
                let its = |node: &NodeId| directory.owner_of(*node) == Some(uid);
                if leaving.iter().all(its) {
                    Ok(())
                } else {
                    Err(self.not_of(domain))
                }
            }
            Actor::Node(node) => manages(directory, domain, node),
        }
    }

    /// Whether it may remove a domain and change rights in it.
    pub fn may_own(&self, directory: &Directory, domain: &Domain) -> Result<(), Denied> {
        match *self {
            Actor::Administrator(_) => Ok(()),
            Actor::User(uid) if domain.owner == uid => Ok(()),
            Actor::User(_) => Err(self.not_of(domain)),
            Actor::Node(node) => {
                manages(directory, domain, node)?;
                Err(self.not_of(domain))
            }
        }
    }

    /// Whether it may run commands in nodes, name them, and consent for them.
    pub fn may_use(&self, directory: &Directory, nodes: &BTreeSet<NodeId>) -> Result<(), Denied> {
        let its = |node: &&NodeId| match *self {
            Actor::Administrator(_) => true,
            Actor::User(uid) => directory.owner_of(**node) == Some(uid),
            Actor::Node(_) => false,
        };
        let others: BTreeSet<NodeId> = nodes.iter().filter(|n| !its(n)).copied().collect();
        if others.is_empty() {
            Ok(())
        } else {
            Err(Denied::NodesOfOthers {
                nodes: directory.places(&others),
                actor: self.to_string(),
            })
        }
    }

    /// Whether it may have a domain with this subnet. Others want addresses, too.
    pub fn may_address(&self, subnet: Subnet) -> Result<(), Denied> {
        match self {
            Actor::Administrator(_) => Ok(()),
            _ if subnet.prefix() >= SHORTEST_PREFIX => Ok(()),
            _ => Err(Denied::TooManyAddresses {
                actor: self.to_string(),
                subnet,
            }),
        }
    }

    /// Whether it has the rights of an administrator, to do `what`.
    pub fn may_administer(&self, what: &'static str) -> Result<(), Denied> {
        match self {
            Actor::Administrator(_) => Ok(()),
            _ => Err(Denied::NotAdministrator {
                actor: self.to_string(),
                what,
            }),
        }
    }

    /// Uid of a user; a node is denied `what`.
    ///
    /// # Errors
    /// [`Denied`].
    pub fn must_be_user(&self, what: &'static str) -> Result<u32, Denied> {
        self.uid().ok_or_else(|| Denied::NotAdministrator {
            actor: self.to_string(),
            what,
        })
    }

    /// Whether it sees a domain. A user sees its own domains, public ones, and those of its nodes;
    /// a node sees domains of which it is a member or a manager.
    pub fn sees(&self, directory: &Directory, domain: &Domain) -> bool {
        match *self {
            Actor::Administrator(_) => true,
            Actor::User(uid) => {
                let its = |node: &NodeId| directory.owner_of(*node) == Some(uid);
                domain.public || domain.owner == uid || domain.members.keys().any(its)
            }
            Actor::Node(node) => {
                domain.members.contains_key(&node) || domain.managers.contains(&node)
            }
        }
    }

    /// Domain of a request, if the actor sees it.
    ///
    /// # Errors
    /// [`DirectoryError::NoSuchDomain`].
    pub fn named<'d>(
        &self,
        directory: &'d Directory,
        name: &str,
    ) -> Result<&'d Domain, DirectoryError> {
        let domain = directory.domain(name)?;
        if self.sees(directory, domain) {
            Ok(domain)
        } else {
            Err(DirectoryError::NoSuchDomain(name.into()))
        }
    }

    /// Takes the name of a domain that the actor does not see out of an error.
    pub fn may_read(&self, directory: &Directory, error: DirectoryError) -> DirectoryError {
        match error {
            DirectoryError::SubnetTaken { subnet, domain, .. }
                if self.named(directory, &domain).is_err() =>
            {
                DirectoryError::SubnetInUse(subnet)
            }
            error => error,
        }
    }

    /// Whether it sees aliases and owner of a node: of its own, and of members of domains that it
    /// sees.
    pub fn knows(&self, directory: &Directory, node: NodeId) -> bool {
        let mut domains = directory.domains_of(node);
        self.has(directory, node) || domains.any(|domain| self.sees(directory, domain))
    }

    /// Whether a node is the actor's: of an administrator all are.
    pub fn has(&self, directory: &Directory, node: NodeId) -> bool {
        match *self {
            Actor::Administrator(_) => true,
            Actor::User(uid) => directory.owner_of(node) == Some(uid),
            Actor::Node(itself) => itself == node,
        }
    }

    /// The nodes that are in any of `sets`. Domains that the actor does not see are none.
    ///
    /// # Errors
    /// [`NodeSetError`].
    pub fn resolve(
        &self,
        directory: &Directory,
        sets: &[String],
    ) -> Result<BTreeSet<NodeId>, NodeSetError> {
        let seen = Seen {
            actor: *self,
            directory,
        };
        nodeset::resolve(sets, directory.torus(), &seen)
    }

    /// Uid, for a user.
    pub fn uid(&self) -> Option<u32> {
        match *self {
            Actor::Administrator(uid) | Actor::User(uid) => Some(uid),
            Actor::Node(_) => None,
        }
    }

    /// Denial of a request that only the owner of a domain may make.
    pub fn not_of(&self, domain: &Domain) -> Denied {
        Denied::DomainOfAnother {
            domain: domain.name.clone(),
            owner: domain.owner,
            actor: self.to_string(),
        }
    }
}

/// Names that an actor may use.
struct Seen<'a> {
    actor: Actor,
    directory: &'a Directory,
}

impl Names for Seen<'_> {
    fn alias(&self, alias: &str) -> Option<NodeId> {
        self.directory.alias(alias)
    }

    fn members(&self, domain: &str) -> Option<BTreeSet<NodeId>> {
        let domain = self.directory.domain(domain).ok()?;
        let is_seen = self.actor.sees(self.directory, domain);
        is_seen.then(|| domain.nodes())
    }
}

fn manages(directory: &Directory, domain: &Domain, node: NodeId) -> Result<(), Denied> {
    if domain.managers.contains(&node) {
        Ok(())
    } else {
        Err(Denied::NoManager {
            node: directory.places(&[node].into()),
            domain: domain.name.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::sample::{nodes, owned};

    const ADMIN: Actor = Actor::Administrator(0);
    const OWNER: Actor = Actor::User(1000);
    const OTHER: Actor = Actor::User(1001);
    const MANAGER: Actor = Actor::Node(NodeId(0));
    const MEMBER: Actor = Actor::Node(NodeId(1));

    /// `blue` of 1000 has its nodes 0 and 1, and 4 of 1001; 2 is 1000's, 5 is 1001's, 6 is 1001's
    /// and has its consent, 3 and 7 are free, but 7 is in `grey` of root.
    fn directory() -> Directory {
        let mut directory = Directory::new("2x2x2".parse().unwrap());
        directory.give(&nodes(&[0, 1, 2]), Some(1000));
        directory.give(&nodes(&[4, 5, 6]), Some(1001));
        for (name, members, owner) in [("blue", &[0, 1, 4][..], 1000), ("grey", &[7], 0)] {
            directory.create(owned(name, owner, members)).unwrap();
        }
        directory.consent(&nodes(&[6]), "blue", false).unwrap();
        directory.manage("blue", &nodes(&[0]), false).unwrap();
        directory
    }

    /// The nodes by which an actor may grow `blue`.
    fn grows(directory: &Directory, actor: Actor) -> Vec<u32> {
        let blue = directory.domain("blue").unwrap();
        let may = |n: &u32| actor.may_grow(directory, blue, &nodes(&[*n])).is_ok();
        (0..8).filter(may).collect()
    }

    fn shrinks(directory: &Directory, actor: Actor) -> Vec<u32> {
        let blue = directory.domain("blue").unwrap();
        let may = |n: &u32| actor.may_shrink(directory, blue, &nodes(&[*n])).is_ok();
        [0, 1, 4].into_iter().filter(may).collect()
    }

    #[test]
    fn growing_needs_the_domain_and_the_node() {
        let mut directory = directory();
        assert_eq!(grows(&directory, ADMIN), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(grows(&directory, OWNER), [0, 1, 2, 4, 6]);
        assert_eq!(grows(&directory, OTHER), [0_u32; 0]);
        assert_eq!(grows(&directory, MANAGER), [0, 1, 2, 3, 4, 6]);
        assert_eq!(grows(&directory, MEMBER), [0_u32; 0]);
        directory.set("blue", Some(true), None, None).unwrap();
        assert_eq!(grows(&directory, OTHER), [0, 1, 4, 5, 6]);
        directory.consent(&nodes(&[6]), "blue", true).unwrap();
        assert_eq!(grows(&directory, OWNER), [0, 1, 2, 4]);
    }

    #[test]
    fn the_owner_of_a_node_may_always_remove_it() {
        let directory = directory();
        for (actor, expected) in [
            (ADMIN, &[0, 1, 4][..]),
            (OWNER, &[0, 1, 4]),
            (OTHER, &[4]),
            (Actor::User(1002), &[]),
            (MANAGER, &[0, 1, 4]),
            (MEMBER, &[]),
        ] {
            assert_eq!(shrinks(&directory, actor), expected, "{actor}");
        }
    }

    #[test]
    fn only_owners_and_administrators_give_rights() {
        let directory = directory();
        let blue = directory.domain("blue").unwrap();
        for (actor, may) in [
            (ADMIN, true),
            (OWNER, true),
            (OTHER, false),
            (MANAGER, false),
        ] {
            assert_eq!(actor.may_own(&directory, blue).is_ok(), may, "{actor}");
        }
        assert!(OWNER.may_use(&directory, &nodes(&[0, 2])).is_ok());
        assert!(OWNER.may_use(&directory, &nodes(&[0, 3])).is_err());
        assert!(MANAGER.may_use(&directory, &nodes(&[0])).is_err());
        assert!(MANAGER.may_create(&directory, &nodes(&[])).is_err());
        assert!(OTHER.may_create(&directory, &nodes(&[5])).is_ok());
        assert!(OWNER.may_administer("end it").is_err());
        let wide: Subnet = "10.64.0.0/15".parse().unwrap();
        assert!(ADMIN.may_address(wide).is_ok());
        assert!(OWNER.may_address(wide).is_err());
        assert!(OWNER.may_address("10.64.0.0/16".parse().unwrap()).is_ok());
    }

    #[test]
    fn actors_see_only_domains_that_concern_them() {
        let mut directory = directory();
        let sees = |directory: &Directory, actor: Actor| -> Vec<String> {
            let seen = directory.domains().filter(|d| actor.sees(directory, d));
            seen.map(|domain| domain.name.clone()).collect()
        };
        assert_eq!(sees(&directory, ADMIN), ["blue", "grey"]);
        assert_eq!(sees(&directory, OWNER), ["blue"]);
        assert_eq!(sees(&directory, OTHER), ["blue"], "its node is in it");
        assert_eq!(sees(&directory, Actor::User(1002)), [""; 0]);
        assert_eq!(sees(&directory, MEMBER), ["blue"]);
        assert_eq!(sees(&directory, Actor::Node(NodeId(6))), [""; 0]);
        directory.set("grey", Some(true), None, None).unwrap();
        assert_eq!(sees(&directory, Actor::User(1002)), ["grey"]);
    }

    /// Regression: a refusal to grow a domain revealed its existence and owner.
    #[test]
    fn a_domain_that_is_not_seen_is_none() {
        let directory = directory();
        let unrelated = Actor::User(1002);
        for actor in [unrelated, Actor::Node(NodeId(6))] {
            let unseen = actor.named(&directory, "blue").unwrap_err();
            assert_eq!(unseen, DirectoryError::NoSuchDomain("blue".into()));
        }
        for actor in [ADMIN, OWNER, OTHER, MANAGER, MEMBER] {
            assert_eq!(actor.named(&directory, "blue").unwrap().id, 1);
        }
        let subnet = directory.domain("blue").unwrap().subnet;
        let taken = DirectoryError::SubnetTaken {
            subnet,
            taken: subnet,
            domain: "blue".into(),
        };
        assert_eq!(OWNER.may_read(&directory, taken.clone()), taken);
        assert_eq!(
            unrelated.may_read(&directory, taken),
            DirectoryError::SubnetInUse(subnet)
        );
        let known = |actor: Actor| -> Vec<u32> {
            let all = (0..8).filter(|n| actor.knows(&directory, NodeId(*n)));
            all.collect()
        };
        assert_eq!(known(ADMIN), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(known(OWNER), [0, 1, 2, 4]);
        assert_eq!(known(unrelated), [0_u32; 0]);
        assert_eq!(known(MEMBER), [0, 1, 4]);
    }

    /// Regression: a request with `@secret` revealed the members of that domain.
    #[test]
    fn a_domain_that_is_not_seen_names_no_nodes() {
        let directory = directory();
        let members = |actor: Actor| actor.resolve(&directory, &["@blue".into(), "0,1,1".into()]);
        for actor in [ADMIN, OWNER, OTHER, MANAGER, MEMBER] {
            assert_eq!(members(actor), Ok(nodes(&[0, 1, 4, 6])), "{actor}");
        }
        for actor in [Actor::User(1002), Actor::Node(NodeId(6))] {
            let unseen = Err(NodeSetError::NoSuchDomain("blue".into()));
            assert_eq!(members(actor), unseen, "{actor}");
        }
    }

    #[test]
    fn a_denial_names_actor_object_and_remedy() {
        let directory = directory();
        let blue = directory.domain("blue").unwrap();
        let said = |result: Result<(), Denied>| Refusal::from(result.unwrap_err()).to_string();
        assert_eq!(
            said(OTHER.may_grow(&directory, blue, &nodes(&[5]))),
            "domain blue belongs to uid 1000, not to uid 1001; ask its owner or an administrator"
        );
        assert_eq!(
            said(OWNER.may_grow(&directory, blue, &nodes(&[3, 5]))),
            "1,1,0 1,0,1 are not uid 1000's, and their owners have not consented to domain blue; \
             let their owners run `toroid node consent 1,1,0 1,0,1 -d blue`"
        );
        assert_eq!(
            said(MEMBER.may_grow(&directory, blue, &nodes(&[2]))),
            "1,0,0 does not manage domain blue; let the domain's owner run `toroid domain manage \
             blue 1,0,0`"
        );
    }
}
