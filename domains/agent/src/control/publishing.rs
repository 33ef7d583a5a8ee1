//! The store of the leader.

use std::sync::Arc;

use toroid_model::directory::records::{Changes, Records};

use super::Control;
use super::departure::Departure;
use crate::store::{Store, StoreError};

/// A store that tells the control of changes that are durable.
#[derive(Debug)]
pub(crate) struct Publishing<S> {
    store: S,
    control: Arc<Control>,
    departure: Departure,
}

impl<S: Store> Publishing<S> {
    /// A store in the files of host `here`.
    pub(crate) fn new(store: S, control: Arc<Control>, here: &str) -> Self {
        let departure = Departure::from(here);
        Publishing {
            store,
            control,
            departure,
        }
    }
}

impl<S: Store> Store for Publishing<S> {
    fn load(&mut self) -> Result<Records, StoreError> {
        self.store.load()
    }

    fn commit(&mut self, changes: &Changes) -> Result<(), StoreError> {
        self.departure.check()?;
        self.store.commit(changes)?;
        self.departure.note(changes, &self.control);
        Ok(())
    }

    // Not each commit: one that undoes a failed change is none, and a change that failed doubtfully
    // may be on the disk when it is made again.
    fn note(&mut self, changes: &Changes) {
        self.control.note_durable(changes);
    }
}

#[cfg(test)]
mod tests {
    use toroid_model::directory::revision::FabricId;
    use toroid_model::directory::{Directory, Wanted};
    use toroid_protocol::hosts::DirectoryUpdate;

    use super::*;
    use crate::control::core::Answer;
    use crate::store::RecoveringStore;
    use crate::store::memory::{Memory, Mood};
    use crate::threads;

    /// A change whose commit failed doubtfully was once on the disk when it was made again, so that
    /// followers never got it.
    #[test]
    fn a_change_is_published_when_it_is_in_effect() {
        let mut empty = Directory::new("2x2x2".parse().unwrap());
        empty.begin_term(FabricId(1), 1);
        let memory = Memory::holding(&empty);
        let control = Arc::new(Control::new(Some("a".into())));
        control.set_records(empty.records(), empty.revision());
        let timer = Arc::clone(&control);
        threads::start(move || timer.keep_time()).unwrap();
        let store = Publishing::new(memory.clone(), Arc::clone(&control), "a");
        let mut store = RecoveringStore::new(Box::new(store));
        let (follower, updates) = control.join("b", None);
        let first = updates.next().unwrap().number;
        assert_eq!(Some(first), empty.revision().map(|its| its.number));
        updates.answer(first, Answer::Done);
        let mut next = empty.clone();
        let wanted = Wanted {
            name: "blue".into(),
            ..Wanted::default()
        };
        next.create(wanted).unwrap();
        next.advance(&empty);
        for mood in [Mood::Full, Mood::Doubtful] {
            memory.feels(mood);
            store.keep(&empty, &next).unwrap_err();
        }
        memory.feels(Mood::Well);
        // As if the failed commit had reached the disk.
        let mut disk = memory.clone();
        let made = Changes::between(&disk.load().unwrap(), &next.records());
        disk.commit(&made).unwrap();
        store.keep(&empty, &next).unwrap();
        // The failed ones have no number.
        let update = updates.next().unwrap();
        assert_eq!(update.number, first + 1);
        assert_eq!(Some(first + 1), next.revision().map(|its| its.number));
        let missed = update.directory.whole_message();
        let DirectoryUpdate::Changes { put, remove, .. } = missed else {
            panic!("not the whole")
        };
        assert_eq!(Changes { put, remove }, next.changes_since(&empty));
        // It has missed nothing, and learns that.
        drop(follower);
        assert!(updates.next().is_none());
        let (follower, updates) = control.join("b", next.revision());
        let missed = updates.next().unwrap().directory.whole_message();
        let DirectoryUpdate::Changes { since, put, remove } = missed else {
            panic!("not the whole")
        };
        assert_eq!(Some(since), next.revision());
        assert!(Changes { put, remove }.is_empty());
        drop(follower);
        assert!(updates.next().is_none());
    }
}
