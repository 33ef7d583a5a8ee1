//! Supervised children: processes that hold a liveness socket and outlive a killed agent, whose
//! successor takes them over.

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

/// Time that a message on the liveness socket may wait to be read.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);

/// A supervised child.
#[derive(Debug)]
pub(crate) struct SupervisedChild {
    pub(crate) pid: u32,
    /// For killing: another process may have got the number.
    pub(crate) handle: Arc<OwnedFd>,
    liveness: Writer,
    /// Whether all its connections with other hosts are encrypted.
    pub(crate) is_sealed: bool,
}

/// Record of a child in the fd store, with its liveness socket and process as descriptors.
#[derive(Debug, Serialize, Deserialize)]
struct Record {
    pid: u32,
    /// False in the record of an agent that does not know the field.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    sealed: bool,
}

impl SupervisedChild {
    /// Starts a child whose standard input is its liveness socket.
    pub(crate) fn start(mut command: Command) -> io::Result<(Self, Child)> {
        let (ours, theirs) = UnixStream::pair()?;
        command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        let child = command.spawn()?;
        let pid = Pid::from_raw(child.id().cast_signed()).ok_or(io::ErrorKind::NotFound)?;
        let handle = pidfd_open(pid, PidfdFlags::empty())?;
        Ok((Self::new(child.id(), handle, ours)?, child))
    }

    /// Takes over the child of the predecessor, if it lives.
    pub(crate) fn take_over(kept: Entry) -> Option<Self> {
        let (Record { pid, sealed }, [liveness, handle]) = kept.parse()?;
        if has_ended(pid, &handle) {
            return None;
        }
        let mut child = Self::new(pid, handle, liveness.into()).ok()?;
        child.is_sealed = sealed;
        Some(child)
    }

    fn new(pid: u32, handle: OwnedFd, liveness: UnixStream) -> io::Result<Self> {
        let (_, liveness) = wire::split(liveness)?;
        liveness.give_up_after(WRITE_TIMEOUT)?;
        Ok(SupervisedChild {
            pid,
            handle: Arc::new(handle),
            liveness,
            is_sealed: false,
        })
    }

    /// Puts the child into the fd store.
    pub(crate) fn keep(&self, fd_store: &FdStore, key: &str) {
        let record = Record {
            pid: self.pid,
            sealed: self.is_sealed,
        };
        let liveness = self.liveness.stream().as_fd();
        fd_store.put(key, &record, &[liveness, self.handle.as_fd()]);
    }

    /// Opens a control channel to the child, on which a message may wait for `timeout` to be read.
    pub(crate) fn open_channel(&self, timeout: Duration) -> io::Result<(Reader, Writer)> {
        let (reader, writer) = wire::split(liveness::open_channel(&self.liveness)?)?;
        writer.give_up_after(timeout)?;
        Ok((reader, writer))
    }

    /// Closes its liveness socket.
    pub(crate) fn let_go(&self) {
        self.liveness.shut_down();
    }

    pub(crate) fn kill(&self) {
        // This fails only after the process has ended.
        let _ = pidfd_send_signal(&self.handle, Signal::KILL);
    }
}
