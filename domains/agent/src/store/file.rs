//! A directory in a file that survives power cuts: a `redb` database with one table of texts.

use std::fs::{self, File};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use redb::{Builder, Database, ReadableDatabase, ReadableTable, TableDefinition, TableError};
use toroid_model::directory::records::{Changes, Records};

use super::{Store, StoreError};

/// Keys and values, as [`super::records`] has them.
const RECORDS: TableDefinition<&str, &str> = TableDefinition::new("records");

/// Bytes of cache: directories are small, and read once.
const CACHE_BYTES: usize = 1 << 20;

/// A directory in a file.
#[derive(Debug)]
pub struct FileStore {
    path: PathBuf,
    /// `None` after an error: the next use opens the file again, which repairs it.
    database: Option<Database>,
}

impl FileStore {
    /// Opens a file; `None` if there is none.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn open(path: &Path) -> Result<Option<Self>, StoreError> {
        let mut store = FileStore {
            path: path.into(),
            database: None,
        };
        let found = path
            .try_exists()
            .map_err(|e| store.explain("read", e.into()))?;
        if !found {
            return Ok(None);
        }
        store.with("read", |_| Ok(()))?;
        Ok(Some(store))
    }

    /// Makes a new file with these records. It has its name only when it is complete.
    ///
    /// # Errors
    /// [`StoreError`].
    pub fn create(path: &Path, records: &Records) -> Result<Self, StoreError> {
        let unfinished = path.with_extension("new");
        let mut store = FileStore {
            path: unfinished.clone(),
            database: None,
        };
        let failed = |store: &FileStore, error: io::Error| store.explain("write", error.into());
        match fs::remove_file(&unfinished) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(failed(&store, error));
            }
            _ => {}
        }
        store.commit(&Changes::between(&Records::new(), records))?;
        // Closed before it is renamed, because closing writes to it.
        store.database = None;
        let renamed = File::open(&unfinished)
            .and_then(|file| file.sync_all())
            .and_then(|()| fs::rename(&unfinished, path))
            .and_then(|()| sync_directory_of(path));
        renamed.map_err(|error| failed(&store, error))?;
        store.path = path.into();
        Ok(store)
    }

    /// Runs work on the database, which is closed after a failure.
    fn with<T>(
        &mut self,
        action: &'static str,
        work: impl FnOnce(&Database) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        let (present, path) = (self.database.take(), &self.path);
        let open_and_work = || {
            let database = match present {
                Some(database) => database,
                None => builder().create(path)?,
            };
            Ok((work(&database)?, database))
        };
        // `redb` panics at some contents that a broken disk or an editor may leave in a file.
        let worked = catch_unwind(AssertUnwindSafe(open_and_work)).unwrap_or_else(|_| {
            Err(redb::Error::Corrupted(
                "its pages contradict each other".into(),
            ))
        });
        let (result, database) = worked.map_err(|error| self.explain(action, error))?;
        self.database = Some(database);
        Ok(result)
    }

    fn explain(&self, action: &'static str, error: redb::Error) -> StoreError {
        let path = self.path.display().to_string();
        match error {
            redb::Error::Io(source) if source.kind() != io::ErrorKind::InvalidData => {
                StoreError::Io {
                    action,
                    path,
                    source,
                }
            }
            redb::Error::DatabaseAlreadyOpen => StoreError::InUse(path),
            error => StoreError::Damaged {
                path,
                reason: error.to_string(),
            },
        }
    }
}

impl Drop for FileStore {
    fn drop(&mut self) {
        let database = self.database.take();
        // Closing writes, and may panic on a damaged file. All commits are on the disk already.
        let _ = catch_unwind(AssertUnwindSafe(|| drop(database)));
    }
}

impl Store for FileStore {
    fn load(&mut self) -> Result<Records, StoreError> {
        self.with("read", read)
    }

