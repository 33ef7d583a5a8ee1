//! Starting again in place: an agent executes its program anew, with the same configuration, and
//! the next life takes nodes and driver over from the fd store, as after a kill.
//!
//! ```text
//!   first life                                 next life (same process)
//!   gate closes, requests end ── execve(2) ──> takes its heritage, then all as `toroid up`
//!        │                                     does after a kill
//!        └─ heritage: configuration, lock, listening sockets, standard output
//! ```
//!
//! The heritage waits in a socket that is the standard output of the next life. So the state
//! directory stays locked, and clients and other hosts that connect meanwhile wait in the backlogs.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, BufReader, Seek, Write};
use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::{dup2_stdout, execv};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::process::{Pid, PidfdFlags, WaitId, WaitIdOptions, pidfd_open, waitid};
use serde::{Deserialize, Serialize};
use toroid_protocol::wire;

use super::background::ROLE;
use super::endings::EndNote;
use super::state_dir::StateDir;
use crate::cluster::candidacy::Legacy;
use crate::config::Config;
use crate::error::{AgentError, during};
use crate::nodes::rootless::Identity;
use crate::process;
use crate::threads;

/// Argument of the role after the state directory: this process has been an agent before.
const AGAIN: &str = "again";

/// Attempts to start again. A process that has not executed its program yet may hold a lock of the
/// former life.
const ATTEMPTS: u32 = 8;

/// First pause after a failed attempt; each is twice as long as the one before.
const PAUSE: Duration = Duration::from_millis(20);

/// Properties of the process before it became an agent.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Origin {
    pub(crate) identity: Identity,
    /// Its limit of descriptors, which commands in nodes get.
    pub(crate) open_files: u64,
}

/// Remains of the former life, or of this one for the next.
#[derive(Debug)]
pub(crate) struct Heritage {
    pub(crate) config: Config,
    pub(crate) origin: Origin,
    /// Of the state directory, locked.
    pub(crate) lock: File,
    /// The control socket.
    pub(crate) control: UnixListener,
    /// The socket for other hosts, if there are any.
    pub(crate) hosts: Option<TcpListener>,
    /// Signals to end that have arrived.
    pub(crate) end: EndNote,
    /// Of the candidacy, if the directory is on etcd.
    pub(crate) candidacy: Legacy,
    /// Number of failed attempts.
    pub(crate) attempts: u32,
}

/// What travels with the descriptors.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    origin: Origin,
    candidacy: Legacy,
    attempts: u32,
}

/// Whether this process has been an agent before.
pub(super) fn is_asked() -> bool {
    std::env::args_os().nth(3).is_some_and(|word| word == AGAIN)
}

/// Runs an agent that has started again; returns its error, if the nodes go on without it.
pub(super) fn run() -> Result<(), AgentError> {
    let failed = during("take over from its former life");
    fs::write("/proc/self/comm", "toroid-agent").map_err(during("name its process"))?;
    let children = children().map_err(failed)?;
    let heritage = Heritage::take().map_err(failed)?;
    threads::start(|| reap(children)).map_err(failed)?;
    let state = heritage.config.state.clone();
    let Err(error) = super::run_again(&heritage) else {
        return Ok(());
    };
    if heritage.attempts < ATTEMPTS {
        tracing::warn!("starting again failed: {error}");
        thread::sleep(PAUSE * (1 << heritage.attempts));
        let next = Heritage {
            attempts: heritage.attempts + 1,
            ..heritage
        };
        return Err(next.pass_on());
    }
    StateDir::inherited(state, heritage.lock).give_back();
    Err(error)
}

impl Heritage {
    /// Takes what the former life has left in standard output, and restores that.
    fn take() -> io::Result<Self> {
        let socket = io::stdout().as_fd().try_clone_to_owned()?;
        let (mut reader, _writer) = wire::split(UnixStream::from(socket))?;
        let (record, descriptors): (Record, _) = reader.receive().map_err(io::Error::other)?;
        let mut descriptors = descriptors.into_iter();
        let mut next = || descriptors.next().ok_or(io::ErrorKind::UnexpectedEof);
        let (stdout, config, lock, control) = (next()?, next()?, next()?, next()?);
        let end = EndNote {
            reader: next()?,
            writer: next()?,
        };
        dup2_stdout(stdout)?;
        Ok(Heritage {
            config: serde_json::from_reader(BufReader::new(File::from(config)))?,
            origin: record.origin,
            lock: lock.into(),
            control: control.into(),
            end,
            hosts: descriptors.next().map(TcpListener::from),
            candidacy: record.candidacy,
            attempts: record.attempts,
        })
    }

