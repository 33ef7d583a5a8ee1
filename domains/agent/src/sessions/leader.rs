//! The leader's side: admission and requests of followers. Also the reception of sessions for
//! tickets at any agent.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use toroid_fabric::NodeId;
use toroid_model::directory::Directory;
use toroid_model::directory::requests::RequestId;
use toroid_model::hosts::ETCD;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_model::rights::Actor;
use toroid_protocol::agent::Request;
use toroid_protocol::hosts::{Claim, Hello, HostMessage, HostRequest, HostResponse, Requester};

use super::{gateways, lookup, queries, renewals, reports, tickets};
use crate::channel::SessionError;
use crate::channel::handshake::Peer;
use crate::channel::secure::{HANDSHAKE, Session};
use crate::cluster::addresses::{double, enter_told};
use crate::cluster::admission::Entry;
use crate::cluster::followers::{Place, name_nodes};
use crate::cluster::link::{Link, stay_alive};
use crate::cluster::revisions;
use crate::cluster::{Cluster, Setback};
use crate::control::Updates;
use crate::core::audit::Caller;
use crate::core::changes::{Standing, attempt};
use crate::core::host::Host;
use crate::core::offers;
use crate::core::once::Asked;
use crate::threads;

/// Serves a session of a host that has proven a key, to its end. It came `from` an address.
pub(crate) fn receive(
    host: &Arc<Host>,
    cluster: &Arc<Cluster>,
    mut session: Session,
    from: SocketAddr,
) -> Result<(), SessionError> {
    let deadline = Instant::now() + HANDSHAKE;
    let hello = loop {
        match session.reader.receive()? {
            // One that stays without a name would keep the place of a host.
            HostMessage::Alive if Instant::now() < deadline => {}
            HostMessage::Hello(hello) => break hello,
            other => {
                let message = format!("{} is no hello", other.kind());
                return Err(SessionError::Malformed(message));
            }
        }
    };
    // A leader that ends or starts again has none of its followers any more.
    let leads = cluster.is_leader()
        && !host.is_ending()
        && !host.gate.is_closed()
        && !cluster.control.is_deposed();
    if let Some(moved) = hello
        .moved
        .as_ref()
        .filter(|_| is_admitted(host, cluster, &hello, &session))
    {
        offers::hear(host, cluster, moved);
    }
    let moved = cluster.moves.last();
    if hello.follows.is_some() && !leads && (cluster.config.directory == ETCD || moved.is_some()) {
        let leader = cluster.leader_name().filter(|_| !cluster.is_leader());
        let addresses = host
            .members
            .directory(|directory| cluster.leaders_addresses(leader.as_deref(), directory));
        let moved = moved.map(Box::new);
        let answer = HostMessage::NotLeader {
            leader,
            moved,
            addresses,
        };
        session.writer.send(&answer)?;
        session.reader.see_off();
        return Ok(());
    }
    let (peer, name) = (session.peer, hello.host.clone());
    let check_name = || {
        let check = |directory: &Directory| cluster.check_name(directory, &peer, &name);
        host.members.directory(check)
    };
    let check_fabric = || {
        let ours = host.members.directory(Directory::revision);
        let ours = (cluster.config.host.as_str(), ours);
        revisions::check_fabric((&name, hello.revision), ours)
    };
    let checked = cluster
        .check(&hello, session.version)
        .and_then(|()| check_fabric())
        .and_then(|()| check_name());
    let entry = match checked {
        Ok(entry) => entry,
        Err(refusal) => return refuse(host, cluster, &hello, session, refusal),
    };
    // From here on, other hosts may have to be awaited.
    stay_alive(&session.writer)?;
    let link = Link::new(hello.host.clone(), session.writer.clone());
    let hello = Arc::new(hello);
    let claim = hello.follows.clone();
    if claim.is_none() && entry == Entry::New {
        let message = format!("host {} is not admitted yet", hello.host);
        let remedy = "start its agent, and see `toroid host ls` on the leader";
        let refusal = Refusal::new(RefusalKind::Denied, message, remedy);
        return refuse(host, cluster, &hello, session, refusal);
    }
    let Some(claim) = claim else {
        let _entry = Incoming::enter(cluster, &link);
        // Again, because the host may have been removed before it was entered.
        if let Err(refusal) = check_name() {
            return refuse(host, cluster, &hello, session, refusal);
        }
        session.writer.send(&HostMessage::Welcome)?;
        let (served, known) = (Arc::clone(host), Arc::clone(cluster));
        link.attend(session.reader, move |ask| {
            serve(&served, &known, &hello, ask)
        });
        return Ok(());
    };
    match admit_follower(
        cluster,
        host,
        &link,
        (&hello, &claim),
        (&session.peer, from),
    ) {
        Ok((place, updates)) => lead(host, cluster, (&place, updates), hello, session),
        Err(refusal) => refuse(host, cluster, &hello, session, refusal),
    }
}

