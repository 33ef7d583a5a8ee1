//! The holder's side: who follows, how far each of them is, and what they ask. Also how any agent
//! receives those who want no more than tickets.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use toroid_fabric::NodeId;
use toroid_model::directory::Directory;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_model::rights::Actor;
use toroid_protocol::agent::{Reply, Request};
use toroid_protocol::hosts::{Adoption, Answer, Ask, Claim, Hello, Said, Who};

use super::link::{Link, NoAnswer, stay_alive};
use super::{Cluster, broker, listeners};
use crate::agent::audit::Caller;
use crate::agent::changes::{Standing, carry_out, is_change};
use crate::agent::host::Host;
use crate::hosts::SessionError;
use crate::hosts::secure::Session;

/// How long a change waits for a host that is there.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long for one that it does not concern, but whose users would wonder.
const COURTESY: Duration = Duration::from_secs(2);

/// Pauses before a host is told again that has failed.
const BACK_OFF: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(5)];

const STACK_BYTES: usize = 256 * 1024;

/// A host that follows the directory.
#[derive(Debug)]
pub(super) struct Follower {
    pub(super) link: Arc<Link>,
    /// The last change that is in effect there, once any is.
    has: Option<u64>,
    /// The one that it failed to bring into effect, and why.
    failed: Option<(u64, String)>,
    /// The last one that is in effect there but for something, and for what.
    except: Option<(u64, String)>,
}

/// A follower's place among those who follow. However its session ends, it is free afterwards.
#[derive(Debug)]
struct Place<'a> {
    cluster: &'a Cluster,
    link: &'a Arc<Link>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.link.end();
        self.cluster.forget(self.link);
    }
}

/// Attends to whoever has shown the key, until it ends.
pub(super) fn receive(
    host: &Arc<Host>,
    cluster: &Arc<Cluster>,
    mut session: Session,
) -> Result<(), SessionError> {
    let hello = loop {
        match session.reader.receive()? {
            Said::Alive => {}
            Said::Hello(hello) => break hello,
            other => {
                let message = format!("{} is no hello", other.kind());
                return Err(SessionError::Malformed(message));
            }
        }
    };
    if let Err(refusal) = cluster.check(&hello, session.version) {
        return refuse(host, cluster, &hello, session, refusal);
    }
    // Others may have to be waited for now.
    stay_alive(&session.writer)?;
    let link = Link::new(hello.host.clone(), session.writer.clone());
    let hello = Arc::new(hello);
    let Some(claim) = hello.follows.clone() else {
        session.writer.send(&Said::Welcome)?;
        let (served, books) = (Arc::clone(host), Arc::clone(cluster));
        link.attend(session.reader, move |ask| {
            serve(&served, &books, &hello, ask)
        });
        return Ok(());
    };
    match cluster.admit_follower(host, &link, &claim) {
        Ok(place) => lead(host, cluster, &place, hello, session),
        Err(refusal) => refuse(host, cluster, &hello, session, refusal),
    }
}

/// Tells it why not.
fn refuse(
    host: &Host,
    cluster: &Cluster,
    hello: &Hello,
    session: Session,
    refusal: Refusal,
) -> Result<(), SessionError> {
    host.note_problem(cluster, &hello.host, &refusal.message);
    session.writer.send(&Said::Refused(refusal))?;
    session.reader.see_off();
    Ok(())
}

/// Lets it follow, until it ends.
fn lead(
    host: &Arc<Host>,
    cluster: &Arc<Cluster>,
    place: &Place<'_>,
    hello: Arc<Hello>,
    session: Session,
) -> Result<(), SessionError> {
    session.writer.send(&Said::Welcome)?;
    let name = hello.host.clone();
    tracing::info!("host {name} follows");
    cluster.problems.clear(&name);
    let (publisher, told) = (Arc::clone(cluster), Arc::clone(place.link));
    thread::Builder::new()
        .stack_size(STACK_BYTES)
        .spawn(move || publisher.tell(&told))?;
    let (served, books) = (Arc::clone(host), Arc::clone(cluster));
    let end = place.link.attend(session.reader, move |ask| {
        serve(&served, &books, &hello, ask)
    });
    host.note_problem(cluster, &name, &format!("its session has ended: {end}"));
    Ok(())
}

