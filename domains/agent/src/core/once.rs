//! Changes that are made once, although the leader dies meanwhile. The agent that has a change from
//! a client repeats it at the next leader with the same identifier. The leader has a record of each
//! change that was made, see [`toroid_model::directory::requests`].

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use toroid_fabric::NodeId;
use toroid_model::directory::Directory;
use toroid_model::directory::requests::{MadeRequest, RequestId};
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_model::rights::Actor;
use toroid_protocol::agent::{Reply, Request};

use super::audit::Caller;
use super::changes::{Made, Standing, attempt, check_hand_over};
use super::host::Host;
use crate::channel::secret::digest;
use crate::cluster::Setback;
use crate::control::requests::Deciding;
use crate::random;

/// Time that a change waits for leaders. Without etcd it is refused after about this time.
const LIMIT: Duration = Duration::from_secs(10);

/// Most of the time of an attempt that counts as waited.
const ATTEMPT: Duration = Duration::from_secs(4);

/// Time after which a client hears that its change waits.
const PATIENCE: Duration = Duration::from_secs(1);

/// First and longest pause before a change is repeated.
const PAUSE: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];

/// A change, and the identifier under which it is repeated.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) id: RequestId,
    pub(crate) request: Request,
    /// Whether the client has the identifier, too, and so can repeat the change.
    is_clients: bool,
    /// Whether an earlier attempt may have made the change.
    again: bool,
}

/// A client's identifier of a change, and whether an earlier attempt may have made the change.
pub(crate) type Once = (RequestId, bool);

impl Asked {
    /// A change with an identifier, or with a new one.
    pub(crate) fn new(once: Option<Once>, request: Request) -> Result<Self, Refusal> {
        let (id, again) = once.unzip();
        let drawn = || random::bytes().map(|bytes| RequestId(u128::from_ne_bytes(bytes)));
        Ok(Asked {
            id: id.map_or_else(drawn, Ok)?,
            request,
            is_clients: id.is_some(),
            again: again.unwrap_or_default(),
        })
    }

    fn digest(&self) -> String {
        // Requests came as JSON.
        digest(&serde_json::to_vec(&self.request).unwrap_or_default())
    }
}

/// Takes the identifier off a request.
pub(crate) fn take_apart(request: Request) -> Result<(Option<Once>, Request), Refusal> {
    match request {
        Request::Once { id, again, change } => match *change {
            // It makes several changes.
            change if change.is_change() && !matches!(change, Request::HostRotate { .. }) => {
                Ok((Some((id, again)), change))
            }
            _ => Err(Refusal::new(
                RefusalKind::Invalid,
                "only a change other than of this host's keys is made once",
                "send the request itself",
            )),
        },
        request => Ok((None, request)),
    }
}

/// End of a change.
// It is short-lived.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Ended<G> {
    /// With what the last attempt held.
    Answered(Result<Reply, Refusal>, Option<G>),
    /// This agent starts again. Its next life is to be asked, which another leader may have answered
    /// already.
    Again { begun: bool },
}

/// Carries out a change, on a follower by asking the leader, and logs its end. An attempt holds what
/// `enter` returns; there are no more when `enter` returns nothing. `waits` is called once if the
/// change waits for a leader.
pub(crate) fn carry_out<G>(
    host: &Host,
    caller: &Caller,
    standing: Standing,
    asked: &Asked,
    enter: impl Fn() -> Option<G>,
    waits: impl FnMut(),
) -> Ended<G> {
    let before = host.members.directory(Directory::clone);
    let ended = match &asked.request {
        Request::HostRotate { keys } if !keys.is_empty() => {
            let message = "a host makes its keys by itself";
            let remedy = "use `toroid host rotate`";
            let refusal = Refusal::new(RefusalKind::Invalid, message, remedy);
            Ended::Answered(Err(refusal), None)
        }
        _ => repeat(host, caller, standing, asked, enter, waits),
    };
    if let Ended::Answered(result, _) = &ended {
        host.audit.note(caller, &asked.request, &before, result);
    }
    ended
}

