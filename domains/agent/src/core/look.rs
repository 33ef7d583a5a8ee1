//! Queries of clients, which change nothing.

use std::collections::BTreeMap;

use toroid_model::directory::Domain;
use toroid_model::refusal::Refusal;
use toroid_model::rights::Actor;
use toroid_protocol::agent::{Reply, Request};
use toroid_protocol::{change_request, connection_request};

use super::host::Host;
use super::quotas::{self, Whose};
use crate::members::check_member;

/// Answers queries, from any socket: about the agent, its nodes, and the domains that the actor may
/// see.
pub(crate) fn look(host: &Host, actor: Actor, request: &Request) -> Option<Result<Reply, Refusal>> {
    let show = |name: &str| {
        let was_removed =
            matches!(actor, Actor::Node(node) if host.members.was_removed(name, node));
        let domain = host.members.directory(|directory| {
            match (actor.named(directory, name), actor) {
                (Ok(domain), _) => Ok(domain.clone()),
                // This refusal has a better remedy.
                (Err(unseen), Actor::Node(node)) if !was_removed => {
                    check_member(directory, name, node).and(Err(unseen.into()))
                }
                (Err(unseen), _) => Err::<Domain, Refusal>(unseen.into()),
            }
        })?;
        Ok(Reply::Domain(host.describe(&domain)))
    };
    let list = || {
        let visible: Vec<Domain> = host.members.directory(|directory| {
            let seen = directory.domains().filter(|d| actor.sees(directory, d));
            seen.cloned().collect()
        });
        let domains = visible.iter().map(|domain| host.describe(domain)).collect();
        Reply::Domains { domains }
    };
    match request {
        Request::Status => Some(Ok(Reply::Status(Box::new(host.status(actor))))),
        Request::NodeList => Some(Ok(Reply::Nodes {
            nodes: host.list_nodes(actor),
        })),
        Request::DomainList => Some(Ok(list())),
        Request::DomainShow { name } => Some(show(name)),
        Request::ShrinkNeeds { name, nodes } => Some(
            host.shrink_needs(actor, name, nodes)
                .map(Reply::ShrinkNeeds),
        ),
        Request::DomainDrops { name } => {
            Some(host.drops(actor, name).map(|members| Reply::Drops {
                members,
                missing: BTreeMap::new(),
            }))
        }
        Request::Links { domain, pairs } => {
            Some(host.links(actor, domain, pairs).map(Reply::Links))
        }
        Request::Events { since, wait } => Some(host.audit.since(actor, *since, *wait)),
        Request::QuotaShow { user, nodes } => {
            let whose = Whose { user: *user, nodes };
            Some(quotas::show(host, actor, whose))
        }
        change_request!() | connection_request!() | Request::Down => None,
    }
}