fn serve(host: &Arc<Host>, cluster: &Cluster, hello: &Hello, ask: Ask) -> Answer {
    let from = &hello.host;
    match ask {
        Ask::Change { who, pid, request } if hello.follows.is_some() => {
            change(host, from, who, pid, &request)
        }
        Ask::Ticket(wanted) => broker::give_ticket(host, cluster, from, wanted),
        Ask::Listeners(sought) => listeners::answer(host, cluster, from, sought),
        _ => Answer::Refused(Refusal::new(
            RefusalKind::Invalid,
            format!("host {} is not asked this", cluster.config.host),
            "use the same release on all hosts",
        )),
    }
}

/// Somebody on another host wants a change.
fn change(host: &Arc<Host>, from: &str, who: Who, pid: Option<u32>, request: &Request) -> Answer {
    if !is_change(request) {
        let message = "that changes nothing";
        let refusal = Refusal::new(RefusalKind::Invalid, message, "ask your own agent");
        return Answer::Refused(refusal);
    }
    let carrier = |node| host.members.directory(|d| d.host_of(node) == Some(from));
    let actor = who.actor(host.identity.uid);
    if let Actor::Node(node) = actor
        && !carrier(node)
    {
        let message = format!("host {from} does not carry {node}");
        return Answer::Refused(Refusal::new(RefusalKind::Denied, message, ""));
    }
    let standing = match who {
        Who::Node { owner, .. } => Standing::Owner(owner),
        _ => Standing::Own,
    };
    let caller = Caller {
        actor,
        pid,
        host: Some(from.into()),
    };
    let result = host.audited(&caller, request, || {
        carry_out(host, &caller, standing, request).unwrap_or(Ok(Reply::Done))
    });
    result.map_or_else(Answer::Refused, |reply| Answer::Reply(Box::new(reply)))
}

impl Cluster {
    /// Notes in the directory what the holder's own host carries, and that other hosts are those of its
    /// file. Its word is the last: whoever has claimed the same finds out when it comes.
    pub(in crate::agent) fn claim_own(&self, directory: &mut Directory) {
        let ours = &self.config;
        directory.keep_hosts(|host| host == ours.host || ours.hosts.contains_key(host));
        let nodes: BTreeSet<NodeId> = ours.nodes.iter().copied().map(NodeId).collect();
        directory.take_over(&ours.host, &nodes);
        name_nodes(directory, &nodes, &ours.aliases);
    }

    /// Whether somebody is whom he should be.
    fn check(&self, hello: &Hello, version: u8) -> Result<(), Refusal> {
        let ours = &self.config;
        let refuse = |message: String| {
            let remedy = "compare the files for `toroid up --config` of the two hosts";
            Err(Refusal::new(RefusalKind::Invalid, message, remedy))
        };
        if hello.version != version {
            return refuse("the version was altered on its way".into());
        }
        if hello.to != ours.host {
            let message = format!("this is host {}, and not {}", ours.host, hello.to);
            return refuse(message);
        }
        if hello.host == ours.host {
            return refuse(format!("two agents are of host {}", ours.host));
        }
        if !ours.hosts.contains_key(&hello.host) {
            return refuse(format!(
                "host {} does not know host {}",
                ours.host, hello.host
            ));
        }
        if hello.torus != ours.torus {
            return refuse(format!(
                "host {} has a torus {}, and host {} one of {}",
                hello.host, hello.torus, ours.host, ours.torus
            ));
        }
        if hello.provider != ours.provider {
            return refuse(format!(
                "host {} is connected by {}, and host {} by {}",
                hello.host, hello.provider, ours.host, ours.provider
            ));
        }
        if hello.follows.is_some() && !ours.holds_directory() {
            return refuse(format!(
                "the directory is at host {}, and not at {}",
                ours.directory, ours.host
            ));
        }
        Ok(())
    }

