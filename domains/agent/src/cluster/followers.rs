//! The followers of the leader, and the progress of each.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use toroid_fabric::NodeId;
use toroid_model::directory::Directory;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::hosts::{DirectoryUpdate, Hello, HostRequest, HostResponse};

use super::Cluster;
use super::link::{Link, NoAnswer};

/// Time that a change waits for a connected host that it concerns.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Time that a change waits for a connected host that it does not concern: names resolve there soon
/// after.
const COURTESY: Duration = Duration::from_secs(2);

/// Pauses before an update is sent again to a host that failed to apply it.
const BACKOFF: [Duration; 2] = [Duration::from_millis(500), Duration::from_secs(5)];

/// A follower: a host that follows the directory.
#[derive(Debug)]
pub(crate) struct Follower {
    pub(crate) link: Arc<Link>,
    /// Number of the last change that is in effect there.
    has: Option<u64>,
    /// Number of the change that failed there, and the reason.
    failed: Option<(u64, String)>,
    /// Number of the last change that is in effect there with exceptions, and these.
    except: Option<(u64, String)>,
}

/// Entry of a connected follower. Dropping it removes the follower, however its session ends.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    cluster: &'a Cluster,
    pub(crate) link: &'a Arc<Link>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.link.end();
        self.cluster.forget(self.link);
    }
}

impl Cluster {
    /// Enters the nodes of the leader's own host in the directory, and removes hosts that its file
    /// does not name. The leader's claim wins: another host with a claim to the same nodes is
    /// refused when it connects.
    pub(crate) fn claim_own(&self, directory: &mut Directory) {
        let ours = &self.config;
        directory.keep_hosts(|host| host == ours.host || ours.hosts.contains_key(host));
        let nodes: BTreeSet<NodeId> = ours.nodes.iter().copied().map(NodeId).collect();
        directory.take_over(&ours.host, &nodes);
        name_nodes(directory, &nodes, &ours.aliases);
    }

    /// Checks that the other agent is a host of this cluster with the same torus, provider and
    /// leader.
    pub(crate) fn check(&self, hello: &Hello, version: u8) -> Result<(), Refusal> {
        let ours = &self.config;
        let message = if hello.version != version {
            "the version was altered on its way".into()
        } else if hello.to != ours.host {
            format!("this is host {}, and not {}", ours.host, hello.to)
        } else if hello.host == ours.host {
            format!("two agents are of host {}", ours.host)
        } else if !ours.hosts.contains_key(&hello.host) {
            format!("host {} does not know host {}", ours.host, hello.host)
        } else if hello.torus != ours.torus {
            format!(
                "host {} has a torus {}, and host {} one of {}",
                hello.host, hello.torus, ours.host, ours.torus
            )
        } else if hello.provider != ours.provider {
            format!(
                "host {} is connected by {}, and host {} by {}",
                hello.host, hello.provider, ours.host, ours.provider
            )
        } else if hello.follows.is_some() && !ours.holds_directory() {
            format!(
                "the directory is at host {}, and not at {}",
                ours.directory, ours.host
            )
        } else {
            return Ok(());
        };
        let remedy = "compare the files for `toroid up --config` of the two hosts";
        Err(Refusal::new(RefusalKind::Invalid, message, remedy))
    }

    pub(crate) fn place<'a>(&'a self, link: &'a Arc<Link>) -> Place<'a> {
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

    /// Sends the directory to a follower, and then every change, until its session ends.
    pub(crate) fn tell(&self, link: &Arc<Link>) {
        let mut has = None;
        let mut pause = BACKOFF[0];
        while let Some((number, adoption)) = self.publication.after(has, || link.has_ended()) {
            match self.let_adopt(link, adoption) {
                Ok(HostResponse::Done) => {
                    (has, pause) = (Some(number), BACKOFF[0]);
                    self.note_progress(link, number, Progress::Done);
                }
                Ok(HostResponse::DoneExcept(what)) => {
                    tracing::warn!("host {} follows, but: {what}", link.host);
                    (has, pause) = (Some(number), BACKOFF[0]);
                    self.note_progress(link, number, Progress::Except(what));
                }
                Ok(HostResponse::Refused(refusal)) => {
                    tracing::warn!("host {} cannot follow: {refusal}", link.host);
                    self.note_progress(link, number, Progress::Failed(refusal.message));
                    has = None;
                    thread::sleep(pause);
                    pause = BACKOFF[1].min(pause * 2);
                }
                Ok(_) | Err(NoAnswer::Late | NoAnswer::Ended) => link.end(),
            }
        }
    }

    /// Sends an update and waits for its result as long as the session lives: acknowledgements that
    /// take longer than a change waits are no reason to cut the host off.
    fn let_adopt(&self, link: &Link, adoption: DirectoryUpdate) -> Result<HostResponse, NoAnswer> {
        let question = link.begin(HostRequest::Adopt(adoption))?;
        loop {
            match question.wait(TIMEOUT) {
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

    /// Waits until everything published is in effect on all connected hosts. Returns the concerned
    /// hosts where it is not, with the reasons.
    pub(crate) fn await_hosts(&self, concerned: &BTreeSet<String>) -> BTreeMap<String, String> {
        let number = self.publication.number();
        let begun = Instant::now();
        let mut followers = self.followers();
        loop {
            let timeout = |(host, follower): (&String, &Follower)| {
                let timeout = if concerned.contains(host) {
                    TIMEOUT
                } else {
                    COURTESY
                };
                follower.lacks(number).then_some(timeout)
            };
            let timeout = followers.iter().filter_map(timeout).max();
            let left = timeout.unwrap_or_default().saturating_sub(begun.elapsed());
            if left.is_zero() {
                break;
            }
            self.heard.wait_for(&mut followers, left);
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

/// Result of a change at a follower.
enum Progress {
    Done,
    Except(String),
    Failed(String),
}

impl Follower {
    /// Whether the host may still apply a change.
    fn lacks(&self, number: u64) -> bool {
        let has_failed = self
            .failed
            .as_ref()
            .is_some_and(|(failed, _)| *failed >= number);
        self.has.is_none_or(|has| has < number) && !has_failed && !self.link.has_ended()
    }

    /// Reason why a change is not in effect there.
    fn why_not(&self, number: u64) -> Option<String> {
        match &self.failed {
            _ if self.has.is_some_and(|has| has >= number) => {
                let except = self.except.as_ref().filter(|(last, _)| *last >= number);
                except.map(|(_, what)| what.clone())
            }
            Some((_, why)) => Some(why.clone()),
            None if self.link.has_ended() => Some("its agent has just gone".into()),
            None => Some(format!("it has not answered in {} s", TIMEOUT.as_secs())),
        }
    }
}

/// Adds the aliases that a host wants for its nodes. An alias that cannot be added does not exclude
/// the host.
pub(crate) fn name_nodes(
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