    /// Executes the program again. Returns only the error, after which the nodes go on without an
    /// agent.
    pub(super) fn pass_on(&self) -> AgentError {
        let Err(error) = self.execute();
        AgentError::NotAgain(error)
    }

    fn execute(&self) -> io::Result<Infallible> {
        let state = self.config.state.as_os_str().as_bytes();
        let arguments = [b"toroid-agent", ROLE.as_bytes(), state, AGAIN.as_bytes()];
        let arguments = arguments.map(CString::new).into_iter();
        let arguments = arguments.collect::<Result<Vec<_>, _>>()?;
        let config = in_memory(&self.config)?;
        // They wait for the next life, which would end by them before it catches them. Other threads
        // may still note one.
        signals().thread_block()?;
        // Processes that other threads start meanwhile get none of the descriptors: these threads
        // keep a table of their own.
        unshare(CloneFlags::CLONE_FILES)?;
        let (ours, theirs) = UnixStream::pair()?;
        let (_, writer) = wire::split(ours)?;
        let record = Record {
            origin: self.origin,
            candidacy: self.candidacy.clone(),
            attempts: self.attempts,
        };
        let stdout = io::stdout();
        let mut descriptors = vec![stdout.as_fd(), config.as_fd()];
        descriptors.extend([self.lock.as_fd(), self.control.as_fd()]);
        descriptors.extend([self.end.reader.as_fd(), self.end.writer.as_fd()]);
        descriptors.extend(self.hosts.as_ref().map(AsFd::as_fd));
        writer
            .send(&record, &descriptors)
            .map_err(io::Error::other)?;
        dup2_stdout(theirs)?;
        Ok(execv(c"/proc/self/exe", &arguments)?)
    }
}

/// A file in memory with the configuration, to be read from its begin.
fn in_memory(config: &Config) -> io::Result<File> {
    let mut file = File::from(memfd_create("configuration", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(config)?)?;
    file.rewind()?;
    Ok(file)
}

/// Signals that an agent catches.
fn signals() -> SigSet {
    let caught = [
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGHUP,
        Signal::SIGUSR1,
    ];
    caught.into_iter().collect()
}

/// Lets signals of the time between two lives arrive.
pub(super) fn take_signals() -> io::Result<()> {
    Ok(signals().thread_unblock()?)
}

/// Children of the former life.
fn children() -> io::Result<Vec<OwnedFd>> {
    let us = BTreeSet::from([std::process::id()]);
    let all = fs::read_dir("/proc")?.filter_map(|entry| {
        let name = entry.ok()?.file_name();
        name.to_str()?.parse::<u32>().ok()
    });
    let ours = all.filter(|pid| process::parent(*pid).is_some_and(|it| us.contains(&it)));
    let open = |pid: u32| {
        let pid = Pid::from_raw(pid.cast_signed())?;
        pidfd_open(pid, PidfdFlags::empty()).ok()
    };
    Ok(ours.filter_map(open).collect())
}

/// Reaps children as they end: their numbers would stay in use otherwise.
fn reap(mut children: Vec<OwnedFd>) {
    while !children.is_empty() {
        let mut all: Vec<PollFd<'_>> = children
            .iter()
            .map(|child| PollFd::new(child.as_fd(), PollFlags::POLLIN))
            .collect();
        // An interrupted wait begins again.
        let _ = poll(&mut all, PollTimeout::NONE);
        let ended: Vec<bool> = all.iter().map(|its| its.any() == Some(true)).collect();
        let mut ended = ended.into_iter();
        children.retain(|child| {
            let has_ended = ended.next().unwrap_or_default();
            if has_ended {
                // This fails only for one that was reaped already.
                let _ = waitid(WaitId::PidFd(child.as_fd()), WaitIdOptions::EXITED);
            }
            !has_ended
        });
    }
}
