//! Messages on their way to an attached process.
//!
//! A sender, which may hold a lock, only queues its message; a thread of the connection sends it. A
//! process that does not read is cut off and blocks no sender.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use toroid_fabric::mem::memfd::{read_only, read_write};
use toroid_protocol::agent::{Event, Message, Reply};
use toroid_protocol::wire::Writer;

use super::{MAX_CHANNELS, MAX_REGIONS};
use crate::threads;

/// Most queued messages, besides the socket's buffer: more than one change can cause, as when the
/// peer of all channels and regions of a process ends.
pub(super) const CAPACITY: usize = 2 * (MAX_CHANNELS + MAX_REGIONS);

/// Most queued replies before further requests are read. Replies may be long, and hold descriptors.
const MAX_REPLIES: usize = 32;

/// Time for the socket to accept a message.
const TIMEOUT: Duration = Duration::from_secs(5);

/// A descriptor on its way to a process.
#[derive(Debug)]
pub(crate) enum Handed {
    Ready(OwnedFd),
    /// Memory that is opened for reading when the message is sent: opening it for each of many
    /// processes takes longer than a lock should be held.
    Readable(Arc<File>),
    /// Memory that is opened for reading and writing when the message is sent.
    Writable(Arc<File>),
}

type Parcel = (Message, Vec<Handed>);

/// Queue to a process, or to an absent one.
#[derive(Clone, Debug)]
pub(crate) struct Outbox(Option<Queue>);

#[derive(Clone, Debug)]
struct Queue {
    parcels: Sender<Parcel>,
    waiting: Arc<AtomicUsize>,
    replies: Arc<Replies>,
    writer: Writer,
}

/// Number of queued replies, until the connection has ended.
#[derive(Debug)]
struct Replies {
    waiting: Mutex<Option<usize>>,
    fewer: Condvar,
}

impl Outbox {
    /// Makes a queue with its thread, which ends with the last clone.
    pub(crate) fn start(writer: Writer) -> io::Result<Self> {
        writer.give_up_after(TIMEOUT)?;
        let (queue, parcels) = channel();
        let waiting = Arc::default();
        let (sender, count) = (writer.clone(), Arc::clone(&waiting));
        let replies = Arc::new(Replies {
            waiting: Mutex::new(Some(0)),
            fewer: Condvar::new(),
        });
        let sent = Arc::clone(&replies);
        threads::start(move || {
            deliver(&parcels, &sender, &count, &sent);
            sent.set(|_| None);
        })?;
        Ok(Outbox(Some(Queue {
            parcels: queue,
            waiting,
            replies,
            writer,
        })))
    }

    /// Makes the queue of an absent process. On its return the process gets a summary of the missed
    /// messages.
    pub(super) fn absent() -> Self {
        Outbox(None)
    }

    /// Whether the process is absent.
    pub(super) fn is_absent(&self) -> bool {
        self.0.is_none()
    }

    /// Queues a reply; never blocks.
    pub(crate) fn reply(&self, reply: Reply, descriptors: Vec<OwnedFd>) {
        let handed = descriptors.into_iter().map(Handed::Ready);
        self.push((Message::Reply(reply), handed.collect()));
    }

    /// Queues an event; never blocks.
    pub(crate) fn event(&self, event: Event, descriptors: Vec<OwnedFd>) {
        let handed = descriptors.into_iter().map(Handed::Ready);
        self.hand(event, handed.collect());
    }

    /// Queues an event with descriptors that may be opened later; never blocks. If one cannot be
    /// opened, the process is cut off.
    pub(super) fn hand(&self, event: Event, descriptors: Vec<Handed>) {
        self.push((Message::Event(event), descriptors));
    }

    /// Waits while too many replies are queued. A request that is not read causes none.
    pub(crate) fn await_room(&self) {
        let Some(queue) = &self.0 else {
            return;
        };
        let is_full =
            |waiting: &mut Option<usize>| waiting.is_some_and(|count| count >= MAX_REPLIES);
        let replies = &queue.replies;
        replies
            .fewer
            .wait_while(&mut replies.waiting.lock(), is_full);
    }

