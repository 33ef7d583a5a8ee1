//! The store of the leader.

use std::sync::Arc;

use toroid_model::directory::records::{Changes, Records};

use super::Control;
use crate::store::{Store, StoreError};

/// A store that tells the control of its changes as soon as they are durable.
#[derive(Debug)]
pub(crate) struct Publishing<S> {
    store: S,
    control: Arc<Control>,
}

impl<S: Store> Publishing<S> {
    pub(crate) fn new(store: S, control: Arc<Control>) -> Self {
        Publishing { store, control }
    }
}

impl<S: Store> Store for Publishing<S> {
    fn load(&mut self) -> Result<Records, StoreError> {
        self.store.load()
    }

    fn commit(&mut self, changes: &Changes) -> Result<(), StoreError> {
        self.store.commit(changes)?;
        self.control.note_durable(changes);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use toroid_model::directory::{Directory, Wanted};

    use super::*;
    use crate::control::core::Answer;
    use crate::store::memory::{Memory, Mood};

    #[test]
    fn a_failed_commit_is_not_published() {
        let empty = Directory::new("2x2x2".parse().unwrap());
        let memory = Memory::holding(&empty);
        let control = Arc::new(Control::new(Some("a".into())));
        let mut store = Publishing::new(memory.clone(), Arc::clone(&control));
        let (follower, updates) = control.join("b");
        let first = updates.next().unwrap().number;
        updates.answer(first, Answer::Done);
        let mut next = empty.clone();
        let wanted = Wanted {
            name: "blue".into(),
            ..Wanted::default()
        };
        next.create(wanted).unwrap();
        memory.feels(Mood::Full);
        store.commit(&next.changes_since(&empty)).unwrap_err();
        memory.feels(Mood::Well);
        store.commit(&next.changes_since(&empty)).unwrap();
        // The failed one has no number.
        assert_eq!(updates.next().unwrap().number, first + 1);
        drop(follower);
        assert!(updates.next().is_none());
    }
}
