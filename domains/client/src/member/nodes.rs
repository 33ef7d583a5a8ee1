//! Changing a domain from inside: what processes of a node may do that manages it.

use toroid_fabric::Place;
use toroid_model::info::DomainInfo;
use toroid_model::placement::Policy;
use toroid_protocol::agent::{NodeAllocation, Reply, Request};

use super::{Domain, Member, MemberError, unexpected};

impl Member {
    /// Takes `count` free nodes, placed with regard to the members of `domain`, and puts them into
    /// it, all or none. They then belong to the owner of the domain.
    ///
    /// # Errors
    /// [`MemberError::Refused`] when too few are free, or this node does not manage the domain.
    pub fn alloc_nodes(
        &self,
        domain: &str,
        count: u32,
        placement: Policy,
    ) -> Result<Vec<Place>, MemberError> {
        let request = Request::NodeAlloc(NodeAllocation {
            count,
            placement,
            near: None,
            domain: Some(domain.into()),
            create: false,
        });
        match self.control.call(request)?.reply {
            Reply::Allocated { nodes, .. } => nodes
                .iter()
                .map(|place| place.parse().map_err(|_| MemberError::Agent(place.clone())))
                .collect(),
            other => Err(unexpected(&other)),
        }
    }

    /// Gives nodes back that were allocated for domains that this node manages. They leave these,
    /// and are free again.
    ///
    /// # Errors
    /// [`MemberError::Refused`] when they are not such nodes.
    pub fn free_nodes(&self, nodes: &[Place]) -> Result<(), MemberError> {
        let nodes = sets(nodes);
        match self.control.call(Request::NodeFree { nodes })?.reply {
            Reply::Done => Ok(()),
            other => Err(unexpected(&other)),
        }
    }
}

impl Domain {
    /// Adds nodes that are free, belong to the domain's owner, or whose owners have consented.
    ///
    /// # Errors
    /// [`MemberError::Refused`] when they are not such nodes, or this node does not manage the
    /// domain.
    pub fn grow(&self, nodes: &[Place]) -> Result<DomainInfo, MemberError> {
        self.change(Request::DomainGrow {
            name: self.name().into(),
            nodes: sets(nodes),
            limited: false,
            plain: false,
            stack: false,
        })
    }

    /// Takes nodes out. When it returns nothing that they send or write reaches those who stay.
    ///
    /// # Errors
    /// [`MemberError::Refused`] when none is a member, or this node does not manage the domain.
    pub fn shrink(&self, nodes: &[Place]) -> Result<DomainInfo, MemberError> {
        self.change(Request::DomainShrink {
            name: self.name().into(),
            nodes: sets(nodes),
        })
    }

    fn change(&self, request: Request) -> Result<DomainInfo, MemberError> {
        match self.member.control.call(request)?.reply {
            Reply::Domain(info) => Ok(info),
            other => Err(unexpected(&other)),
        }
    }
}

fn sets(nodes: &[Place]) -> Vec<String> {
    nodes.iter().map(ToString::to_string).collect()
}
