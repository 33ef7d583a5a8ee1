//! The connection to the agent: calls in order, news as it comes.
//!
//! When the agent is killed the connection breaks off, but nothing that the process holds ends. The
//! control thread comes back to the next agent ([`resume`]); calls wait meanwhile.

mod incoming;
mod resume;

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::io::{self};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use toroid_fabric::Membership;
use toroid_fabric::link::DropReason;
use toroid_fabric::mem::Waker;
use toroid_fabric::mem::fence::FencePage;
use toroid_fabric::mem::{Memory, Status};
use toroid_fabric::os::thread::spawn_undisturbed;
use toroid_fabric::shm::{Channel, ChannelEnds};
use toroid_fabric::{Epoch, NodeId, Partition, Protocol, RemoteKey};
use toroid_protocol::agent::{ChannelInfo, Event, Message, Reply, Request, VERSION};
use toroid_protocol::wire::{self, Reader, WireError, Writer};

use super::far::{Connection, Links, Openers};
use super::regions::{self, Grant, Mapped, Regions, no_room};
use super::{LinkCheck, MemberError, unexpected};
use incoming::End;
pub(super) use incoming::{Incoming, ListenerRelease, Release};

/// How long a call waits for an agent to come.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// How often a call that waits looks whether there is still an agent.
const GLANCE: Duration = Duration::from_millis(500);

/// The stack of the control thread: it parses messages and maps memory, nothing deep.
const STACK_BYTES: usize = 256 * 1024;

/// An answer of the agent, with what the control thread made of it.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) reply: Reply,
    pub(super) descriptors: Vec<OwnedFd>,
    /// The region that was allocated or opened, or why it could not be mapped.
    pub(super) region: Option<io::Result<Mapped>>,
    /// The channel that was connected.
    pub(super) channel: Option<Channel>,
    /// The connection to another host.
    pub(super) far: Option<Connection>,
}

/// What the calling threads and the control thread share.
#[derive(Debug)]
pub(super) struct Control {
    outbox: Mutex<Outbox>,
    books: Mutex<Books>,
    node: OnceLock<NodeId>,
    ticket: OnceLock<Ticket>,
    fence: OnceLock<Arc<FencePage>>,
    /// How there is a connection to an agent.
    dial: Dial,
    pub(super) openers: Openers,
    #[cfg(feature = "verbs")]
    pub(super) protections: super::far::Protections,
}

/// Connects to the agent, or to where one will listen.
pub struct Dial(Box<dyn Fn() -> Result<UnixStream, MemberError> + Send + Sync>);

impl Dial {
    /// A way to connect to the agent, tried again after the agent was killed.
    pub fn new(dial: impl Fn() -> Result<UnixStream, MemberError> + Send + Sync + 'static) -> Self {
        Dial(Box::new(dial))
    }

    pub(super) fn dial(&self) -> Result<UnixStream, MemberError> {
        (self.0)()
    }
}

impl fmt::Debug for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dial").finish_non_exhaustive()
    }
}

/// With what this process can come back.
#[derive(Clone, Debug)]
struct Ticket {
    attachment: u64,
    secret: String,
}

#[derive(Debug)]
struct Outbox {
    writer: Writer,
    /// What is to be done with the next replies, in order.
    expected: VecDeque<Expected>,
    /// Calls so far.
    calls: u64,
    /// Since when there has been no agent.
    lost: Option<Instant>,
    /// Since when this process has been trying to attach, until it has.
    attaching: Option<Instant>,
    closed: bool,
}

/// What is to be done with a reply.
#[derive(Debug)]
struct Expected {
    /// What is to be asked again when the agent was lost.
    request: Request,
    number: u64,
    /// Who waits for it, if anybody.
    waiting: Option<mpsc::Sender<Answer>>,
    /// The listener that starts with it, unless it is a refusal. Channels may come right behind
    /// the reply, so the control thread books the listener.
    listener: Option<(Service, Arc<Incoming>)>,
}

