//! The data directory, which outlives the agent. Each state directory has one of its own below the
//! common one, so agents do not meet there.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toroid_fabric::Torus;
use toroid_model::directory::Directory;
use toroid_model::directory::moved::Moved;
use toroid_model::directory::revision::{FabricId, Revision};

use crate::cluster::Cluster;
use crate::control::elected::ElectedStore;
use crate::control::publishing::Publishing;
use crate::error::{AgentError, in_data};
use crate::store::file::FileStore;
use crate::store::names::name_for;
use crate::store::ownership;
use crate::store::{Store, StoreError};

const LOCK: &str = "lock";
const DIRECTORY: &str = "directory.redb";

/// Mode of the data directory of an agent.
const PRIVATE: u32 = 0o700;

/// Number of kept directories that were moved aside.
const KEPT_ASIDE: u32 = 3;

/// Torus when neither the caller nor the directory has one.
const DEFAULT_TORUS: [u16; 3] = [2, 2, 2];

/// A data directory, locked for this process as long as the value lives.
#[derive(Debug)]
pub(crate) struct DataDir {
    path: PathBuf,
    _lock: File,
}

impl DataDir {
    /// Locks the data directory of a state directory, whose path must be absolute, below `data`.
    pub(crate) fn take(data: &Path, state: &Path) -> Result<Self, AgentError> {
        let path = data.join(name_for(state));
        let broken = in_data(&path);
        make(&path).map_err(broken)?;
        let private = Permissions::from_mode(PRIVATE);
        fs::set_permissions(&path, private).map_err(broken)?;
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let lock = ownership::open(&mut options, &path.join(LOCK)).map_err(broken)?;
        match lock.try_lock() {
            Ok(()) => Ok(DataDir { path, _lock: lock }),
            Err(TryLockError::WouldBlock) => {
                Err(StoreError::InUse(path.display().to_string()).into())
            }
            Err(TryLockError::Error(error)) => Err(broken(error)),
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The directory of the predecessor, or a new one, with its store. A directory of another torus
    /// is refused, because its nodes would be others.
    pub(crate) fn directory(
        &self,
        torus: Option<Torus>,
    ) -> Result<(Directory, FileStore), AgentError> {
        let path = self.path.join(DIRECTORY);
        // The library that opens it would follow a link.
        match ownership::open(OpenOptions::new().read(true), &path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(in_data(&self.path)(error));
            }
            _ => {}
        }
        let Some(mut store) = FileStore::open(&path)? else {
            let directory = Directory::new(torus.unwrap_or(default_torus()));
            let store = FileStore::create(&path, &directory.records())?;
            return Ok((directory, store));
        };
        let directory = Directory::from_records(&store.load()?);
        let directory = directory.map_err(|source| StoreError::Records {
            path: path.display().to_string(),
            source,
        })?;
        match torus {
            Some(asked) if asked != directory.torus() => Err(AgentError::OtherTorus {
                asked,
                kept: directory.torus(),
                directory: path,
            }),
            _ => Ok((directory, store)),
        }
    }

    /// The last move of the predecessor's directory, and its fabric, if there are any.
    pub(super) fn moved(&self) -> Result<(Option<Moved>, Option<FabricId>), AgentError> {
        let path = self.path.join(DIRECTORY);
        let Some(mut store) = FileStore::open(&path)? else {
            return Ok((None, None));
        };
        let records = store.load()?;
        let damaged = |source| StoreError::Records {
            path: path.display().to_string(),
            source,
        };
        let revision = Revision::among(&records).map_err(damaged)?;
        let moved = Moved::among(&records).map_err(damaged)?;
        Ok((moved, revision.map(|its| its.fabric)))
    }

    /// Does the same for one host of several, or a single one. A leader that the file names first
    /// enters its own nodes and begins a term; from then on its changes are published. An elected leader
    /// begins [later](super::lead).
    pub(super) fn directory_among(
        &self,
        torus: Option<Torus>,
        cluster: Option<&Cluster>,
    ) -> Result<(Directory, Box<dyn Store>), AgentError> {
        let torus = cluster.map_or(torus, |cluster| Some(cluster.config.torus));
        let (directory, mut store) = self.directory(torus)?;
        let path = || self.path.join(DIRECTORY);
        let names: Vec<&str> = directory.hosts().keys().map(String::as_str).collect();
        match cluster {
            None if !names.is_empty() => Err(AgentError::SeveralHosts {
                hosts: names.join(", "),
                directory: path(),
            }),
            None => Ok((directory, Box::new(store))),
            Some(cluster) if cluster.config.holds_directory() && directory.is_partial() => {
                Err(AgentError::PartialDirectory { directory: path() })
            }
            Some(cluster) if cluster.config.holds_directory() => {
                let mut ours = directory.clone();
                cluster.claim_own(&mut ours);
                cluster.begin_term(&mut ours)?;
                let changes = ours.changes_since(&directory);
                store.commit(&changes)?;
                cluster.control.set_records(ours.records(), ours.revision());
                let control = Arc::clone(&cluster.control);
                let here = &cluster.config.host;
                Ok((ours, Box::new(Publishing::new(store, control, here))))
            }
            Some(_) if names.is_empty() && directory.domains().next().is_some() => {
                Err(AgentError::OwnDirectory { directory: path() })
            }
            Some(cluster) => {
                cluster.tickets.set_term(directory.revision());
                let elected = cluster.candidacy.as_ref().filter(|its| its.is_elected());
                let store: Box<dyn Store> = match elected {
                    Some(candidacy) => {
                        let (term, control) = (&candidacy.store, &cluster.control);
                        Box::new(ElectedStore::new(
                            Arc::clone(term),
                            store,
                            Arc::clone(control),
                        ))
                    }
                    None => Box::new(store),
                };
                Ok((directory, store))
            }
        }
    }

    /// Moves the directory aside, if there is one; returns its new path. The oldest of such
    /// directories is removed.
    pub(super) fn set_aside(&self) -> Result<Option<PathBuf>, AgentError> {
        self.move_aside().map_err(in_data(&self.path))
    }

    fn move_aside(&self) -> io::Result<Option<PathBuf>> {
        let path = self.path.join(DIRECTORY);
        let aside = |n: u32| path.with_extension(format!("redb.old-{n}"));
        let number = |entry: fs::DirEntry| -> Option<u32> {
            let name = entry.file_name().into_string().ok()?;
            let number = name.strip_prefix(DIRECTORY)?.strip_prefix(".old-")?;
            number.parse().ok()
        };
        let entries = fs::read_dir(&self.path)?.flatten();
        let before: Vec<u32> = entries.filter_map(number).collect();
        let next = before.iter().max().map_or(1, |last| last.saturating_add(1));
        match fs::rename(&path, aside(next)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            moved => moved?,
        }
        for old in before
            .into_iter()
            .filter(|n| n.saturating_add(KEPT_ASIDE) <= next)
        {
            if let Err(error) = fs::remove_file(aside(old)) {
                tracing::warn!("cannot remove {}: {error}", aside(old).display());
            }
        }
        Ok(Some(aside(next)))
    }
}

/// Makes a data directory, or the common one.
pub(crate) fn make(path: &Path) -> io::Result<()> {
    ownership::make_directory(path, PRIVATE)
}

fn default_torus() -> Torus {
    let [x, y, z] = DEFAULT_TORUS;
    Torus::new(x, y, z).expect("it is one")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::tests::cluster;

    fn torus(text: &str) -> Torus {
        text.parse().unwrap()
    }

    #[test]
    fn a_directory_is_kept_for_its_torus_and_one_agent() {
        let base = tempfile::tempdir().unwrap();
        let state = Path::new("/run/toroid");
        let data = DataDir::take(base.path(), state).unwrap();
        assert!(matches!(
            DataDir::take(base.path(), state),
            Err(AgentError::Directory(StoreError::InUse(_)))
        ));
        DataDir::take(base.path(), Path::new("/run/other")).unwrap();

        drop(data.directory(Some(torus("3x1x1"))).unwrap());
        let (directory, _) = data.directory(None).unwrap();
        assert_eq!(directory.torus(), torus("3x1x1"));
        let error = data.directory(Some(torus("2x2x2"))).unwrap_err();
        let refusal = error.refusal();
        assert!(refusal.message.contains("3x1x1"), "{refusal}");
        assert!(refusal.remedy.contains("--fresh"), "{refusal}");

        let aside = data.set_aside().unwrap().unwrap();
        assert!(aside.exists());
        let (directory, _) = data.directory(None).unwrap();
        assert_eq!(directory.torus(), torus("2x2x2"));
        assert_ne!(data.set_aside().unwrap().unwrap(), aside);
        assert_eq!(data.set_aside().unwrap(), None);
    }

    #[test]
    fn a_leader_begins_a_term_at_each_start() {
        let base = tempfile::tempdir().unwrap();
        let data = DataDir::take(base.path(), Path::new("/run/toroid")).unwrap();
        let start = || {
            let started = data.directory_among(None, Some(&cluster()));
            started.unwrap().0.revision().unwrap()
        };
        let [first, second] = [(); 2].map(|()| start());
        assert_eq!((first.term.number, second.term.number), (1, 2));
        assert_eq!((first.number, second.number), (1, 2));
        assert_eq!(first.fabric, second.fabric);
        assert_ne!(first.term.nonce, second.term.nonce);
        data.set_aside().unwrap();
        let anew = start();
        assert_ne!(anew.fabric, second.fabric);
        assert_eq!(anew.term.number, 1);
    }

    /// Each `up --fresh` once left another file for ever.
    #[test]
    fn the_last_three_directories_moved_aside_are_kept() {
        let base = tempfile::tempdir().unwrap();
        let data = DataDir::take(base.path(), Path::new("/run/toroid")).unwrap();
        let number = |path: &PathBuf| -> u32 {
            let name = path.to_str().unwrap();
            name.rsplit('-').next().unwrap().parse().unwrap()
        };
        let asides: Vec<PathBuf> = (0..12)
            .map(|_| {
                drop(data.directory(None).unwrap());
                data.set_aside().unwrap().unwrap()
            })
            .collect();
        let numbers: Vec<u32> = asides.iter().map(number).collect();
        assert_eq!(numbers, (1..=12).collect::<Vec<_>>());
        let kept = asides.iter().filter(|aside| aside.exists()).map(number);
        assert_eq!(kept.collect::<Vec<_>>(), [10, 11, 12]);
    }
}
