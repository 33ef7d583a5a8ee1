//! Durable changes of the leader, for its followers.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use toroid_model::directory::records::{Changes, Records};
use toroid_protocol::hosts::DirectoryUpdate;

use crate::store::{Store, StoreError};

/// Changes that are kept. A follower that has missed more gets the whole directory.
const MAX_LOG: usize = 256;

/// The durable directory as records, and its last changes.
#[derive(Debug, Default)]
pub(crate) struct Publication {
    state: Mutex<State>,
    news: Condvar,
}

#[derive(Debug, Default)]
struct State {
    records: Records,
    /// Number of changes so far.
    number: u64,
    /// The last changes, oldest first.
    log: VecDeque<Changes>,
}

impl Publication {
    /// Sets the initial records.
    pub(crate) fn begin(&self, records: Records) {
        self.state.lock().records = records;
    }

    /// Number of the last change.
    pub(crate) fn number(&self) -> u64 {
        self.state.lock().number
    }

    /// Waits for changes after number `had`, or for the first update if absent. Returns the number
    /// and the update, or `None` when `is_over`.
    pub(crate) fn after(
        &self,
        had: Option<u64>,
        is_over: impl Fn() -> bool,
    ) -> Option<(u64, DirectoryUpdate)> {
        let nothing = |state: &mut State| had == Some(state.number) && !is_over();
        let mut state = self.state.lock();
        self.news.wait_while(&mut state, nothing);
        (!is_over()).then(|| (state.number, state.since(had)))
    }

    /// Makes waiting threads check whether their session is over.
    pub(super) fn wake(&self) {
        // A waiting thread holds the lock from its check to its sleep, so it misses no signal.
        drop(self.state.lock());
        self.news.notify_all();
    }

    fn publish(&self, changes: &Changes) {
        let mut state = self.state.lock();
        apply(&mut state.records, changes.clone());
        state.number += 1;
        state.log.push_back(changes.clone());
        if state.log.len() > MAX_LOG {
            state.log.pop_front();
        }
        drop(state);
        self.news.notify_all();
    }
}

impl State {
    fn since(&self, had: Option<u64>) -> DirectoryUpdate {
        let missed = had.and_then(|had| usize::try_from(self.number.checked_sub(had)?).ok());
        match missed {
            Some(missed) if missed <= self.log.len() => {
                let last = self.log.iter().skip(self.log.len() - missed);
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

/// Applies changes to records.
pub(crate) fn apply(records: &mut Records, changes: Changes) {
    records.retain(|key, _| !changes.remove.contains(key));
    records.extend(changes.put);
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

/// A store that publishes its changes as soon as they are durable.
#[derive(Debug)]
pub(crate) struct Publishing<S> {
    store: S,
    publication: Arc<Publication>,
}

impl<S: Store> Publishing<S> {
    pub(crate) fn new(store: S, publication: Arc<Publication>) -> Self {
        Publishing { store, publication }
    }
}

impl<S: Store> Store for Publishing<S> {
    fn load(&mut self) -> Result<Records, StoreError> {
        self.store.load()
    }

    fn commit(&mut self, changes: &Changes) -> Result<(), StoreError> {
        self.store.commit(changes)?;
        self.publication.publish(changes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use toroid_model::directory::{Directory, Wanted};

    use super::*;
    use crate::store::memory::{Memory, Mood};

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
        let publication = Publication::default();
        publication.begin(changes(&[("a", "1")], &[]).put);
        let get = |had| publication.after(had, || false).unwrap();
        assert!(matches!(get(None), (0, DirectoryUpdate::Whole(records)) if records.len() == 1));
        publication.publish(&changes(&[("b", "1"), ("c", "1")], &[]));
        publication.publish(&changes(&[("b", "2")], &["a", "c"]));
        publication.publish(&changes(&[("c", "2")], &[]));
        let mut records = changes(&[("a", "1")], &[]).put;
        let (number, DirectoryUpdate::Changes { put, remove }) = get(Some(0)) else {
            panic!("not the whole")
        };
        apply(&mut records, Changes { put, remove });
        assert_eq!((number, &records), (3, &publication.state.lock().records));
        assert_eq!(records, changes(&[("b", "2"), ("c", "2")], &[]).put);
        for _ in 0..MAX_LOG {
            publication.publish(&changes(&[("b", "3")], &[]));
        }
        assert!(matches!(get(Some(2)), (_, DirectoryUpdate::Whole(_))));
        assert!(matches!(get(Some(3)), (_, DirectoryUpdate::Changes { .. })));
        assert!(
            publication
                .after(Some(publication.number()), || true)
                .is_none()
        );
    }

    #[test]
    fn a_failed_commit_is_not_published() {
        let empty = Directory::new("2x2x2".parse().unwrap());
        let memory = Memory::holding(&empty);
        let publication = Arc::<Publication>::default();
        let mut store = Publishing::new(memory.clone(), Arc::clone(&publication));
        let mut next = empty.clone();
        let wanted = Wanted {
            name: "blue".into(),
            ..Wanted::default()
        };
        next.create(wanted).unwrap();
        memory.feels(Mood::Full);
        store.commit(&next.changes_since(&empty)).unwrap_err();
        assert_eq!(publication.number(), 0);
        memory.feels(Mood::Well);
        store.commit(&next.changes_since(&empty)).unwrap();
        assert_eq!(publication.number(), 1);
    }
}
