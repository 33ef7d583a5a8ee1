//! The store of an elected leader: etcd, with the host's own file as a copy.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use toroid_model::directory::records::{Changes, Records};
use toroid_model::hosts::ETCD;

use super::Control;
use super::departure::Departure;
use crate::store::{Store, StoreError};

/// A store that keeps changes in the database of a term, if one has begun, and then in a copy. With
/// the copy this host follows, when another one leads.
#[derive(Debug)]
pub(crate) struct ElectedStore<S, C> {
    /// Absent until the term begins.
    term: Arc<OnceLock<Mutex<S>>>,
    copy: C,
    /// Whether the copy lacks changes.
    is_stale: bool,
    control: Arc<Control>,
    departure: Departure,
}

impl<S: Store, C: Store> ElectedStore<S, C> {
    pub(crate) fn new(term: Arc<OnceLock<Mutex<S>>>, copy: C, control: Arc<Control>) -> Self {
        ElectedStore {
            term,
            copy,
            is_stale: false,
            control,
            departure: Departure::from(ETCD),
        }
    }

    fn copy(&mut self, changes: &Changes) -> Result<(), StoreError> {
        let Some(term) = self.term.get().filter(|_| self.is_stale) else {
            return self.copy.commit(changes);
        };
        let all = term.lock().load()?;
        let changes = Changes::between(&self.copy.load()?, &all);
        self.copy.commit(&changes)
    }
}

impl<S: Store, C: Store> Store for ElectedStore<S, C> {
    fn load(&mut self) -> Result<Records, StoreError> {
        match self.term.get() {
            Some(term) => term.lock().load(),
            None => self.copy.load(),
        }
    }

    fn commit(&mut self, changes: &Changes) -> Result<(), StoreError> {
        let Some(term) = self.term.get() else {
            return self.copy.commit(changes);
        };
        self.departure.check()?;
        let committed = term.lock().commit(changes);
        if committed.is_ok() {
            self.departure.note(changes, &self.control);
        }
        if committed.as_ref().is_err_and(StoreError::is_deposed) {
            self.control.note_deposed();
        }
        committed
    }

    fn is_local(&self) -> bool {
        self.term.get().is_none()
    }

    fn note(&mut self, changes: &Changes) {
        if self.term.get().is_none() {
            return;
        }
        self.control.note_durable(changes);
        // The change is durable, and in effect on this host from now on.
        let copied = self.copy(changes);
        self.is_stale = copied.is_err();
        if let Err(error) = copied {
            tracing::warn!("this host's copy is older than its directory: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use toroid_model::directory::{Directory, Wanted};

    use super::*;
    use crate::store::RecoveringStore;
    use crate::store::memory::{Memory, Mood};

    #[test]
    fn the_copy_has_what_the_database_has_also_after_a_full_disk() {
        let with = |names: &[&str]| {
            let mut directory = Directory::new("2x2x2".parse().unwrap());
            for name in names {
                let wanted = Wanted {
                    name: (*name).into(),
                    ..Wanted::default()
                };
                directory.create(wanted).unwrap();
            }
            directory
        };
        let empty = with(&[]);
        let (database, copy) = (Memory::holding(&empty), Memory::holding(&empty));
        let term = Arc::new(OnceLock::new());
        let control = Arc::new(Control::new(Some("a".into())));
        let elected = ElectedStore::new(Arc::clone(&term), copy.clone(), control);
        let mut store = RecoveringStore::new(Box::new(elected));
        let has = |mut memory: Memory| memory.load().unwrap();

        // Before the term it follows.
        store.keep(&empty, &with(&["red"])).unwrap();
        assert_eq!(has(copy.clone()), with(&["red"]).records());
        assert_eq!(has(database.clone()), empty.records());
        store.keep(&with(&["red"]), &empty).unwrap();

        assert!(store.is_local());
        term.set(Mutex::new(database.clone())).unwrap();
        assert!(!store.is_local());
        copy.feels(Mood::Full);
        store.keep(&empty, &with(&["red"])).unwrap();
        assert_eq!(has(copy.clone()), empty.records());
        copy.feels(Mood::Well);
        database.feels(Mood::Full);
        store
            .keep(&with(&["red"]), &with(&["red", "blue"]))
            .unwrap_err();
        assert_eq!(has(copy.clone()), empty.records());
        database.feels(Mood::Well);
        store
            .keep(&with(&["red"]), &with(&["red", "green"]))
            .unwrap();
        assert_eq!(has(database), with(&["red", "green"]).records());
        assert_eq!(has(copy), with(&["red", "green"]).records());
    }
}
