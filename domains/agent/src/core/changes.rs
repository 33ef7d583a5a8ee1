//! Changes of the directory, from any socket. The rights are checked on the directory that is about
//! to change.

use std::collections::BTreeSet;
use std::sync::Arc;

use toroid_fabric::NodeId;
use toroid_model::directory::{Directory, MemberSpec, Wanted};
use toroid_model::ethernet::EthernetPath;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_model::rights::Actor;
use toroid_protocol::agent::{NewDomain, Reply, Request};
use toroid_protocol::hosts::Requester;
use toroid_protocol::{connection_request, query_request};

use super::allocation::HandOver;
use super::audit::Caller;
use super::concerns::{can_be_missed, concerned_hosts, subjects_of};
use super::fair_queue::Turn;
use super::fences;
use super::host::{Host, only_node, parse_subnet};
use super::membership::Departure;
use super::once::{self, Asked, Ended};
use super::quotas::{self, Whose};
use crate::cluster::confirmation::leads_no_more;
use crate::cluster::{Cluster, Setback};
use crate::control::Underway;
use crate::control::core::Lacking;

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

/// Carries out a change once, on a follower by asking the leader.
pub(crate) fn attempt(
    host: &Host,
    caller: &Caller,
    standing: Standing,
    asked: &Asked,
) -> Result<Reply, Setback> {
    if let Request::HostRotate { keys } = &asked.request
        && caller.host.is_none()
        && keys.is_empty()
    {
        let rotated = host.rotate_keys(caller).map(|()| Reply::Done);
        return rotated.map_err(Setback::Refused);
    }
    match host.cluster.as_ref().filter(|cluster| !cluster.is_leader()) {
        Some(cluster) => {
            let who = check_standing(host, caller.actor, standing);
            let who = who.map_err(Setback::Unsettled)?;
            cluster.forward(who, caller.pid, asked.id, &asked.request)
        }
        None => carry_out_everywhere(host, caller, standing, asked)
            .map_err(|setback| confirmed(host, setback)),
    }
}

/// Setback of a change at this leader, which the next leader is asked for if this one was replaced:
/// its directory may be old then.
fn confirmed(host: &Host, setback: Setback) -> Setback {
    let why = Refusal::from(setback.clone());
    // Then its followers leave it.
    let is_cut_off = host.gate.is_closed() && why.kind == RefusalKind::Failed;
    if host.control.is_deposed() || is_cut_off {
        return Setback::Lost(why);
    }
    // Others depend on the directory: on members, owners, quotas and free nodes.
    let depends_on_directory = why.kind != RefusalKind::Failed;
    // A change that was made has been confirmed by its transaction.
    let doubt = |cluster: &Arc<Cluster>| cluster.confirm_lead().err();
    let cluster = host.cluster.as_ref().filter(|_| depends_on_directory);
    match cluster.and_then(doubt) {
        None => setback,
        Some(why) if why == leads_no_more() => Setback::Lost(why),
        // Without etcd there is no next leader to ask. The change was not made.
        Some(why) => Setback::Unsettled(why),
    }
}

/// Makes a change for this host's agent, on a follower by asking the leader.
pub(super) fn publish(host: &Host, caller: &Caller, request: &Request) -> Result<Reply, Refusal> {
    let asked = Asked::new(None, request.clone())?;
    match once::repeat(host, caller, Standing::Own, &asked, || Some(()), || ()) {
        Ended::Answered(result, _) => result,
        Ended::Again { .. } => {
            let message = "this agent starts again";
            Err(Refusal::new(RefusalKind::Failed, message, "try again"))
        }
    }
}

/// Checks that the request is still valid. Returns its origin for the leader.
fn check_standing(host: &Host, actor: Actor, standing: Standing) -> Result<Requester, Refusal> {
    // Read before the generation: an owner after that has the node only after the generation's end.
    let who = host
        .members
        .directory(|directory| Requester::of(actor, directory));
    match actor {
        Actor::Node(node) if !stands(host, node, standing) => Err(Refusal::new(
            RefusalKind::Denied,
            "the node's processes have ended, or it has changed hands",
            "attach anew",
        )),
        _ => Ok(who),
    }
}

fn stands(host: &Host, node: NodeId, standing: Standing) -> bool {
    match standing {
        Standing::Own => true,
        Standing::Generation(generation) => host.is_current(node, generation),
        Standing::Owner(owner) => host.members.directory(|d| d.owner_of(node) == owner),
    }
}

/// A change that was made, and departures whose effects on this host are not complete.
pub(super) struct Made<'h> {
    reply: Reply,
    departure: Option<Departure>,
    /// The rest of the change, after the departure.
    hand_over: Option<HandOver<'h>>,
}

