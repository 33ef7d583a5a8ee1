//! The data path: one thread that waits for all TAPs, stack sockets, uplinks and tunnels of the
//! host, and moves frames between them.
//!
//! Frames are not queued here. A write to a TAP passes through the receiver's kernel and returns
//! when the packet is in a socket, or was dropped because the socket is full: of 75,751 writes to a
//! node whose sockets were not read, none blocked or returned `EAGAIN`. That kernel counted 75,529
//! lost datagrams, and the TCP window stopped the stream. While the switch writes it does not read,
//! so frames of other senders wait in their own transmit queues, and their kernels drop excess
//! frames. Only tunnels may accept part of a packet, and have a send queue for the rest.
//!
//! On links with a model, frames wait between decision and delivery ([`crate::delay_line`]).
//!
//! The switch alone owns the [`Bridges`], so nothing is locked. Another thread that wants a change
//! sends a task ([`SwitchHandle::call`]), which the switch runs between two batches of frames.

mod busy_poll;
mod due;
mod event_source;
mod links;
mod pacer;
mod throttle;
mod tunnels;
mod turn;

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use toroid_fabric::model::SharedClocks;
use toroid_fabric::{NodeId, Partition, Place};
use toroid_protocol::driver::{PlugFailure, Port, Uplink as UplinkSpec};
use tracing::warn;

use crate::forward::{AttachError, Bridges, End};
use crate::offload::Capabilities;
use crate::offload::segmentation::FrameParts;
use crate::port::SwitchPort;
use crate::port::stack_socket::StackSocket;
use crate::port::uplink::{Uplink, is_down};
use crate::tunnel::HostId;
use busy_poll::BusyPoll;
use due::Alarm;
use event_source::{EventSource, TIMER};
use links::Links;
pub(crate) use links::ModeledLinks;
use pacer::{Pace, Pacer};
use throttle::Throttle;
pub(crate) use tunnels::{LostStream, StreamEvent, TunnelEvent, TunnelId};
use tunnels::{Tunnels, Via};
use turn::{Scratch, Turn};

/// Limit of the events that one wait returns.
const EVENTS: usize = 64;

/// A task of another thread.
type Task = Box<dyn FnOnce(&mut Switch) + Send>;

/// Moves frames between ports and tunnels.
pub(crate) struct Switch {
    epoll: Epoll,
    /// Bridges of all domains. Local ports come and go through methods of the switch only.
    pub(crate) bridges: Bridges<SwitchPort>,
    tunnels: Tunnels,
    /// Tunnels with received packets beyond their last turn.
    unread: BTreeSet<(HostId, Via)>,
    /// Receiver of events of tunnels.
    events: Sender<(TunnelId, TunnelEvent)>,
    busy_poll: BusyPoll,
    /// Links with a model, and frames under way there.
    links: Links,
    pacer: Pacer,
    /// Members with a rate.
    throttle: Throttle,
    alarm: Alarm,
    tasks: Receiver<Task>,
    doorbell: Arc<EventFd>,
}

/// Handle of a [`Switch`] in another thread, which ends when the handle is dropped.
#[derive(Debug)]
pub(crate) struct SwitchHandle {
    tasks: Option<Sender<Task>>,
    doorbell: Arc<EventFd>,
}

/// The switch has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the switch has ended")]
pub struct SwitchEnded;

/// Reasons why a port could not be attached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum JoinError {
    /// The port cannot be a member.
    #[error(transparent)]
    Attach(#[from] AttachError),
    /// Its descriptor cannot be waited for.
    #[error("cannot wait for its packets: {0}")]
    Epoll(io::Error),
}

impl SwitchHandle {
    /// Runs `task` in the thread of the switch, and waits for its result.
    ///
    /// # Errors
    /// [`SwitchEnded`].
    pub(crate) fn call<R: Send + 'static>(
        &self,
        task: impl FnOnce(&mut Switch) -> R + Send + 'static,
    ) -> Result<R, SwitchEnded> {
        let (result, results) = mpsc::sync_channel(1);
        let task = move |switch: &mut Switch| {
            // The caller waits for the result unless its thread has ended.
            let _ = result.send(task(switch));
        };
        let queue = self.tasks.as_ref().ok_or(SwitchEnded)?;
        queue.send(Box::new(task)).map_err(|_| SwitchEnded)?;
        self.ring();
        results.recv().map_err(|_| SwitchEnded)
    }

    fn ring(&self) {
        // Fails only with 2^64 unread rings; one is enough.
        let _ = self.doorbell.write(1);
    }
}

