//! Node sets, aliases and domains of the command line, as nodes of the running agent.

use std::collections::BTreeSet;

use toroid_client::admin::Control;
use toroid_fabric::{NodeId, Place, Torus};
use toroid_model::info::{DomainInfo, MemberInfo, NodeInfo};
use toroid_model::nodeset::{self, Names};
use toroid_model::refusal::{Refusal, RefusalKind};

use crate::failure::Failure;

/// Nodes, aliases and domains of the agent at one moment.
pub(crate) struct Snapshot {
    torus: Torus,
    nodes: Vec<NodeInfo>,
    /// Domains that the caller may see, empty ones included.
    domains: Vec<String>,
    /// Whether nodes have users of their own.
    pub(crate) has_users: bool,
}

impl Snapshot {
    pub(crate) fn of(agent: &mut Control) -> Result<Self, Failure> {
        let status = agent.status()?;
        Ok(Snapshot {
            torus: status.torus,
            nodes: agent.nodes()?,
            domains: agent.list()?.into_iter().map(|info| info.name).collect(),
            has_users: status.private_users,
        })
    }

    /// Nodes of the union of node sets.
    pub(crate) fn resolve(&self, sets: &[String]) -> Result<Vec<&NodeInfo>, Failure> {
        let nodes = nodeset::resolve(sets, self.torus, self).map_err(Refusal::from)?;
        let named = |id: NodeId| self.nodes.iter().find(|node| node.id == id.0);
        Ok(nodes.into_iter().filter_map(named).collect())
    }
}

impl Names for Snapshot {
    fn alias(&self, alias: &str) -> Option<NodeId> {
        let named = |node: &&NodeInfo| node.aliases.iter().any(|name| name == alias);
        self.nodes.iter().find(named).map(|node| NodeId(node.id))
    }

    fn members(&self, domain: &str) -> Option<BTreeSet<NodeId>> {
        let inside = |node: &&NodeInfo| node.domains.iter().any(|name| name == domain);
        let members: BTreeSet<_> = self
            .nodes
            .iter()
            .filter(inside)
            .map(|node| NodeId(node.id))
            .collect();
        let exists = !members.is_empty() || self.domains.iter().any(|name| name == domain);
        exists.then_some(members)
    }
}

/// Places of the union of node sets.
pub(crate) fn resolve(agent: &mut Control, sets: &[String]) -> Result<Vec<Place>, Failure> {
    let snapshot = Snapshot::of(agent)?;
    let nodes = snapshot.resolve(sets)?.into_iter();
    Ok(nodes.map(|node| node.place).collect())
}

/// Place of a node set that has exactly one node.
pub(crate) fn resolve_one(agent: &mut Control, set: &str) -> Result<Place, Failure> {
    match resolve(agent, &[set.to_owned()])?[..] {
        [place] => Ok(place),
        _ => Err(Failure::usage(&format!(
            "\"{set}\" is not one node; name one, such as 0,0,0"
        ))),
    }
}

/// Membership of a node in the named domain, or in its only domain.
pub(crate) fn member(
    agent: &mut Control,
    node: &str,
    domain: Option<&str>,
) -> Result<(DomainInfo, MemberInfo), Failure> {
    let place = resolve_one(agent, node)?;
    let info = match domain {
        Some(name) => agent.show(name)?,
        None => only_domain(agent, place)?,
    };
    let found = info
        .members
        .iter()
        .find(|member| member.node == place)
        .cloned();
    let member = found.ok_or_else(|| not_a_member(place, &info.name))?;
    Ok((info, member))
}

fn only_domain(agent: &mut Control, place: Place) -> Result<DomainInfo, Failure> {
    let domains = agent.list()?;
    let inside = |info: &DomainInfo| info.members.iter().any(|member| member.node == place);
    let mut mine = domains.into_iter().filter(inside);
    match (mine.next(), mine.next()) {
        (Some(only), None) => Ok(only),
        (None, _) => Err(Failure::usage(&format!(
            "node {place} is in no domain; add it to one with `toroid domain grow NAME {place}`"
        ))),
        _ => Err(Failure::usage(&format!(
            "node {place} is in several domains; choose one with --domain"
        ))),
    }
}

fn not_a_member(place: Place, domain: &str) -> Failure {
    Refusal::new(
        RefusalKind::NotFound,
        format!("node {place} is not a member of domain {domain}"),
        format!("add it with `toroid domain grow {domain} {place}`"),
    )
    .into()
}