/// Whether the other side has the key of the host that it says to be, and a directory of this fabric.
fn is_admitted(host: &Host, cluster: &Cluster, hello: &Hello, session: &Session) -> bool {
    let ours = &cluster.config;
    host.members.directory(|directory| {
        let keys = directory.keys_of(&hello.host).unwrap_or_default();
        let here = (ours.host.as_str(), directory.revision());
        keys.contains(&session.peer.key)
            && hello.to == ours.host
            && hello.version == session.version
            && revisions::check_fabric((&hello.host, hello.revision), here).is_ok()
    })
}

/// Entry of a session for tickets among the incoming ones.
struct Incoming<'a> {
    cluster: &'a Cluster,
    link: &'a Arc<Link>,
}

impl<'a> Incoming<'a> {
    fn enter(cluster: &'a Cluster, link: &'a Arc<Link>) -> Self {
        cluster.incoming.lock().push(Arc::clone(link));
        Incoming { cluster, link }
    }
}

impl Drop for Incoming<'_> {
    fn drop(&mut self) {
        let mut all = self.cluster.incoming.lock();
        all.retain(|other| !Arc::ptr_eq(other, self.link));
    }
}

/// Sends a refusal, and waits for the end.
fn refuse(
    host: &Host,
    cluster: &Cluster,
    hello: &Hello,
    session: Session,
    refusal: Refusal,
) -> Result<(), SessionError> {
    host.note_problem(cluster, &hello.host, &refusal.message);
    session.writer.send(&HostMessage::Refused(refusal))?;
    session.reader.see_off();
    Ok(())
}

