//! Durable changes of the leader in memory, for its followers.

use std::collections::VecDeque;

use toroid_model::directory::records::{Changes, Records};
use toroid_protocol::hosts::DirectoryUpdate;

/// Changes that are kept. A follower that has missed more gets the whole directory.
const MAX_LOG: usize = 256;

/// The durable directory as records, and its last changes.
#[derive(Debug, Default)]
pub(super) struct Log {
    records: Records,
    /// Number of changes so far.
    number: u64,
    /// The last changes, oldest first.
    last: VecDeque<Changes>,
}

impl Log {
    pub(super) fn new(records: Records) -> Self {
        Log {
            records,
            ..Log::default()
        }
    }

    /// Number of the last change.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn append(&mut self, changes: Changes) {
        changes.apply_to(&mut self.records);
        self.number += 1;
        self.last.push_back(changes);
        if self.last.len() > MAX_LOG {
            self.last.pop_front();
        }
    }

    /// Update from the directory after change `had` to the present one, or the whole directory if
    /// absent.
    pub(super) fn since(&self, had: Option<u64>) -> DirectoryUpdate {
        let missed = had.and_then(|had| usize::try_from(self.number.checked_sub(had)?).ok());
        match missed {
            Some(missed) if missed <= self.last.len() => {
                let last = self.last.iter().skip(self.last.len() - missed);
                let mut all = Changes::default();
                for changes in last {
                    merge(&mut all, changes);
                }
                all.into()
            }
            _ => DirectoryUpdate::Whole(self.records.clone()),
        }
    }
}

fn merge(all: &mut Changes, later: &Changes) {
    for key in &later.remove {
        all.put.remove(key);
        all.remove.insert(key.clone());
    }
    for (key, value) in &later.put {
        all.remove.remove(key);
        all.put.insert(key.clone(), value.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut log = Log::new(changes(&[("a", "1")], &[]).put);
        assert!(matches!(log.since(None), DirectoryUpdate::Whole(records) if records.len() == 1));
        log.append(changes(&[("b", "1"), ("c", "1")], &[]));
        log.append(changes(&[("b", "2")], &["a", "c"]));
        log.append(changes(&[("c", "2")], &[]));
        let mut records = changes(&[("a", "1")], &[]).put;
        let DirectoryUpdate::Changes { put, remove } = log.since(Some(0)) else {
            panic!("not the whole")
        };
        Changes { put, remove }.apply_to(&mut records);
        assert_eq!((log.number(), &records), (3, &log.records));
        assert_eq!(records, changes(&[("b", "2"), ("c", "2")], &[]).put);
        for _ in 0..MAX_LOG {
            log.append(changes(&[("b", "3")], &[]));
        }
        assert!(matches!(log.since(Some(2)), DirectoryUpdate::Whole(_)));
        assert!(matches!(
            log.since(Some(3)),
            DirectoryUpdate::Changes { .. }
        ));
        // Numbers of another history.
        assert!(matches!(log.since(Some(9999)), DirectoryUpdate::Whole(_)));
    }
}
