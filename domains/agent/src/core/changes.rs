//! Changes of the directory, from any socket. The rights are checked on the directory that is about
//! to change.

use std::collections::{BTreeMap, BTreeSet};

use toroid_fabric::NodeId;
use toroid_model::directory::{Directory, MemberSpec, Wanted};
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_model::rights::Actor;
use toroid_protocol::agent::{NewDomain, Reply, Request};
use toroid_protocol::hosts::Requester;
use toroid_protocol::{connection_request, query_request};

use super::audit::Caller;
use super::host::{Host, only_node, parse_subnet};
use super::quotas::{self, Whose};

/// Condition under which a request is still valid when its turn has come.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Standing {
    /// No condition: the actor is a user or an administrator.
    Own,
    /// The request is of a process in a node of this host, in this generation.
    Generation(u64),
    /// The request is of a process in a node of another host, which belonged to this user.
    Owner(Option<u32>),
}

/// Carries out a change when its turn has come, on a follower by asking the leader; `None` for any
/// other request.
pub(crate) fn carry_out(
    host: &Host,
    caller: &Caller,
    standing: Standing,
    request: &Request,
) -> Option<Result<Reply, Refusal>> {
    if !request.is_change() {
        return None;
    }
    let actor = caller.actor;
    let follows = host.cluster.as_ref().filter(|cluster| !cluster.is_leader());
    let turn = match follows {
        Some(_) => Ok(None),
        None => host.changes.take(actor).map(Some),
    };
    let _turn = match turn {
        Ok(turn) => turn,
        Err(refusal) => return Some(Err(refusal)),
    };
    // Read before the generation: an owner after that has the node only after the generation's end.
    let who = host
        .members
        .directory(|directory| Requester::of(actor, directory));
    if let Actor::Node(node) = actor
        && !stands(host, node, standing)
    {
        let message = "the node's processes have ended, or it has changed hands";
        return Some(Err(Refusal::new(
            RefusalKind::Denied,
            message,
            "attach anew",
        )));
    }
    match follows {
        Some(cluster) => Some(cluster.forward(who, caller.pid, request)),
        None => carry_out_everywhere(host, actor, request),
    }
}

fn stands(host: &Host, node: NodeId, standing: Standing) -> bool {
    match standing {
        Standing::Own => true,
        Standing::Generation(generation) => host.is_current(node, generation),
        Standing::Owner(owner) => host.members.directory(|d| d.owner_of(node) == owner),
    }
}

/// Carries out a change here, and waits until it is in effect on all hosts that it concerns.
fn carry_out_everywhere(
    host: &Host,
    actor: Actor,
    request: &Request,
) -> Option<Result<Reply, Refusal>> {
    let Some(cluster) = &host.cluster else {
        return carry_out_now(host, actor, request);
    };
    let before = host.members.directory(Directory::clone);
    let result = carry_out_now(host, actor, request)?;
    let now = host.members.directory(Directory::clone);
    let mut concerned = now.concerned_since(&before);
    // A change that was made earlier and is requested again may not be in effect everywhere yet.
    if let Ok(Reply::Domain(info)) = &result
        && let Ok(domain) = now.domain(&info.name)
    {
        let hosts = domain.members.keys().filter_map(|node| now.host_of(*node));
        concerned.extend(hosts.map(str::to_owned));
    }
    let lacking = cluster.await_hosts(&concerned);
    Some(result.and_then(|reply| {
        if lacking.is_empty() {
            Ok(reply)
        } else {
            Err(not_everywhere(&lacking))
        }
    }))
}

fn not_everywhere(lacking: &BTreeMap<String, String>) -> Refusal {
    let hosts: Vec<String> = lacking
        .iter()
        .map(|(host, why)| format!("on host {host}: {why}"))
        .collect();
    let message = format!(
        "the change is made, durable, and in effect on all other hosts, but not {}",
        hosts.join(", nor ")
    );
    let remedy = "it will be in effect there as soon as that agent is back; until then processes \
                  there go on as before among themselves";
    Refusal::new(RefusalKind::Failed, message, remedy)
}