/// Serves a follower to the end of its session.
fn lead(
    host: &Arc<Host>,
    cluster: &Arc<Cluster>,
    (place, updates): (&Place<'_>, Updates),
    hello: Arc<Hello>,
    session: Session,
) -> Result<(), SessionError> {
    session.writer.send(&HostMessage::Welcome)?;
    let name = hello.host.clone();
    tracing::info!("host {name} follows");
    cluster.problems.clear(&name);
    let (publisher, told) = (Arc::clone(cluster), Arc::clone(place.link));
    threads::start(move || publisher.tell(&told, &updates))?;
    if let Some(claim) = &hello.follows {
        let (host, cluster, name) = (Arc::clone(host), Arc::clone(cluster), name.clone());
        let address = claim.address;
        // The session does not need it.
        let _ = threads::start(move || {
            let is_present = || host.members.directory(|d| d.address_of(&name)) == Some(address);
            if let Some(problem) = cluster.check_told(&name, address, is_present) {
                host.tell_problem(&name, &problem);
            }
        });
    }
    let (served, known) = (Arc::clone(host), Arc::clone(cluster));
    let needs = place.entry.needs();
    let end = place.link.attend(session.reader, move |ask| match ask {
        HostRequest::Renew => renewals::answer(&known, &needs),
        ask => serve(&served, &known, &hello, ask),
    });
    host.note_problem(cluster, &name, &format!("its session has ended: {end}"));
    Ok(())
}

fn serve(host: &Arc<Host>, cluster: &Cluster, hello: &Hello, ask: HostRequest) -> HostResponse {
    let from = &hello.host;
    match ask {
        HostRequest::Change {
            who,
            pid,
            id,
            request,
        } if hello.follows.is_some() => change(host, from, who, pid, (id, request)),
        HostRequest::Ticket { wanted, revision } => {
            tickets::give_ticket(host, cluster, (from, revision), wanted)
        }
        HostRequest::Listeners(sought) => lookup::answer(host, cluster, from, sought),
        HostRequest::Gateway { domain, gateway } => gateways::answer(host, &domain, gateway),
        HostRequest::GatewayProblems(problems) => reports::hear(host, from, problems),
        HostRequest::Query { who, request } => {
            queries::answer_host(host, cluster, (from, who), &request)
        }
        _ => HostResponse::Refused(Refusal::new(
            RefusalKind::Invalid,
            format!("host {} is not asked this", cluster.config.host),
            "use the same release on all hosts",
        )),
    }
}

/// Carries out a change for an actor on another host.
fn change(
    host: &Arc<Host>,
    from: &str,
    who: Requester,
    pid: Option<u32>,
    (id, request): (RequestId, Request),
) -> HostResponse {
    if !request.is_change() {
        let message = "that changes nothing";
        let refusal = Refusal::new(RefusalKind::Invalid, message, "ask your own agent");
        return HostResponse::Refused(refusal);
    }
    let carrier = |node| host.members.directory(|d| d.host_of(node) == Some(from));
    let actor = who.actor(host.identity.uid);
    if let Actor::Node(node) = actor
        && !carrier(node)
    {
        let message = format!("host {from} does not carry {node}");
        return HostResponse::Unsettled(Refusal::new(RefusalKind::Denied, message, ""));
    }
    let Some(_inside) = host.gate.enter() else {
        let message = if host.is_ending() {
            "the leader is ending"
        } else {
            "the leader is starting again"
        };
        return HostResponse::Again(Refusal::new(RefusalKind::Failed, message, "try again"));
    };
    let standing = match who {
        Requester::Node { owner, .. } => Standing::Owner(owner),
        _ => Standing::Own,
    };
    let caller = Caller {
        actor,
        pid,
        host: Some(from.into()),
    };
    let asked = match Asked::new(Some((id, false)), request) {
        Ok(asked) => asked,
        Err(refusal) => return HostResponse::Unsettled(refusal),
    };
    let before = host.members.directory(Directory::clone);
    let (result, answer) = match attempt(host, &caller, standing, &asked) {
        Ok(reply) => (Ok(()), HostResponse::Reply(Box::new(reply))),
        Err(setback) => {
            let answer = match &setback {
                Setback::Refused(why) => HostResponse::Refused(why.clone()),
                Setback::Unsettled(why) => HostResponse::Unsettled(why.clone()),
                Setback::Lost(why) => HostResponse::Again(why.clone()),
            };
            (Err(setback.into()), answer)
        }
    };
    // Others are repeated, and logged where they came from.
    if matches!(answer, HostResponse::Reply(_) | HostResponse::Refused(_)) {
        host.audit.note(&caller, &asked.request, &before, &result);
    }
    answer
}

/// Enters a host's nodes in the directory, and admits the host as a follower.
fn admit_follower<'a>(
    cluster: &'a Cluster,
    host: &Host,
    link: &'a Arc<Link>,
    (hello, claim): (&Hello, &Claim),
    (peer, from): (&Peer, SocketAddr),
) -> Result<(Place<'a>, Updates), Refusal> {
    let name = &link.host;
    let _turn = host.changes.take(Actor::Administrator(host.identity.uid))?;
    let ours = &cluster.config.host;
    host.members.directory(|directory| {
        revisions::check_update((name, hello.revision), (ours, directory))
    })?;
    let is_there = |link: &Arc<Link>| !link.has_ended();
    if cluster.followers().get(name).is_some_and(is_there) {
        return Err(Refusal::new(
            RefusalKind::Exists,
            format!("another agent is connected as host {name}"),
            "if it has just been cut off, it takes some seconds until that is known",
        ));
    }
    let nodes: BTreeSet<NodeId> = claim.nodes.iter().copied().map(NodeId).collect();
    let before = host.members.directory(Directory::clone);
    let problem = host.edit(|directory| {
        let torus = directory.torus();
        if nodes.iter().any(|node| torus.place(*node).is_none()) {
            let message = format!("nodes that the torus {torus} does not have");
            return Err(Refusal::new(RefusalKind::Invalid, message, ""));
        }
        // Again, because the host may have been removed meanwhile.
        if cluster.check_name(directory, peer, name)? == Entry::New {
            tracing::info!("host {name} is admitted with key {}", peer.key);
            directory.admit_host(name, peer.key)?;
        }
        directory.claim(name, &nodes)?;
        name_nodes(directory, &nodes, &claim.aliases);
        Ok(enter_told(directory, name, claim.address, from))
    })?;
    let now = host.members.directory(Directory::clone);
    host.tell_moved(&now, &now.moved_since(&before));
    host.note_others();
    if now.address_of(name) != before.address_of(name) {
        tracing::info!("host {name} is at {}", claim.address);
        cluster.control.hurry(now.hosts_sharing_with(name));
    }
    cluster.addresses.note_refused(name, problem.as_deref());
    let other = now.hosts_at_one_address().get(name.as_str()).copied();
    if let Some(problem) = problem.or_else(|| other.map(double)) {
        host.tell_problem(name, &problem);
    }
    let has = hello.revision.filter(|_| !hello.is_partial);
    Ok(cluster.place(link, has))
}

