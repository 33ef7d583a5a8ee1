//! The connection to the agent: calls in order, events in between.
//!
//! When the agent is killed the connection ends, but nothing that the process holds ends. The
//! control thread resumes the attachment at the next agent ([`resume`]); calls wait meanwhile.

mod incoming;
mod resume;
mod state;

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use toroid_fabric::Membership;
use toroid_fabric::emulation::PeerLink;
use toroid_fabric::link::DropReason;
use toroid_fabric::mem::Status;
use toroid_fabric::mem::fence::FencePage;
use toroid_fabric::os::thread::spawn_undisturbed;
use toroid_fabric::shm::{Channel, ChannelEnds};
use toroid_fabric::{Epoch, NodeId, Partition, Protocol};
use toroid_protocol::agent::{ChannelInfo, Event, Message, Reply, ReplyValue, Request, VERSION};
use toroid_protocol::wire::{self, Reader, WireError, Writer};

use crate::once::once;

use super::emulation::Emulation;
use super::regions::{self, Grant, Mapped, no_room};
use super::remote::{Connection, Links, Openers};
use super::{LinkCheck, MemberError, unexpected};
use incoming::End;
pub(super) use incoming::{Incoming, ListenerRelease, Release};
use state::{OpenChannel, State};

/// Time that a call waits for an agent.
pub(super) const AGENT_TIMEOUT: Duration = Duration::from_secs(10);

/// Interval at which a waiting call checks whether there is still an agent.
const GLANCE: Duration = Duration::from_millis(500);

/// Stack of the control thread, which parses messages and maps memory.
const STACK_BYTES: usize = 256 * 1024;

/// Reply of the agent, with the objects that the control thread made of its descriptors.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) reply: Reply,
    pub(super) descriptors: Vec<OwnedFd>,
    /// Region that was allocated or opened, or the reason why it could not be mapped.
    pub(super) region: Option<io::Result<Mapped>>,
    /// Channel that was connected.
    pub(super) channel: Option<Channel>,
    /// Connection to another host.
    pub(super) remote: Option<Connection>,
}

