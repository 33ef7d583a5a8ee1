//! Commands in nodes of other hosts.
//!
//! ```text
//!   caller ── session ── near relay ══ data connection ══ far relay ── session ── node
//!          descriptors                                      pipes
//! ```
//!
//! A relay is a process for each command, with the rights of the caller. The near relay takes the place
//! of the node, so that callers see no difference. The far relay is an ordinary client of the agent
//! of its host, which decides what the caller may do there.

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
use std::time::Duration;

use nix::fcntl::{FcntlArg, fcntl};
use nix::libc::{self, flock};
use nix::unistd::{Gid, Uid, setgid, setgroups, setuid};
use parking_lot::Mutex;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use toroid_client::credentials::Ids;
use toroid_model::refusal::{Refusal, RefusalKind};
use toroid_protocol::command::Start;
use toroid_protocol::seal::SealKeys;
use toroid_protocol::wire;

use crate::process::{ends_within, role_command};
use crate::store::ownership;
use crate::threads;
pub(crate) use far::{ROLE as FAR_ROLE, run_role as run_far};
pub(crate) use near::{ROLE as NEAR_ROLE, run_role as run_near};

/// Directory with a file for each host that has run commands here. Its relays lock the file.
pub(crate) const LOCKS: &str = "relays";

/// Most relays at a time, and most of one user.
const MOST: usize = 4096;
const MOST_OF_USER: usize = 2048;

/// Time for a relay to begin, and for a killed one to end.
const PATIENCE: Duration = Duration::from_secs(10);

/// The relays of a host.
#[derive(Debug)]
pub(crate) struct Relays {
    locks: PathBuf,
    /// Whether they can take on the rights of their callers.
    has_users: bool,
    /// Their number by user.
    running: Arc<Mutex<BTreeMap<u32, usize>>>,
}

/// A relay counts for its user until this is dropped.
struct Place {
    user: u32,
    running: Arc<Mutex<BTreeMap<u32, usize>>>,
}

impl Relays {
    /// None yet. Those of an agent before this one in the state directory are found by their locks.
    pub(crate) fn new(state: &Path, has_users: bool) -> Self {
        Relays {
            locks: state.join(LOCKS),
            has_users,
            running: Arc::default(),
        }
    }

    /// Starts the near relay of a command on host `to`. Returns the session for the caller.
    pub(crate) fn start_near(
        &self,
        caller: Ids,
        to: &str,
        connection: &TcpStream,
        keys: Option<SealKeys>,
        start: Start,
    ) -> Result<OwnedFd, Refusal> {
        let place = self.take_place(caller.uid)?;
        let order = near::Order {
            user: self.has_users.then_some(caller),
            host: to.into(),
            keys,
            start,
        };
        let begin = || {
            let (session, theirs) = UnixStream::pair()?;
            let (mut relay, agent) = spawn("toroid-near-relay", NEAR_ROLE)?;
            let (_, orders) = wire::split(agent)?;
            let sent = orders.send(&order, &[connection.as_fd(), theirs.as_fd()]);
            sent.map_err(|error| {
                end(&mut relay);
                io::Error::other(error)
            })?;
            attend(relay, place)?;
            Ok(session.into())
        };
        begin().map_err(|error| cannot_start(&error))
    }

    /// Starts the far relay of a command for host `from`, unless `may_begin` says otherwise once
    /// [`Relays::end_of`] would find it.
    pub(crate) fn start_far(
        &self,
        state: &Path,
        (from, user): (&str, u32),
        connection: &TcpStream,
        keys: Option<SealKeys>,
        may_begin: impl FnOnce() -> bool,
    ) -> Result<(), Refusal> {
        let place = self.take_place(user)?;
        let order = far::Order {
            user: self.has_users.then_some(user),
            state: state.into(),
            keys,
        };
        let begin = || {
            let lock = self.lock_of(from)?;
            let (mut relay, agent) = spawn("toroid-far-relay", FAR_ROLE)?;
            agent.set_read_timeout(Some(PATIENCE))?;
            let (mut answers, orders) = wire::split(agent)?;
            let descriptors = [connection.as_fd(), lock.as_fd()];
            let begun = orders.send(&order, &descriptors).and_then(|()| {
                answers.receive::<()>()?;
                if may_begin() {
                    orders.send(&(), &[])?;
                }
                Ok(())
            });
            if let Err(error) = begun {
                end(&mut relay);
                return Err(io::Error::other(error));
            }
            // Without permission to begin it ends when this side of the socket is closed.
            attend(relay, place)
        };
        begin().map_err(|error| cannot_start(&error))
    }

