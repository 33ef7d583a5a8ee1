//! Channels that peers have opened, and guards that release objects of this process.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex};

use toroid_fabric::DropGuard;
use toroid_fabric::RemoteKey;
use toroid_fabric::shm::Channel;
use toroid_protocol::agent::Request;

use super::{Control, Service, lock};
use crate::member::MemberError;

/// Maximum number of channels that wait at a listener; more are refused.
const BACKLOG: usize = 1024;

/// Channels that wait to be accepted.
#[derive(Debug)]
pub(in crate::member) struct Incoming {
    queue: Mutex<Queue>,
    reader: std::io::PipeReader,
    writer: std::io::PipeWriter,
}

#[derive(Debug, Default)]
struct Queue {
    channels: VecDeque<Channel>,
    end: Option<End>,
}

/// Reason why a listener has ended.
#[derive(Clone, Copy, Debug)]
pub(super) enum End {
    Revoked,
    NoAgent,
}

impl Incoming {
    pub(super) fn new() -> Result<Self, MemberError> {
        let (reader, writer) = std::io::pipe()?;
        Ok(Incoming {
            queue: Mutex::default(),
            reader,
            writer,
        })
    }

    /// Adds a channel. The pipe contains one byte while the queue is not empty or has ended, so
    /// neither side ever waits for the other.
    pub(super) fn push(&self, channel: Channel) {
        let mut queue = lock(&self.queue);
        if queue.channels.len() >= BACKLOG || queue.end.is_some() {
            // Dropping the channel sends a request to the agent, which needs no lock of the queue.
            drop(queue);
            return drop(channel);
        }
        self.signal(&queue);
        queue.channels.push_back(channel);
    }

    pub(super) fn close(&self, end: End) {
        let mut queue = lock(&self.queue);
        self.signal(&queue);
        queue.end.get_or_insert(end);
    }

    /// Writes the byte, if the queue was empty.
    fn signal(&self, queue: &Queue) {
        if queue.channels.is_empty() && queue.end.is_none() {
            // One byte always fits, and the reader lives as long as the writer.
            let _ = (&self.writer).write(&[1]);
        }
    }

    pub(in crate::member) fn next(&self) -> Result<Option<Channel>, MemberError> {
        let mut queue = lock(&self.queue);
        let next = queue.channels.pop_front();
        match (&next, queue.end) {
            (None, Some(End::Revoked)) => return Err(MemberError::Revoked),
            (None, Some(End::NoAgent)) => {
                return Err(MemberError::Agent("it closed the connection".into()));
            }
            (Some(_), None) if queue.channels.is_empty() => {
                // Removes the byte.
                let _ = (&self.reader).read(&mut [0]);
            }
            _ => {}
        }
        Ok(next)
    }

    pub(in crate::member) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

/// Sends a request on drop that releases an object of this process.
#[derive(Debug)]
pub(in crate::member) struct Release {
    control: Arc<Control>,
    request: Request,
}

impl Release {
    pub(in crate::member) fn region(control: &Arc<Control>, key: RemoteKey) -> DropGuard {
        Self::keep(control, Request::Free { key })
    }

    pub(in crate::member) fn channel(control: &Arc<Control>, id: u64) -> DropGuard {
        Self::keep(control, Request::Disconnect { id })
    }

    pub(super) fn keep(control: &Arc<Control>, request: Request) -> Arc<Self> {
        Arc::new(Release {
            control: Arc::clone(control),
            request,
        })
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        let mut state = lock(&self.control.state);
        match &self.request {
            Request::Disconnect { id } => drop(state.channels.remove(id)),
            Request::Free { key } => drop(state.exports.remove(key)),
            _ => {}
        }
        drop(state);
        self.control.give_back(self.request.clone());
    }
}

/// Ends a listener on drop, if it has not ended already.
#[derive(Debug)]
pub(in crate::member) struct ListenerRelease {
    pub(in crate::member) control: Arc<Control>,
    pub(in crate::member) domain: Arc<str>,
    pub(in crate::member) service: Service,
    pub(in crate::member) incoming: Arc<Incoming>,
}

impl Drop for ListenerRelease {
    fn drop(&mut self) {
        let mut state = lock(&self.control.state);
        let present = state.listeners.get(&self.service);
        if !present.is_some_and(|present| Arc::ptr_eq(present, &self.incoming)) {
            // The node left the domain. A present listener was made after its return.
            return;
        }
        state.listeners.remove(&self.service);
        drop(state);
        let request = Request::Unlisten {
            domain: self.domain.to_string(),
            protocol: self.service.1.0,
        };
        self.control.give_back(request);
    }
}