/// Does the same without a log.
pub(super) fn repeat<G>(
    host: &Host,
    caller: &Caller,
    standing: Standing,
    asked: &Asked,
    enter: impl Fn() -> Option<G>,
    mut waits: impl FnMut(),
) -> Ended<G> {
    let mut wait = Wait::default();
    let earlier = || Refusal::new(RefusalKind::Failed, "an earlier attempt had no answer", "");
    let (mut lost, mut pause) = (asked.again.then(earlier), PAUSE[0]);
    let begin = Instant::now();
    loop {
        wait.for_leader(host, lost.is_some(), &mut waits);
        let Some(inside) = enter() else {
            return match lost {
                Some(why) if !asked.is_clients => Ended::Answered(Err(unknown(&why)), None),
                lost => Ended::Again {
                    begun: lost.is_some(),
                },
            };
        };
        let attempted = Instant::now();
        let setback = match attempt(host, caller, standing, asked) {
            Ok(reply) => return Ended::Answered(Ok(reply), Some(inside)),
            Err(setback) => setback,
        };
        let why = match setback {
            Setback::Refused(why) => {
                // Without space in etcd a shrink has no record.
                let may_lack = matches!(asked.request, Request::DomainShrink { .. });
                let is_unknown = may_lack && lost.is_some() && why.kind == RefusalKind::NotFound;
                let why = if is_unknown { unknown(&why) } else { why };
                return Ended::Answered(Err(why), Some(inside));
            }
            Setback::Unsettled(why) if lost.is_none() => {
                return Ended::Answered(Err(why), Some(inside));
            }
            Setback::Unsettled(why) | Setback::Lost(why) => why,
        };
        if wait.time >= LIMIT || why.kind == RefusalKind::Denied {
            return Ended::Answered(Err(unknown(&why)), Some(inside));
        }
        if lost.is_none() {
            // From now on the change waits for the next leader. Its processes may have taken long.
            wait.time = begin.elapsed().min(ATTEMPT);
        } else {
            wait.time += attempted.elapsed().min(ATTEMPT);
        }
        lost = Some(why);
        thread::sleep(pause);
        wait.time += pause;
        pause = PAUSE[1].min(pause * 2);
    }
}

/// Wait of a change for leaders.
#[derive(Default)]
struct Wait {
    /// Time of all waits so far.
    time: Duration,
    is_told: bool,
}

impl Wait {
    /// Waits for a leader as long as it may; `tells` once if that takes long.
    fn for_leader(&mut self, host: &Host, is_lost: bool, tells: &mut impl FnMut()) {
        let Some(cluster) = &host.cluster else {
            return;
        };
        let mut wait = |until: Duration| {
            let begin = Instant::now();
            let rest = until.saturating_sub(self.time);
            let is_over = cluster.await_leader(&host.gate, rest, is_lost);
            self.time += begin.elapsed();
            is_over
        };
        if wait(PATIENCE) {
            return;
        }
        if !std::mem::replace(&mut self.is_told, true) {
            tells();
        }
        wait(LIMIT);
    }
}

/// Answer to a client whose change may have been made by a leader that was lost.
fn unknown(why: &Refusal) -> Refusal {
    Refusal::new(
        RefusalKind::Failed,
        &*why.message,
        "whether the change was made is unknown: look, and make it again if not",
    )
}

/// Record of a request, as far as it is known before its change. `made` is that of an earlier part.
pub(super) fn deciding(
    host: &Host,
    actor: Actor,
    asked: &Asked,
    made: Option<&MadeRequest>,
    forgotten: Vec<RequestId>,
) -> Deciding {
    let begun = || {
        let nodes = host
            .members
            .directory(|directory| handed_over(directory, actor, &asked.request));
        MadeRequest {
            by: actor.to_string(),
            digest: asked.digest(),
            nodes: nodes.into_iter().map(|(id, owner)| (id.0, owner)).collect(),
            ..MadeRequest::default()
        }
    };
    Deciding {
        id: asked.id,
        made: made.cloned().unwrap_or_else(begun),
        domain: described(&asked.request).map(str::to_owned),
        allocates: matches!(asked.request, Request::NodeAlloc(_)),
        forgotten,
    }
}