    fn commit(&mut self, changes: &Changes) -> Result<(), StoreError> {
        self.with("write", |database| write(database, changes))
    }
}

/// Makes the name of a file durable.
fn sync_directory_of(path: &Path) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    File::open(directory)?.sync_all()
}

fn builder() -> Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

fn read(database: &Database) -> Result<Records, redb::Error> {
    let table = match database.begin_read()?.open_table(RECORDS) {
        Ok(table) => table,
        Err(TableError::TableDoesNotExist(_)) => return Ok(Records::new()),
        Err(error) => return Err(error.into()),
    };
    let mut records = Records::new();
    for record in table.iter()? {
        let (key, value) = record?;
        records.insert(key.value().into(), value.value().into());
    }
    Ok(records)
}

/// Commits one transaction, which is on the disk when this returns.
fn write(database: &Database, changes: &Changes) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut table = transaction.open_table(RECORDS)?;
        for key in &changes.remove {
            table.remove(key.as_str())?;
        }
        for (key, value) in &changes.put {
            table.insert(key.as_str(), value.as_str())?;
        }
    }
    Ok(transaction.commit()?)
}

#[cfg(test)]
mod tests {
    use parking_lot::Mutex;
    use std::sync::Arc;

    use proptest::prelude::*;
    use proptest::test_runner::{Config, TestRng, TestRunner};
    use redb::StorageBackend;

    use super::*;

