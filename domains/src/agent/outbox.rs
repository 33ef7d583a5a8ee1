//! What is on its way to an attached process.
//!
//! Whoever has news for a process, perhaps while it holds a lock, only puts it here; a thread of
//! the connection sends it. A process that does not read is cut off and holds nobody up.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use super::members::{MAX_CHANNELS, MAX_REGIONS};
use crate::protocol::{Event, Message, Reply};
use crate::wire::Writer;

/// Messages that may wait, besides what the socket's buffer holds: more than one change can
/// cause, as when the peer of all of a process's channels and regions ends.
pub(super) const CAPACITY: usize = 2 * (MAX_CHANNELS + MAX_REGIONS);

/// How long a message may take to be accepted by the socket.
const PATIENCE: Duration = Duration::from_secs(5);

const STACK_BYTES: usize = 128 * 1024;

type Parcel = (Message, Vec<OwnedFd>);

/// The queue to a process.
#[derive(Clone, Debug)]
pub(super) struct Outbox(Option<Queue>);

#[derive(Clone, Debug)]
struct Queue {
    parcels: Sender<Parcel>,
    waiting: Arc<AtomicUsize>,
    writer: Writer,
}

impl Outbox {
    /// A queue with its thread, which ends with the last clone.
    pub(super) fn start(writer: Writer) -> io::Result<Self> {
        writer.give_up_after(PATIENCE)?;
        let (queue, parcels) = channel();
        let waiting = Arc::default();
        let (sender, count) = (writer.clone(), Arc::clone(&waiting));
        thread::Builder::new()
            .stack_size(STACK_BYTES)
            .spawn(move || deliver(&parcels, &sender, &count))?;
        Ok(Outbox(Some(Queue {
            parcels: queue,
            waiting,
            writer,
        })))
    }

    /// To a process that is not there. What it misses it is told in sum when it comes.
    pub(super) fn absent() -> Self {
        Outbox(None)
    }

    /// Whether nobody is there.
    pub(super) fn is_absent(&self) -> bool {
        self.0.is_none()
    }

    /// Queues a reply; never blocks.
    pub(super) fn reply(&self, reply: Reply, descriptors: Vec<OwnedFd>) {
        self.push((Message::Reply(reply), descriptors));
    }

    /// Queues news; never blocks.
    pub(super) fn event(&self, event: Event, descriptors: Vec<OwnedFd>) {
        self.push((Message::Event(event), descriptors));
    }

    fn push(&self, parcel: Parcel) {
        let Some(queue) = &self.0 else {
            return;
        };
        let is_full = queue.waiting.fetch_add(1, Ordering::Relaxed) >= CAPACITY;
        if is_full || queue.parcels.send(parcel).is_err() {
            queue.writer.shut_down();
        }
    }
}

fn deliver(parcels: &Receiver<Parcel>, writer: &Writer, waiting: &AtomicUsize) {
    for (message, descriptors) in parcels {
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        if writer.send(&message, &descriptors).is_err() {
            // The connection is shut down, which its reader sees.
            return;
        }
        waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