fn carry_out_now(host: &Host, actor: Actor, request: &Request) -> Option<Result<Reply, Refusal>> {
    Some(match request {
        Request::DomainCreate(new) => create(host, actor, new),
        Request::DomainGrow {
            name,
            nodes,
            limited,
            plain,
            stack,
        } => {
            let spec = MemberSpec {
                limited: *limited,
                no_offload: *plain,
                userspace_stack: *stack,
            };
            host.grow(actor, name, nodes, spec).map(Reply::Domain)
        }
        Request::DomainShrink { name, nodes } => host.shrink(actor, name, nodes).map(Reply::Domain),
        Request::DomainRemove { name } => host.remove(actor, name).map(|()| Reply::Done),
        Request::DomainManage {
            name,
            nodes,
            revoke,
        } => manage(host, actor, name, nodes, *revoke),
        Request::DomainSet {
            name,
            public,
            forward,
            owner,
        } => set(host, actor, name, *public, *forward, *owner),
        Request::GatewayAdd {
            node,
            domain,
            uplink,
            kind,
        } => {
            let connected = host.add_gateway(actor, domain, node, uplink, *kind);
            connected.map(|domain| Reply::Domain(host.describe(&domain)))
        }
        Request::GatewayRemove { node, domain } => {
            let disconnected = host.remove_gateway(actor, domain, node);
            disconnected.map(|domain| Reply::Domain(host.describe(&domain)))
        }
        Request::LinkSet {
            domain,
            links,
            keep,
        } => host
            .set_links(actor, domain, links, *keep)
            .map(Reply::Domain),
        Request::LinkRemove { domain, pairs } => {
            host.remove_links(actor, domain, pairs).map(Reply::Domain)
        }
        Request::NodeAlias { node, alias } => host.alias(actor, node, alias).map(|()| Reply::Done),
        Request::NodeUnalias { alias } => host.unalias(actor, alias).map(|()| Reply::Done),
        Request::NodeChown { nodes, owner } => chown(host, actor, nodes, *owner),
        Request::NodeAlloc(wanted) => host.alloc_nodes(actor, wanted),
        Request::NodeFree { nodes } => host.free_nodes(actor, nodes).map(|()| Reply::Done),
        Request::NodeConsent {
            nodes,
            domain,
            withdraw,
        } => consent(host, actor, nodes, domain, *withdraw),
        Request::QuotaSet {
            user,
            nodes,
            limits,
        } => quotas::set(host, actor, Whose { user: *user, nodes }, limits),
        query_request!() | connection_request!() | Request::Down => return None,
    })
}

fn create(host: &Host, actor: Actor, new: &NewDomain) -> Result<Reply, Refusal> {
    let caller = actor.must_be_user("create domains")?;
    if new.owner.is_some_and(|owner| owner != caller) {
        actor.may_administer("create domains for others")?;
    }
    may_serve(host, new.owner)?;
    let wanted = Wanted {
        name: new.name.clone(),
        subnet: parse_subnet(new.subnet.as_deref())?,
        mtu: new.mtu,
        owner: new.owner.unwrap_or(caller),
        public: new.public,
        ..Wanted::default()
    };
    let info = host.create(actor, wanted, new)?;
    Ok(Reply::Domain(info))
}

fn manage(
    host: &Host,
    actor: Actor,
    name: &str,
    nodes: &[String],
    revoke: bool,
) -> Result<Reply, Refusal> {
    let domain = host.edit(|directory| {
        actor.may_own(directory, actor.named(directory, name)?)?;
        let nodes = actor.resolve(directory, nodes)?;
        Ok(directory.manage(name, &nodes, revoke)?)
    })?;
    Ok(Reply::Domain(host.describe(&domain)))
}

fn set(
    host: &Host,
    actor: Actor,
    name: &str,
    public: Option<bool>,
    forward: Option<bool>,
    owner: Option<u32>,
) -> Result<Reply, Refusal> {
    let domain = host.edit(|directory| {
        actor.may_own(directory, actor.named(directory, name)?)?;
        if owner.is_some() {
            actor.may_administer("give domains away")?;
        }
        may_serve(host, owner)?;
        Ok(directory.set(name, public, forward, owner)?)
    })?;
    if forward.is_some() {
        host.tell_members(&domain)?;
    }
    Ok(Reply::Domain(host.describe(&domain)))
}

fn chown(
    host: &Host,
    actor: Actor,
    nodes: &[String],
    owner: Option<u32>,
) -> Result<Reply, Refusal> {
    actor.may_administer("give nodes away")?;
    may_serve(host, owner)?;
    let directory = host.members.directory(Directory::clone);
    let mut nodes = actor.resolve(&directory, nodes)?;
    nodes.retain(|node| directory.owner_of(*node) != owner);
    host.hand_over(&nodes, owner).map(|()| Reply::Done)
}

/// Checks that nodes and domains can belong to a user: the control socket of an ordinary user's
/// agent accepts that user only.
fn may_serve(host: &Host, owner: Option<u32>) -> Result<(), Refusal> {
    let own = host.identity.uid;
    match owner.filter(|owner| host.identity.rootless && *owner != own) {
        None => Ok(()),
        Some(owner) => Err(Refusal::new(
            RefusalKind::Denied,
            format!("the agent serves only its user, uid {own}, and not uid {owner}"),
            "for several users start the agent as root: `sudo toroid up`",
        )),
    }
}

fn consent(
    host: &Host,
    actor: Actor,
    nodes: &[String],
    domain: &str,
    withdraw: bool,
) -> Result<Reply, Refusal> {
    host.edit(|directory| {
        let nodes = actor.resolve(directory, nodes)?;
        actor.may_use(directory, &nodes)?;
        directory.consent(&nodes, domain, withdraw)?;
        Ok(Reply::Done)
    })
}

/// The one node that `set` names, if the actor may use it.
pub(crate) fn usable_node(
    directory: &Directory,
    actor: Actor,
    set: &str,
) -> Result<NodeId, Refusal> {
    let node = only_node(directory, actor, set)?;
    actor.may_use(directory, &BTreeSet::from([node]))?;
    Ok(node)
}