impl Host {
    /// Reports a problem of another host, in the log and the events only when it is new.
    pub(super) fn note_problem(&self, cluster: &Cluster, host: &str, problem: &str) {
        let is_known = |directory: &Directory| cluster.knows(host, directory);
        let is_new = if self.members.directory(is_known) {
            cluster.problems.note(host, problem)
        } else {
            let now = Instant::now();
            cluster.problems.note_refused(host, problem, now)
                && cluster.problems.may_tell(host, "refused", now)
        };
        if is_new {
            self.tell_problem(host, problem);
        }
    }

    /// Does the same for an unauthenticated side, known only by its address, which may be that of a
    /// host.
    pub(super) fn note_unauthenticated(
        &self,
        cluster: &Cluster,
        address: SocketAddr,
        error: &SessionError,
    ) {
        let directory = self.members.directory(Directory::clone);
        let known = cluster.config.hosts.iter();
        let mut known = known.chain(directory.host_addresses());
        let host = known.find(|(_, its)| its.ip() == address.ip());
        let name = host.map_or_else(|| address.ip().to_string(), |(host, _)| host.clone());
        // A connection from that address says nothing about a host that is connected.
        if cluster.followers().contains_key(&name) {
            return tracing::debug!("{address}: {error}");
        }
        let problem = error.to_string();
        let is_new = host.is_none() || cluster.problems.note(&name, &problem);
        // The text may differ each time, because the other side chooses it.
        if is_new
            && cluster
                .problems
                .may_tell(&name, error.kind(), Instant::now())
        {
            self.tell_problem(&name, &problem);
        }
    }

    fn tell_problem(&self, host: &str, problem: &str) {
        tracing::warn!("host {host}: {problem}");
        self.audit.note_host(host, problem);
    }
}