/// What a listener listens for.
type Service = (Partition, Protocol);

/// What ends when membership changes.
#[derive(Debug, Default)]
struct Books {
    /// Regions of ours.
    exports: HashSet<RemoteKey>,
    partitions: HashMap<Partition, Membership>,
    regions: Regions,
    channels: HashMap<u64, OpenChannel>,
    /// Channels whose other end has gone. What it left behind can be received until its node
    /// leaves.
    forsaken: Vec<OpenChannel>,
    links: Links,
    listeners: HashMap<Service, Arc<Incoming>>,
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
    pub(super) fn start(dial: Dial) -> Result<Arc<Self>, MemberError> {
        let (reader, writer) = wire::split(dial.dial()?)?;
        let control = Arc::new(Control {
            outbox: Mutex::new(Outbox {
                writer,
                expected: VecDeque::new(),
                calls: 0,
                lost: None,
                attaching: Some(Instant::now()),
                closed: false,
            }),
            books: Mutex::default(),
            node: OnceLock::new(),
            ticket: OnceLock::new(),
            fence: OnceLock::new(),
            dial,
            openers: Openers::default(),
            #[cfg(feature = "verbs")]
            protections: super::far::Protections::default(),
        });
        let listening = Arc::downgrade(&control);
        let builder = thread::Builder::new().name("toroid-control".into());
        // It brings what threads wait for that touch a moving region, as handlers may.
        spawn_undisturbed(builder.stack_size(STACK_BYTES), move || {
            listen(reader, &listening);
        })?;
        match control.call(Request::Hello { version: VERSION })?.reply {
            Reply::Welcome { .. } => Ok(control),
            other => Err(unexpected(&other)),
        }
    }

    /// From now on the process survives its agent.
    pub(super) fn take_ticket(&self) -> Result<(), MemberError> {
        match self.call(Request::Ticket)?.reply {
            Reply::Ticket { attachment, secret } => {
                // Called once, by `Member::attach`.
                let _ = self.ticket.set(Ticket { attachment, secret });
                lock(&self.outbox).attaching = None;
                Ok(())
            }
            other => Err(unexpected(&other)),
        }
    }

    pub(super) fn set_node(&self, node: NodeId) {
        // Called once, by `Member::attach`.
        let _ = self.node.set(node);
    }

    /// Gets the page on which the agent ends what this process holds, should it not answer.
    pub(super) fn map_fence(&self) -> Result<(), MemberError> {
        let answer = self.call(Request::Fence)?;
        let [page] = <[OwnedFd; 1]>::try_from(answer.descriptors).map_err(|_| no_room())?;
        // Called once, by `Member::attach`.
        let _ = self.fence.set(Arc::new(FencePage::map(&page.into())?));
        Ok(())
    }

    pub(super) fn status(&self, slot: u32) -> Status {
        let fenced = |page| Status::fenced(Arc::clone(page), slot);
        self.fence.get().map_or_else(Status::default, fenced)
    }

    /// Asks for a region.
    pub(super) fn map(&self, request: Request) -> Result<Mapped, MemberError> {
        let answer = self.call(request)?;
        match answer.region {
            Some(mapped) => Ok(mapped?),
            None => Err(unexpected(&answer.reply)),
        }
    }

    /// Asks and waits for the answer.
    pub(super) fn call(&self, request: Request) -> Result<Answer, MemberError> {
        self.call_expecting(request, None)
    }

    /// Listens; returns where channels will come.
    pub(super) fn listen(
        &self,
        domain: &str,
        partition: Partition,
        protocol: Protocol,
    ) -> Result<Arc<Incoming>, MemberError> {
        let incoming = Arc::new(Incoming::new()?);
        let listener = ((partition, protocol), Arc::clone(&incoming));
        let request = Request::Listen {
            domain: domain.to_owned(),
            protocol: protocol.0,
        };
        self.call_expecting(request, Some(listener))?;
        Ok(incoming)
    }