/// Nodes that a request hands over, with their owners.
fn handed_over(
    directory: &Directory,
    actor: Actor,
    request: &Request,
) -> BTreeMap<NodeId, Option<u32>> {
    let (sets, keeps) = match request {
        Request::NodeChown { nodes, owner } => (nodes, Some(*owner)),
        Request::NodeFree { nodes } => (nodes, None),
        _ => return BTreeMap::new(),
    };
    // A set that cannot be resolved is refused later.
    let nodes = actor.resolve(directory, sets).unwrap_or_default();
    let with_owner = nodes.into_iter().map(|id| (id, directory.owner_of(id)));
    with_owner
        .filter(|(_, owner)| Some(*owner) != keeps)
        .collect()
}

/// The domain that the reply to a change describes.
fn described(request: &Request) -> Option<&str> {
    match request {
        Request::DomainCreate(new) => Some(&new.name),
        Request::NodeAlloc(wanted) => wanted.domain.as_deref(),
        Request::DomainGrow { name, .. }
        | Request::DomainShrink { name, .. }
        | Request::DomainManage { name, .. }
        | Request::DomainSet { name, .. }
        | Request::DomainRate { name, .. }
        | Request::GatewayAdd { domain: name, .. }
        | Request::GatewayRemove { domain: name, .. }
        | Request::LinkSet { domain: name, .. }
        | Request::LinkRemove { domain: name, .. } => Some(name),
        _ => None,
    }
}

/// The reply to a request whose change was made before, and what is left of the change. Rights are
/// those of now.
pub(super) fn made_before<'h>(
    host: &'h Host,
    actor: Actor,
    asked: &Asked,
    made: &MadeRequest,
) -> Result<Made<'h>, Refusal> {
    if (&made.by, &made.digest) != (&actor.to_string(), &asked.digest()) {
        return Err(Refusal::new(
            RefusalKind::Exists,
            format!("another request has had the identifier {}", asked.id),
            "draw a random one for each request",
        ));
    }
    if made.leaving {
        return go_on(host, actor, asked, made);
    }
    let directory = host.members.directory(Directory::clone);
    let domain = match (described(&asked.request), made.domain) {
        (Some(name), Some(id)) => {
            // Another domain may have its name by now.
            let same = actor.named(&directory, name).ok();
            let same = same.filter(|domain| domain.id == id);
            match (same, &asked.request) {
                (Some(domain), _) => Some(host.describe(domain)),
                // The actor may have left by its own shrink, and may not see who came later.
                (None, Request::DomainShrink { .. }) => None,
                (None, _) => {
                    return Err(Refusal::new(
                        RefusalKind::NotFound,
                        format!("the change was made, but {actor} sees no domain {name} of it now"),
                        "see `toroid domain ls`",
                    ));
                }
            }
        }
        _ => None,
    };
    let reply = match (&asked.request, domain) {
        (Request::NodeAlloc(_), domain) => {
            let nodes: BTreeSet<NodeId> = made.nodes.keys().copied().map(NodeId).collect();
            Reply::Allocated {
                nodes: host.places(&nodes),
                domain,
            }
        }
        (_, Some(domain)) => Reply::Domain(domain),
        _ => Reply::Done,
    };
    Ok(Made::of(reply, None))
}

/// Goes on with a hand-over whose nodes have left their domains.
fn go_on<'h>(
    host: &'h Host,
    actor: Actor,
    asked: &Asked,
    made: &MadeRequest,
) -> Result<Made<'h>, Refusal> {
    let nodes = made.nodes.iter().map(|(id, owner)| (NodeId(*id), *owner));
    let nodes: BTreeMap<NodeId, Option<u32>> = nodes.collect();
    let all = nodes.keys().copied().collect();
    let begun = check_hand_over(host, actor, &asked.request, &all)
        .and_then(|owner| host.resume_hand_over(nodes, owner));
    begun.map(Made::handing_over).map_err(|refusal| {
        let message = format!(
            "the nodes have left their domains, but belong to whom they did: {}",
            refusal.message
        );
        Refusal::new(refusal.kind, message, refusal.remedy)
    })
}
