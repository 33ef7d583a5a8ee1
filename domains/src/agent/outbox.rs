//! What is on its way to an attached process.
//!
//! Whoever has news for a process, perhaps while it holds a lock, only puts it here; a thread of
//! the connection sends it. A process that does not read is cut off and holds nobody up.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use crate::protocol::{Event, Message, Reply};
use crate::wire::Writer;

/// Messages that may wait, besides what the socket's buffer holds.
const CAPACITY: usize = 256;

/// How long a message may take to be accepted by the socket.
const PATIENCE: Duration = Duration::from_secs(5);

const STACK_BYTES: usize = 128 * 1024;

type Parcel = (Message, Vec<OwnedFd>);

/// The queue to a process.
#[derive(Clone, Debug)]
pub(super) struct Outbox {
    queue: SyncSender<Parcel>,
    writer: Writer,
}

impl Outbox {
    /// A queue with its thread, which ends with the last clone.
    pub(super) fn start(writer: Writer) -> io::Result<Self> {
        writer.give_up_after(PATIENCE)?;
        let (queue, parcels) = sync_channel(CAPACITY);
        let sender = writer.clone();
        thread::Builder::new()
            .stack_size(STACK_BYTES)
            .spawn(move || deliver(&parcels, &sender))?;
        Ok(Outbox { queue, writer })
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
        if self.queue.try_send(parcel).is_err() {
            self.writer.shut_down();
        }
    }
}

fn deliver(parcels: &Receiver<Parcel>, writer: &Writer) {
    for (message, descriptors) in parcels {
        let descriptors: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        if writer.send(&message, &descriptors).is_err() {
            // The connection is shut down, which its reader sees.
            return;
        }
    }
}
