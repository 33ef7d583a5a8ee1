//! The connection to the agent: calls in order, news as it comes.

use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak, mpsc};
use std::thread;

use fabric::link::DropCounters;
use fabric::region::Keep;
use fabric::shm::channel::Membership;
use fabric::shm::queue_pair::Status;
use fabric::shm::wake::Waker;
use fabric::shm::{Channel, ChannelEnds};
use fabric::{Epoch, NodeId, Partition, Protocol, RemoteKey};

use super::{LinkCheck, MemberError, unexpected};
use crate::protocol::{ChannelInfo, Event, Message, Reply, Request, VERSION};
use crate::wire::{self, Reader, WireError, Writer};

/// The stack of the control thread: it parses messages and maps memory, nothing deep.
const STACK_BYTES: usize = 256 * 1024;

/// The most channels that wait to be accepted by a listener; more are turned away.
const BACKLOG: usize = 1024;

/// An answer of the agent, with what the control thread made of it.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) reply: Reply,
    pub(super) descriptors: Vec<OwnedFd>,
    /// The status of a region that was opened.
    pub(super) status: Option<Arc<Status>>,
    /// The channel that was connected.
    pub(super) channel: Option<Channel>,
}

/// What the calling threads and the control thread share.
#[derive(Debug)]
pub(super) struct Control {
    outbox: Mutex<Outbox>,
    books: Mutex<Books>,
    node: OnceLock<NodeId>,
}

#[derive(Debug)]
struct Outbox {
    writer: Writer,
    /// Who waits for the next replies, in order; `None` for a reply that nobody waits for.
    waiting: VecDeque<Option<mpsc::Sender<Answer>>>,
    closed: bool,
}

/// What ends when membership changes.
#[derive(Debug, Default)]
struct Books {
    partitions: HashMap<Partition, Membership>,
    regions: HashMap<RemoteKey, Weak<Status>>,
    channels: HashMap<u64, OpenChannel>,
    listeners: HashMap<(String, u16), Arc<Incoming>>,
}

#[derive(Debug)]
struct OpenChannel {
    partition: Partition,
    peer: NodeId,
    status: Weak<Status>,
    waker: Waker,
}

