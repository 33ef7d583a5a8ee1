//! The followers of the leader.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use toroid_fabric::NodeId;
use toroid_model::directory::Directory;
use toroid_model::directory::revision::Revision;
use toroid_model::hosts::ETCD;
use toroid_model::names::is_host_name;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::hosts::{Hello, HostRequest, HostResponse};

use super::Cluster;
use super::link::{Link, NoAnswer, Question};
use super::pages;
use crate::control::core::{Answer, TIMEOUT};
use crate::control::update::SharedUpdate;
use crate::control::{FollowerEntry, Updates};

/// Time to send answers under way before a leader ends or starts again.
const FAREWELL: Duration = Duration::from_millis(500);

/// Entry of a connected follower. Dropping it removes the follower, however its session ends.
#[derive(Debug)]
pub(crate) struct Place<'a> {
    cluster: &'a Cluster,
    pub(crate) link: &'a Arc<Link>,
    pub(crate) entry: FollowerEntry,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.link.end();
        self.cluster.forget(self.link);
    }
}

impl Cluster {
    /// Enters the nodes, the key and the address of the leader's own host in the directory. The
    /// leader's claim wins: another host with a claim to the same nodes is refused when it connects.
    pub(crate) fn claim_own(&self, directory: &mut Directory) {
        let ours = &self.config;
        if directory
            .moved()
            .is_some_and(|moved| moved.to != ours.directory)
        {
            // By hand, from another place.
            directory.forget_move();
        }
        let nodes: BTreeSet<NodeId> = ours.nodes.iter().copied().map(NodeId).collect();
        directory.take_over(&ours.host, &nodes);
        directory.set_host_keys(&ours.host, vec![self.keys.lock().public()]);
        directory.set_address(&ours.host, ours.told_address());
        name_nodes(directory, &nodes, &ours.aliases);
    }

    /// Checks that the other agent is a host of this cluster with the same torus, provider,
    /// encryption and leader.
    pub(crate) fn check(&self, hello: &Hello, version: u8) -> Result<(), Refusal> {
        let ours = &self.config;
        let message = if hello.version != version {
            "the version was altered on its way".into()
        } else if hello.to != ours.host {
            format!("this is host {}, and not {}", ours.host, hello.to)
        } else if hello.host == ours.host {
            format!("two agents are of host {}", ours.host)
        } else if !is_host_name(&hello.host) || hello.host == ETCD {
            "the other side says a name that is no host's".into()
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
        } else if hello.encryption != ours.encryption {
            format!(
                "host {} has encryption {}, and host {} {}",
                hello.host, hello.encryption, ours.host, ours.encryption
            )
        } else if hello.follows.is_some() && !self.is_leader() {
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

    /// Enters a follower with a complete copy of revision `has`, if it has one. Its updates are for
    /// [`Cluster::tell`].
    pub(crate) fn place<'a>(
        &'a self,
        link: &'a Arc<Link>,
        has: Option<Revision>,
    ) -> (Place<'a>, Updates) {
        self.followers().insert(link.host.clone(), Arc::clone(link));
        let (entry, updates) = self.control.join(&link.host, has);
        let place = Place {
            cluster: self,
            link,
            entry,
        };
        (place, updates)
    }

    /// Serves no more requests of followers, gives answers under way a moment, and ends the sessions:
    /// the followers look for the next leader.
    pub(crate) fn part_from_followers(&self) {
        let end = Instant::now() + FAREWELL;
        // No lock is held, because the end of a session takes it.
        let links: Vec<Arc<Link>> = self.followers().values().cloned().collect();
        for link in &links {
            link.settle(end.saturating_duration_since(Instant::now()));
        }
        links.iter().for_each(|link| link.end());
    }

    fn forget(&self, link: &Arc<Link>) {
        let mut followers = self.followers();
        let its = followers.get(&link.host);
        if its.is_some_and(|present| Arc::ptr_eq(present, link)) {
            followers.remove(&link.host);
        }
    }

    /// Carries updates to a follower until its session ends.
    pub(crate) fn tell(&self, link: &Arc<Link>, updates: &Updates) {
        let host = &link.host;
        while let Some(update) = updates.next() {
            if update.directory.is_whole() {
                tracing::info!("host {host} gets the whole directory");
            }
            let answer = match self.let_adopt(link, &update.directory) {
                Ok(HostResponse::Done) => {
                    self.problems.clear(host);
                    Answer::Done
                }
                Ok(HostResponse::DoneExcept(what)) => {
                    tracing::warn!("host {host} follows, but: {what}");
                    self.problems.note(host, &what);
                    Answer::Except(what)
                }
                Ok(HostResponse::Refused(refusal)) => {
                    tracing::warn!("host {host} cannot follow: {refusal}");
                    self.problems.note(host, &refusal.message);
                    Answer::Failed(refusal.message)
                }
                Ok(_) | Err(NoAnswer::Late | NoAnswer::Ended | NoAnswer::TooLong) => {
                    link.end();
                    continue;
                }
            };
            updates.answer(update.number, answer);
        }
    }

    /// Sends an update and waits for its result.
    fn let_adopt(&self, link: &Link, update: &SharedUpdate) -> Result<HostResponse, NoAnswer> {
        if !update.is_long() {
            return self.await_adoption(link, &link.begin_written(update.text())?);
        }
        let mut messages = pages::messages(update);
        loop {
            // Not while the follower answers, which takes its time and no memory.
            let slot = self.long_updates.take();
            let message = messages.next();
            let is_page = matches!(message, HostRequest::Page(_));
            let question = link.begin(message)?;
            drop(slot);
            if !is_page {
                return self.await_adoption(link, &question);
            }
            let answer = question.wait(TIMEOUT)?;
            if !matches!(answer, HostResponse::Done) {
                // The follower may have some pages of the update.
                link.end();
                return Ok(answer);
            }
        }
    }

    /// Waits for the result of an update as long as the session lives: acknowledgements that take
    /// longer than a change waits are no reason to cut the host off.
    fn await_adoption(
        &self,
        link: &Link,
        question: &Question<'_>,
    ) -> Result<HostResponse, NoAnswer> {
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
