//! Commands in nodes of other hosts.
//!
//! ```text
//!   caller ── session ── near relay ══ data connection ══ far relay ── session ── node
//!          descriptors                                      pipes
//! ```
//!
//! A relay is a process for each command, with the rights of the caller. The near relay takes the place
//! of the node, so that callers see no difference. The far relay is an ordinary client of the agent
//! of its host, which checks the caller's rights there.

mod far;
mod frames;
mod near;
mod streams;

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::{self, flock};
use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::Serialize;
use serde::de::DeserializeOwned;
use toroid_client::credentials::Ids;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::command::{Notice, Start};
use toroid_protocol::seal::SealKeys;
use toroid_protocol::wire::{self, WireError};

use crate::process::{become_independent, ends_within, role_command};
use crate::store::ownership;
use crate::threads;
pub(crate) use far::{ROLE as FAR_ROLE, run_role as run_far};
pub(crate) use near::{ROLE as NEAR_ROLE, run_role as run_near};

/// Directory with a file for each other host. Its relays here lock the file.
pub(crate) const LOCKS: &str = "relays";

/// Most near relays of a user, and most far relays of a host.
const MOST_OF_ONE: usize = 2048;

/// Most near relays, and most far relays.
const MOST: usize = 4096;

/// Time for a relay to begin.
const PATIENCE: Duration = Duration::from_secs(10);

/// Time for killed relays to end. One that a file system in user space (FUSE) holds up runs no more.
const LAST_BREATH: Duration = Duration::from_secs(2);

/// The relays of a host.
#[derive(Debug)]
pub(crate) struct Relays {
    locks: PathBuf,
    /// Whether they can take on the rights of their callers.
    has_users: bool,
    /// Near relays by user.
    near: Places<u32>,
    /// Far relays by host.
    far: Places<String>,
}

/// Numbers of relays that this agent has started and that run, by whom they are for.
#[derive(Debug)]
struct Places<K>(Arc<Mutex<BTreeMap<K, usize>>>);

/// A relay. Dropping it kills it.
struct Relay {
    process: Child,
    /// This side of its standard input.
    agent: UnixStream,
    /// Whether it goes on by itself.
    is_free: bool,
}

impl Relays {
    /// None yet. Those of an agent before this one in the state directory are found by their locks.
    pub(crate) fn new(state: &Path, has_users: bool) -> Self {
        Relays {
            locks: state.join(LOCKS),
            has_users,
            near: Places::default(),
            far: Places::default(),
        }
    }

    /// Starts the near relay of a command on host `to`. Returns the session for the caller.
    pub(crate) fn start_near(
        &self,
        caller: Ids,
        to: &str,
        (connection, keys): (&TcpStream, Option<SealKeys>),
        start: Start,
        may_begin: impl FnOnce() -> bool,
    ) -> Result<OwnedFd, Refusal> {
        let order = near::Order {
            user: self.has_users.then_some(caller),
            host: to.into(),
            keys,
            start,
        };
        let begin = |place| {
            let (session, theirs) = UnixStream::pair()?;
            let lock = self.lock_of(to)?;
            let descriptors = [lock.as_fd(), connection.as_fd(), theirs.as_fd()];
            let relay = Relay::start(("toroid-near-relay", NEAR_ROLE), &order, &descriptors)?;
            relay.let_go(place, may_begin)?;
            Ok(session.into())
        };
        let place = self.near.take(caller.uid)?;
        begin(place).map_err(|error| cannot_start(to, &error))
    }

    /// Starts the far relay of a command for a user of host `from`, unless `may_begin` says otherwise
    /// once [`Relays::end_of`] would find it.
    pub(crate) fn start_far(
        &self,
        state: &Path,
        (from, user): (&str, u32),
        (connection, keys): (&TcpStream, Option<&SealKeys>),
        may_begin: impl FnOnce() -> bool,
    ) -> Result<(), Refusal> {
        let order = far::Order {
            user: self.has_users.then_some(user),
            state: state.into(),
            keys: keys.cloned(),
        };
        let begin = |place| {
            let lock = self.lock_of(from)?;
            let descriptors = [lock.as_fd(), connection.as_fd()];
            let relay = Relay::start(("toroid-far-relay", FAR_ROLE), &order, &descriptors)?;
            relay.let_go(place, may_begin)
        };
        let place = self.far.take(from.to_owned())?;
        begin(place).map_err(|error| cannot_start(from, &error))
    }

