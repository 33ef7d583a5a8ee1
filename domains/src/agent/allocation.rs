//! Nodes that are taken from those that are free, and given back.

use std::collections::BTreeSet;

use fabric::NodeId;

use super::host::{Host, only_node};
use crate::allocation::{Destination, Request as Wanted};
use crate::directory::Directory;
use crate::protocol::{DomainInfo, Refusal, RefusalKind, Reply, Request};
use crate::rights::Actor;

impl Host {
    /// Carries out a [`Request::NodeAlloc`].
    pub(super) fn alloc_nodes(&self, actor: Actor, request: &Request) -> Result<Reply, Refusal> {
        let _turn = self.take_turn();
        let (allocated, directory) = self.members.plan(|directory| {
            let Request::NodeAlloc {
                count,
                placement,
                near,
                domain,
                create,
            } = request
            else {
                return Err(Refusal::new(
                    RefusalKind::Invalid,
                    "this allocates nothing",
                    "",
                ));
            };
            let near = near
                .as_deref()
                .map(|near| only_node(directory, actor, near));
            let destination = match (domain.clone(), create) {
                (None, _) => Destination::None,
                (Some(name), false) => Destination::Grow(name),
                (Some(name), true) => Destination::Create(name),
            };
            if let (Destination::Create(_), Some(owner)) = (&destination, actor.uid()) {
                directory.check_owned_domains(owner)?;
            }
            let wanted = Wanted {
                count: usize::try_from(*count).unwrap_or(usize::MAX),
                policy: *placement,
                near: near.transpose()?,
                destination,
                seed: seed()?,
            };
            Ok(directory.allocate(actor, &wanted)?)
        })?;
        let domain: Option<DomainInfo> = match allocated.change {
            Some(change) => Some(self.join(change, directory)?),
            None => self.members.adopt(directory).map(|()| None)?,
        };
        let nodes = self.places(&allocated.nodes);
        Ok(Reply::Allocated { nodes, domain })
    }

    /// Takes nodes out of all their domains, ends what runs in them, and makes them free: whoever
    /// gets them next shall find nobody there.
    pub(super) fn free_nodes(&self, actor: Actor, sets: &[String]) -> Result<(), Refusal> {
        let _turn = self.take_turn();
        let directory = self.members.directory(Directory::clone);
        let nodes = actor.resolve(&directory, sets)?;
        directory.check_release(actor, &nodes)?;
        let theirs = directory
            .domains()
            .filter(|d| !d.members.is_disjoint(&nodes));
        let domains: Vec<String> = theirs.map(|domain| domain.name.clone()).collect();
        for name in domains {
            let (change, directory) = self.members.plan(|d| d.shrink(&name, &nodes))?;
            self.leave(change, directory)?;
        }
        self.renew(&nodes)?;
        self.members.edit(|directory| {
            directory.give(&nodes, None);
            Ok::<_, Refusal>(())
        })
    }

    fn renew(&self, nodes: &BTreeSet<NodeId>) -> Result<(), Refusal> {
        let nodes = nodes.iter().filter_map(|id| self.node(*id));
        let ending: Vec<_> = nodes.map(|node| (node, node.begin_renewal())).collect();
        for (node, old) in ending {
            if !node.await_renewal(old) {
                return Err(Refusal::new(
                    RefusalKind::Failed,
                    format!("the processes of node {} do not end", node.place),
                    format!("see {}; the node can then be freed again", self.log()),
                ));
            }
        }
        Ok(())
    }
}

fn seed() -> Result<u64, Refusal> {
    getrandom::u64().map_err(|error| {
        let message = format!("the system gives no random bytes: {error}");
        Refusal::new(RefusalKind::Failed, message, "")
    })
}
