//! Changes of a domain by the processes of a node that manages it.

use toroid_fabric::Place;
use toroid_model::info::DomainInfo;
use toroid_model::placement::Policy;
use toroid_protocol::agent::{NodeAllocation, Request};

use super::{Domain, Member, MemberError, parse_places};

impl Member {
    /// Allocates `count` free nodes, placed with regard to the members of `domain`, and adds them to
    /// it, all or none. The owner of the domain then owns them.
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
        let (places, _): (_, Option<DomainInfo>) = self.control.ask(request)?;
        parse_places(places)
    }

    /// Frees nodes that were allocated for domains that this node manages. They leave these domains.
    ///
    /// # Errors
    /// [`MemberError::Refused`] when a node was not allocated so.
    pub fn free_nodes(&self, nodes: &[Place]) -> Result<(), MemberError> {
        let nodes = sets(nodes);
        self.control.ask(Request::NodeFree { nodes })
    }
}

impl Domain {
    /// Adds nodes that are free, belong to the owner of the domain, or whose owners have consented.
    ///
    /// # Errors
    /// [`MemberError::Refused`] when a node is not eligible, or this node does not manage the domain.
    pub fn grow(&self, nodes: &[Place]) -> Result<DomainInfo, MemberError> {
        self.member.control.ask(Request::DomainGrow {
            name: self.name().into(),
            nodes: sets(nodes),
            limited: false,
            plain: false,
            stack: false,
            rate: None,
        })
    }

    /// Removes nodes. When the call returns, nothing that they send or write reaches a member.
    /// Returns the domain, unless this node has left by it and the call had to be repeated at another
    /// agent.
    ///
    /// # Errors
    /// [`MemberError::Refused`] when no node is a member, or this node does not manage the domain.
    pub fn shrink(&self, nodes: &[Place]) -> Result<Option<DomainInfo>, MemberError> {
        self.member.control.ask(Request::DomainShrink {
            name: self.name().into(),
            nodes: sets(nodes),
        })
    }
}

fn sets(nodes: &[Place]) -> Vec<String> {
    nodes.iter().map(ToString::to_string).collect()
}
