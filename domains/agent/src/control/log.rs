//! Durable changes of the leader in memory, for its followers.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use toroid_model::directory::records::{Changes, Records};
use toroid_model::directory::revision::Revision;

use super::update::{SharedChanges, SharedRecords, SharedUpdate, shared};

/// Changes that are kept. A follower that has missed more gets the whole directory. In the longest
/// [round](super::core::LAG), of 4 s among the most hosts, 250 changes a second may come.
const MAX_LOG: usize = 1024;

/// The durable directory as records, and its last changes.
#[derive(Debug, Default)]
pub(super) struct Log {
    records: SharedRecords,
    /// Revision of the records. A single host has none, and no followers.
    revision: Option<Revision>,
    /// The last changes, oldest first.
    last: VecDeque<SharedChanges>,
    /// Updates to the present directory that followers have got: most lack the same changes.
    updates: HashMap<Option<u64>, Arc<SharedUpdate>>,
}

impl Log {
    pub(super) fn new(records: Records, revision: Option<Revision>) -> Self {
        let mut log = Log {
            revision,
            ..Log::default()
        };
        for (key, value) in shared(records) {
            log.records.insert(key, value);
        }
        log
    }

    /// Number of the last change: of the revision.
    pub(super) fn number(&self) -> u64 {
        self.revision.map_or(0, |revision| revision.number)
    }

    /// Revision of this term with this number.
    pub(super) fn revision_at(&self, number: u64) -> Option<Revision> {
        self.revision
            .map(|revision| Revision { number, ..revision })
    }

    /// Number of a revision that is of this log's term. Another leader may have numbered others in
    /// the same way.
    pub(super) fn number_of(&self, other: &Revision) -> Option<u64> {
        let is_ours = |ours: &Revision| ours.is_of_same_term(other);
        self.revision.filter(is_ours).map(|_| other.number)
    }

    /// Appends the changes of the next revision.
    pub(super) fn append(&mut self, changes: Changes) {
        self.updates.clear();
        let changes = SharedChanges::from(changes);
        for key in &changes.remove {
            self.records.remove(key);
        }
        for (key, value) in &changes.put {
            self.records.insert(key.clone(), value.clone());
        }
        self.revision.iter_mut().for_each(|its| its.number += 1);
        self.last.push_back(changes);
        if self.last.len() > MAX_LOG {
            self.last.pop_front();
        }
    }

    /// Update from the directory after change `had` of this term to the present one, or the whole
    /// directory if absent.
    pub(super) fn since(&mut self, had: Option<u64>) -> Arc<SharedUpdate> {
        // Revisions before those of the log have one update in common.
        let had = had.filter(|had| self.missed(*had).is_some());
        if let Some(made) = self.updates.get(&had) {
            return Arc::clone(made);
        }
        let made = Arc::new(self.make_update(had));
        self.updates.insert(had, Arc::clone(&made));
        made
    }

    /// Index of the first change after revision `had`, if the log has all that follow.
    fn missed(&self, had: u64) -> Option<usize> {
        let missed = usize::try_from(self.number().checked_sub(had)?).ok()?;
        self.last.len().checked_sub(missed)
    }

    fn make_update(&self, had: Option<u64>) -> SharedUpdate {
        let changes = || {
            let (since, revision) = (had?, self.revision?);
            let first = self.missed(since)?;
            let mut all = SharedUpdate::from_revision(Revision {
                number: since,
                ..revision
            });
            for changes in self.last.iter().skip(first) {
                all.merge(changes);
            }
            Some(all)
        };
        changes().unwrap_or_else(|| SharedUpdate::whole(self.records.clone()))
    }
}

#[cfg(test)]
mod tests {
    use toroid_model::directory::revision::Term;
    use toroid_protocol::hosts::DirectoryUpdate;

    use super::*;
    use crate::cluster::revisions::tests::revision;

    fn changes(put: &[(&str, &str)], remove: &[&str]) -> Changes {
        Changes {
            put: put
                .iter()
                .map(|(k, v)| ((*k).into(), (*v).into()))
                .collect(),
            remove: remove.iter().map(|k| (*k).into()).collect(),
        }
    }

    #[test]
    fn a_late_follower_gets_merged_changes_or_the_whole_directory() {
        let first = revision(1, 2, 70);
        let mut log = Log::new(changes(&[("a", "1")], &[]).put, Some(first));
        let whole = log.since(None).whole_message();
        assert!(matches!(whole, DirectoryUpdate::Whole(records) if records.len() == 1));
        log.append(changes(&[("b", "1"), ("c", "1")], &[]));
        log.append(changes(&[("b", "2")], &["a", "c"]));
        log.append(changes(&[("c", "2")], &[]));
        let mut records = changes(&[("a", "1")], &[]).put;
        let missed = log.since(Some(70)).whole_message();
        let DirectoryUpdate::Changes { since, put, remove } = missed else {
            panic!("not the whole")
        };
        assert_eq!(since, first);
        Changes { put, remove }.apply_to(&mut records);
        let DirectoryUpdate::Whole(whole) = log.since(None).whole_message() else {
            panic!("not the changes")
        };
        assert_eq!((log.number(), &records), (73, &whole));
        assert_eq!(records, changes(&[("b", "2"), ("c", "2")], &[]).put);
        for _ in 0..MAX_LOG {
            log.append(changes(&[("b", "3")], &[]));
        }
        let mut is_whole = |had| log.since(had).is_whole();
        assert!(is_whole(Some(72)) && !is_whole(Some(73)));
        // As a revision of another history may have.
        assert!(is_whole(Some(9999)));
        let other_leader = Revision {
            term: Term {
                nonce: 1,
                ..first.term
            },
            ..first
        };
        assert_eq!(log.number_of(&revision(1, 2, 80)), Some(80));
        for other in [revision(2, 2, 80), revision(1, 1, 80), other_leader] {
            assert_eq!(log.number_of(&other), None);
        }
    }

    /// After a restart of the leader, thousands of followers get the whole directory.
    #[test]
    fn updates_of_all_followers_share_the_records() {
        let many: Vec<(String, String)> =
            (0..1000).map(|n| (format!("{n:04}"), "x".into())).collect();
        let put: Vec<(&str, &str)> = many.iter().map(|(k, v)| (&**k, &**v)).collect();
        let mut log = Log::new(changes(&put, &[]).put, Some(revision(1, 2, 70)));
        let first = log.since(None);
        assert!(Arc::ptr_eq(&first, &log.since(None)));
        log.append(changes(&[("0500", "y")], &[]));
        let second = log.since(None);
        let pairs = first.put.iter().zip(second.put.iter());
        let copied = pairs.filter(|((_, one), (_, other))| !Arc::ptr_eq(one, other));
        assert_eq!(copied.count(), 1);
        assert_eq!(first.put.get("0500").map(|value| &**value), Some("x"));
        // As the log and the changes of a late follower do.
        let late = log.since(Some(70));
        assert!(Arc::ptr_eq(&late, &log.since(Some(70))));
        let value = |update: &SharedUpdate| Arc::clone(update.put.get("0500").unwrap());
        assert!(Arc::ptr_eq(&value(&late), &value(&second)));
    }
}