    /// Notes what a host carries, if that can be, and that it follows.
    fn admit_follower<'a>(
        &'a self,
        host: &Host,
        link: &'a Arc<Link>,
        claim: &Claim,
    ) -> Result<Place<'a>, Refusal> {
        let name = &link.host;
        let _turn = host.turns.take(Actor::Administrator(host.identity.uid))?;
        let is_there = |follower: &Follower| !follower.link.has_ended();
        if self.followers().get(name).is_some_and(is_there) {
            return Err(Refusal::new(
                RefusalKind::Exists,
                format!("another agent is connected as host {name}"),
                "if it has just been cut off, it takes some seconds until that is known",
            ));
        }
        let nodes: BTreeSet<NodeId> = claim.nodes.iter().copied().map(NodeId).collect();
        host.edit(|directory| {
            let torus = directory.torus();
            if nodes.iter().any(|node| torus.place(*node).is_none()) {
                let message = format!("nodes that the torus {torus} does not have");
                return Err(Refusal::new(RefusalKind::Invalid, message, ""));
            }
            directory.claim(name, &nodes)?;
            name_nodes(directory, &nodes, &claim.aliases);
            Ok(())
        })?;
        host.tell_all_far(&host.members.directory(Directory::clone));
        Ok(self.place(link))
    }

    fn place<'a>(&'a self, link: &'a Arc<Link>) -> Place<'a> {
        let follower = Follower {
            link: Arc::clone(link),
            has: None,
            failed: None,
            except: None,
        };
        self.followers().insert(link.host.clone(), follower);
        Place {
            cluster: self,
            link,
        }
    }

    fn forget(&self, link: &Arc<Link>) {
        let mut followers = self.followers();
        if followers
            .get(&link.host)
            .is_some_and(|follower| Arc::ptr_eq(&follower.link, link))
        {
            followers.remove(&link.host);
        }
        drop(followers);
        self.heard.notify_all();
        self.publication.wake();
    }

    /// Lets a host be as the directory has it, and after each change again, until it has gone.
    fn tell(&self, link: &Arc<Link>) {
        let mut has = None;
        let mut pause = BACK_OFF[0];
        while let Some((number, adoption)) = self.publication.after(has, || link.has_ended()) {
            match self.let_adopt(link, adoption) {
                Ok(Answer::Done) => {
                    (has, pause) = (Some(number), BACK_OFF[0]);
                    self.note_progress(link, number, Progress::Done);
                }
                Ok(Answer::DoneExcept(what)) => {
                    tracing::warn!("host {} follows, but: {what}", link.host);
                    (has, pause) = (Some(number), BACK_OFF[0]);
                    self.note_progress(link, number, Progress::Except(what));
                }
                Ok(Answer::Refused(refusal)) => {
                    tracing::warn!("host {} cannot follow: {refusal}", link.host);
                    self.note_progress(link, number, Progress::Failed(refusal.message));
                    has = None;
                    thread::sleep(pause);
                    pause = BACK_OFF[1].min(pause * 2);
                }
                Ok(_) | Err(NoAnswer::Late | NoAnswer::Ended) => link.end(),
            }
        }
    }

    /// Waits for as long as the host says that it lives: acknowledgements that take longer than a
    /// change waits are no reason to cut it off.
    fn let_adopt(&self, link: &Link, adoption: Adoption) -> Result<Answer, NoAnswer> {
        let question = link.begin(Ask::Adopt(adoption))?;
        loop {
            match question.wait(PATIENCE) {
                Err(NoAnswer::Late) => {
                    let problem = "it takes long to bring a change into effect";
                    self.problems.note(&link.host, problem);
                }
                answer => return answer,
            }
        }
    }

    fn note_progress(&self, link: &Arc<Link>, number: u64, progress: Progress) {
        let mut followers = self.followers();
        let its = followers.get_mut(&link.host);
        let Some(its) = its.filter(|follower| Arc::ptr_eq(&follower.link, link)) else {
            return;
        };
        match progress {
            Progress::Done => {
                (its.has, its.failed) = (Some(number), None);
                self.problems.clear(&link.host);
            }
            Progress::Except(what) => {
                self.problems.note(&link.host, &what);
                (its.has, its.failed) = (Some(number), None);
                its.except = Some((number, what));
            }
            Progress::Failed(why) => {
                self.problems.note(&link.host, &why);
                its.failed = Some((number, why));
            }
        }
        drop(followers);
        self.heard.notify_all();
    }

    /// Waits until all that has been published is in effect on all hosts that are there. Returns on
    /// which of those that it concerns it is not, and why.
    pub(in crate::agent) fn await_hosts(
        &self,
        concerned: &BTreeSet<String>,
    ) -> BTreeMap<String, String> {
        let number = self.publication.number();
        let begun = Instant::now();
        let mut followers = self.followers();
        loop {
            let patience = |(host, follower): (&String, &Follower)| {
                let patience = if concerned.contains(host) {
                    PATIENCE
                } else {
                    COURTESY
                };
                follower.lacks(number).then_some(patience)
            };
            let patience = followers.iter().filter_map(patience).max();
            let left = patience.unwrap_or_default().saturating_sub(begun.elapsed());
            if left.is_zero() {
                break;
            }
            let waited = self.heard.wait_timeout(followers, left);
            followers = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let others = concerned.iter().filter(|host| **host != self.config.host);
        others
            .filter_map(|host| {
                let why = match followers.get(host) {
                    None => Some("its agent is away".into()),
                    Some(follower) => follower.why_not(number),
                };
                Some((host.clone(), why?))
            })
            .collect()
    }
}