impl<'h> Made<'h> {
    pub(super) fn of(reply: Reply, departure: Option<Departure>) -> Self {
        Made {
            reply,
            departure,
            hand_over: None,
        }
    }

    pub(super) fn handing_over((departure, hand_over): (Departure, HandOver<'h>)) -> Self {
        Made {
            reply: Reply::Done,
            departure: Some(departure),
            hand_over: Some(hand_over),
        }
    }
}

/// Carries out a change here, and waits until it is in effect on all hosts that it concerns. The
/// turn is not held during the wait for processes and hosts. A change that was made before only has
/// to come into effect.
fn carry_out_everywhere(
    host: &Host,
    caller: &Caller,
    standing: Standing,
    asked: &Asked,
) -> Result<Reply, Setback> {
    let (actor, request) = (caller.actor, &asked.request);
    let (underway, turn) = take_turn(host, actor, asked).map_err(Setback::Unsettled)?;
    check_standing(host, actor, standing).map_err(Setback::Unsettled)?;
    let before = host.members.directory(Directory::clone);
    let earlier = before.made_request(asked.id);
    let forgotten = match earlier {
        Some(_) => Vec::new(),
        None => host.control.admit(&before, actor)?,
    };
    let deciding = once::deciding(host, actor, asked, earlier, forgotten);
    let Made {
        reply,
        mut departure,
        hand_over,
    } = match earlier {
        Some(earlier) => once::made_before(host, actor, asked, earlier)?,
        None => host
            .members
            .for_request(deciding.clone(), || decide(host, caller, request))?,
    };
    let decided = |before| {
        let mut concerned = concerned_hosts(host, before, request, &reply);
        concerned.extend(earlier.iter().flat_map(|made| made.hosts.iter().cloned()));
        if can_be_missed(caller, request) {
            let cluster = host.cluster.as_ref();
            let is_there =
                |other: &String| cluster.is_some_and(|c| c.followers().contains_key(other));
            concerned.retain(is_there);
        }
        let asker = caller.host.as_deref().map(str::to_owned);
        underway.decided(concerned, asker, fences::length(host, before, request));
    };
    decided(&before);
    let new_fence = fences::new(host, request, &reply);
    if let Some(departure) = &mut departure {
        // The next change may give a leaver to somebody else.
        host.await_cut(departure);
    }
    drop(turn);
    if let Some(departure) = departure {
        host.await_acknowledgements(&departure);
        let _turn = host.changes.retake();
        host.finish_departure(departure);
        if let Some(hand_over) = hand_over {
            let before = host.members.directory(Directory::clone);
            let first = before.made_request(asked.id);
            let second = deciding.after(first);
            host.members
                .for_request(second, || host.finish_hand_over(&hand_over))?;
            decided(&before);
        }
    }
    let reached = underway.await_hosts();
    if earlier.is_none() && matches!(request, Request::DirectoryMove { .. }) {
        host.leave_lead();
    }
    if reached.lacking.is_empty() {
        Ok(fences::complete(host, reply, new_fence, reached.fenced)?)
    } else {
        Err(not_everywhere(&reached.lacking).into())
    }
}

/// Takes a turn in which no earlier change of the request's subjects still takes effect here.
fn take_turn<'h>(
    host: &'h Host,
    actor: Actor,
    asked: &Asked,
) -> Result<(Underway<'h>, Turn<'h>), Refusal> {
    let look = || subjects_of(host, actor, asked);
    loop {
        let turn = host.changes.take(actor)?;
        let mut underway = host.control.begin(actor, asked.id, look())?;
        if underway.may_decide {
            return Ok((underway, turn));
        }
        drop(turn);
        underway.await_domains();
        let turn = host.changes.retake();
        if look().is_subset(&underway.subjects) {
            return Ok((underway, turn));
        }
    }
}