    /// Ends all far relays of a host, also those that an agent before this one has started.
    pub(crate) fn end_of(&self, host: &str) {
        let Ok(file) = OpenOptions::new().write(true).open(self.locks.join(host)) else {
            return;
        };
        while let Some(pid) = holder(&file) {
            let Ok(relay) = pidfd_open(pid, PidfdFlags::empty()) else {
                continue;
            };
            // Its number may have been reused before.
            if holder(&file) == Some(pid) {
                // It fails for one that has ended meanwhile.
                let _ = pidfd_send_signal(&relay, Signal::KILL);
                ends_within(&relay, PATIENCE.as_millis() as u16);
            }
        }
    }

    /// The file that relays of a host lock.
    fn lock_of(&self, host: &str) -> io::Result<File> {
        ownership::make_directory(&self.locks, 0o700)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).mode(0o600);
        ownership::open(&mut options, &self.locks.join(host))
    }

    fn take_place(&self, user: u32) -> Result<Place, Refusal> {
        let mut running = self.running.lock();
        let of_user = running.get(&user).copied().unwrap_or_default();
        if of_user >= MOST_OF_USER || running.values().sum::<usize>() >= MOST {
            return Err(Refusal::new(
                RefusalKind::Exhausted,
                format!(
                    "{MOST_OF_USER} commands of a user, or {MOST} in all, run between this host and \
                     others"
                ),
                "wait until some have ended",
            ));
        }
        running.insert(user, of_user + 1);
        Ok(Place {
            user,
            running: Arc::clone(&self.running),
        })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut running = self.running.lock();
        if let Some(count) = running.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                running.remove(&self.user);
            }
        }
    }
}

/// Starts a relay; returns it with the socket that is its standard input.
fn spawn(title: &str, role: &str) -> io::Result<(Child, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut command = role_command(title, role);
    command.stdin(OwnedFd::from(theirs));
    // It may outlive the agent, whose output another process may wait for.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Ok((command.spawn()?, ours))
}

/// Waits for the relay's end on a thread of its own.
fn attend(mut relay: Child, place: Place) -> io::Result<()> {
    let wait = move || {
        // Waiting for a child does not fail.
        let _ = relay.wait();
        drop(place);
    };
    threads::start(wait).map(drop)
}

fn end(relay: &mut Child) {
    // It may have ended by itself.
    let _ = relay.kill();
    let _ = relay.wait();
}

fn cannot_start(error: &io::Error) -> Refusal {
    Refusal::new(
        RefusalKind::Exhausted,
        format!("cannot start a command between hosts: {error}"),
        "raise `ulimit -n` and `ulimit -u` of the agent",
    )
}

/// Locks a file for this process, beside others. It is unlocked when this process ends.
fn lock_shared(file: BorrowedFd<'_>) -> io::Result<()> {
    let lock = whole(libc::F_RDLCK);
    Ok(fcntl(file, FcntlArg::F_SETLK(&lock)).map(drop)?)
}

/// A process that holds a lock of a file.
fn holder(file: &File) -> Option<Pid> {
    let mut lock = whole(libc::F_WRLCK);
    fcntl(file, FcntlArg::F_GETLK(&mut lock)).ok()?;
    let is_held = i32::from(lock.l_type) != libc::F_UNLCK;
    is_held.then(|| Pid::from_raw(lock.l_pid)).flatten()
}

fn whole(kind: i32) -> flock {
    flock {
        l_type: kind as i16,
        l_whence: libc::SEEK_SET as i16,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

/// Takes on the rights of a user, if this process may.
fn become_user(ids: Ids, groups: &[Gid]) -> io::Result<()> {
    setgroups(groups)?;
    setgid(Gid::from_raw(ids.gid))?;
    Ok(setuid(Uid::from_raw(ids.uid))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relays_of_a_user_and_of_all_are_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let relays = Relays::new(directory.path(), true);
        let mut places = Vec::new();
        for user in [1, 2] {
            places.extend((0..MOST_OF_USER).map(|_| relays.take_place(user).unwrap()));
            assert!(relays.take_place(user).is_err());
        }
        assert!(relays.take_place(3).is_err(), "too many in all");
        places.pop();
        relays.take_place(3).unwrap();
        drop(places);
        assert!(relays.running.lock().is_empty());
    }

    #[test]
    fn holders_of_a_lock_are_killed() {
        let directory = tempfile::tempdir().unwrap();
        let relays = Relays::new(directory.path(), false);
        let lock = relays.lock_of("a").unwrap();
        relays.lock_of("b").unwrap();
        let mut children: Vec<Child> = (0..3).map(|_| locking(&relays.locks.join("a"))).collect();
        assert!(holder(&lock).is_some());
        relays.end_of("b");
        relays.end_of("none");
        assert!(holder(&lock).is_some());
        relays.end_of("a");
        assert_eq!(holder(&lock), None);
        for child in &mut children {
            assert!(!child.wait().unwrap().success());
        }
    }

    /// A process with a record lock of a file.
    fn locking(path: &Path) -> Child {
        let program = format!(
            "import fcntl, sys\n\
             file = open({path:?}, 'r')\n\
             fcntl.lockf(file, fcntl.LOCK_SH)\n\
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
