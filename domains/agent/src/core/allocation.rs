//! Allocation of free nodes, and their release.

use std::collections::{BTreeMap, BTreeSet};

use toroid_fabric::NodeId;
use toroid_model::allocation::{Destination, Request as Wanted};
use toroid_model::directory::{Directory, Wanted as NewDomain};
use toroid_model::info::DomainInfo;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_model::rights::Actor;
use toroid_protocol::agent::{NodeAllocation, Reply};

use super::host::{Host, only_node};
use super::membership::Departure;
use crate::nodes::HostedNode;
use crate::nodes::generation::Closed;
use crate::random;

/// A hand-over of nodes that has begun. Nothing is started in them while this lives.
pub(super) struct HandOver<'h> {
    /// The nodes with their owners before.
    nodes: BTreeMap<NodeId, Option<u32>>,
    owner: Option<u32>,
    /// Those of this host.
    hosted: Vec<&'h HostedNode>,
    _closed: Vec<Closed<'h>>,
}

impl HandOver<'_> {
    /// Checks that no other change has given the nodes away or made them members since.
    fn check(&self, directory: &Directory) -> Result<(), Refusal> {
        let has_changed = |(node, owner): (&NodeId, &Option<u32>)| {
            directory.owner_of(*node) != *owner || directory.domains_of(*node).next().is_some()
        };
        if self.nodes.iter().any(has_changed) {
            return Err(Refusal::new(
                RefusalKind::Failed,
                "another change took these nodes while they left their domains",
                "look at `toroid node ls`, and try again",
            ));
        }
        Ok(())
    }
}

impl Host {
    /// Carries out a [`NodeAllocation`].
    pub(super) fn alloc_nodes(
        &self,
        actor: Actor,
        asked: &NodeAllocation,
    ) -> Result<Reply, Refusal> {
        let (allocated, directory) = self.members.plan(|directory| {
            let near = asked
                .near
                .as_deref()
                .map(|near| only_node(directory, actor, near));
            let destination = match (asked.domain.clone(), asked.create) {
                (None, _) => Destination::None,
                (Some(name), false) => Destination::Grow(name),
                (Some(name), true) => Destination::Create(name),
            };
            if let (Destination::Create(_), Some(owner)) = (&destination, actor.uid()) {
                directory.check_owned_domains(&NewDomain {
                    owner,
                    capacity: Some(asked.count),
                    ..NewDomain::default()
                })?;
            }
            let wanted = Wanted {
                count: usize::try_from(asked.count).unwrap_or(usize::MAX),
                policy: asked.placement,
                near: near.transpose()?,
                destination,
                seed: u64::from_ne_bytes(random::bytes()?),
            };
            Ok::<_, Refusal>(directory.allocate(actor, &wanted)?)
        })?;
        let domain: Option<DomainInfo> = match allocated.change {
            Some(change) => Some(self.join(change, directory)?),
            None => self.members.adopt(directory).map(|()| None)?,
        };
        let nodes = self.places(&allocated.nodes);
        Ok(Reply::Allocated { nodes, domain })
    }

    /// Begins to free nodes.
    pub(super) fn free_nodes(
        &self,
        actor: Actor,
        sets: &[String],
    ) -> Result<(Departure, HandOver<'_>), Refusal> {
        let directory = self.members.directory(Directory::clone);
        let nodes = actor.resolve(&directory, sets)?;
        directory.check_release(actor, &nodes)?;
        self.begin_hand_over(nodes, None)
    }

    /// Begins to hand nodes over to another owner: they leave all their domains.
    pub(super) fn begin_hand_over(
        &self,
        nodes: BTreeSet<NodeId>,
        owner: Option<u32>,
    ) -> Result<(Departure, HandOver<'_>), Refusal> {
        let hosted: Vec<&HostedNode> = nodes.iter().filter_map(|id| self.node(*id)).collect();
        let closed = hosted.iter().map(|node| node.generation.close()).collect();
        let (changes, directory) = self.members.plan(|directory| directory.leave_all(&nodes))?;
        let owner_now = |id| (id, directory.owner_of(id));
        let nodes = nodes.into_iter().map(owner_now).collect();
        let departure = self.begin_departure(changes, directory)?;
        let hand_over = HandOver {
            nodes,
            owner,
            hosted,
            _closed: closed,
        };
        Ok((departure, hand_over))
    }

    /// Goes on with a hand-over of nodes that have left their domains, which an agent that has ended
    /// had begun. No other change may have given them away or made them members since.
    pub(super) fn resume_hand_over(
        &self,
        nodes: BTreeMap<NodeId, Option<u32>>,
        owner: Option<u32>,
    ) -> Result<(Departure, HandOver<'_>), Refusal> {
        let hosted: Vec<&HostedNode> = nodes.keys().filter_map(|id| self.node(*id)).collect();
        let closed = hosted.iter().map(|node| node.generation.close()).collect();
        let hand_over = HandOver {
            nodes,
            owner,
            hosted,
            _closed: closed,
        };
        self.members.directory(|d| hand_over.check(d))?;
        Ok((Departure::default(), hand_over))
    }

    /// Completes a hand-over in a later turn, when the departure is complete: everything ends that
    /// runs in the nodes or speaks for them.
    pub(super) fn finish_hand_over(&self, hand_over: &HandOver<'_>) -> Result<(), Refusal> {
        self.members.directory(|d| hand_over.check(d))?;
        self.empty(&hand_over.hosted)?;
        let given = self.members.edit(|directory| {
            let nodes = hand_over.nodes.keys().copied().collect();
            directory.give(&nodes, hand_over.owner);
            Ok::<_, Refusal>(())
        });
        given.map_err(|refusal| {
            let message = format!(
                "the nodes are empty and in no domain any more, but they belong to whom they did: {}",
                refusal.message
            );
            Refusal::new(refusal.kind, message, "see to that, and try again")
        })
    }

    /// Ends all processes of nodes, and every connection that speaks for them.
    pub(crate) fn empty(&self, nodes: &[&HostedNode]) -> Result<(), Refusal> {
        for node in nodes {
            node.generation.end();
            self.members.expel(node.id);
        }
        self.renew(nodes)
    }

    fn renew(&self, nodes: &[&HostedNode]) -> Result<(), Refusal> {
        let ending: Vec<_> = nodes.iter().map(|node| node.begin_renewal()).collect();
        for (node, old) in nodes.iter().zip(ending) {
            if !node.await_renewal(old) {
                return Err(Refusal::new(
                    RefusalKind::Failed,
                    format!("the processes of node {} do not end", node.place),
                    format!("see {}; then try again", self.log()),
                ));
            }
        }
        Ok(())
    }
}