fn not_everywhere(lacking: &Lacking) -> Refusal {
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

/// Makes a change durable and brings it into effect here, except for departures.
fn decide<'h>(host: &'h Host, caller: &Caller, request: &Request) -> Result<Made<'h>, Refusal> {
    let actor = caller.actor;
    let reply = match request {
        Request::DomainCreate(new) => create(host, actor, new),
        Request::DomainGrow {
            name,
            nodes,
            limited,
            plain,
            stack,
            rate,
        } => {
            let spec = MemberSpec {
                limited: *limited,
                no_offload: *plain,
                userspace_stack: *stack,
                rate: *rate,
            };
            host.grow(actor, name, nodes, spec).map(Reply::Domain)
        }
        Request::DomainShrink { name, nodes } => {
            let shrunk = host.shrink(actor, name, nodes);
            return shrunk.map(|(info, left)| Made::of(Reply::Domain(info), Some(left)));
        }
        Request::DomainRemove { name } => {
            let removed = host.remove(actor, name);
            return removed.map(|left| Made::of(Reply::Done, Some(left)));
        }
        Request::DomainManage {
            name,
            nodes,
            revoke,
        } => manage(host, actor, name, nodes, *revoke),
        Request::DomainSet {
            name,
            public,
            forward,
            sealed,
            fence,
            ethernet,
            owner,
        } => set(
            host,
            actor,
            name,
            (*public, *forward, *sealed),
            (*fence, *ethernet),
            *owner,
        ),
        Request::DomainRate { name, nodes, rate } => {
            host.set_rate(actor, name, nodes, *rate).map(Reply::Domain)
        }
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
        Request::NodeChown { nodes, owner } => {
            return chown(host, actor, nodes, *owner).map(Made::handing_over);
        }
        Request::NodeAlloc(wanted) => host.alloc_nodes(actor, wanted),
        Request::NodeFree { nodes } => {
            return host.free_nodes(actor, nodes).map(Made::handing_over);
        }
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
        Request::HostAdmit { host: other, key } => {
            host.admit_host(caller, other, *key).map(|()| Reply::Done)
        }
        Request::HostRemove { host: other } => {
            let removed = host.remove_host(caller, other);
            return removed.map(|left| Made::of(Reply::Done, left));
        }
        Request::DirectoryMove { to } => host.move_directory(caller, to).map(|()| Reply::Done),
        // Another host's agent, or this one, has made the keys.
        Request::HostRotate { keys } => host.rekey_host(caller, keys).map(|()| Reply::Done),
        query_request!() | connection_request!() | Request::Down => Err(Refusal::new(
            RefusalKind::Invalid,
            "this is no change",
            "ask your own agent",
        )),
    };
    reply.map(|reply| Made::of(reply, None))
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
        capacity: new.capacity,
        mtu: new.mtu,
        owner: new.owner.unwrap_or(caller),
        public: new.public,
        sealed: new.sealed,
        fence: new.fence,
        ethernet: new.ethernet,
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
    (public, forward, sealed): (Option<bool>, Option<bool>, Option<bool>),
    (fence, ethernet): (Option<u32>, Option<EthernetPath>),
    owner: Option<u32>,
) -> Result<Reply, Refusal> {
    let domain = host.edit(|directory| {
        actor.may_own(directory, actor.named(directory, name)?)?;
        if owner.is_some() {
            actor.may_administer("give domains away")?;
        }
        may_serve(host, owner)?;
        let mut domain = directory.set(name, public, forward, owner)?;
        if let Some(seconds) = fence {
            domain = directory.fence(name, Some(seconds).filter(|seconds| *seconds > 0))?;
            fences::check(host, &domain)?;
        }
        if let Some(sealed) = sealed {
            domain = directory.seal(name, sealed)?;
            host.check_sealed(directory, &domain)?;
        }
        if let Some(path) = ethernet {
            domain = directory.set_ethernet(name, path)?;
            host.check_ethernet(&domain)?;
        }
        Ok(domain)
    })?;
    if forward.is_some() || fence.is_some() || ethernet.is_some() {
        host.tell_members(&domain)?;
    }
    Ok(Reply::Domain(host.describe(&domain)))
}

fn chown<'h>(
    host: &'h Host,
    actor: Actor,
    nodes: &[String],
    owner: Option<u32>,
) -> Result<(Departure, HandOver<'h>), Refusal> {
    let directory = host.members.directory(Directory::clone);
    may_give(host, actor, owner)?;
    let mut nodes = actor.resolve(&directory, nodes)?;
    nodes.retain(|node| directory.owner_of(*node) != owner);
    host.begin_hand_over(nodes, owner)
}

fn may_give(host: &Host, actor: Actor, owner: Option<u32>) -> Result<(), Refusal> {
    actor.may_administer("give nodes away")?;
    may_serve(host, owner)
}

/// Checks that an actor may hand these nodes over by a request. Returns their next owner.
pub(super) fn check_hand_over(
    host: &Host,
    actor: Actor,
    request: &Request,
    nodes: &BTreeSet<NodeId>,
) -> Result<Option<u32>, Refusal> {
    match request {
        Request::NodeChown { owner, .. } => may_give(host, actor, *owner).map(|()| *owner),
        _ => {
            host.members
                .directory(|directory| directory.check_release(actor, nodes))?;
            Ok(None)
        }
    }
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