    fn call_expecting(
        &self,
        request: Request,
        listener: Option<(Service, Arc<Incoming>)>,
    ) -> Result<Answer, MemberError> {
        let (sender, receiver) = mpsc::channel();
        let number = self.send(request, Some(sender), listener)?;
        let answer = loop {
            match receiver.recv_timeout(GLANCE) {
                Ok(answer) => break answer,
                Err(RecvTimeoutError::Timeout) => lock(&self.outbox).give_up(number)?,
                Err(RecvTimeoutError::Disconnected) => return Err(closed()),
            }
        };
        match answer.reply {
            Reply::Error(refusal) => Err(refusal.into()),
            _ => Ok(answer),
        }
    }

    /// Sends a request, now or to the next agent; returns its number.
    fn send(
        &self,
        request: Request,
        waiting: Option<mpsc::Sender<Answer>>,
        listener: Option<(Service, Arc<Incoming>)>,
    ) -> Result<u64, MemberError> {
        let mut outbox = lock(&self.outbox);
        if outbox.closed {
            return Err(closed());
        }
        outbox.calls += 1;
        let number = outbox.calls;
        let sent = match outbox.lost {
            Some(_) => Ok(()),
            None => outbox.writer.send(&request, &[]),
        };
        if let Err(error @ WireError::Malformed(_)) = sent {
            // It was not sent, so there will be no reply.
            return Err(MemberError::Agent(error.to_string()));
        }
        // Another error is the end of the connection, which the control thread is about to see.
        outbox.expected.push_back(Expected {
            request,
            number,
            waiting,
            listener,
        });
        Ok(number)
    }

    /// Books an epoch that the agent has told us; older news changes nothing.
    pub(super) fn learn_epoch(&self, partition: u32, epoch: u32) {
        lock(&self.books).learn_epoch(Partition(partition), epoch);
    }

    pub(super) fn dropped(&self, partition: Partition, reason: DropReason) -> u64 {
        let books = lock(&self.books);
        let known = books.partitions.get(&partition);
        known.map_or(0, |known| known.drops.dropped(reason))
    }

