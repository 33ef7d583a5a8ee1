//! Store of the directory of domains: records that outlive the agent.

pub(crate) mod events;
pub mod file;
pub(crate) mod names;
pub(crate) mod ownership;

use std::fmt::Debug;
use std::io;

use toroid_model::directory::Directory;
use toroid_model::directory::records::{Changes, RecordError, Records};
use toroid_model::refusal::{Refusal, RefusalKind};

/// A store of records. Each host has a file.
pub trait Store: Debug + Send {
    /// Reads all records.
    ///
    /// # Errors
    /// [`StoreError`].
    fn load(&mut self) -> Result<Records, StoreError>;

    /// Makes changes durable, all of them or none: they are kept when this returns, also after a
    /// power cut; after a cut during the call the records are the old or the new ones.
    ///
    /// # Errors
    /// [`StoreError`]. Whether the changes were made is then only known by [`Store::load`], but
    /// after [`StoreError::Deposed`] and [`StoreError::Etcd`] they were not.
    fn commit(&mut self, changes: &Changes) -> Result<(), StoreError>;

    /// Whether a commit waits for a disk of this host only.
    fn is_local(&self) -> bool {
        true
    }

    /// Takes note that the directory which is in effect has these changes, and that they are
    /// durable.
    fn note(&mut self, _changes: &Changes) {}
}

/// A store of a directory. After an error the next use reads the records of the store.
#[derive(Debug)]
pub struct RecoveringStore {
    store: Box<dyn Store>,
    /// Whether the store may hold other records than the last kept ones.
    uncertain: bool,
}

impl RecoveringStore {
    /// Wraps a store that holds the present directory.
    pub fn new(store: Box<dyn Store>) -> Self {
        RecoveringStore {
            store,
            uncertain: false,
        }
    }

    /// Whether a change waits for a disk of this host only.
    pub fn is_local(&self) -> bool {
        self.store.is_local()
    }

    /// Whether the store may hold another directory than the last one that was kept.
    pub fn is_uncertain(&self) -> bool {
        self.uncertain
    }

    /// Makes the change from `old` to `new` durable.
    ///
    /// # Errors
    /// [`StoreError`]; `old` stays valid.
    pub fn keep(&mut self, old: &Directory, new: &Directory) -> Result<(), StoreError> {
        let made = new.changes_since(old);
        let committed = if self.uncertain {
            let changes = Changes::between(&self.store.load()?, &new.records());
            self.commit(&changes)
        } else {
            self.commit(&made)
        };
        if let Err(error) = committed {
            match error {
                StoreError::Deposed { .. } | StoreError::Etcd(_) => return Err(error),
                // A database that decides late, if at all, has nothing to undo now.
                StoreError::Doubtful(_) => {
                    self.uncertain = true;
                    return Err(error);
                }
                _ => {}
            }
            // The change may have been made nevertheless, and the next agent would find it.
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
        if !made.is_empty() {
            self.store.note(&made);
        }
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

/// Failure to read or keep records.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Error of the system, above all a full disk.
    #[error("cannot {action} the directory {path}: {source}")]
    Io {
        /// `read` or `write`.
        action: &'static str,
        /// Where it is.
        path: String,
        /// The system's reason.
        source: io::Error,
    },
    /// Neither the write nor the read back succeeded, so the next agent may find the new or the old
    /// state.
    #[error("{0}; whether the change was made is unknown")]
    Doubtful(Box<StoreError>),
    /// Another process has it open.
    #[error("the directory {0} is in use by another process")]
    InUse(String),
    /// The file is damaged, or is something else.
    #[error("{path} is no sound directory: {reason}")]
    Damaged {
        /// Where it is.
        path: String,
        /// Damage.
        reason: String,
    },
    /// Another agent leads, whose directory this store may not change any more.
    #[error("this host does not lead any more; {}", leader.as_ref().map_or_else(
        || "no host does".into(),
        |leader| format!("host {leader} does"),
    ))]
    Deposed {
        /// The host that leads now, if there is one.
        leader: Option<String>,
    },
    /// A database of several hosts has refused or not answered. Nothing was changed.
    #[error("{}", .0.message)]
    Etcd(Refusal),
    /// Its records are invalid.
    #[error("the directory {path} cannot be used: {source}")]
    Records {
        /// Where it is.
        path: String,
        /// The record, and the reason.
        source: RecordError,
    },
}

impl StoreError {
    /// Whether another host leads, also if whether the change was made before is unknown.
    pub fn is_deposed(&self) -> bool {
        match self {
            StoreError::Deposed { .. } => true,
            StoreError::Doubtful(cause) => cause.is_deposed(),
            _ => false,
        }
    }

    /// The error as a refusal, with its kind and a remedy.
    pub fn refusal(&self) -> Refusal {
        let (kind, remedy) = match self {
            StoreError::Etcd(refusal) => return refusal.clone(),
            StoreError::Doubtful(cause) if matches!(**cause, StoreError::Etcd(_)) => (
                cause.refusal().kind,
                "this agent goes on as before; see to etcd and make the change again, which \
                 settles it",
            ),
            StoreError::Doubtful(cause) => (
                cause.refusal().kind,
                "this agent goes on as before; see to that disk and make the change again, which \
                 settles it",
            ),
            StoreError::Deposed { .. } => (
                RefusalKind::Failed,
                "nothing was changed; make the change again, which goes to the leader",
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
    //! A store in memory that fails on demand.

    use parking_lot::Mutex;
    use std::sync::Arc;

    use super::*;

    /// Result of the next commits.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) enum Mood {
        /// Well.
        #[default]
        Well,
        /// The disk is full.
        Full,
        /// The write succeeded, but the system reported an error.
        Doubtful,
        /// The write succeeded, but its answer did not come, nor will another one soon.
        Silent,
    }

    /// The store; clones share it.
    #[derive(Clone, Debug, Default)]
    pub(crate) struct Memory(Arc<Mutex<(Records, Mood)>>);

    impl Memory {
        pub(crate) fn holding(directory: &Directory) -> Self {
            Memory(Arc::new(Mutex::new((directory.records(), Mood::Well))))
        }

        pub(crate) fn feels(&self, mood: Mood) {
            self.0.lock().1 = mood;
        }
    }

    impl Store for Memory {
        fn load(&mut self) -> Result<Records, StoreError> {
            let memory = self.0.lock();
            // Callers would wait in vain for as long as before.
            assert_ne!(memory.1, Mood::Silent);
            Ok(memory.0.clone())
        }

        fn commit(&mut self, changes: &Changes) -> Result<(), StoreError> {
            let mut memory = self.0.lock();
            let mood = memory.1;
            if mood != Mood::Full {
                changes.apply_to(&mut memory.0);
            }
            match mood {
                Mood::Well => Ok(()),
                Mood::Silent => {
                    let silent = Refusal::new(RefusalKind::Exhausted, "no answer", "");
                    Err(StoreError::Doubtful(Box::new(StoreError::Etcd(silent))))
                }
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
    fn a_failed_change_is_undone_before_the_next() {
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
        for mood in [Mood::Full, Mood::Doubtful, Mood::Silent] {
            store.feels(mood);
            let error = recovering.keep(&empty, &with("red")).unwrap_err();
            let refusal = error.refusal();
            assert_eq!(refusal.kind, RefusalKind::Exhausted);
            // The remedy says "nothing was changed" only when that is known.
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