/// What has become of a change at a host.
enum Progress {
    Done,
    Except(String),
    Failed(String),
}

impl Follower {
    /// Whether it may yet bring a change into effect.
    fn lacks(&self, number: u64) -> bool {
        let has_failed = self
            .failed
            .as_ref()
            .is_some_and(|(failed, _)| *failed >= number);
        self.has.is_none_or(|has| has < number) && !has_failed && !self.link.has_ended()
    }

    /// Why a change is not in effect there.
    fn why_not(&self, number: u64) -> Option<String> {
        match &self.failed {
            _ if self.has.is_some_and(|has| has >= number) => {
                let except = self.except.as_ref().filter(|(last, _)| *last >= number);
                except.map(|(_, what)| what.clone())
            }
            Some((_, why)) => Some(why.clone()),
            None if self.link.has_ended() => Some("its agent has just gone".into()),
            None => Some(format!("it has not answered in {} s", PATIENCE.as_secs())),
        }
    }
}

/// Gives nodes the further names that their host wants. What is not possible is no reason to do
/// without the host.
fn name_nodes(
    directory: &mut Directory,
    nodes: &BTreeSet<NodeId>,
    aliases: &BTreeMap<String, u32>,
) {
    for (alias, number) in aliases {
        let node = NodeId(*number);
        if !nodes.contains(&node) {
            continue;
        }
        if let Err(error) = directory.add_alias(node, alias) {
            tracing::warn!("{error}");
        }
    }
}

impl Host {
    /// Notes what is wrong with another host, for people: in the log and the events only when it is
    /// new.
    pub(super) fn note_problem(&self, cluster: &Cluster, host: &str, problem: &str) {
        let is_new = if cluster.config.hosts.contains_key(host) {
            cluster.problems.note(host, problem)
        } else {
            cluster.problems.may_tell(host, "refused", Instant::now())
        };
        if is_new {
            self.tell_problem(host, problem);
        }
    }

    /// The same of somebody of whom only the address is known; it may be that of a host.
    pub(super) fn note_stranger(
        &self,
        cluster: &Cluster,
        address: SocketAddr,
        error: &SessionError,
    ) {
        let hosts = &cluster.config.hosts;
        let host = hosts.iter().find(|(_, its)| its.ip() == address.ip());
        let name = host.map_or_else(|| address.ip().to_string(), |(host, _)| host.clone());
        // Whoever has that address now says nothing about a host that is connected.
        if cluster.followers().contains_key(&name) {
            return tracing::debug!("{address}: {error}");
        }
        let problem = error.to_string();
        let is_new = host.is_none() || cluster.problems.note(&name, &problem);
        // What he says, and with it the text, may be another each time.
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
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use toroid_model::hosts::{HostConfig, Provider};

    use super::super::link::tests::sessions;
    use super::*;

    fn cluster() -> Cluster {
        let directory = tempfile::tempdir().unwrap();
        let key = directory.path().join("key");
        fs::write(&key, "00".repeat(32)).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        let config = HostConfig {
            host: "a".into(),
            torus: "2x1x1".parse().unwrap(),
            nodes: [0].into(),
            aliases: BTreeMap::new(),
            listen: "127.0.0.1:0".parse().unwrap(),
            key,
            directory: "a".into(),
            provider: Provider::Tcp,
            rdma: None,
            hosts: [("b".into(), "127.0.0.1:1".parse().unwrap())].into(),
        };
        Cluster::new(config).unwrap().0
    }

    /// Once a follower whose session broke just before its welcome was locked out for ever.
    #[test]
    fn a_place_is_free_however_the_session_ends() {
        let cluster = cluster();
        let [ours, _theirs] = sessions();
        let early = Link::new("b".into(), ours.writer);
        let first = cluster.place(&early);
        assert!(cluster.followers().contains_key("b"));
        let [ours, _theirs] = sessions();
        let late = Link::new("b".into(), ours.writer);
        let second = cluster.place(&late);
        drop(first);
        assert!(early.has_ended() && !late.has_ended());
        assert!(cluster.followers().contains_key("b"));
        drop(second);
        assert!(late.has_ended() && cluster.followers().is_empty());
    }
}
