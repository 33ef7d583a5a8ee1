//! Fences of domains, at the leader: how long a change waits for a host that is cut off, and when
//! all hosts have a fence.

use std::collections::BTreeSet;
use std::time::Duration;

use toroid_model::directory::{Directory, Domain};
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::agent::{Reply, Request};

use super::host::Host;

/// Whether a request concerns all hosts, also those without members: it sets a fence, or shrinks a
/// fenced domain. A host that is away may have former members, of a shrink that still waits.
pub(super) fn concerns_all(before: &Directory, request: &Request) -> bool {
    match request {
        Request::DomainShrink { name, .. } => {
            let domain = before.domain(name);
            domain.is_ok_and(|domain| domain.fence.is_some())
        }
        _ => sets_fence(request),
    }
}

fn sets_fence(request: &Request) -> bool {
    match request {
        Request::DomainCreate(new) => new.fence.is_some(),
        Request::DomainSet { fence, .. } => fence.is_some_and(|seconds| seconds > 0),
        _ => false,
    }
}

/// Longest lease of a host for the domain that a request shrinks, if all hosts have the fence.
pub(super) fn length(host: &Host, before: &Directory, request: &Request) -> Option<Duration> {
    let Request::DomainShrink { name, .. } = request else {
        return None;
    };
    check(host, before.domain(name).ok()?).ok()?;
    let agreed = before.domain(name).ok()?.fence?.agreed?;
    Some(Duration::from_secs(agreed.into()))
}

/// The domain, if a request that has been decided fences it.
pub(super) fn new(host: &Host, request: &Request, reply: &Reply) -> Option<Domain> {
    let Reply::Domain(info) = reply else {
        return None;
    };
    let present = |directory: &Directory| directory.domain(&info.name).ok().cloned();
    host.members
        .directory(present)
        .filter(|_| sets_fence(request))
}

/// Completes a change that is in effect on all hosts but these, whose members have stopped. From now
/// on changes count on a new fence, because all hosts have it.
pub(super) fn complete(
    host: &Host,
    reply: Reply,
    new: Option<Domain>,
    fenced: BTreeSet<String>,
) -> Result<Reply, Refusal> {
    for other in &fenced {
        tracing::warn!("host {other} is cut off, and its members of a shrunk domain are frozen");
    }
    if let Some(domain) = new {
        let _turn = host.changes.retake();
        host.edit(|directory| {
            directory.agree_on_fence(&domain);
            Ok(())
        })?;
        let present = |directory: &Directory| directory.domain(&domain.name).ok().cloned();
        // It may have been removed meanwhile.
        let domain = host.members.directory(present).unwrap_or(domain);
        if domain.fence.is_some_and(|fence| !fence.is_agreed()) {
            let message = format!("domain {} has changed meanwhile", domain.name);
            let remedy = "no shrink counts on the fence yet; set it again";
            return Err(Refusal::new(RefusalKind::Failed, message, remedy));
        }
        return Ok(Reply::Domain(host.describe(&domain)));
    }
    Ok(match reply {
        Reply::Domain(mut info) => {
            info.cut_off = fenced.into_iter().collect();
            Reply::Domain(info)
        }
        reply => reply,
    })
}

/// Refuses a fence that does not stop members.
pub(super) fn check(host: &Host, domain: &Domain) -> Result<(), Refusal> {
    let cluster = host.cluster.as_ref();
    cluster.map_or(Ok(()), |cluster| cluster.check_fence(domain))
}