    fn on_reply(self: &Arc<Self>, reply: Reply, descriptors: Vec<OwnedFd>) {
        let mut answer = Answer {
            reply,
            descriptors,
            region: None,
            channel: None,
            far: None,
        };
        let Some(expected) = lock(&self.outbox).expected.pop_front() else {
            return;
        };
        // Mapped and booked before the next news is read, which may be of its end.
        if let Some((grant, slot)) = Grant::of(&answer.reply) {
            let descriptors = std::mem::take(&mut answer.descriptors);
            let status = self.status(slot);
            let mapped = regions::map(self, &expected.request, grant, status, descriptors);
            if let Ok(mapped) = &mapped {
                lock(&self.books).regions.book(grant.key, mapped);
            }
            answer.region = Some(mapped);
        }
        if let Reply::Channel(info) = &answer.reply {
            let descriptors = std::mem::take(&mut answer.descriptors);
            answer.channel = self.open_channel(info, descriptors);
        }
        if let Reply::Far(info) = &answer.reply {
            let descriptors = std::mem::take(&mut answer.descriptors);
            answer.far = self.book_far(info, descriptors);
        }
        if let (Some((service, incoming)), Reply::Done) = (expected.listener, &answer.reply) {
            lock(&self.books).listeners.insert(service, incoming);
        }
        if let (Request::Alloc { .. }, Reply::Region { key, .. }) =
            (&expected.request, &answer.reply)
        {
            lock(&self.books).exports.insert(*key);
        }
        if let Some(waiting) = expected.waiting {
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
                let partition = Partition(partition);
                let gone = |peer: NodeId| we_left || gone(peer);
                let ended = lock(&self.books).on_epoch(partition, epoch, gone);
                regions::end(ended, Status::revoke);
                if we_left {
                    self.end_listeners(partition);
                }
                self.acknowledge(partition, epoch);
            }
            Event::Incoming(info) => {
                let channel = self.open_channel(&info, descriptors);
                let service = (Partition(info.partition), Protocol(info.protocol));
                let listener = lock(&self.books).listeners.get(&service).cloned();
                if let (Some(channel), Some(listener)) = (channel, listener) {
                    listener.push(channel);
                }
            }
            Event::Move { key } => {
                let regions = lock(&self.books).regions.of(key);
                if !regions::start_moving(self, key, regions, descriptors)
                    && self.node.get() == Some(&key.node)
                {
                    // If it is our own, nobody else can use it either.
                    self.give_back(Request::Free { key });
                }
            }
            Event::Arrived { key } => {
                let regions = lock(&self.books).regions.of(key);
                regions.iter().for_each(|region| region.wake_resident());
            }
            Event::Moved { key } => {
                let regions = lock(&self.books).regions.of(key);
                regions.iter().for_each(|region| region.finish_migration());
            }
            Event::Fenced { partition } => {
                let partition = Partition(partition);
                let mut books = lock(&self.books);
                let ended = books.regions.forget_partition(partition);
                books.links.end(|of, _| of == partition, Status::revoke);
                drop(books);
                regions::end(ended, Status::revoke);
                self.end_listeners(partition);
            }
            Event::RegionGone { key } => {
                let ended = lock(&self.books).regions.forget(key);
                regions::end(ended, Status::peer_died);
            }
            Event::ChannelGone { id } => {
                lock(&self.books).forsake_channels(|channel| *channel == id);
            }
            // Not of this kind of connection.
            Event::Exited { .. } => {}
        }
    }

    fn end_listeners(&self, partition: Partition) {
        let listeners = &mut lock(&self.books).listeners;
        listeners.retain(|(of, _), listener| {
            let ended = *of == partition;
            if ended {
                listener.close(End::Revoked);
            }
            !ended
        });
    }

    fn acknowledge(&self, Partition(partition): Partition, epoch: u32) {
        // Should the agent have gone, the next one tells the epoch again.
        self.tell(&Request::Ack { partition, epoch });
    }

    /// Says what is not answered.
    pub(super) fn tell(&self, request: &Request) {
        let outbox = lock(&self.outbox);
        // The next agent is to hear first that this process is back.
        if outbox.lost.is_none() {
            // It fails when the agent has gone, which the control thread is about to see.
            let _ = outbox.writer.send(request, &[]);
        }
    }

    /// Says what is answered, but to nobody who waits.
    fn give_back(&self, request: Request) {
        // Without an agent there is nobody to tell.
        let _ = self.send(request, None, None);
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
        let membership = self.membership(check.partition, info.epoch);
        let status = Arc::new(self.status(info.fence));
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

    /// The membership in a partition, which follows the news.
    pub(super) fn membership(&self, partition: Partition, epoch: u32) -> Membership {
        lock(&self.books).learn_epoch(partition, epoch)
    }

    pub(super) fn is_closed(&self) -> bool {
        lock(&self.outbox).closed
    }

    /// The links to peers on other hosts.
    pub(super) fn with_links(&self, change: impl FnOnce(&mut Links)) {
        change(&mut lock(&self.books).links);
    }

    /// Notes that the agent has gone; returns whether it makes sense to wait for another.
    fn lose(&self) -> bool {
        lock(&self.outbox).lost.get_or_insert_with(Instant::now);
        self.ticket.get().is_some()
    }

    /// For how much longer calls, and accesses to what moves, wait for an agent.
    fn patience(&self) -> Duration {
        let lost = lock(&self.outbox).lost;
        lost.map_or(PATIENCE, |since| PATIENCE.saturating_sub(since.elapsed()))
    }

    /// Ends what an access may wait for.
    fn end_awaited(&self) {
        let mut books = lock(&self.books);
        let own = books.regions.own_awaited();
        let ended = books.regions.forget_awaited();
        drop(books);
        regions::end(ended, Status::peer_died);
        // An agent that comes yet ends it for all.
        for key in own {
            self.give_back(Request::Free { key });
        }
    }

    /// Ends everything: there is nobody who vouches for anything.
    fn close(&self) {
        let mut outbox = lock(&self.outbox);
        outbox.closed = true;
        outbox.expected.clear();
        drop(outbox);
        let mut books = std::mem::take(&mut *lock(&self.books));
        let ended = books
            .regions
            .forget_where(|_, booked| !booked.is_own || booked.is_awaited());
        regions::end(ended, Status::peer_died);
        books.forsake_channels(|_| true);
        books.links.end(|_, _| true, Status::peer_died);
        for listener in books.listeners.values() {
            listener.close(End::NoAgent);
        }
    }
}

