//! The state directory: its lock, and the places of its files.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use nix::unistd::Uid;
use toroid_client::admin::CONTROL_SOCKET;
use toroid_fabric::{NodeId, Place};
use toroid_model::addressing::host_name;
use toroid_protocol::fdstore;

use crate::error::{AgentError, in_state};
use crate::exec::LOCKS;
use crate::net::gateways;
use crate::nodes::cgroups;
use crate::process::is_dying;
use crate::store::names::LOG;
use crate::store::ownership;

/// Time that a lock holder without a socket is believed to be dying.
const LAST_BREATH: Duration = Duration::from_secs(1);

/// Pause between two checks of it.
const GLANCE: Duration = Duration::from_millis(2);

const LOCK: &str = "lock";

/// Mode of private files.
const PRIVATE: u32 = 0o600;

const NODES: &str = "nodes";

const NETWORKS: &str = "netns";

/// A state directory, locked for this process as long as the value lives.
#[derive(Debug)]
pub(crate) struct StateDir {
    path: PathBuf,
    lock: File,
}

impl StateDir {
    /// Locks the directory, and removes files of a killed agent, unless an fd store holds its nodes
    /// for this one.
    pub(crate) fn take(path: &Path) -> Result<Self, AgentError> {
        let broken = in_state(path);
        let path = std::path::absolute(path).map_err(broken)?;
        let lock = lock(&path)?;
        if fdstore::is_there(&path) {
            remove_socket(&path)
        } else {
            clear(&path)
        }
        .map_err(broken)?;
        Ok(StateDir { path, lock })
    }

    /// The directory of the former life of this process, which has locked it.
    pub(super) fn inherited(path: PathBuf, lock: File) -> Self {
        StateDir { path, lock }
    }

    pub(super) fn lock(&self) -> &File {
        &self.lock
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Empties the log of the agent before; writers append, so they carry on at its start.
    pub(super) fn begin_log(&self) -> Result<(), AgentError> {
        let log = ownership::open(OpenOptions::new().write(true), &self.path.join(LOG));
        match log.and_then(|log| log.set_len(0)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(in_state(&self.path)(error))
            }
            _ => Ok(()),
        }
    }

    /// Opens the control socket. That of root's agent is open to all, and asks clients for
    /// credentials; that of a user is private.
    pub(crate) fn listen(&self, open_to_all: bool) -> Result<UnixListener, AgentError> {
        self.open_socket(open_to_all).map_err(in_state(&self.path))
    }

    fn open_socket(&self, open_to_all: bool) -> io::Result<UnixListener> {
        let socket = self.path.join(CONTROL_SOCKET);
        let listener = UnixListener::bind(&socket)?;
        let mode = if open_to_all { 0o666 } else { 0o600 };
        fs::set_permissions(&socket, Permissions::from_mode(mode))?;
        Ok(listener)
    }

    /// Path of a node's hosts file.
    pub(crate) fn hosts(&self, node: NodeId) -> io::Result<PathBuf> {
        // Private: other users would learn all members and aliases of all domains.
        let nodes = self.path.join(NODES);
        make_private(&nodes)?;
        let directory = nodes.join(node.0.to_string());
        make_private(&directory)?;
        Ok(directory.join("hosts"))
    }

    /// Path of the name of a node's network namespace.
    pub(crate) fn network(&self, place: Place) -> io::Result<PathBuf> {
        // Private: other users would learn process numbers.
        let networks = self.path.join(NETWORKS);
        make_private(&networks)?;
        Ok(networks.join(host_name(place)))
    }

    /// Unlocks the directory with its contents for the next agent.
    pub(crate) fn give_back(self) {
        if let Err(error) = remove_socket(&self.path) {
            tracing::warn!("cannot clear {}: {error}", self.path.display());
        }
    }

    /// Removes all but the log, and unlocks the directory.
    pub(crate) fn release(self) {
        if let Err(error) = clear(&self.path) {
            tracing::warn!("cannot clear {}: {error}", self.path.display());
        }
        // Last, and under the lock: a process that has opened it meanwhile sees that it is gone.
        let _ = fs::remove_file(self.path.join(LOCK));
    }
}

/// Checks that the names of the sockets fit into a socket address (unix(7)).
fn check_length(state: &Path) -> io::Result<()> {
    const MOST: usize = 107;
    let names = [CONTROL_SOCKET, fdstore::SOCKET].map(|name| state.join(name));
    let longest = names.iter().map(|name| name.as_os_str().len()).max();
    match longest.unwrap_or_default() {
        len if len > MOST => Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("the names of its sockets have {len} bytes, and {MOST} are possible"),
        )),
        _ => Ok(()),
    }
}

/// Makes the state directory. That of root is open, because all users may use its agent; that of a
/// user is private.
pub(crate) fn make(path: &Path) -> io::Result<()> {
    check_length(path)?;
    let mode = if Uid::effective().is_root() {
        0o755
    } else {
        0o700
    };
    ownership::make_directory(path, mode)
}

