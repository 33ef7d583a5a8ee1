//! The fd store's process: a single thread that holds descriptors for others, and stops nodes at
//! their deadlines.
//!
//! The process ends when it is told to, or when it has neither callers nor entries. When the liveness
//! socket in its care ends, entries do not count any more: an agent that lives ends as well, and tells
//! it to.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::Uid;
use serde_json::Value;
use toroid_client::credentials::peer_uid;
use toroid_protocol::fdstore::{FdStoreRequest, FdStoreResponse, VERSION};
use toroid_protocol::wire::{self, Reader, WireError, Writer};

use super::LIVENESS;
use super::freezer::Freezer;
use crate::process::become_independent;

/// Time for the rest of a message. A caller that is killed in the middle of one closes its end.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Runs the fd store. Standard input is the listening socket, standard output the first connection.
pub(crate) fn run_role() -> u8 {
    let Err(error) = start() else {
        return 0;
    };
    // Standard error is the agent's log.
    eprintln!("the fd store ends: {error}");
    1
}

fn start() -> io::Result<()> {
    become_independent()?;
    fs::write("/proc/self/comm", "toroid-fdstore")?;
    let listener = io::stdin().as_fd().try_clone_to_owned()?;
    let first = io::stdout().as_fd().try_clone_to_owned()?;
    keep(listener.into(), first.into())
}

pub(super) fn keep(listener: UnixListener, first: UnixStream) -> io::Result<()> {
    let mut fd_store = FdStore {
        entries: BTreeMap::new(),
        listener,
        callers: Vec::new(),
        freezer: Freezer::new()?,
    };
    fd_store.admit(first)?;
    fd_store.keep()
}

struct FdStore {
    entries: BTreeMap<String, Entry>,
    listener: UnixListener,
    callers: Vec<Caller>,
    freezer: Freezer,
}

struct Entry {
    record: Value,
    descriptors: Vec<OwnedFd>,
}

struct Caller {
    reader: Reader,
    writer: Writer,
}

/// Sockets with something to do.
struct Ready {
    liveness_ended: bool,
    knocks: bool,
    callers: Vec<bool>,
}

/// Continuation after a request.
enum Next {
    GoOn,
    HangUp,
    End,
    /// The fd store would not stop nodes at their deadlines. It ends, and the next one may have
    /// room.
    Fail(io::Error),
}

impl FdStore {
    fn keep(mut self) -> io::Result<()> {
        let mut is_over = false;
        while !(self.callers.is_empty() && (is_over || self.entries.is_empty())) {
            self.freezer.look()?;
            let ready = self.wait()?;
            if ready.liveness_ended {
                is_over = true;
                self.entries.remove(LIVENESS);
            }
            let mut callers = std::mem::take(&mut self.callers).into_iter();
            for is_ready in ready.callers {
                let Some(mut caller) = callers.next() else {
                    break;
                };
                match is_ready.then(|| self.attend(&mut caller)) {
                    None | Some(Next::GoOn) => self.callers.push(caller),
                    Some(Next::HangUp) => caller.writer.shut_down(),
                    Some(Next::End) => return Ok(()),
                    Some(Next::Fail(error)) => return Err(error),
                }
            }
            if ready.knocks
                && let Ok((stream, _)) = self.listener.accept()
                && peer_uid(&stream).is_ok_and(|uid| uid == Uid::effective())
            {
                // On failure the caller sees the end of the connection.
                let _ = self.admit(stream);
            }
        }
        Ok(())
    }

    fn admit(&mut self, stream: UnixStream) -> io::Result<()> {
        stream.set_read_timeout(Some(TIMEOUT))?;
        let (reader, writer) = wire::split(stream)?;
        writer.give_up_after(TIMEOUT)?;
        self.callers.push(Caller { reader, writer });
        Ok(())
    }

    fn wait(&self) -> io::Result<Ready> {
        let liveness = self.entries.get(LIVENESS);
        let liveness = liveness.and_then(|entry| entry.descriptors.first());
        let mut all: Vec<PollFd<'_>> = Vec::new();
        // Only its end is of interest.
        all.extend(liveness.map(|end| PollFd::new(end.as_fd(), PollFlags::empty())));
        all.push(PollFd::new(self.freezer.timer(), PollFlags::POLLIN));
        all.push(PollFd::new(self.listener.as_fd(), PollFlags::POLLIN));
        let streams = self.callers.iter().map(|caller| caller.reader.stream());
        all.extend(streams.map(|stream| PollFd::new(stream.as_fd(), PollFlags::POLLIN)));
        match poll(&mut all, PollTimeout::NONE) {
            Err(nix::errno::Errno::EINTR) => {}
            result => drop(result?),
        }
        let mut ready = all.iter().map(|fd| fd.any().unwrap_or_default());
        let liveness_ended = liveness.is_some() && ready.next().unwrap_or_default();
        // The timer only ends the wait.
        ready.next();
        Ok(Ready {
            liveness_ended,
            knocks: ready.next().unwrap_or_default(),
            callers: ready.collect(),
        })
    }

