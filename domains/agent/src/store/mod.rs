//! The store of the directory of domains: records that outlive the agent.

pub(crate) mod events;
pub mod file;
pub(crate) mod names;
pub(crate) mod ownership;

use std::fmt::Debug;
use std::io;

use toroid_model::directory::Directory;
use toroid_model::directory::records::{Changes, RecordError, Records};
use toroid_model::refusal::{Refusal, RefusalKind};

/// Keeps records. One host has a file; several will share a service.
pub trait Store: Debug + Send {
    /// All records.
    ///
    /// # Errors
    /// [`StoreError`].
    fn load(&mut self) -> Result<Records, StoreError>;

    /// Makes changes durable, all of them or none: they hold when this returns, also after a
    /// power cut, and after one in the middle the records are the old or the new ones.
    ///
    /// # Errors
    /// [`StoreError`]. Whether the changes were made is then only known by [`Store::load`].
    fn commit(&mut self, changes: &Changes) -> Result<(), StoreError>;
}

/// A store that a directory is kept in. After an error it finds out by itself what the store
/// holds.
#[derive(Debug)]
pub struct RecoveringStore {
    store: Box<dyn Store>,
    /// Whether the store may hold something else than what was last kept.
    uncertain: bool,
}

impl RecoveringStore {
    /// Goes on with a store, which holds the directory that is now to be changed.
    pub fn new(store: Box<dyn Store>) -> Self {
        RecoveringStore {
            store,
            uncertain: false,
        }
    }

    /// Makes durable that `old` has become `new`.
    ///
    /// # Errors
    /// [`StoreError`]; `old` holds on.
    pub fn keep(&mut self, old: &Directory, new: &Directory) -> Result<(), StoreError> {
        let changes = if self.uncertain {
            Changes::between(&self.store.load()?, &new.records())
        } else {
            new.changes_since(old)
        };
        if let Err(error) = self.commit(&changes) {
            // It may have been made all the same, and would be found by the next agent.
            let undone = self.store.load().and_then(|found| {
                let changes = Changes::between(&found, &old.records());
                self.commit(&changes)
            });
            self.uncertain = undone.is_err();
            return Err(if self.uncertain {
                StoreError::Doubtful(Box::new(error))
            } else {
                error
            });
        }
        self.uncertain = false;
        Ok(())
    }

    fn commit(&mut self, changes: &Changes) -> Result<(), StoreError> {
        if changes.is_empty() {
            Ok(())
        } else {
            self.store.commit(changes)
        }
    }
}

/// Why records could not be read or kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The system's, above all a full disk.
    #[error("cannot {action} the directory {path}: {source}")]
    Io {
        /// `read` or `write`.
        action: &'static str,
        /// Where it is.
        path: String,
        /// The system's reason.
        source: io::Error,
    },
    /// It could neither be written nor read back, so the next agent may find what was to be, or
    /// what was.
    #[error("{0}, and whether it was is unknown")]
    Doubtful(Box<StoreError>),
    /// Another process has it open.
    #[error("the directory {0} is in use by another process")]
    InUse(String),
    /// It is damaged, or it is something else.
    #[error("{path} is no sound directory: {reason}")]
    Damaged {
        /// Where it is.
        path: String,
        /// What is wrong.
        reason: String,
    },
    /// Its records make no sense.
    #[error("the directory {path} cannot be used: {source}")]
    Records {
        /// Where it is.
        path: String,
        /// Which, and why.
        source: RecordError,
    },
}

impl StoreError {
    /// The error for people and for exit statuses: what, and how to mend it.
    pub fn refusal(&self) -> Refusal {
        let (kind, remedy) = match self {
            StoreError::Doubtful(cause) => (
                cause.refusal().kind,
                "this agent goes on as before; see to that disk and make the change again, which \
                 settles it",
            ),
            StoreError::Io { source, .. } if is_full(source) => (
                RefusalKind::Exhausted,
                "nothing was changed; make room on that disk and try again",
            ),
            StoreError::Io {
                action: "write", ..
            } => (
                RefusalKind::Failed,
                "nothing was changed; see to that disk and try again",
            ),
            StoreError::Io { .. } | StoreError::InUse(_) => {
                (RefusalKind::Failed, "choose another place with --data")
            }
            StoreError::Records {
                source: RecordError::Newer { .. },
                ..
            } => (
                RefusalKind::Version,
                "use the release that wrote it, choose another place with --data, or begin anew \
                 with `toroid up --fresh`, which moves it aside",
            ),
            StoreError::Damaged { .. } | StoreError::Records { .. } => (
                RefusalKind::Failed,
                "restore it from a copy, choose another place with --data, or begin anew with \
                 `toroid up --fresh`, which moves it aside",
            ),
        };
        Refusal::new(kind, self.to_string(), remedy)
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        error.refusal()
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

#[cfg(test)]
pub(crate) mod memory {
    //! A store that forgets all at its end, and fails when it is told to.

    use std::sync::{Arc, Mutex};

    use super::*;

    /// How the next commits end.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) enum Mood {
        /// Well.
        #[default]
        Well,
        /// The disk is full.
        Full,
        /// What was written is there, but the system could not say so.
        Doubtful,
    }

    /// The store; clones share it.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct Memory(Arc<Mutex<(Records, Mood)>>);

    impl Memory {
        pub(crate) fn holding(directory: &Directory) -> Self {
            Memory(Arc::new(Mutex::new((directory.records(), Mood::Well))))
        }

        pub(crate) fn feels(&self, mood: Mood) {
            self.0.lock().unwrap().1 = mood;
        }
    }

    impl Store for Memory {
        fn load(&mut self) -> Result<Records, StoreError> {
            Ok(self.0.lock().unwrap().0.clone())
        }

        fn commit(&mut self, changes: &Changes) -> Result<(), StoreError> {
            let mut memory = self.0.lock().unwrap();
            let mood = memory.1;
            if mood != Mood::Full {
                memory.0.retain(|key, _| !changes.remove.contains(key));
                memory.0.extend(changes.put.clone());
            }
            match mood {
                Mood::Well => Ok(()),
                Mood::Full | Mood::Doubtful => Err(StoreError::Io {
                    action: "write",
                    path: "memory".into(),
                    source: io::ErrorKind::StorageFull.into(),
                }),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use toroid_model::directory::Wanted;

    use super::memory::{Memory, Mood};
    use super::*;

    #[test]
    fn what_failed_is_undone_before_anything_else_is_kept() {
        let empty = Directory::new("2x2x2".parse().unwrap());
        let mut store = Memory::holding(&empty);
        let mut recovering = RecoveringStore::new(Box::new(store.clone()));
        let with = |name: &str| {
            let mut directory = empty.clone();
            let wanted = Wanted {
                name: name.into(),
                ..Wanted::default()
            };
            directory.create(wanted).unwrap();
            directory
        };
        for mood in [Mood::Full, Mood::Doubtful] {
            store.feels(mood);
            let error = recovering.keep(&empty, &with("red")).unwrap_err();
            let refusal = error.refusal();
            assert_eq!(refusal.kind, RefusalKind::Exhausted);
            // Nobody is told that nothing was changed when that is not known.
            let is_known = refusal.to_string().contains("nothing was changed");
            assert_eq!(is_known, mood == Mood::Full, "{refusal}");
            store.feels(Mood::Well);
            recovering.keep(&empty, &with("blue")).unwrap();
            assert_eq!(store.load().unwrap(), with("blue").records());
            recovering.keep(&with("blue"), &empty).unwrap();
            assert_eq!(store.load().unwrap(), empty.records());
        }
    }
}
