//! The move of a directory away from its store, after which nothing is changed there any more.

use toroid_model::directory::moved::Moved;
use toroid_model::directory::records::Changes;

use super::Control;
use crate::store::StoreError;

/// Whether the directory has moved away from a place.
#[derive(Debug)]
pub(super) struct Departure {
    here: String,
    has_left: bool,
}

impl Departure {
    /// Of a directory that is at this place.
    pub(super) fn from(here: &str) -> Self {
        Departure {
            here: here.into(),
            has_left: false,
        }
    }

    /// Refuses a change after the directory has moved away.
    pub(super) fn check(&self) -> Result<(), StoreError> {
        if self.has_left {
            Err(StoreError::Deposed { leader: None })
        } else {
            Ok(())
        }
    }

    /// Takes note of durable changes. After a move away another host leads.
    pub(super) fn note(&mut self, changes: &Changes, control: &Control) {
        let moved = Moved::among(&changes.put).ok().flatten();
        if moved.is_some_and(|moved| moved.to != self.here) {
            self.has_left = true;
            control.note_deposed();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use toroid_model::directory::Directory;
    use toroid_model::directory::revision::FabricId;

    use super::*;

    #[test]
    fn nothing_is_changed_after_a_move_away() {
        let mut before = Directory::new("2x1x1".parse().unwrap());
        before.begin_term(FabricId(1), 1);
        let moved = |to| {
            let mut next = before.clone();
            next.relocate("z", to, BTreeSet::new(), 7);
            next.changes_since(&before)
        };
        let control = Control::new(Some("a".into()));
        let mut departure = Departure::from("a");
        departure.note(&Changes::default(), &control);
        departure.note(&moved("a"), &control);
        departure.check().unwrap();
        assert!(!control.is_deposed());
        departure.note(&moved("b"), &control);
        assert!(departure.check().unwrap_err().is_deposed() && control.is_deposed());
    }
}