impl Drop for SwitchHandle {
    fn drop(&mut self) {
        self.tasks = None;
        self.ring();
    }
}

impl Switch {
    /// A switch without ports, and its handle. The switch sends events of tunnels to `events`.
    ///
    /// # Errors
    /// The system's: out of descriptors.
    pub(crate) fn new(events: Sender<(TunnelId, TunnelEvent)>) -> io::Result<(Self, SwitchHandle)> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let doorbell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        epoll.add(&doorbell, event(EventSource::Doorbell))?;
        let doorbell = Arc::new(doorbell);
        let (sender, tasks) = mpsc::channel();
        let handle = SwitchHandle {
            tasks: Some(sender),
            doorbell: Arc::clone(&doorbell),
        };
        let switch = Switch {
            alarm: Alarm::new(&epoll)?,
            epoll,
            bridges: Bridges::default(),
            tunnels: Tunnels::default(),
            unread: BTreeSet::new(),
            events,
            busy_poll: BusyPoll::default(),
            links: Links::default(),
            pacer: Pacer::default(),
            throttle: Throttle::default(),
            tasks,
            doorbell,
        };
        Ok((switch, handle))
    }

    /// Moves frames until the [`SwitchHandle`] is dropped.
    ///
    /// # Errors
    /// The system's, of waiting. An error of one port affects that port only.
    pub(crate) fn run(mut self) -> io::Result<()> {
        let mut events = [EpollEvent::empty(); EVENTS];
        let mut scratch = Scratch::default();
        loop {
            let ready = self.wait(&mut events, &mut scratch)?;
            // Tunnels that run out of their turn below wait for the next round.
            let unread = std::mem::take(&mut self.unread);
            for event in &events[..ready] {
                self.deliver_due(&mut scratch);
                match EventSource::from_data(event.data()) {
                    EventSource::Doorbell => match self.run_tasks() {
                        Ok(()) => {}
                        Err(SwitchEnded) => return Ok(()),
                    },
                    EventSource::Timer => {}
                    EventSource::Stream(host) => self.on_stream_ready(host, &mut scratch),
                    EventSource::Tunnel(host) => {
                        self.on_tunnel_ready(host, event.events(), &mut scratch);
                    }
                    EventSource::Port(partition, place) => {
                        self.serve_port(partition, place, &mut scratch);
                    }
                    EventSource::Uplink(partition) => self.serve_uplink(partition, &mut scratch),
                }
            }
            for (host, via) in unread {
                match via {
                    Via::Tcp => self.read_tunnel(host, &mut scratch),
                    Via::Rdma => self.read_stream(host, &mut scratch),
                }
            }
            self.flush();
        }
    }

    /// Attaches the port of a local member.
    ///
    /// # Errors
    /// [`JoinError`]; `egress` is closed then, and the interface of a TAP stays.
    pub(crate) fn attach(&mut self, port: Port, egress: SwitchPort) -> Result<(), JoinError> {
        let source = EventSource::Port(Partition(port.domain_id), port.place);
        self.watch(&egress, source).map_err(JoinError::Epoll)?;
        Ok(self.bridges.attach(port, egress)?)
    }

    /// Answers pending queries about a new member. Its kernel has to receive packets by then,
    /// because the requesters send queued packets at once.
    pub(crate) fn answer_pending(&self, partition: Partition, place: Place) {
        for (egress, answer) in self.bridges.pending_replies(partition, place) {
            // A requester that does not receive the reply repeats its query.
            let _ = egress.send_frame(&FrameParts([&answer, &[], &[]]));
        }
        self.correct_neighbours(partition, place);
    }

    /// Corrects what kernels know of the address of a new member.
    pub(crate) fn correct_neighbours(&self, partition: Partition, place: Place) {
        for (egress, answer) in self.bridges.corrections(partition, place) {
            // A kernel that does not receive it asks again after some seconds.
            let _ = egress.send_frame(&FrameParts([&answer, &[], &[]]));
        }
    }

    /// Connects the stack of a process to a port.
    ///
    /// # Errors
    /// [`PlugFailure`]; the stack socket is closed then.
    pub(crate) fn plug(
        &mut self,
        partition: Partition,
        node: NodeId,
        stack_socket: StackSocket,
    ) -> Result<(), PlugFailure> {
        let place = self.bridges.place_of(partition, node);
        let place = place.ok_or(PlugFailure::NoStack)?;
        match self.bridges.egress_mut(partition, place) {
            Some(SwitchPort::Stack(Some(present))) if !present.is_cut() => Err(PlugFailure::Taken),
            Some(SwitchPort::Stack(_)) => {
                let egress = SwitchPort::Stack(Some(stack_socket));
                let source = EventSource::Port(partition, place);
                self.watch(&egress, source)
                    .map_err(|_| PlugFailure::System)?;
                // Dropping the former socket ends its events.
                if let Some(place) = self.bridges.egress_mut(partition, place) {
                    *place = egress;
                }
                Ok(())
            }
            _ => Err(PlugFailure::NoStack),
        }
    }

    /// Detaches a member, drops frames from and to it that are under way, and forgets its flows.
    /// Returns the egress port of a local member.
    pub(crate) fn detach(&mut self, partition: Partition, node: NodeId) -> Option<SwitchPort> {
        let place = self.bridges.place_of(partition, node)?;
        self.links.drop_of(partition, End::Member(place));
        self.links.forget_flows(partition, node);
        self.throttle.forget((partition, place));
        let egress = self.bridges.detach(partition, node)?;
        self.unwatch(&egress);
        Some(egress)
    }

    /// Connects a domain to an external network.
    ///
    /// # Errors
    /// The system's: the uplink cannot be waited for.
    pub(crate) fn connect(&mut self, to: &UplinkSpec, uplink: Uplink) -> io::Result<()> {
        let source = EventSource::Uplink(Partition(to.domain_id));
        self.epoll.add(&uplink, event(source))?;
        self.disconnect(Partition(to.domain_id));
        self.bridges.connect(to, SwitchPort::Uplink(uplink));
        Ok(())
    }

    /// Disconnects a domain from its external network, and drops frames from and to it that are
    /// under way.
    pub(crate) fn disconnect(&mut self, partition: Partition) {
        self.links.drop_of(partition, End::Outside);
        // Dropping the uplink ends its events.
        self.bridges.disconnect(partition);
    }

    /// Sets the offloads of a member's interface, in both directions.
    ///
    /// # Errors
    /// The system's: the interface is gone.
    pub(crate) fn set_capabilities(
        &mut self,
        partition: Partition,
        place: Place,
        capabilities: Capabilities,
    ) -> io::Result<()> {
        match self.bridges.egress_mut(partition, place) {
            Some(SwitchPort::Tap(tap)) if tap.capabilities() != capabilities => {
                tap.set_capabilities(capabilities)
            }
            _ => Ok(()),
        }
    }

    /// Waits for events: polls as long as that may pay, then sleeps. Delivers frames that become
    /// due.
    fn wait(&mut self, events: &mut [EpollEvent], scratch: &mut Scratch) -> io::Result<usize> {
        let began = Instant::now();
        let polling_ends = began + self.busy_poll.duration(began);
        let mut now = began;
        let mut polled_at = None;
        loop {
            self.resume_due();
            let is_over = self.deliver_due(scratch) > 0 || !self.unread.is_empty();
            let pace = self.pace();
            if let (false, Some((time, _)), Some(before)) = (is_over, pace, polled_at.take()) {
                self.pacer.polled(time - before);
            }
            let polls = match pace {
                None => now < polling_ends,
                Some((_, Pace::Deliver | Pace::Poll)) => true,
                Some((_, Pace::Sleep(_))) => false,
            };
            if !polls {
                self.set_alarm(pace)?;
            }
            let timeout = if polls || is_over {
                EpollTimeout::ZERO
            } else {
                EpollTimeout::NONE
            };
            match (self.epoll.wait(events, timeout), pace) {
                (Ok(0), _) if is_over => return Ok(0),
                (Ok(0), Some((time, _))) => polled_at = Some(time),
                (Ok(0), None) => now = self.yield_once(),
                (Ok(ready), None) => {
                    // The end of a pause says nothing about the next frame of others.
                    if events[..ready].iter().any(|event| event.data() != TIMER) {
                        self.busy_poll.record_wait(began, Instant::now());
                    }
                    return Ok(ready);
                }
                (Ok(ready), Some(_)) => {
                    if !polls && let Some(late) = self.alarm.lateness(&events[..ready]) {
                        self.pacer.woke(late);
                    }
                    return Ok(ready);
                }
                (Err(Errno::EINTR), _) => {}
                (Err(error), _) => return Err(error.into()),
            }
        }
    }

    fn yield_once(&mut self) -> Instant {
        let before = Instant::now();
        thread::yield_now();
        let after = Instant::now();
        self.busy_poll.yielded(before, after);
        after
    }

    fn run_tasks(&mut self) -> Result<(), SwitchEnded> {
        // Fails when an earlier read has emptied it.
        let _ = self.doorbell.read();
        loop {
            match self.tasks.try_recv() {
                Ok(task) => task(self),
                Err(mpsc::TryRecvError::Empty) => return Ok(()),
                Err(mpsc::TryRecvError::Disconnected) => return Err(SwitchEnded),
            }
        }
    }

    /// Forwards frames of a member until there are no more, or its turn ends.
    fn serve_port(&mut self, partition: Partition, place: Place, scratch: &mut Scratch) {
        // The port may have left since the event.
        let Some(ingress) = self.bridges.ingress(partition, place) else {
            return;
        };
        let Some(port) = ingress.egress() else {
            return;
        };
        let key = (partition, place);
        let bucket = ingress.rate().map(|rate| {
            let now = SharedClocks::now();
            self.throttle.bucket(key, rate, now)
        });
        let is_limited = bucket.is_some();
        let mut turn = Turn::new(&ingress, &self.tunnels, &mut self.links, scratch);
        let Err(error) = turn.limited_by(bucket).forward_all(port) else {
            let has_coalesced = turn.has_coalesced();
            if is_limited && self.throttle.pause(key, SharedClocks::now()) {
                self.unwatch(port);
            }
            if has_coalesced {
                // A socket holds some hundred datagrams. Without flow control, datagrams beyond that
                // are forwarded in vain unless the process that reads them gets to run.
                thread::yield_now();
            }
            return;
        };
        if error.kind() == io::ErrorKind::WouldBlock {
            return ingress.record_empty();
        }
        if matches!(port, SwitchPort::Tap(_)) {
            warn!(?partition, %place, %error, "an interface of a port has gone");
        }
        self.unwatch(port);
        // The process of a stack has gone; another process may take its place.
        if let Some(SwitchPort::Stack(stack_socket)) = self.bridges.egress_mut(partition, place) {
            *stack_socket = None;
        }
    }

    /// Forwards frames from the external network until there are no more, or their turn ends.
    fn serve_uplink(&mut self, partition: Partition, scratch: &mut Scratch) {
        // The uplink may have been disconnected since the event.
        let Some(ingress) = self.bridges.outside(partition) else {
            return;
        };
        let Some(port) = ingress.egress() else {
            return;
        };
        let mut turn = Turn::new(&ingress, &self.tunnels, &mut self.links, scratch);
        match turn.forward_all(port) {
            Ok(()) if turn.has_coalesced() => thread::yield_now(),
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if is_down(&error) => warn!(?partition, "an uplink is down"),
            Err(_) => self.unwatch(port),
        }
    }

    /// Waits for packets of a port from now on.
    fn watch(&self, port: &SwitchPort, source: EventSource) -> io::Result<()> {
        let add = |fd| self.epoll.add(fd, event(source));
        Ok(port.wait_fd().map_or(Ok(()), add)?)
    }

    /// Stops waiting for packets of a port.
    fn unwatch(&self, port: &SwitchPort) {
        if let Some(fd) = port.wait_fd() {
            // Fails after an earlier call.
            let _ = self.epoll.delete(fd);
        }
    }
}

/// The event of a readable source.
fn event(source: EventSource) -> EpollEvent {
    EpollEvent::new(EpollFlags::EPOLLIN, source.to_data())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_switch_runs_tasks_and_ends_with_its_handle() {
        let (switch, handle) = Switch::new(mpsc::channel().0).unwrap();
        let thread = thread::spawn(|| switch.run());
        let left = handle.call(|switch| switch.detach(Partition(1), NodeId(1)).is_some());
        assert_eq!(left, Ok(false));
        drop(handle);
        thread.join().unwrap().unwrap();
    }
}