impl Drop for Control {
    /// Ends the attachment; the control thread sees the end of the connection and ends too.
    fn drop(&mut self) {
        lock(&self.outbox).writer.shut_down();
    }
}

impl Outbox {
    /// Forgets a request for which no agent has come for so long.
    fn give_up(&mut self, number: u64) -> Result<(), MemberError> {
        let since = self.lost.or(self.attaching);
        let in_time = since.is_none_or(|since| since.elapsed() < PATIENCE);
        let still = |expected: &Expected| expected.number == number;
        if in_time || !self.expected.iter().any(still) {
            return Ok(());
        }
        self.expected.retain(|expected| expected.number != number);
        let message = format!("it has been gone for {PATIENCE:?}; `toroid up` brings it back");
        Err(MemberError::Agent(message))
    }
}

fn closed() -> MemberError {
    MemberError::Agent("it closed the connection".into())
}

impl Books {
    fn learn_epoch(&mut self, partition: Partition, epoch: u32) -> Membership {
        let membership = self
            .partitions
            .entry(partition)
            .or_insert_with(|| Membership::at(Epoch(epoch)));
        // Release: pairs with the Acquire in `Channel::send`.
        membership.epoch.fetch_max(epoch, Ordering::Release);
        membership.clone()
    }

    /// Notes that the other ends of channels have gone.
    fn forsake_channels(&mut self, which: impl Fn(&u64) -> bool) {
        self.forsaken
            .retain(|channel| channel.status.strong_count() > 0);
        for (_, channel) in self.channels.extract_if(|id, _| which(id)) {
            channel.end(Status::peer_died);
            self.forsaken.push(channel);
        }
    }

    /// Ends channels of nodes that have gone; returns the regions that end with them.
    fn on_epoch(
        &mut self,
        partition: Partition,
        epoch: u32,
        gone: impl Fn(NodeId) -> bool,
    ) -> Vec<Arc<Memory>> {
        let stays = |channel: &mut OpenChannel| {
            let ended = channel.partition == partition && gone(channel.peer);
            if ended {
                channel.end(Status::revoke);
            }
            !ended
        };
        self.channels.retain(|_, channel| stays(channel));
        self.forsaken.retain_mut(stays);
        let ends = |of: Partition, peer| of == partition && gone(peer);
        self.links.end(ends, Status::revoke);
        self.learn_epoch(partition, epoch);
        self.regions.forget_peers(partition, gone)
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

fn listen(mut reader: Reader, listening: &Weak<Control>) {
    loop {
        let received = reader.receive::<Message>();
        let Some(control) = listening.upgrade() else {
            return;
        };
        match received {
            Ok((Message::Reply(reply), descriptors)) => control.on_reply(reply, descriptors),
            Ok((Message::Event(event), descriptors)) => control.on_event(event, descriptors),
            Err(error) => {
                if !matches!(error, WireError::Closed) {
                    tracing::warn!("lost the agent: {error}");
                }
                let is_hopeless = matches!(error, WireError::Malformed(_));
                if is_hopeless || !control.lose() {
                    return control.close();
                }
                drop(control);
                match resume::come_back(listening) {
                    Some(next) => reader = next,
                    None => return,
                }
            }
        }
    }
}

/// A thread that panicked held no half-done change: every critical section here is a few moves.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