impl Control {
    /// Shakes hands and starts the control thread.
    pub(super) fn start(stream: UnixStream) -> Result<Arc<Self>, MemberError> {
        let (reader, writer) = wire::split(stream)?;
        let control = Arc::new(Control {
            outbox: Mutex::new(Outbox {
                writer,
                waiting: VecDeque::new(),
                closed: false,
            }),
            books: Mutex::default(),
            node: OnceLock::new(),
        });
        let listening = Arc::downgrade(&control);
        thread::Builder::new()
            .name("toroid-control".into())
            .stack_size(STACK_BYTES)
            .spawn(move || listen(reader, &listening))?;
        match control
            .call(Request::Hello { version: VERSION }, &[])?
            .reply
        {
            Reply::Welcome { .. } => Ok(control),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) fn set_node(&self, node: NodeId) {
        // Called once, by `Member::attach`.
        let _ = self.node.set(node);
    }

    /// Asks and waits for the answer.
    pub(super) fn call(
        &self,
        request: Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Answer, MemberError> {
        let (sender, receiver) = mpsc::channel();
        self.send(&request, descriptors, Some(sender))?;
        let gone = || MemberError::Agent("it closed the connection".into());
        let answer = receiver.recv().map_err(|_| gone())?;
        match answer.reply {
            Reply::Error(refusal) => Err(refusal.into()),
            _ => Ok(answer),
        }
    }

    fn send(
        &self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
        waiting: Option<mpsc::Sender<Answer>>,
    ) -> Result<(), MemberError> {
        let mut outbox = lock(&self.outbox);
        if outbox.closed {
            return Err(MemberError::Agent("it closed the connection".into()));
        }
        outbox.waiting.push_back(waiting);
        let sent = outbox.writer.send(request, descriptors);
        sent.map_err(|error| MemberError::Agent(error.to_string()))
    }

    /// Books an epoch that the agent has told us; older news changes nothing.
    pub(super) fn learn_epoch(&self, partition: u32, epoch: u32) {
        lock(&self.books).learn_epoch(Partition(partition), epoch);
    }

    /// Prepares for channels that may come before the reply to `Listen` has been read.
    pub(super) fn expect_incoming(
        &self,
        domain: &str,
        protocol: Protocol,
    ) -> Result<Arc<Incoming>, MemberError> {
        let incoming = Arc::new(Incoming::new()?);
        let mut books = lock(&self.books);
        let place = books.listeners.entry((domain.to_owned(), protocol.0));
        Ok(match place {
            // The agent will refuse a second listener, so the first keeps its queue.
            std::collections::hash_map::Entry::Occupied(_) => incoming,
            std::collections::hash_map::Entry::Vacant(place) => Arc::clone(place.insert(incoming)),
        })
    }

    fn on_reply(self: &Arc<Self>, reply: Reply, descriptors: Vec<OwnedFd>) {
        let mut answer = Answer {
            reply,
            descriptors,
            status: None,
            channel: None,
        };
        match &answer.reply {
            Reply::Region { key, .. } => {
                answer.status = Some(lock(&self.books).region_status(*key));
            }
            Reply::Channel(info) => {
                let descriptors = std::mem::take(&mut answer.descriptors);
                answer.channel = self.open_channel(info, descriptors);
            }
            _ => {}
        }
        let waiting = lock(&self.outbox).waiting.pop_front();
        if let Some(Some(waiting)) = waiting {
            // It fails when the caller has gone, and with it the need for an answer.
            let _ = waiting.send(answer);
        }
    }

    fn on_event(self: &Arc<Self>, event: Event, descriptors: Vec<OwnedFd>) {
        match event {
            Event::Epoch {
                partition,
                epoch,
                left,
            } => {
                let node = self.node.get();
                let gone = |peer: NodeId| left.contains(&peer.0);
                let we_left = node.is_some_and(|node| gone(*node));
                lock(&self.books)
                    .on_epoch(Partition(partition), epoch, |peer| we_left || gone(peer));
                self.acknowledge(partition, epoch);
            }
            Event::Incoming(info) => {
                let channel = self.open_channel(&info, descriptors);
                let listener = (info.domain, info.protocol);
                let listener = lock(&self.books).listeners.get(&listener).cloned();
                if let (Some(channel), Some(listener)) = (channel, listener) {
                    listener.push(channel);
                }
            }
            Event::RegionGone { key } => {
                let status = lock(&self.books).regions.remove(&key);
                if let Some(status) = status.and_then(|status| status.upgrade()) {
                    status.peer_died();
                }
            }
            Event::ChannelGone { id } => {
                let channel = lock(&self.books).channels.remove(&id);
                if let Some(channel) = channel {
                    channel.end(Status::peer_died);
                }
            }
            // Not of this kind of connection.
            Event::Exited { .. } => {}
        }
    }

    fn acknowledge(&self, partition: u32, epoch: u32) {
        let outbox = lock(&self.outbox);
        // It fails when the agent has gone, which the control thread is about to see.
        let _ = outbox.writer.send(&Request::Ack { partition, epoch }, &[]);
    }

    /// Opens and books an end of a channel; `None` when the system cannot map it.
    fn open_channel(
        self: &Arc<Self>,
        info: &ChannelInfo,
        descriptors: Vec<OwnedFd>,
    ) -> Option<Channel> {
        let release = Release::channel(self, info.id);
        let ends = ChannelEnds::from_fds(descriptors.try_into().ok()?);
        let check = LinkCheck {
            partition: Partition(info.partition),
            peer: NodeId(info.peer),
            protocol: Protocol(info.protocol),
            since: Epoch(info.epoch),
        };
        let membership = lock(&self.books).learn_epoch(check.partition, info.epoch);
        let status = Arc::new(Status::default());
        let booked = Arc::downgrade(&status);
        let node = *self.node.get()?;
        let channel = Channel::open(ends, node, check, membership, status, Some(release)).ok()?;
        let open = OpenChannel {
            partition: check.partition,
            peer: check.peer,
            status: booked,
            waker: channel.waker(),
        };
        lock(&self.books).channels.insert(info.id, open);
        Some(channel)
    }

    /// Ends everything: without an agent nobody vouches for anything.
    fn close(&self) {
        let mut outbox = lock(&self.outbox);
        outbox.closed = true;
        outbox.waiting.clear();
        drop(outbox);
        let books = std::mem::take(&mut *lock(&self.books));
        for status in books.regions.values().filter_map(Weak::upgrade) {
            status.peer_died();
        }
        for channel in books.channels.values() {
            channel.end(Status::peer_died);
        }
        for listener in books.listeners.values() {
            listener.close();
        }
    }
}

impl Drop for Control {
    /// Ends the attachment; the control thread sees the end of the connection and ends too.
    fn drop(&mut self) {
        lock(&self.outbox).writer.shut_down();
    }
}

impl Books {
    fn learn_epoch(&mut self, partition: Partition, epoch: u32) -> Membership {
        let membership = self
            .partitions
            .entry(partition)
            .or_insert_with(|| Membership {
                epoch: Arc::new(AtomicU32::new(epoch)),
                drops: Arc::new(DropCounters::default()),
            });
        // Release: pairs with the Acquire in `Channel::send`.
        membership.epoch.fetch_max(epoch, Ordering::Release);
        membership.clone()
    }

    fn region_status(&mut self, key: RemoteKey) -> Arc<Status> {
        if let Some(status) = self.regions.get(&key).and_then(Weak::upgrade) {
            return status;
        }
        self.regions.retain(|_, status| status.strong_count() > 0);
        let status = Arc::new(Status::default());
        self.regions.insert(key, Arc::downgrade(&status));
        status
    }

    fn on_epoch(&mut self, partition: Partition, epoch: u32, gone: impl Fn(NodeId) -> bool) {
        self.regions.retain(|key, status| {
            let ended = key.partition == partition && gone(key.node);
            if let (true, Some(status)) = (ended, status.upgrade()) {
                status.revoke();
            }
            !ended
        });
        self.channels.retain(|_, channel| {
            let ended = channel.partition == partition && gone(channel.peer);
            if ended {
                channel.end(Status::revoke);
            }
            !ended
        });
        self.learn_epoch(partition, epoch);
    }
}

impl OpenChannel {
    fn end(&self, how: fn(&Status)) {
        if let Some(status) = self.status.upgrade() {
            how(&status);
            self.waker.wake();
        }
    }
}

fn listen(mut reader: Reader, control: &Weak<Control>) {
    loop {
        let received = reader.receive::<Message>();
        let Some(control) = control.upgrade() else {
            return;
        };
        match received {
            Ok((Message::Reply(reply), descriptors)) => control.on_reply(reply, descriptors),
            Ok((Message::Event(event), descriptors)) => control.on_event(event, descriptors),
            Err(error) => {
                if !matches!(error, WireError::Closed) {
                    tracing::warn!("lost the agent: {error}");
                }
                return control.close();
            }
        }
    }
}

/// Channels that wait to be accepted.
#[derive(Debug)]
pub(super) struct Incoming {
    queue: Mutex<(VecDeque<Channel>, bool)>,
    reader: std::io::PipeReader,
    writer: std::io::PipeWriter,
}

impl Incoming {
    fn new() -> Result<Self, MemberError> {
        let (reader, writer) = std::io::pipe()?;
        Ok(Incoming {
            queue: Mutex::default(),
            reader,
            writer,
        })
    }

    /// One byte is in the pipe while the queue is not empty or closed, so that neither side ever
    /// waits for the other.
    fn push(&self, channel: Channel) {
        let mut queue = lock(&self.queue);
        if queue.0.len() < BACKLOG {
            if queue.0.is_empty() && !queue.1 {
                let _ = (&self.writer).write(&[1]);
            }
            queue.0.push_back(channel);
        }
    }

    fn close(&self) {
        let mut queue = lock(&self.queue);
        if queue.0.is_empty() && !queue.1 {
            let _ = (&self.writer).write(&[1]);
        }
        queue.1 = true;
    }

    pub(super) fn next(&self) -> Result<Option<Channel>, MemberError> {
        let mut queue = lock(&self.queue);
        let next = queue.0.pop_front();
        match (&next, queue.1) {
            (None, true) => return Err(MemberError::Agent("it closed the connection".into())),
            (Some(_), false) if queue.0.is_empty() => {
                let _ = (&self.reader).read(&mut [0]);
            }
            _ => {}
        }
        Ok(next)
    }

    pub(super) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

/// Tells the agent on drop that something is no longer used.
#[derive(Debug)]
pub(super) struct Release {
    control: Arc<Control>,
    request: Request,
}

impl Release {
    pub(super) fn region(control: &Arc<Control>, key: RemoteKey) -> Keep {
        Self::keep(control, Request::Free { key })
    }

    pub(super) fn channel(control: &Arc<Control>, id: u64) -> Keep {
        Self::keep(control, Request::Disconnect { id })
    }

    pub(super) fn listener(control: &Arc<Control>, domain: &str, protocol: Protocol) -> Arc<Self> {
        let domain = domain.to_owned();
        let protocol = protocol.0;
        Self::keep(control, Request::Unlisten { domain, protocol })
    }

    fn keep(control: &Arc<Control>, request: Request) -> Arc<Self> {
        Arc::new(Release {
            control: Arc::clone(control),
            request,
        })
    }
}

impl Drop for Release {
    fn drop(&mut self) {
        match &self.request {
            Request::Disconnect { id } => {
                lock(&self.control.books).channels.remove(id);
            }
            Request::Unlisten { domain, protocol } => {
                let listener = (domain.clone(), *protocol);
                lock(&self.control.books).listeners.remove(&listener);
            }
            _ => {}
        }
        // Without an agent there is nobody to tell.
        let _ = self.control.send(&self.request, &[], None);
    }
}

/// A thread that panicked held no half-done change: every critical section here is a few moves.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
