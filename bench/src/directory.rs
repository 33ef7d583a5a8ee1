//! The private directory of a run.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use toroid_agent::clear_groups;

/// A private directory that is removed with its contents.
#[derive(Debug)]
pub struct Directory(pub PathBuf);

impl Directory {
    /// Creates a directory below that of temporary files.
    pub fn create() -> io::Result<Self> {
        create_in(&std::env::temp_dir()).map(Directory)
    }
}

/// Creates a private directory, which stays.
pub fn create_in(parent: &Path) -> io::Result<PathBuf> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let unique = now.map_or(0, |time| time.subsec_nanos());
    let name = format!("toroid-bench-{}-{unique:x}", std::process::id());
    let path = parent.join(name);
    DirBuilder::new().mode(0o700).create(&path)?;
    Ok(path)
}

impl Drop for Directory {
    fn drop(&mut self) {
        remove_state(&self.0);
    }
}

/// A socket of a run outside of its private directory, since users of nodes create it.
pub fn socket(path: &Path) -> PathBuf {
    path.with_extension("memcached")
}

/// Removes the private directory of a run, and the socket: at its end by the run itself, after a
/// kill by its agent.
pub fn remove_state(path: &Path) {
    // The second of the two finds nothing. Without the directory nobody would know of groups that
    // stay.
    if let Ok(true) = clear_groups(path) {
        let _ = fs::remove_dir_all(path);
    }
    let _ = fs::remove_file(socket(path));
}