#[cfg(test)]
mod tests {
    use toroid_model::directory::{Domain, Wanted};
    use toroid_model::host_key::PublicKey;
    use toroid_model::hosts::{Encryption, Provider};

    use super::*;
    use crate::cluster::link::tests::sessions;
    use crate::cluster::tests::cluster;

    /// A directory with a domain.
    fn blue() -> (Directory, Domain) {
        let mut directory = Directory::new("2x1x1".parse().unwrap());
        let wanted = Wanted {
            name: "blue".into(),
            ..Wanted::default()
        };
        let blue = directory.create(wanted).unwrap().domain;
        (directory, blue)
    }

    #[test]
    fn a_sealed_domain_is_refused_where_data_between_hosts_is_not_encrypted() {
        let mut cluster = cluster();
        let (mut directory, open) = blue();
        let sealed = directory.seal("blue", true).unwrap();
        cluster.check_sealed(&sealed).unwrap();
        for (provider, encryption, why) in [
            (Provider::Verbs, Encryption::On, "verbs"),
            (Provider::Tcp, Encryption::Off, "off"),
        ] {
            cluster.config.provider = provider;
            cluster.config.encryption = encryption;
            let refusal = cluster.check_sealed(&sealed).unwrap_err();
            assert!(refusal.message.contains(why), "{refusal}");
            cluster.check_sealed(&open).unwrap();
        }
    }

    #[test]
    fn a_fence_is_refused_where_rdma_devices_do_not_stop() {
        let mut cluster = cluster();
        let (mut directory, open) = blue();
        let fenced = directory.fence("blue", Some(10)).unwrap();
        cluster.check_fence(&fenced).unwrap();
        cluster.config.provider = Provider::Verbs;
        cluster.check_fence(&open).unwrap();
        let refusal = cluster.check_fence(&fenced).unwrap_err();
        assert!(refusal.message.contains("verbs"), "{refusal}");
    }

    /// The disk of a removed host has the pre-shared key, too.
    #[test]
    fn a_pre_shared_key_that_a_removed_host_had_admits_nobody() {
        let cluster = cluster();
        let mut directory = Directory::new("2x1x1".parse().unwrap());
        let peer = |byte| Peer {
            key: PublicKey([byte; 32]),
            has_secret: true,
        };
        let entry = cluster.check_name(&directory, &peer(1), "b").unwrap();
        assert_eq!(entry, Entry::New);
        directory.set_host_keys("c", vec![PublicKey([2; 32])]);
        let digest = cluster.secret.digest();
        directory.remove_host("c", &digest).unwrap();
        for host in ["b", "c"] {
            let refusal = cluster.check_name(&directory, &peer(3), host).unwrap_err();
            assert!(refusal.remedy.contains("toroid host admit"), "{refusal}");
            let now = Instant::now();
            assert_eq!(cluster.pending.lock().of(host, now), Some(&peer(3).key));
        }
        directory.set_host_keys("b", vec![PublicKey([3; 32])]);
        let entry = cluster.check_name(&directory, &peer(3), "b").unwrap();
        assert_eq!(entry, Entry::Admitted);
        assert_eq!(cluster.pending.lock().hosts(Instant::now()), ["c"]);
    }

    /// A follower whose session broke just before its welcome was once locked out for ever.
    #[test]
    fn a_followers_place_is_free_after_any_end_of_its_session() {
        let cluster = cluster();
        let [ours, _theirs] = sessions();
        let early = Link::new("b".into(), ours.writer);
        let (first, _) = cluster.place(&early, None);
        assert!(cluster.followers().contains_key("b"));
        let [ours, _theirs] = sessions();
        let late = Link::new("b".into(), ours.writer);
        let (second, _) = cluster.place(&late, None);
        drop(first);
        assert!(early.has_ended() && !late.has_ended());
        assert!(cluster.followers().contains_key("b"));
        drop(second);
        assert!(late.has_ended() && cluster.followers().is_empty());
    }
}
