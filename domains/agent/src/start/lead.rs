//! The begin of an elected leader: first it follows the directory on etcd like any other host, and
//! then it begins a term.

use std::sync::Arc;
use std::thread;

use toroid_model::directory::Directory;
use toroid_model::directory::records::{Changes, Records};
use toroid_model::directory::revision::FabricId;
use toroid_model::hosts::ETCD;
use toroid_model::refusal::{Refusal, RefusalKind};

use super::data_dir::DataDir;
use crate::cluster::candidacy::{Lead, StandError, StartAgain};
use crate::cluster::revisions::check_update;
use crate::cluster::{CannotDial, Cluster};
use crate::core::host::Host;
use crate::error::{AgentError, during};
use crate::sessions::apply;
use crate::store::{Store, StoreError};

/// Stands for election, if this host may lead with a directory on etcd. Returns the lead if it has
/// won. In the next life of an agent a failure is no error: then this host follows.
pub(super) fn stand(
    cluster: &Cluster,
    data: &DataDir,
    again: StartAgain,
    is_first_life: bool,
) -> Result<Option<Lead>, AgentError> {
    let Some(candidacy) = &cluster.candidacy else {
        return Ok(None);
    };
    let lead = match candidacy.stand(again) {
        Ok(None) => return Ok(None),
        Ok(Some(lead)) => lead,
        Err(StandError::Thread(error)) => return Err(during("start a thread")(error)),
        Err(StandError::Etcd(error)) if is_first_life => {
            return Err(AgentError::Etcd(error.refusal()));
        }
        // It is known to the candidacy.
        Err(StandError::Etcd(_)) => return Ok(None),
    };
    let copy = data.directory(Some(cluster.config.torus));
    let copy = copy.map_err(|error| error.refusal());
    let checked = copy.and_then(|(copy, _)| {
        let place = check_place(cluster, &copy, &lead)?;
        if place.is_ok() {
            check(cluster, &copy, &lead)?;
        }
        Ok(place)
    });
    match checked {
        // Others lead, or will.
        Ok(Err(refusal)) => {
            candidacy.fail(&refusal);
            Ok(None)
        }
        Ok(Ok(())) => {
            candidacy.lead(&lead);
            Ok(Some(lead))
        }
        Err(refusal) => {
            candidacy.fail(&refusal);
            if is_first_life {
                Err(AgentError::Etcd(refusal))
            } else {
                Ok(None)
            }
        }
    }
}

/// Checks that this host, with its copy, may lead with the directory on etcd.
fn check(cluster: &Cluster, copy: &Directory, lead: &Lead) -> Result<(), Refusal> {
    let host = &cluster.config.host;
    if !lead.records.is_empty() {
        let found = parse(&lead.records)?;
        return check_update((host, copy.revision()), ("etcd", &found));
    }
    let has_copy = copy.revision().map(|_| host.clone());
    match has_copy.or_else(|| candidate_with_copy(cluster)) {
        None => Ok(()),
        Some(host) => Err(Refusal::new(
            RefusalKind::Exists,
            format!("etcd has no directory, and host {host} has a copy of one"),
            "if etcd has lost its data, restore them; to begin anew, end the agents of all \
             candidates, and then start all hosts with `toroid up --fresh`",
        )),
    }
}

/// Checks that the directory on etcd is the one that is led: it has not moved away, and if it has
/// arrived by a move, that was committed as this host's copy shows. Such a copy on etcd is complete,
/// because it came there in one change.
fn check_place(
    cluster: &Cluster,
    copy: &Directory,
    lead: &Lead,
) -> Result<Result<(), Refusal>, Refusal> {
    if lead.records.is_empty() {
        return Ok(Ok(()));
    }
    let found = parse(&lead.records)?;
    let Some(moved) = found.moved() else {
        return Ok(Ok(()));
    };
    let (message, remedy) = if moved.to != ETCD {
        cluster.moves.note(moved.clone());
        let lines = moved.lines();
        (
            format!("the directory has moved from etcd to {moved}"),
            format!("write {lines} in the file for `toroid up --config`"),
        )
    } else if found.is_arriving() && copy.moved() != Some(moved) {
        let from = Vec::from_iter(moved.from.iter().map(String::as_str)).join(", ");
        (
            "etcd has a copy of the directory, whose move there may not have been committed".into(),
            format!("start the host from which it was moved (of {from})"),
        )
    } else {
        return Ok(Ok(()));
    };
    Ok(Err(Refusal::new(RefusalKind::Failed, message, remedy)))
}

