//! What a change concerns: its subjects, which take one change at a time, and hosts.

use std::collections::BTreeSet;

use toroid_fabric::NodeId;
use toroid_model::directory::Directory;
use toroid_model::rights::Actor;
use toroid_protocol::agent::{Reply, Request};

use super::audit::Caller;
use super::fences;
use super::host::{Host, names};
use super::once::Asked;

/// Subjects of a change: domains whose members it may change, and nodes that it hands over, under
/// names that no domain can have. Nodes that it may give to a domain are subjects while they change
/// hands: none becomes a member before that has ended.
pub(super) fn subjects_of(host: &Host, actor: Actor, asked: &Asked) -> BTreeSet<String> {
    let used = host.control.used();
    let joining = |directory: &Directory, name: &str, sets: &[&[String]]| {
        let nodes = sets.iter().flat_map(|set| {
            // A set that cannot be resolved is refused later.
            actor.resolve(directory, set).unwrap_or_default()
        });
        let nodes = nodes.map(subject).filter(|its| used.contains(its));
        nodes.chain([name.to_owned()]).collect()
    };
    let handed_over = |directory: &Directory, nodes: &BTreeSet<NodeId>| {
        let of_one = |node| names(directory, node).into_iter().chain([subject(node)]);
        nodes.iter().copied().flat_map(of_one).collect()
    };
    host.members.directory(|directory| match &asked.request {
        Request::DomainCreate(new) => {
            let sets = [&new.nodes[..], &new.limited, &new.plain, &new.stacks];
            joining(directory, &new.name, &sets)
        }
        Request::DomainGrow { name, nodes, .. } => joining(directory, name, &[nodes]),
        Request::NodeAlloc(wanted) => {
            let is_free =
                |its: &&String| node_of(its).is_some_and(|node| directory.owner_of(node).is_none());
            let free = used.iter().filter(is_free).cloned();
            wanted.domain.iter().cloned().chain(free).collect()
        }
        Request::DomainShrink { name, .. }
        | Request::DomainRemove { name }
        | Request::DomainManage { name, .. }
        | Request::DomainSet { name, .. }
        | Request::DomainRate { name, .. }
        | Request::GatewayAdd { domain: name, .. }
        | Request::GatewayRemove { domain: name, .. }
        | Request::LinkSet { domain: name, .. }
        | Request::LinkRemove { domain: name, .. } => [name.clone()].into(),
        Request::NodeChown { nodes, .. } | Request::NodeFree { nodes } => {
            let mut nodes = actor.resolve(directory, nodes).unwrap_or_default();
            let made = directory.made_request(asked.id).into_iter();
            nodes.extend(made.flat_map(|made| made.nodes.keys().copied().map(NodeId)));
            handed_over(directory, &nodes)
        }
        Request::HostRemove { host } => {
            let nodes = directory.hosts().get(host).cloned();
            handed_over(directory, &nodes.unwrap_or_default())
        }
        _ => BTreeSet::new(),
    })
}

fn subject(node: NodeId) -> String {
    format!("node {}", node.0)
}

fn node_of(subject: &str) -> Option<NodeId> {
    let number = subject.strip_prefix("node ")?;
    number.parse().ok().map(NodeId)
}

/// Other hosts on which something is to be done before a change is in effect.
pub(super) fn concerned_hosts(
    host: &Host,
    before: &Directory,
    request: &Request,
    reply: &Reply,
) -> BTreeSet<String> {
    let Some(cluster) = &host.cluster else {
        return BTreeSet::new();
    };
    host.members.directory(|now| {
        let mut concerned = now.concerned_since(before);
        // A change that was made earlier and is requested again may not be in effect everywhere
        // yet.
        if let Reply::Domain(info) = reply
            && let Ok(domain) = now.domain(&info.name)
        {
            let hosts = domain.members.keys().filter_map(|node| now.host_of(*node));
            concerned.extend(hosts.map(str::to_owned));
        }
        let is_for_all = matches!(
            request,
            Request::HostRemove { .. } | Request::DirectoryMove { .. }
        );
        if is_for_all || fences::concerns_all(before, request) {
            let others = now.host_keys().keys();
            let others = others.filter(|other| **other != cluster.config.host);
            concerned.extend(others.filter(|other| now.is_admitted(other)).cloned());
        }
        concerned
    })
}

/// Whether a host that is away need not be awaited: it only lacks keys that another one shows
/// later, and gets them when it returns. Followers must know each key of the leader.
pub(super) fn can_be_missed(caller: &Caller, request: &Request) -> bool {
    match request {
        Request::HostAdmit { .. } | Request::DirectoryMove { .. } => true,
        Request::HostRotate { .. } => caller.host.is_some(),
        _ => false,
    }
}