    /// Tells a near relay why there is no command.
    pub(crate) fn refuse(&self, connection: TcpStream, keys: Option<&SealKeys>, why: Refusal) {
        // A failure means that the other side has ended.
        if let Ok((_, sender)) = frames::split(connection, keys) {
            let _ = sender.notice(&Notice::Refused(why));
        }
    }

    /// Ends all relays to and from a host, also those that an agent before this one has started.
    pub(crate) fn end_of(&self, host: &str) {
        let Ok(file) = OpenOptions::new().write(true).open(self.locks.join(host)) else {
            return;
        };
        let mut ending = Vec::new();
        let mut from = 0;
        while let Some(pid) = locker(&file, from) {
            from = i64::from(pid.as_raw_nonzero().get()) + 1;
            match pidfd_open(pid, PidfdFlags::empty()) {
                // Its number may have been reused before.
                Ok(relay) if locker(&file, from - 1) == Some(pid) => {
                    // It fails for one that has ended meanwhile.
                    let _ = pidfd_send_signal(&relay, Signal::KILL);
                    ending.push(relay);
                }
                Ok(_) | Err(Errno::SRCH) => {}
                Err(error) => tracing::error!("cannot end a command of host {host}: {error}"),
            }
        }
        let end = Instant::now() + LAST_BREATH;
        for relay in ending {
            let left = end.saturating_duration_since(Instant::now());
            ends_within(&relay, left.as_millis() as u16);
        }
    }

    /// The file that relays to and from a host lock.
    fn lock_of(&self, host: &str) -> io::Result<File> {
        ownership::make_directory(&self.locks, 0o700)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).mode(0o600);
        ownership::open(&mut options, &self.locks.join(host))
    }
}

impl<K> Default for Places<K> {
    fn default() -> Self {
        Places(Arc::default())
    }
}

impl<K: Clone + Ord> Places<K> {
    /// Takes a place, which is free again when the returned value is dropped.
    fn take(&self, of: K) -> Result<Place<K>, Refusal> {
        let mut running = self.0.lock();
        let of_one = running.get(&of).copied().unwrap_or_default();
        if of_one >= MOST_OF_ONE || running.values().sum::<usize>() >= MOST {
            return Err(Refusal::new(
                RefusalKind::Exhausted,
                format!(
                    "{MOST_OF_ONE} commands of one user or host, or {MOST} in all, run between \
                     hosts"
                ),
                "wait until some have ended",
            ));
        }
        running.insert(of.clone(), of_one + 1);
        Ok(Place {
            of,
            running: Arc::clone(&self.0),
        })
    }
}

/// A place of a relay.
struct Place<K: Ord> {
    of: K,
    running: Arc<Mutex<BTreeMap<K, usize>>>,
}

impl<K: Ord> Drop for Place<K> {
    fn drop(&mut self) {
        let mut running = self.running.lock();
        if let Some(count) = running.get_mut(&self.of) {
            *count -= 1;
            if *count == 0 {
                running.remove(&self.of);
            }
        }
    }
}