/// Another candidate with a copy of a directory, among those that answer. Such a host refuses one
/// with a directory of another fabric.
fn candidate_with_copy(cluster: &Cluster) -> Option<String> {
    let mut other = Directory::new(cluster.config.torus);
    // The number of no fabric, as they are drawn.
    other.begin_term(FabricId(0), 0);
    let refuses = &|host: &str| {
        let answer = cluster.dial(host, Some(&other), None);
        matches!(answer, Err(CannotDial::Refused(its)) if its.kind == RefusalKind::Exists)
    };
    let mut candidates = cluster.config.possible_leaders();
    candidates.retain(|host| *host != cluster.config.host);
    // At once, because one that is away does not answer for some seconds.
    thread::scope(|scope| {
        let ask = |host| (host, scope.spawn(move || refuses(host)));
        let asked: Vec<_> = candidates.into_iter().map(ask).collect();
        let mut answers = asked.into_iter();
        let found = answers.find_map(|(host, answer)| answer.join().ok()?.then_some(host));
        found.map(str::to_owned)
    })
}

fn parse(records: &Records) -> Result<Directory, Refusal> {
    Directory::from_records(records).map_err(|source| {
        let path = "etcd".into();
        StoreError::Records { path, source }.refusal()
    })
}

/// Brings the directory on etcd into effect on this host, and begins a term. No change is made
/// meanwhile, because the caller has a turn. Returns whether this host leads. If not, it has given
/// the lead up, and has to start again as a follower. With new nodes that is an error.
pub(super) fn begin(
    host: &Arc<Host>,
    cluster: &Cluster,
    lead: &Lead,
    is_inherited: bool,
) -> Result<bool, AgentError> {
    let begun = begin_term(host, cluster, lead);
    let Some(candidacy) = &cluster.candidacy else {
        return begun.map(|()| true).map_err(AgentError::Etcd);
    };
    let Err(refusal) = begun else {
        candidacy.has_begun();
        return Ok(true);
    };
    // Refuses the changes of this life, because the lead is given up.
    candidacy.begin(lead.store());
    candidacy.fail(&refusal);
    if is_inherited {
        Ok(false)
    } else {
        Err(AgentError::Etcd(refusal))
    }
}

fn begin_term(host: &Arc<Host>, cluster: &Cluster, lead: &Lead) -> Result<(), Refusal> {
    let present = host.members.directory(Directory::clone);
    let mut store = lead.store();
    let is_first = lead.records.is_empty();
    let next = if is_first {
        present.clone()
    } else {
        parse(&lead.records)?.administered_as(&present)
    };
    // As if the leader had answered it, because it was read by this one.
    if let Some(revision) = next.revision() {
        host.leases.answered(lead.since, revision);
    }
    // All of it is told to the driver, as to a follower in a new session.
    cluster.leader().differs = true;
    for exception in apply::follow(host, &present, next)? {
        tracing::warn!("{exception}");
    }
    cluster.leader().differs = false;
    let before = host.members.directory(Directory::clone);
    let ours = prepare(cluster, &before, is_first.then_some(&mut store))?;
    if let Some(candidacy) = &cluster.candidacy {
        candidacy.begin(store);
    }
    host.members.adopt(ours.clone())?;
    cluster.control.set_records(ours.records(), ours.revision());
    host.tell_moved(&ours, &ours.moved_since(&before));
    Ok(())
}

/// The directory with which a term begins. An empty store gets all of it in one transaction: one
/// that has a part, such as no revision, would be refused by all candidates.
fn prepare(
    cluster: &Cluster,
    before: &Directory,
    empty: Option<&mut impl Store>,
) -> Result<Directory, Refusal> {
    let mut ours = before.clone();
    cluster.claim_own(&mut ours);
    let begun = cluster.begin_term(&mut ours);
    begun.map_err(|error| error.refusal())?;
    if let Some(store) = empty {
        store.commit(&Changes::between(&Records::new(), &ours.records()))?;
    }
    Ok(ours)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::tests::cluster;

    /// A store that shows its records after each transaction.
    #[derive(Debug, Default)]
    struct Seen {
        present: Records,
        all: Vec<Records>,
    }

    impl Store for Seen {
        fn load(&mut self) -> Result<Records, StoreError> {
            Ok(self.present.clone())
        }

        fn commit(&mut self, changes: &Changes) -> Result<(), StoreError> {
            changes.apply_to(&mut self.present);
            self.all.push(self.present.clone());
            Ok(())
        }
    }

    /// A leader that was killed after the first transaction once left a directory without a revision,
    /// which no candidate took.
    #[test]
    fn a_first_directory_can_be_taken_over_after_each_transaction() {
        let cluster = cluster();
        let mut store = Seen::default();
        let empty = Directory::new(cluster.config.torus);
        prepare(&cluster, &empty, Some(&mut store)).unwrap();
        assert!(!store.all.is_empty());
        for records in store.all {
            let found = parse(&records).unwrap();
            check_update(("b", None), ("etcd", &found)).unwrap();
            assert_eq!(found.host_of(toroid_fabric::NodeId(0)), Some("a"));
        }
    }
}