/// State that the calling threads and the control thread share.
#[derive(Debug)]
pub(super) struct Control {
    outbox: Mutex<Outbox>,
    state: Mutex<State>,
    node: OnceLock<NodeId>,
    ticket: OnceLock<Ticket>,
    fence: OnceLock<Arc<FencePage>>,
    dial: Dial,
    emulation: Mutex<Emulation>,
    pub(super) openers: Openers,
    #[cfg(feature = "verbs")]
    pub(super) protections: super::remote::Protections,
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

/// Proof by which this process resumes its attachment at another agent.
#[derive(Clone, Debug)]
struct Ticket {
    attachment: u64,
    secret: String,
}

#[derive(Debug)]
struct Outbox {
    writer: Writer,
    /// Expected replies, in order.
    expected: VecDeque<Expected>,
    /// Number of calls so far.
    calls: u64,
    /// Time of the loss of the agent.
    lost: Option<Instant>,
    /// Start of the attempt to attach; `None` once attached.
    attaching: Option<Instant>,
    closed: bool,
}

/// A request whose reply has not arrived.
#[derive(Debug)]
struct Expected {
    /// Repeated at the next agent after a loss.
    request: Request,
    number: u64,
    /// Sends the answer to the calling thread; `None` if no thread waits.
    waiting: Option<mpsc::Sender<Answer>>,
    /// Listener that starts with a successful reply. Channels may arrive directly after the reply,
    /// so the control thread records the listener.
    listener: Option<(Service, Arc<Incoming>)>,
}

/// Domain and protocol of a listener.
type Service = (Partition, Protocol);

impl Control {
    /// Connects, starts the control thread and greets the agent.
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
            state: Mutex::default(),
            node: OnceLock::new(),
            ticket: OnceLock::new(),
            fence: OnceLock::new(),
            dial,
            emulation: Mutex::default(),
            openers: Openers::default(),
            #[cfg(feature = "verbs")]
            protections: super::remote::Protections::default(),
        });
        let listening = Arc::downgrade(&control);
        let builder = thread::Builder::new().name("toroid-control".into());
        // Threads that access a migrating region, perhaps in a signal handler, wait for this thread.
        spawn_undisturbed(builder.stack_size(STACK_BYTES), move || {
            listen(reader, &listening);
        })?;
        let _pid: u32 = control.ask(Request::Hello { version: VERSION })?;
        Ok(control)
    }

    /// Obtains the ticket with which the process outlives its agent.
    pub(super) fn take_ticket(&self) -> Result<(), MemberError> {
        let (attachment, secret) = self.ask(Request::Ticket)?;
        // Called once, by `Member::attach`.
        let _ = self.ticket.set(Ticket { attachment, secret });
        lock(&self.outbox).attaching = None;
        Ok(())
    }

    pub(super) fn set_node(&self, node: NodeId) {
        // Called once, by `Member::attach`.
        let _ = self.node.set(node);
    }

    /// Maps the page on which the agent fences the grants of this process if it does not acknowledge.
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

    /// Requests a region.
    pub(super) fn map(&self, request: Request) -> Result<Mapped, MemberError> {
        let answer = self.call(request)?;
        match answer.region {
            Some(mapped) => Ok(mapped?),
            None => Err(unexpected(&answer.reply)),
        }
    }

    /// Sends a request and returns the value of its reply.
    pub(super) fn ask<T: ReplyValue>(&self, request: Request) -> Result<T, MemberError> {
        let answer = self.call(request)?;
        T::from_reply(answer.reply).map_err(|other| unexpected(&other))
    }

    /// Sends a request and waits for the answer.
    pub(super) fn call(&self, request: Request) -> Result<Answer, MemberError> {
        self.call_expecting(request, None)
    }

    /// Starts a listener and returns its queue of channels.
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
        // The next agent may have to be asked again.
        let request = once(&request)?.unwrap_or(request);
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

    /// Sends a request, now or to the next agent, and returns its number.
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
            // The request was not sent, so there will be no reply.
            return Err(MemberError::Agent(error.to_string()));
        }
        // After another error the connection has ended, which the control thread is about to see.
        outbox.expected.push_back(Expected {
            request,
            number,
            waiting,
            listener,
        });
        Ok(number)
    }

    /// Records an epoch from the agent; older epochs change nothing.
    pub(super) fn learn_epoch(&self, partition: u32, epoch: u32) {
        lock(&self.state).learn_epoch(Partition(partition), epoch);
    }

    pub(super) fn dropped(&self, partition: Partition, reason: DropReason) -> u64 {
        let state = lock(&self.state);
        let known = state.partitions.get(&partition);
        known.map_or(0, |known| known.drops.dropped(reason))
    }

    fn on_reply(self: &Arc<Self>, reply: Reply, descriptors: Vec<OwnedFd>) {
        let mut answer = Answer {
            reply,
            descriptors,
            region: None,
            channel: None,
            remote: None,
        };
        let Some(expected) = lock(&self.outbox).expected.pop_front() else {
            return;
        };
        // Mapped and recorded before the next event is read, which may end the region.
        if let Some((grant, slot)) = Grant::of(&answer.reply) {
            let descriptors = std::mem::take(&mut answer.descriptors);
            let status = self.status(slot);
            let mapped = regions::map(self, &expected.request, grant, status, descriptors);
            if let Ok(mapped) = &mapped {
                lock(&self.state).regions.insert(grant.key, mapped);
            }
            answer.region = Some(mapped);
        }
        if let Reply::Channel(info) = &answer.reply {
            answer.channel = self.open_channel(info, std::mem::take(&mut answer.descriptors));
        }
        if let Reply::Remote(info) = &answer.reply {
            answer.remote = self.record_remote(info, std::mem::take(&mut answer.descriptors));
        }
        if let (Some((service, incoming)), Reply::Done) = (expected.listener, &answer.reply) {
            lock(&self.state).listeners.insert(service, incoming);
        }
        if let (Request::Alloc { .. }, Reply::Region { key, .. }) =
            (&expected.request, &answer.reply)
        {
            lock(&self.state).exports.insert(*key);
        }
        if let Some(waiting) = expected.waiting {
            // Fails when the caller has ended and needs no answer.
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
                let of = Partition(partition);
                let gone = |peer: NodeId| left.contains(&peer.0);
                let we_left = self.node.get().is_some_and(|node| gone(*node));
                let gone = |peer: NodeId| we_left || gone(peer);
                let ended = lock(&self.state).on_epoch(of, epoch, gone);
                regions::end(ended, Status::revoke);
                if we_left {
                    lock(&self.state).end_listeners(|service| service.0 != of);
                    lock(&self.emulation).retain(|partition| partition != of);
                }
                // If the agent has ended, the next one sends the epoch again.
                self.tell(&Request::Ack { partition, epoch });
            }
            Event::Incoming(info) => {
                let channel = self.open_channel(&info, descriptors);
                let service = (Partition(info.partition), Protocol(info.protocol));
                let listener = lock(&self.state).listeners.get(&service).cloned();
                if let (Some(channel), Some(listener)) = (channel, listener) {
                    listener.push(channel);
                }
            }
            Event::Move { key } => {
                let regions = lock(&self.state).regions.of(key);
                if !regions::start_migration(self, key, regions, descriptors)
                    && self.node.get() == Some(&key.node)
                {
                    // Without its owner no other process can use the region either.
                    self.give_back(Request::Free { key });
                }
            }
            Event::Arrived { key } => {
                let regions = lock(&self.state).regions.of(key);
                regions.iter().for_each(|region| region.wake_resident());
            }
            Event::Moved { key } => {
                let regions = lock(&self.state).regions.of(key);
                regions.iter().for_each(|region| region.finish_migration());
            }
            Event::Fenced { partition } => {
                let partition = Partition(partition);
                let mut state = lock(&self.state);
                let ended = state.regions.forget_partition(partition);
                state.links.end(|of, _| of == partition, Status::revoke);
                drop(state);
                regions::end(ended, Status::revoke);
                lock(&self.state).end_listeners(|service| service.0 != partition);
            }
            Event::RegionGone { key } => {
                let ended = lock(&self.state).regions.forget(key);
                regions::end(ended, Status::peer_died);
            }
            Event::ChannelGone { id } => {
                lock(&self.state).detach_channels(|channel| *channel == id);
            }
            // Belong to sessions of commands and to the control socket.
            Event::Exited { .. } | Event::Waiting => {}
            Event::Links { partition, model } => {
                let (partition, local) = (Partition(partition), self.node.get().copied());
                let changed = lock(&self.emulation).change(partition, local, model, descriptors);
                if let Err(error) = changed {
                    tracing::warn!("no link is emulated: cannot map the clocks: {error}");
                }
            }
        }
    }

    /// Sends a request that has no reply.
    pub(super) fn tell(&self, request: &Request) {
        let outbox = lock(&self.outbox);
        // The first request to the next agent is `Request::Resume`.
        if outbox.lost.is_none() {
            // Fails when the agent has ended, which the control thread is about to see.
            let _ = outbox.writer.send(request, &[]);
        }
    }

    /// Sends a request for whose reply no thread waits.
    fn give_back(&self, request: Request) {
        // Fails when the attachment has ended, and with it the object.
        let _ = self.send(request, None, None);
    }

    /// Opens and records an end of a channel; `None` when the system cannot map it.
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
        let weak = Arc::downgrade(&status);
        let node = *self.node.get()?;
        let channel = Channel::open(ends, node, check, membership, status, Some(release)).ok()?;
        let open = OpenChannel {
            partition: check.partition,
            peer: check.peer,
            status: weak,
            waker: channel.waker(),
        };
        lock(&self.state).channels.insert(info.id, open);
        Some(channel)
    }

    /// Membership in a partition, updated by events.
    pub(super) fn membership(&self, partition: Partition, epoch: u32) -> Membership {
        lock(&self.state).learn_epoch(partition, epoch)
    }

    pub(super) fn is_closed(&self) -> bool {
        lock(&self.outbox).closed
    }

    /// The link to a peer.
    pub(super) fn link(&self, partition: Partition, peer: NodeId) -> Arc<PeerLink> {
        // Only an attached process has domains, and knows its node.
        let local = self.node.get().copied();
        local.map_or_else(Arc::default, |local| {
            lock(&self.emulation).link(partition, local, peer)
        })
    }

    /// Changes the connections to remote peers.
    pub(super) fn with_links(&self, change: impl FnOnce(&mut Links)) {
        change(&mut lock(&self.state).links);
    }

    /// Records the loss of the agent; returns whether this process can resume at another agent.
    fn lose(&self) -> bool {
        lock(&self.outbox).lost.get_or_insert_with(Instant::now);
        self.ticket.get().is_some()
    }

    /// Time that calls and accesses to migrating regions continue to wait for an agent.
    fn remaining_timeout(&self) -> Duration {
        let lost = lock(&self.outbox).lost;
        lost.map_or(AGENT_TIMEOUT, |since| {
            AGENT_TIMEOUT.saturating_sub(since.elapsed())
        })
    }

    /// Ends the regions for which an access may wait.
    fn end_awaited(&self) {
        let mut state = lock(&self.state);
        let own = state.regions.own_awaited();
        let ended = state.regions.forget_awaited();
        drop(state);
        regions::end(ended, Status::peer_died);
        // An agent that starts later ends them for all processes.
        for key in own {
            self.give_back(Request::Free { key });
        }
    }

    /// Ends everything, because no agent can grant it any more.
    fn close(&self) {
        let mut outbox = lock(&self.outbox);
        outbox.closed = true;
        outbox.expected.clear();
        drop(outbox);
        let mut state = std::mem::take(&mut *lock(&self.state));
        let ended = state
            .regions
            .forget_where(|_, mapping| !mapping.is_own || mapping.is_awaited());
        regions::end(ended, Status::peer_died);
        state.detach_channels(|_| true);
        state.links.end(|_, _| true, Status::peer_died);
        for listener in state.listeners.values() {
            listener.close(End::NoAgent);
        }
    }
}

