//! The leader, as this host knows it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use toroid_model::hosts::{ETCD, HostConfig};
use toroid_model::refusal::{Refusal, RefusalKind};

use super::link::Link;
use super::{Cluster, unreachable};
use crate::gate::Gate;

/// Time that `toroid up` waits for the leader, which may be away.
const FIRST_WORD: Duration = Duration::from_secs(3);

/// Interval of checks whether this agent starts again.
const LOOK: Duration = Duration::from_millis(50);

/// A follower's connection to the leader.
#[derive(Debug, Default)]
pub(crate) struct LeaderLink {
    /// The leader, or the last known one; `None` if this host knows none.
    pub(crate) name: Option<String>,
    pub(crate) link: Option<Arc<Link>>,
    /// Host of the last session, unless etcd has named it since.
    pub(crate) lost: Option<String>,
    pub(crate) has_come: bool,
    /// Whether this host has rejected the leader's last update, or has got none yet. Then numbers
    /// of domains may differ between the two.
    pub(crate) differs: bool,
}

impl LeaderLink {
    /// Without a session, and with the name of the leader if the file has it.
    pub(crate) fn of(config: &HostConfig) -> Self {
        LeaderLink {
            name: (config.directory != ETCD).then(|| config.directory.clone()),
            ..LeaderLink::default()
        }
    }
}

impl Cluster {
    /// Whether this agent is the leader. This does not change in the life of an agent.
    pub(crate) fn is_leader(&self) -> bool {
        let candidacy = self.candidacy.as_ref();
        self.config.holds_directory() || candidacy.is_some_and(|its| its.is_elected())
    }

    /// Name of the leader, if this host knows it.
    pub(crate) fn leader_name(&self) -> Option<String> {
        if self.is_leader() {
            Some(self.config.host.clone())
        } else {
            self.leader().name.clone()
        }
    }

    /// Notes the leader's name, as another candidate or etcd says it. A session with another host
    /// ends.
    pub(crate) fn name_leader(&self, name: Option<String>) {
        let mut leader = self.leader();
        let former = leader.link.clone();
        let former = former.filter(|link| name.as_ref().is_some_and(|name| *name != link.host));
        leader.lost.take_if(|lost| name.as_ref() == Some(lost));
        leader.name = name;
        drop(leader);
        self.came.notify_all();
        // No lock is held, because the end of a session takes it.
        if let Some(link) = former {
            link.end();
        }
    }

    /// Waits for the first copy of the directory if this is a follower, unless its leader is away.
    pub(crate) fn await_directory(&self) {
        let not_yet = |leader: &mut LeaderLink| !self.is_leader() && !leader.has_come;
        self.came
            .wait_while_for(&mut self.leader(), not_yet, FIRST_WORD);
    }

    /// Waits for a leader until the gate closes or the time has passed. Returns whether the wait is
    /// over. A leader that a file names is waited for only if it `is_lost`, or just after a move: it
    /// may be starting again.
    pub(crate) fn await_leader(&self, gate: &Gate, time: Duration, is_lost: bool) -> bool {
        let is_over = |leader: &LeaderLink| {
            let is_there = leader.link.as_ref().is_some_and(|link| !link.has_ended());
            gate.is_closed()
                || if self.is_leader() {
                    // Then it starts again.
                    !self.control.is_deposed()
                } else {
                    let is_fixed = self.config.directory != ETCD && !self.moves.is_recent();
                    is_there || is_fixed && !is_lost
                }
        };
        let deadline = Instant::now() + time;
        let mut leader = self.leader();
        while !is_over(&leader) {
            if Instant::now() >= deadline {
                return false;
            }
            self.came.wait_for(&mut leader, LOOK);
        }
        true
    }

    /// Refusal of a change without a session with the leader.
    pub(super) fn nobody_leads(&self) -> Refusal {
        let Some(leader) = self.leader_name() else {
            let candidates = self.config.possible_leaders().join(", ");
            let mut message = format!("no host leads at present, of the candidates {candidates}");
            let etcd = self.candidacy.as_ref();
            if let Some(problem) = etcd.and_then(|etcd| etcd.describe().1) {
                message = format!("{message}: {}", problem.message);
            }
            return Refusal::new(
                RefusalKind::Failed,
                message,
                "nothing was changed; see `toroid status` on the candidates, and try again",
            );
        };
        let why = self.problems.of(&leader, Instant::now());
        let why = why.unwrap_or_else(|| "it has not answered yet".into());
        let remedy = "nothing was changed; see to that host, because its agent holds the directory";
        unreachable(&leader, &why, remedy)
    }

    /// Refuses connections with other hosts' nodes as long as this host's directory differs from
    /// the leader's.
    pub(crate) fn check_directory(&self) -> Result<(), Refusal> {
        let leader = self.leader();
        if !leader.differs {
            return Ok(());
        }
        let name = leader.name.as_deref().unwrap_or("that leads");
        Err(Refusal::new(
            RefusalKind::Failed,
            format!(
                "host {} has not agreed with host {name} on the directory",
                self.config.host
            ),
            "see `toroid status` on both hosts",
        ))
    }

    pub(crate) fn leader(&self) -> MutexGuard<'_, LeaderLink> {
        self.leader.lock()
    }
}

#[cfg(test)]
mod tests {
    use crate::cluster::tests::cluster;

    /// It was once asked after all others, although it led again.
    #[test]
    fn a_lost_leader_that_etcd_names_again_is_not_lost() {
        let cluster = cluster();
        cluster.leader().lost = Some("b".into());
        for other in [None, Some("c".to_owned())] {
            cluster.name_leader(other);
            assert_eq!(cluster.leader().lost.as_deref(), Some("b"));
        }
        cluster.name_leader(Some("b".into()));
        assert_eq!(cluster.leader().lost, None);
    }
}