impl Relay {
    /// Starts a relay. The first descriptor is the file that it locks.
    fn start(
        (title, role): (&str, &str),
        order: &impl Serialize,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<Self> {
        let (agent, theirs) = UnixStream::pair()?;
        agent.set_read_timeout(Some(PATIENCE))?;
        let mut command = role_command(title, role);
        command.stdin(OwnedFd::from(theirs));
        // It may outlive the agent, whose output another process may wait for.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn()?;
        let is_free = false;
        let relay = Relay {
            process,
            agent,
            is_free,
        };
        drop(command);
        let (_, orders) = wire::split(relay.agent.try_clone()?)?;
        orders.send(order, descriptors).map_err(io::Error::other)?;
        Ok(relay)
    }

    /// Lets the relay begin once it has locked its file, unless `may_begin` says otherwise. Its place
    /// is free when it has ended.
    fn let_go<K: Ord + Send + 'static>(
        mut self,
        place: Place<K>,
        may_begin: impl FnOnce() -> bool,
    ) -> io::Result<()> {
        let (mut answers, orders) = wire::split(self.agent.try_clone()?)?;
        answers.receive::<()>().map_err(io::Error::other)?;
        if !may_begin() {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        orders.send(&(), &[]).map_err(io::Error::other)?;
        let attend = move || {
            self.is_free = true;
            // Waiting for a child does not fail.
            let _ = self.process.wait();
            drop(place);
        };
        threads::start(attend).map(drop)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        if !self.is_free {
            // It may have ended by itself.
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}

fn cannot_start(other: &str, error: &io::Error) -> Refusal {
    if error.kind() == io::ErrorKind::PermissionDenied {
        let message = format!("host {other} was removed meanwhile");
        return Refusal::new(RefusalKind::Denied, message, "see `toroid host ls`");
    }
    Refusal::new(
        RefusalKind::Failed,
        format!("cannot start a command between hosts: {error}"),
        "see `toroid doctor`, and `ulimit -n` and `ulimit -u` of the agent",
    )
}

/// Receives the order of this relay, makes it independent of the agent, locks its file and waits
/// until it may begin. Returns the other descriptors.
fn receive_order<T: DeserializeOwned>() -> Result<(T, Vec<OwnedFd>), WireError> {
    become_independent()?;
    let agent = io::stdin().as_fd().try_clone_to_owned()?;
    let (mut orders, answers) = wire::split(agent.into())?;
    let (order, mut descriptors): (T, Vec<OwnedFd>) = orders.receive()?;
    if descriptors.len() < 2 {
        return Err(WireError::Closed);
    }
    let file = File::from(descriptors.remove(0));
    let own = byte(libc::F_WRLCK, i64::from(std::process::id()), 1);
    fcntl(&file, FcntlArg::F_SETLK(&own)).map_err(io::Error::from)?;
    // The lock ends with this process, or when it closes the file.
    std::mem::forget(file);
    answers.send(&(), &[])?;
    orders.receive::<()>()?;
    Ok((order, descriptors))
}

/// The process with the lowest number, at least `from`, that has locked the byte of its number.
fn locker(file: &File, from: i64) -> Option<Pid> {
    let mut lock = byte(libc::F_WRLCK, from, 0);
    let mut lowest: Option<flock> = None;
    // The kernel names any lock in the range, so the range ends before each that was found.
    loop {
        fcntl(file, FcntlArg::F_GETLK(&mut lock)).ok()?;
        if i32::from(lock.l_type) == libc::F_UNLCK {
            return Pid::from_raw(lowest?.l_pid);
        }
        let found = lock;
        lowest = Some(found);
        if found.l_start <= from {
            return Pid::from_raw(found.l_pid);
        }
        lock = byte(libc::F_WRLCK, from, found.l_start - from);
    }
}

/// Bytes from `start` on: `len`, or all if that is 0.
fn byte(kind: i32, start: i64, len: i64) -> flock {
    flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: start,
        l_len: len,
        l_pid: 0,
    }
}

/// Takes on the rights of a user.
fn become_user(ids: Ids, groups: &[Gid]) -> io::Result<()> {
    setgroups(groups)?;
    setgid(Gid::from_raw(ids.gid))?;
    Ok(setuid(Uid::from_raw(ids.uid))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relays_of_one_and_of_all_are_bounded() {
        let places = Places::<u32>::default();
        let mut taken = Vec::new();
        for user in [1, 2] {
            taken.extend((0..MOST_OF_ONE).map(|_| places.take(user).ok().unwrap()));
            assert!(places.take(user).is_err());
        }
        assert!(places.take(3).is_err(), "too many in all");
        taken.pop();
        drop(places.take(3).ok().unwrap());
        drop(taken);
        assert!(places.0.lock().is_empty());
    }

    /// Locks of several processes, whose numbers rise or fall.
    #[test]
    fn all_holders_of_locks_are_killed_and_no_others() {
        let directory = tempfile::tempdir().unwrap();
        let relays = Relays::new(directory.path(), false);
        let lock = relays.lock_of("a").unwrap();
        relays.lock_of("b").unwrap();
        let mut children: Vec<Child> = (0..5).map(|_| locking(&relays.locks.join("a"))).collect();
        let lowest = children.iter().map(Child::id).min();
        let found = locker(&lock, 0).map(|pid| pid.as_raw_nonzero().get().cast_unsigned());
        assert_eq!(found, lowest);
        relays.end_of("b");
        relays.end_of("none");
        assert!(
            children
                .iter_mut()
                .all(|child| child.try_wait().unwrap().is_none())
        );
        relays.end_of("a");
        assert_eq!(locker(&lock, 0), None);
        for child in &mut children {
            assert!(!child.wait().unwrap().success());
        }
    }

    /// A process that has locked the byte of its number.
    fn locking(path: &Path) -> Child {
        let program = format!(
            "import fcntl, os, sys\n\
             file = open({path:?}, 'r+')\n\
             fcntl.lockf(file, fcntl.LOCK_EX, 1, os.getpid())\n\
             print('locked', flush=True)\n\
             sys.stdin.read()"
        );
        let mut child = std::process::Command::new("python3")
            .args(["-c", &program])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = [0; 7];
        io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut line).unwrap();
        child
    }
}