    /// Serves all waiting requests of a caller: requests of an agent that was killed come before
    /// those of its successor, which called later.
    fn attend(&mut self, caller: &mut Caller) -> Next {
        loop {
            let next = match caller.reader.receive() {
                Ok((request, descriptors)) => self.carry_out(request, descriptors, caller),
                Err(_) => Ok(Next::HangUp),
            };
            match next {
                Ok(Next::GoOn) if has_more(caller) => {}
                Ok(next) => return next,
                Err(_) => return Next::HangUp,
            }
        }
    }

    fn carry_out(
        &mut self,
        request: FdStoreRequest,
        descriptors: Vec<OwnedFd>,
        caller: &Caller,
    ) -> Result<Next, WireError> {
        match request {
            FdStoreRequest::Hello => {
                let (version, pid) = (VERSION, std::process::id());
                caller
                    .writer
                    .send(&FdStoreResponse::FdStore { version, pid }, &[])?;
            }
            FdStoreRequest::Put { key, record } => {
                if let Err(error) = self.freezer.put(&key, &record, &descriptors) {
                    let message = format!("cannot use the deadlines of nodes: {error}");
                    return Ok(Next::Fail(io::Error::new(error.kind(), message)));
                }
                let entry = Entry {
                    record,
                    descriptors,
                };
                self.entries.insert(key, entry);
            }
            FdStoreRequest::Note { key, record } => {
                if let Some(entry) = self.entries.get_mut(&key) {
                    entry.record = record;
                }
            }
            FdStoreRequest::Remove { key } => {
                self.freezer.remove(&key);
                self.entries.remove(&key);
            }
            // The nodes are looked at before the next wait.
            FdStoreRequest::Look => {}
            FdStoreRequest::List => {
                for (
                    key,
                    Entry {
                        record,
                        descriptors,
                    },
                ) in &self.entries
                {
                    let (key, record) = (key.clone(), record.clone());
                    let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
                    let entry = FdStoreResponse::Entry { key, record };
                    caller.writer.send(&entry, &descriptors)?;
                }
                caller.writer.send(&FdStoreResponse::End, &[])?;
            }
            FdStoreRequest::End => return Ok(Next::End),
        }
        Ok(Next::GoOn)
    }
}

fn has_more(caller: &Caller) -> bool {
    let mut stream = [PollFd::new(
        caller.reader.stream().as_fd(),
        PollFlags::POLLIN,
    )];
    caller.reader.has_more() || poll(&mut stream, PollTimeout::ZERO).is_ok_and(|count| count > 0)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::thread;

    use super::super::freezer::DEADLINES;
    use super::*;

    #[test]
    fn the_end_of_the_liveness_socket_leaves_the_end_to_a_living_agent() {
        let state = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(state.path().join("socket")).unwrap();
        let [(agent, ours), (liveness, starter), (entry, mut node)] =
            std::array::from_fn(|_| UnixStream::pair().unwrap());
        let role = thread::spawn(move || keep(listener, ours));
        let (mut reader, writer) = wire::split(agent).unwrap();
        for (key, descriptor) in [(LIVENESS, liveness), ("node", entry)] {
            let (key, record) = (key.into(), Value::Null);
            let put = FdStoreRequest::Put { key, record };
            writer.send(&put, &[descriptor.as_fd()]).unwrap();
        }
        drop(starter);
        writer.send(&FdStoreRequest::Hello, &[]).unwrap();
        let FdStoreResponse::FdStore { .. } = reader.receive().unwrap().0 else {
            panic!("no greeting");
        };
        // The agent is killed.
        drop((reader, writer));
        role.join().unwrap().unwrap();
        assert_eq!(node.read(&mut [0]).unwrap(), 0);
    }
    /// One without them once went on, and stopped no node.
    #[test]
    fn an_fd_store_that_cannot_map_the_deadlines_ends() {
        let state = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(state.path().join("socket")).unwrap();
        let (agent, ours) = UnixStream::pair().unwrap();
        let (_, writer) = wire::split(agent).unwrap();
        let put = FdStoreRequest::Put {
            key: DEADLINES.into(),
            record: Value::Null,
        };
        let short = tempfile::tempfile().unwrap();
        writer.send(&put, &[short.as_fd()]).unwrap();
        let error = keep(listener, ours).unwrap_err().to_string();
        assert!(error.starts_with("cannot use the deadlines"), "{error}");
        assert!(error.ends_with("end of file"), "{error}");
    }
}