    /// Whether this side ended the connection.
    pub(crate) fn is_cut(&self) -> bool {
        let queue = self.0.as_ref();
        queue.is_some_and(|queue| queue.writer.is_cut())
    }

    /// Ends the connection.
    pub(crate) fn shut_down(&self) {
        if let Some(queue) = &self.0 {
            queue.writer.shut_down();
        }
    }

    fn push(&self, parcel: Parcel) {
        let Some(queue) = &self.0 else {
            return;
        };
        if matches!(parcel.0, Message::Reply(_)) {
            queue.replies.set(|count| Some(count? + 1));
        }
        let is_full = queue.waiting.fetch_add(1, Ordering::Relaxed) >= CAPACITY;
        if is_full || queue.parcels.send(parcel).is_err() {
            queue.writer.shut_down();
        }
    }
}

impl Handed {
    fn open(self) -> io::Result<OwnedFd> {
        match self {
            Handed::Ready(descriptor) => Ok(descriptor),
            Handed::Readable(memory) => read_only(&memory).map(Into::into),
            Handed::Writable(memory) => read_write(&memory).map(Into::into),
        }
    }
}

impl Replies {
    fn set(&self, change: impl FnOnce(Option<usize>) -> Option<usize>) {
        let mut waiting = self.waiting.lock();
        *waiting = change(*waiting);
        self.fewer.notify_all();
    }
}

fn deliver(parcels: &Receiver<Parcel>, writer: &Writer, waiting: &AtomicUsize, replies: &Replies) {
    for (message, descriptors) in parcels {
        let is_reply = matches!(message, Message::Reply(_));
        let opened: io::Result<Vec<_>> = descriptors.into_iter().map(Handed::open).collect();
        let descriptors = match opened {
            Ok(descriptors) => descriptors,
            Err(error) => {
                tracing::error!("a process is cut off, it cannot be granted memory: {error}");
                return writer.shut_down();
            }
        };
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        if writer.send(&message, &descriptors).is_err() {
            // The connection is shut down, which its reader sees.
            return;
        }
        waiting.fetch_sub(1, Ordering::Relaxed);
        if is_reply {
            replies.set(|count| Some(count? - 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::thread;

    use toroid_protocol::wire;

    use super::*;

    /// Replies to a process that asks on and reads nothing once took the agent's memory and
    /// descriptors.
    #[test]
    fn requests_wait_while_replies_are_not_read() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let outbox = Outbox::start(wire::split(ours).unwrap().1).unwrap();
        let (mut reader, _) = wire::split(theirs).unwrap();
        let long = Reply::Listeners {
            places: vec!["1,0,0".into(); 100_000],
        };
        for _ in 0..MAX_REPLIES + 1 {
            outbox.reply(long.clone(), vec![]);
        }
        thread::scope(|scope| {
            let waiting = scope.spawn(|| outbox.await_room());
            assert!(!waiting.is_finished());
            for _ in 0..MAX_REPLIES {
                reader.receive::<Message>().unwrap();
            }
            waiting.join().unwrap();
        });
        for _ in 0..2 * MAX_REPLIES {
            outbox.reply(Reply::Done, vec![]);
        }
        drop(reader);
        // After the end nothing is awaited.
        outbox.await_room();
        assert!(!outbox.is_cut(), "it was the other side that ended it");
    }

    /// A process that was cut off may live on with its grants; one that ended the connection itself
    /// has none.
    #[test]
    fn a_process_that_never_reads_is_cut_off() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (mut reader, writer) = wire::split(ours).unwrap();
        let outbox = Outbox::start(writer).unwrap();
        assert!(!outbox.is_cut());
        let event = Event::Fenced { partition: 1 };
        // More than may wait here, and in the socket's buffer.
        for _ in 0..2 * CAPACITY {
            outbox.event(event.clone(), vec![]);
        }
        assert!(matches!(
            reader.receive::<Message>(),
            Err(wire::WireError::Closed)
        ));
        assert!(outbox.is_cut());
        drop(theirs);
    }
}
