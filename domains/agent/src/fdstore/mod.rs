//! The fd store: a process that holds descriptors for an agent and outlives it.
//!
//! ```text
//!   agent ───┬── liveness sockets of children      kill -9 agent: all goes on, and the next agent
//!     │      │                                        asks the fd store for what there is
//!   fd store ──┘                                      kill -9 fd store: the agent makes a new one
//! ```
//!
//! The agent puts its descriptors under keys, each with a record for its successor. It does so
//! before any other process hears of the thing, and does not wait for an answer: data in a socket
//! arrives even if its sender is killed.
//!
//! The fd store also [freezes](freezer) nodes at their deadlines.

pub(crate) mod child;
pub(crate) mod freezer;
mod role;
pub(crate) mod takeover;

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{fs, thread};

use parking_lot::Mutex;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use toroid_protocol::fdstore::{FdStoreRequest, FdStoreResponse, SOCKET, VERSION};
use toroid_protocol::wire::{self, Reader, Writer};

use crate::error::{AgentError, during, in_state};
use crate::process::{ends_within, role_command};
use crate::threads;
pub(crate) use role::run_role;

/// Argument of the role: holds what outlives an agent; the agent's state directory follows.
pub(crate) const ROLE: &str = "__fd-store";

/// Key of the descriptor whose end ends the fd store. It has no record.
const LIVENESS: &str = "lifeline";

/// Time for an answer of the fd store.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Time that messages may wait in a full socket. The agent waits once, with its lock held. Then it
/// abandons that fd store, and the next one is given everything.
const BACKLOG_TIMEOUT: Duration = Duration::from_millis(500);

/// First and longest pause before another one is started after one that has ended early.
const PAUSE: [Duration; 2] = [Duration::from_millis(50), Duration::from_secs(1)];

/// An fd store that has lived for longer has not failed by itself.
const GOOD_LIFE: Duration = Duration::from_secs(5);

/// Milliseconds that a process may take to end.
const LAST_WORDS_MS: u16 = 2000;

/// An entry of the fd store.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) record: Value,
    pub(crate) descriptors: Vec<OwnedFd>,
}

impl Entry {
    /// Parses the record, if the entry has exactly `N` descriptors.
    pub(crate) fn parse<T: DeserializeOwned, const N: usize>(self) -> Option<(T, [OwnedFd; N])> {
        let (record, descriptors) = self.parse_any()?;
        Some((record, descriptors.try_into().ok()?))
    }

    /// Parses the record, and returns all descriptors.
    pub(crate) fn parse_any<T: DeserializeOwned>(self) -> Option<(T, Vec<OwnedFd>)> {
        let record = serde_json::from_value(self.record).ok()?;
        Some((record, self.descriptors))
    }
}

/// All entries by key.
pub(crate) type Entries = BTreeMap<String, Entry>;

/// Connection of an agent to its fd store, present or about to be. Without one, changes are
/// dropped, because a new fd store is given everything.
#[derive(Debug, Default)]
pub(crate) struct FdStore(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    present: Option<Connection>,
    ending: bool,
}

#[derive(Debug)]
struct Connection {
    writer: Writer,
    /// For waiting until it ends.
    process: OwnedFd,
}

/// An fd store right after connecting to it.
#[derive(Debug)]
pub(crate) struct Found {
    reader: Reader,
    connection: Connection,
    version: u32,
    /// The child, if this process started it.
    child: Option<Child>,
}

/// Connects to the fd store of a state directory, if one runs there.
pub(crate) fn find(state: &Path) -> Result<Option<Found>, AgentError> {
    match UnixStream::connect(state.join(SOCKET)) {
        Ok(stream) => Found::greet(stream, None).map(Some).map_err(unusable),
        Err(error) if is_absence(&error) => Ok(None),
        Err(error) => Err(in_state(state)(error)),
    }
}

fn is_absence(error: &io::Error) -> bool {
    let absences = [io::ErrorKind::NotFound, io::ErrorKind::ConnectionRefused];
    absences.contains(&error.kind())
}

