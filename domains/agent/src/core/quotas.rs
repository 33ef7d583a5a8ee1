//! Quotas: the requests of clients.

use std::collections::{BTreeMap, BTreeSet};

use toroid_fabric::NodeId;
use toroid_model::directory::Directory;
use toroid_model::info::QuotaInfo;
use toroid_model::quota::{Resource, Tenant};
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_model::rights::Actor;
use toroid_protocol::agent::Reply;

use super::host::Host;
use crate::members::owners;

/// Tenants of a request: a user, nodes, or, with neither, all that concern the client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Whose<'a> {
    pub(crate) user: Option<u32>,
    pub(crate) nodes: &'a [String],
}

/// Usage and limits of tenants. A user sees itself and its nodes, a node itself.
pub(crate) fn show(host: &Host, actor: Actor, whose: Whose<'_>) -> Result<Reply, Refusal> {
    let directory = host.members.directory(Directory::clone);
    let tenants = match whose {
        Whose {
            user: None,
            nodes: [],
        } => concerning(&directory, actor),
        _ => named(&directory, actor, whose)?,
    };
    let may_see = |tenant: &Tenant| match (actor, *tenant) {
        (Actor::Administrator(_), _) => true,
        (Actor::User(uid), Tenant::User(of)) => uid == of,
        (Actor::User(uid), Tenant::Node(node)) => directory.owner_of(node) == Some(uid),
        (Actor::Node(node), tenant) => tenant == Tenant::Node(node),
    };
    if !tenants.iter().all(may_see) {
        actor.may_administer("see what others use")?;
    }
    let describe = |tenant: &Tenant| {
        let (user, node) = match *tenant {
            Tenant::User(uid) => (Some(uid), None),
            Tenant::Node(node) => (None, directory.torus().place(node)),
        };
        QuotaInfo {
            user,
            node: node.map(|place| place.to_string()),
            host: host.cluster.as_ref().map(|its| its.config.host.clone()),
            used: host.members.lock().used(*tenant),
            limits: directory.limits_of(*tenant),
            in_force: directory.limits_in_force(*tenant),
        }
    };
    Ok(Reply::Quotas {
        quotas: tenants.iter().map(describe).collect(),
        missing: BTreeMap::new(),
    })
}

/// Changes limits. Limits of other resources stay.
pub(crate) fn set(
    host: &Host,
    actor: Actor,
    whose: Whose<'_>,
    limits: &BTreeMap<Resource, Option<u64>>,
) -> Result<Reply, Refusal> {
    actor.may_administer("set quotas")?;
    host.edit(|directory| {
        let tenants: Vec<Tenant> = named(directory, actor, whose)?.into_iter().collect();
        if tenants.is_empty() {
            let message = "a quota is that of a user or of nodes";
            return Err(Refusal::new(RefusalKind::Invalid, message, "name them"));
        }
        directory.limit(&tenants, limits);
        Ok(Reply::Done)
    })
}

fn named(
    directory: &Directory,
    actor: Actor,
    whose: Whose<'_>,
) -> Result<BTreeSet<Tenant>, Refusal> {
    let nodes = actor.resolve(directory, whose.nodes)?;
    let user = whose.user.map(Tenant::User);
    Ok(user
        .into_iter()
        .chain(nodes.into_iter().map(Tenant::Node))
        .collect())
}

fn concerning(directory: &Directory, actor: Actor) -> BTreeSet<Tenant> {
    let all = (0..directory.torus().nodes()).map(NodeId);
    let nodes = |owner: u32| {
        let its = move |node: &NodeId| directory.owner_of(*node) == Some(owner);
        all.clone().filter(its).map(Tenant::Node)
    };
    match actor {
        Actor::Administrator(_) => {
            let users = owners(directory).into_iter().map(Tenant::User);
            users.chain(directory.limited_tenants()).collect()
        }
        Actor::User(uid) => nodes(uid).chain([Tenant::User(uid)]).collect(),
        Actor::Node(node) => BTreeSet::from([Tenant::Node(node)]),
    }
}