/// Makes a private directory, also of an existing one that others may read.
fn make_private(path: &Path) -> io::Result<()> {
    const MODE: u32 = 0o700;
    ownership::make_directory(path, MODE)?;
    fs::set_permissions(path, Permissions::from_mode(MODE))
}

/// Remains of a killed agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Nothing.
    Nothing,
    /// Files.
    Files,
    /// Nodes that went on.
    Nodes,
}

/// Ends the remains of a killed agent in a state directory, if no agent runs there, and removes its
/// files.
///
/// # Errors
/// [`AgentError::Running`] if one does.
pub fn clear_stale(state: &Path) -> Result<Left, AgentError> {
    let stale = [LOCK, CONTROL_SOCKET]
        .iter()
        .any(|name| state.join(name).exists());
    if !stale {
        return Ok(Left::Nothing);
    }
    make(state).map_err(in_state(state))?;
    let taken = StateDir::take(state)?;
    let kept = crate::fdstore::find(state)?;
    let left = match kept {
        Some(kept) => {
            kept.end_all();
            Left::Nodes
        }
        None => Left::Files,
    };
    taken.release();
    Ok(left)
}

/// Whether an agent holds a state directory. Waits for the end of one that was killed.
///
/// # Errors
/// The system's.
pub fn is_held(state: &Path) -> io::Result<bool> {
    loop {
        let mut file = match File::open(state.join(LOCK)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            file => file?,
        };
        match file.try_lock() {
            Ok(()) => return Ok(false),
            Err(TryLockError::WouldBlock) if !is_dying(holder(&mut file)?) => return Ok(true),
            Err(TryLockError::WouldBlock) => thread::sleep(GLANCE),
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// Process id in a lock file.
fn holder(file: &mut File) -> io::Result<u32> {
    let mut pid = String::new();
    file.read_to_string(&mut pid)?;
    Ok(pid.trim().parse().unwrap_or_default())
}

fn lock(path: &Path) -> Result<File, AgentError> {
    let broken = in_state(path);
    let name = path.join(LOCK);
    let start = Instant::now();
    loop {
        let mut options = OpenOptions::new();
        // The right to read suffices to lock a file, so it is private.
        options.read(true).write(true).create(true).mode(PRIVATE);
        let mut file = ownership::open(&mut options, &name).map_err(broken)?;
        file.set_permissions(Permissions::from_mode(PRIVATE))
            .map_err(broken)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let pid = holder(&mut file).map_err(broken)?;
                // The holder was killed and is dying, or has yet to listen.
                let is_alive =
                    UnixStream::connect(path.join(CONTROL_SOCKET)).is_ok() && !is_dying(pid);
                if is_alive || start.elapsed() >= LAST_BREATH {
                    let state = path.into();
                    return Err(AgentError::Running { state, pid });
                }
                thread::sleep(GLANCE);
                continue;
            }
            Err(TryLockError::Error(error)) => return Err(broken(error)),
        }
        // An agent that has just ended may have removed the locked file.
        let is_there = fs::metadata(&name).map(|there| there.ino());
        let ours = file.metadata().map_err(broken)?.ino();
        if is_there.is_ok_and(|there| there == ours) {
            write_pid(&mut file).map_err(broken)?;
            return Ok(file);
        }
    }
}

fn write_pid(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

fn clear(path: &Path) -> io::Result<()> {
    gateways::clear(path)?;
    cgroups::clear(path)?;
    remove_socket(path)?;
    gone(fs::remove_file(path.join(fdstore::SOCKET)))?;
    gone(fs::remove_dir_all(path.join(LOCKS)))?;
    gone(fs::remove_dir_all(path.join(NETWORKS)))?;
    gone(fs::remove_dir_all(path.join(NODES)))
}

fn remove_socket(path: &Path) -> io::Result<()> {
    gone(fs::remove_file(path.join(CONTROL_SOCKET)))
}

fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_agent_is_refused_with_the_id_of_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let first = StateDir::take(directory.path()).unwrap();
        let second = StateDir::take(directory.path()).unwrap_err();
        let us = std::process::id();
        assert!(
            matches!(&second, AgentError::Running { pid, .. } if *pid == us),
            "{second}"
        );
        first.release();
        StateDir::take(directory.path()).unwrap().release();
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn remains_of_a_killed_agent_are_cleared() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(clear_stale(directory.path()).unwrap(), Left::Nothing);
        let state = StateDir::take(directory.path()).unwrap();
        state.listen(false).unwrap();
        fs::write(state.hosts(NodeId(3)).unwrap(), "").unwrap();
        let log = directory.path().join(LOG);
        fs::write(&log, "why it died").unwrap();
        assert!(clear_stale(directory.path()).is_err(), "it still runs");
        drop(state);
        assert_eq!(clear_stale(directory.path()).unwrap(), Left::Files);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
        assert_eq!(fs::read_to_string(&log).unwrap(), "why it died");
        StateDir::take(directory.path())
            .unwrap()
            .begin_log()
            .unwrap();
        assert_eq!(fs::read_to_string(&log).unwrap(), "");
    }
}