/// Starts an fd store in a state directory where none runs.
pub(crate) fn start(state: &Path) -> io::Result<Found> {
    let path = state.join(SOCKET);
    if let Err(error) = fs::remove_file(&path)
        && error.kind() != io::ErrorKind::NotFound
    {
        return Err(error);
    }
    let listener = UnixListener::bind(&path)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600))?;
    let (ours, theirs) = UnixStream::pair()?;
    let mut command = role_command("toroid-fdstore", ROLE);
    command.arg(state);
    command.stdin(OwnedFd::from(listener));
    command.stdout(OwnedFd::from(theirs));
    let child = command.spawn()?;
    drop(command);
    Found::greet(ours, Some(child))
}

impl Found {
    fn greet(stream: UnixStream, child: Option<Child>) -> io::Result<Self> {
        stream.set_read_timeout(Some(TIMEOUT))?;
        let (mut reader, writer) = wire::split(stream)?;
        writer.give_up_after(BACKLOG_TIMEOUT)?;
        writer
            .send(&FdStoreRequest::Hello, &[])
            .map_err(io::Error::other)?;
        let answer = reader.receive().map_err(io::Error::other)?.0;
        let FdStoreResponse::FdStore { version, pid } = answer else {
            return Err(io::Error::other(format!("unexpected {answer:?}")));
        };
        let pid = Pid::from_raw(pid.cast_signed()).ok_or(io::ErrorKind::InvalidData)?;
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        Ok(Found {
            reader,
            connection: Connection { writer, process },
            version,
            child,
        })
    }

    /// Version of its contents, if that is another.
    pub(crate) fn other_version(&self) -> Option<u32> {
        (self.version != VERSION).then_some(self.version)
    }

    /// Lists its entries.
    pub(crate) fn list(&mut self) -> io::Result<Entries> {
        let orders = &self.connection.writer;
        orders
            .send(&FdStoreRequest::List, &[])
            .map_err(io::Error::other)?;
        let mut entries = Entries::new();
        loop {
            match self.reader.receive().map_err(io::Error::other)? {
                (FdStoreResponse::Entry { key, record }, descriptors) => {
                    let entry = Entry {
                        record,
                        descriptors,
                    };
                    entries.insert(key, entry);
                }
                (FdStoreResponse::End, _) => return Ok(entries),
                (other, _) => return Err(io::Error::other(format!("unexpected {other:?}"))),
            }
        }
    }

    /// Ends everything in it, and the fd store itself. Returns when the processes have ended.
    pub(crate) fn end_all(mut self) {
        let entries = match self.version {
            VERSION => self.list().unwrap_or_default(),
            // An fd store releases descriptors of any version, and that ends its nodes.
            _ => Entries::new(),
        };
        self.connection.end();
        let all = entries
            .into_values()
            .filter(|entry| entry.record["pid"].is_u64());
        let processes: Vec<OwnedFd> = all.filter_map(|entry| last(entry.descriptors)).collect();
        for process in processes {
            if !ends_within(&process, LAST_WORDS_MS) {
                // This fails only after the process has ended.
                let _ = pidfd_send_signal(&process, Signal::KILL);
                ends_within(&process, LAST_WORDS_MS);
            }
        }
    }
}

/// Last descriptor, which in entries of processes is the process. The others, among them liveness
/// sockets, are closed.
fn last(descriptors: Vec<OwnedFd>) -> Option<OwnedFd> {
    descriptors.into_iter().next_back()
}

/// Makes the error of a failed conversation with an fd store.
pub(crate) fn unusable(source: io::Error) -> AgentError {
    during("talk to the fd store of what an agent has left")(source)
}

impl Connection {
    fn end(&self) {
        // This fails only after it has ended.
        let _ = self.writer.send(&FdStoreRequest::End, &[]);
        if !ends_within(&self.process, LAST_WORDS_MS) {
            tracing::warn!("the fd store takes its time to end");
        }
    }
}