impl Drop for Control {
    /// Ends the attachment; the control thread ends when it sees the end of the connection.
    fn drop(&mut self) {
        lock(&self.outbox).writer.shut_down();
    }
}

impl Outbox {
    /// Removes a request that has waited [`AGENT_TIMEOUT`] for an agent.
    fn give_up(&mut self, number: u64) -> Result<(), MemberError> {
        let since = self.lost.or(self.attaching);
        let in_time = since.is_none_or(|since| since.elapsed() < AGENT_TIMEOUT);
        let still = |expected: &Expected| expected.number == number;
        if in_time || !self.expected.iter().any(still) {
            return Ok(());
        }
        let is_change = |its: &Expected| matches!(its.request, Request::Once { .. });
        let is_doubtful = self.expected.iter().any(|its| still(its) && is_change(its));
        self.expected.retain(|expected| expected.number != number);
        let mut message =
            format!("it has been gone for {AGENT_TIMEOUT:?}; `toroid up` brings it back");
        if is_doubtful {
            message += ", and whether the change was made is unknown";
        }
        Err(MemberError::Agent(message))
    }
}

fn closed() -> MemberError {
    MemberError::Agent("it closed the connection".into())
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

/// Locks a mutex, also after a panic: no critical section here can panic between two related changes.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
