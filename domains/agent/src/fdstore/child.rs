//! Processes that hang on a liveness socket: they outlive an agent that was killed, and the next one takes
//! them over.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};
use toroid_protocol::liveness;
use toroid_protocol::wire::{self, Reader, Writer};

use super::{Entry, FdStore};
use crate::process::has_ended;

/// How long a message on the liveness socket may wait to be read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// One of them.
#[derive(Debug)]
pub(crate) struct SupervisedChild {
    pub(crate) pid: u32,
    /// For killing: a number might be another process's by then.
    pub(crate) handle: Arc<OwnedFd>,
    lifeline: Writer,
}

/// What the fd store is told of it. Liveness socket and process come with it.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    pid: u32,
}

impl SupervisedChild {
    /// Starts it. Its standard input is its liveness socket.
    pub(crate) fn start(mut command: Command) -> io::Result<(Self, Child)> {
        let (ours, theirs) = UnixStream::pair()?;
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        let child = command.spawn()?;
        let pid = Pid::from_raw(child.id().cast_signed()).ok_or(io::ErrorKind::NotFound)?;
        let handle = pidfd_open(pid, PidfdFlags::empty())?;
        Ok((Self::new(child.id(), handle, ours)?, child))
    }

    /// That of the agent before, if it lives.
    pub(crate) fn take_over(kept: Entry) -> Option<Self> {
        let (Record { pid }, [lifeline, handle]) = kept.parse()?;
        if has_ended(&handle) {
            return None;
        }
        Self::new(pid, handle, lifeline.into()).ok()
    }

    fn new(pid: u32, handle: OwnedFd, lifeline: UnixStream) -> io::Result<Self> {
        let (_, lifeline) = wire::split(lifeline)?;
        lifeline.give_up_after(WRITE_TIMEOUT)?;
        Ok(SupervisedChild {
            pid,
            handle: Arc::new(handle),
            lifeline,
        })
    }

    /// Lets the fd store hold it, too.
    pub(crate) fn keep(&self, fd_store: &FdStore, key: &str) {
        let record = Record { pid: self.pid };
        let lifeline = self.lifeline.stream().as_fd();
        fd_store.put(key, &record, &[lifeline, self.handle.as_fd()]);
    }

    /// A session with it, in which a message may wait for so long to be read.
    pub(crate) fn open_channel(&self, timeout: Duration) -> io::Result<(Reader, Writer)> {
        let (reader, writer) = wire::split(liveness::open_channel(&self.lifeline)?)?;
        writer.give_up_after(timeout)?;
        Ok((reader, writer))
    }

    /// Takes away what it hangs on.
    pub(crate) fn let_go(&self) {
        self.lifeline.shut_down();
    }

    pub(crate) fn kill(&self) {
        // It fails when the process has ended already.
        let _ = pidfd_send_signal(&self.handle, Signal::KILL);
    }
}