impl FdStore {
    /// Starts another fd store whenever one has ended, and calls `put_all`, which must put
    /// everything and need not remove anything.
    pub(crate) fn watch(
        self: &Arc<Self>,
        mut present: Watch,
        state: PathBuf,
        put_all: impl Fn() + Send + 'static,
    ) -> io::Result<()> {
        let fd_store = Arc::clone(self);
        let replace = move || {
            let mut pause = PAUSE[0];
            loop {
                let begun = Instant::now();
                present.outlast();
                if begun.elapsed() > GOOD_LIFE {
                    pause = PAUSE[0];
                } else {
                    thread::sleep(pause);
                    pause = PAUSE[1].min(pause * 2);
                }
                match fd_store.replace(&state) {
                    Some(next) => present = next,
                    None => return,
                }
                put_all();
                tracing::info!("another fd store holds all there is");
            }
        };
        threads::start_named("fd-store", replace).map(drop)
    }

    /// Starts an fd store after one has died, unless the agent is ending.
    fn replace(&self, state: &Path) -> Option<Watch> {
        while !self.0.lock().ending {
            tracing::warn!("the fd store died; starting another one");
            match start(state) {
                Ok(found) => return self.install(found),
                // The new one may have been killed, too.
                Err(error) => tracing::error!("cannot start the fd store: {error}"),
            }
            thread::sleep(PAUSE[0]);
        }
        None
    }

    /// Makes this the present fd store, unless the agent is ending.
    pub(crate) fn install(&self, found: Found) -> Option<Watch> {
        let mut state = self.0.lock();
        if state.ending {
            found.connection.end();
            return None;
        }
        state.present = Some(found.connection);
        Some(Watch {
            reader: found.reader,
            child: found.child,
        })
    }

    /// Puts descriptors under a key.
    pub(crate) fn put(&self, key: &str, record: &impl Serialize, descriptors: &[BorrowedFd<'_>]) {
        let (key, record) = (key.to_owned(), value(record));
        self.send(&FdStoreRequest::Put { key, record }, descriptors);
    }

    /// Changes the record under a key.
    pub(crate) fn note(&self, key: &str, record: &impl Serialize) {
        let (key, record) = (key.to_owned(), value(record));
        self.send(&FdStoreRequest::Note { key, record }, &[]);
    }

    /// Removes the entry under a key.
    pub(crate) fn remove(&self, key: &str) {
        self.send(&FdStoreRequest::Remove { key: key.into() }, &[]);
    }

    /// Lets the fd store look at the deadlines of nodes again.
    pub(crate) fn look(&self) {
        self.send(&FdStoreRequest::Look, &[]);
    }

    /// Ends the fd store for good.
    pub(crate) fn end(&self) {
        let mut state = self.0.lock();
        state.ending = true;
        if let Some(connection) = state.present.take() {
            connection.end();
        }
    }

    fn send(&self, request: &FdStoreRequest, descriptors: &[BorrowedFd<'_>]) {
        let state = self.0.lock();
        if let Some(connection) = &state.present {
            // If this fails, the fd store has died, and the next one is given everything.
            let _ = connection.writer.send(request, descriptors);
        }
    }
}

/// Observer of an fd store's end.
#[derive(Debug)]
pub(crate) struct Watch {
    reader: Reader,
    child: Option<Child>,
}

impl Watch {
    fn outlast(&mut self) {
        // An fd store sends nothing unasked, so any message is its end.
        let forever = self.reader.stream().set_read_timeout(None);
        if forever.is_ok() {
            let _ = self.reader.receive::<FdStoreResponse>();
        }
        if let Some(child) = &mut self.child {
            // If it is alive, it ends anyway: it has no caller and no entries.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn value(record: &impl Serialize) -> Value {
    // Our records have texts as keys and no numbers that JSON lacks.
    serde_json::to_value(record).unwrap_or_default()
}

/// An fd store in a thread of this process, until this value is dropped.
#[cfg(test)]
#[derive(Debug)]
pub(crate) struct InThread(Writer);

#[cfg(test)]
impl InThread {
    pub(crate) fn start(state: &Path) -> Self {
        let listener = UnixListener::bind(state.join(SOCKET)).unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        thread::spawn(move || role::keep(listener, theirs));
        InThread(wire::split(ours).unwrap().1)
    }
}

#[cfg(test)]
impl Drop for InThread {
    fn drop(&mut self) {
        // This fails if the thread has panicked.
        let _ = self.0.send(&FdStoreRequest::End, &[]);
    }
}