    /// Unit in which a disk writes: part of a longer write may be there after a power cut.
    const SECTOR: usize = 512;

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, Vec<u8>),
        Length(u64),
        Synced,
        /// Number of commits that have returned.
        Committed(usize),
    }

    /// A disk with a history of all its operations.
    #[derive(Clone, Debug, Default)]
    struct Disk(Arc<Mutex<(Vec<u8>, Vec<Step>)>>);

    impl Disk {
        fn holding(bytes: Vec<u8>) -> Self {
            Disk(Arc::new(Mutex::new((bytes, Vec::new()))))
        }

        fn does(&self, step: Step) {
            let mut disk = self.0.lock();
            step.apply(&mut disk.0);
            disk.1.push(step);
        }

        fn history(&self) -> Vec<Step> {
            self.0.lock().1.clone()
        }
    }

    impl Step {
        fn apply(&self, bytes: &mut Vec<u8>) {
            match self {
                Step::Write(offset, data) => {
                    let start = *offset as usize;
                    let end = start + data.len();
                    bytes.resize(bytes.len().max(end), 0);
                    bytes[start..end].copy_from_slice(data);
                }
                Step::Length(len) => bytes.resize(*len as usize, 0),
                Step::Synced | Step::Committed(_) => {}
            }
        }
    }

    impl StorageBackend for Disk {
        fn len(&self) -> io::Result<u64> {
            Ok(self.0.lock().0.len() as u64)
        }

        fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
            let disk = self.0.lock();
            let bytes = disk.0.get(offset as usize..).unwrap_or_default();
            let bytes = bytes.get(..out.len()).ok_or(io::ErrorKind::UnexpectedEof)?;
            out.copy_from_slice(bytes);
            Ok(())
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            self.does(Step::Length(len));
            Ok(())
        }

        fn sync_data(&self) -> io::Result<()> {
            self.does(Step::Synced);
            Ok(())
        }

        fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
            self.does(Step::Write(offset, data.into()));
            Ok(())
        }
    }

    /// Possible contents of the disk after a power cut: everything up to the last sync, and any
    /// later sectors, in any order.
    fn after_power_cut(steps: &[Step], random: &mut TestRng) -> Vec<u8> {
        let synced = steps.iter().rposition(|step| matches!(step, Step::Synced));
        let (durable, pending) = steps.split_at(synced.unwrap_or(0));
        let mut bytes = Vec::new();
        for step in durable {
            step.apply(&mut bytes);
        }
        let mut survivors: Vec<Step> = Vec::new();
        for step in pending {
            match step {
                Step::Write(offset, data) => {
                    let sectors = data.chunks(SECTOR).enumerate();
                    survivors.extend(sectors.map(|(n, sector)| {
                        Step::Write(offset + (n * SECTOR) as u64, sector.into())
                    }));
                }
                other => survivors.push(other.clone()),
            }
        }
        survivors.retain(|_| random.random_bool(0.5));
        for n in (1..survivors.len()).rev() {
            survivors.swap(n, random.random_range(0..=n));
        }
        for step in survivors {
            step.apply(&mut bytes);
        }
        bytes
    }

    fn history() -> impl Strategy<Value = Vec<Records>> {
        let key = prop_oneof!["domain/[a-d]", "alias/[a-d]", Just("numbers".to_owned())];
        let records = prop::collection::btree_map(key, "[a-z0-9]{0,300}", 0..9);
        prop::collection::vec(records, 1..6)
    }

    fn commit_all(disk: &Disk, states: &[Records]) {
        let database = builder().create_with_backend(disk.clone()).unwrap();
        disk.does(Step::Committed(0));
        let mut old = Records::new();
        for (n, new) in states.iter().enumerate() {
            write(&database, &Changes::between(&old, new)).unwrap();
            disk.does(Step::Committed(n + 1));
            old.clone_from(new);
        }
    }

    #[test]
    fn records_are_old_or_new_after_a_power_cut() {
        let mut runner = TestRunner::new(Config::with_cases(6));
        let mut random = runner.new_rng();
        let cut_everywhere = |states: Vec<Records>| {
            let disk = Disk::default();
            commit_all(&disk, &states);
            let steps = disk.history();
            let made = steps.iter().position(|s| matches!(s, Step::Committed(0)));
            for cut in made.unwrap()..=steps.len() {
                let committed = steps[..cut].iter().rev().find_map(|step| match step {
                    Step::Committed(n) => Some(*n),
                    _ => None,
                });
                let committed = committed.unwrap_or(0);
                let left = Disk::holding(after_power_cut(&steps[..cut], &mut random));
                let database = builder().create_with_backend(left).unwrap();
                let found = read(&database).unwrap();
                let old = |n: usize| {
                    n.checked_sub(1)
                        .map_or_else(Records::new, |n| states[n].clone())
                };
                let is_new = committed < states.len() && found == old(committed + 1);
                prop_assert!(
                    found == old(committed) || is_new,
                    "cut at step {cut} after {committed} commits: {found:?}"
                );
                // The store can be changed again.
                write(&database, &Changes::between(&found, &states[0])).unwrap();
                prop_assert_eq!(&read(&database).unwrap(), &states[0]);
            }
            Ok(())
        };
        let cut_everywhere = std::cell::RefCell::new(cut_everywhere);
        runner
            .run(&history(), |states| (cut_everywhere.borrow_mut())(states))
            .unwrap();
    }

    #[test]
    fn records_survive_in_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("directory.redb");
        let records: Records = [("a".to_owned(), "1".to_owned()), ("b".into(), "2".into())].into();
        assert!(FileStore::open(&path).unwrap().is_none());
        let mut store = FileStore::create(&path, &Records::new()).unwrap();
        assert!(store.load().unwrap().is_empty());
        let changes = Changes::between(&Records::new(), &records);
        store.commit(&changes).unwrap();
        let second = FileStore::open(&path).unwrap_err();
        assert!(matches!(second, StoreError::InUse(_)), "{second}");
        drop(store);
        let mut store = FileStore::open(&path).unwrap().unwrap();
        assert_eq!(store.load().unwrap(), records);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn another_file_is_refused_and_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("directory.redb");
        fs::write(&path, "something else").unwrap();
        let error = FileStore::open(&path).unwrap_err();
        assert!(
            error.refusal().message.contains("directory.redb"),
            "{error}"
        );
        assert!(error.refusal().remedy.contains("--fresh"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"something else");
    }
}
